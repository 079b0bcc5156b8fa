// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/agent/rank_threads.h"

#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/base/cores.h"

namespace sfsdp::comm {
namespace rank_threads_test {

// One rank of a host that has others.
class RankOfHost final : public CommWorld {
 public:
  RankOfHost(int64_t ranks, int64_t cores) : ranks_(ranks), cores_(cores) {}
  int rank() const override { return 0; }
  int world_size() const override { return static_cast<int>(ranks_); }
  std::shared_ptr<Communicator> group(const std::string& /*name*/, const std::vector<int>& /*ranks*/) override {
    return nullptr;
  }
  void set_timeout_ms(int64_t /*timeout_ms*/) override {}
  std::string_view transport() const override { return "none"; }
  int64_t ranks_of_host() const override { return ranks_; }
  int64_t cores_of_host() const override { return cores_; }
  void abort(const std::string& /*reason*/) override {}

 private:
  int64_t ranks_, cores_;
};

// OMP_NUM_THREADS and the number of threads as they are at the end what they were.
class ThreadsOfProcess {
 public:
  ThreadsOfProcess() {
    if (const char* value = std::getenv("OMP_NUM_THREADS")) given_ = value;
    unsetenv("OMP_NUM_THREADS");
  }
  ~ThreadsOfProcess() {
    if (given_) setenv("OMP_NUM_THREADS", given_->c_str(), 1);
    at::set_num_threads(before_);
  }
  ThreadsOfProcess(const ThreadsOfProcess&) = delete;
  ThreadsOfProcess& operator=(const ThreadsOfProcess&) = delete;

 private:
  std::optional<std::string> given_;
  int before_ = at::get_num_threads();
};

TEST_CASE("threads of a rank: its share of the host's cores, none of which it may not use") {
  const ThreadsOfProcess restored;
  at::set_num_threads(7);
  CHECK(share_cores(RankOfHost(4, 2)) ==
        "4 ranks share 2 cores of this host: 1 computing on each; OMP_NUM_THREADS sets another number");
  CHECK(at::get_num_threads() == 1);
  share_cores(RankOfHost(2, 4000));
  CHECK(at::get_num_threads() == usable_cores());
}

TEST_CASE("threads of a rank: what the user has chosen, and all of a rank that is alone, stay") {
  const ThreadsOfProcess restored;
  at::set_num_threads(7);
  CHECK(share_cores(RankOfHost(1, 2)).empty());
  setenv("OMP_NUM_THREADS", "7", 1);
  CHECK(share_cores(RankOfHost(4, 2)).empty());
  unsetenv("OMP_NUM_THREADS");
  CHECK(at::get_num_threads() == 7);
}

}  // namespace rank_threads_test
}  // namespace sfsdp::comm
