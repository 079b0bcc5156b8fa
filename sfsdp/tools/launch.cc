// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/launch.h"

#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <ostream>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/cores.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/exit_code.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/comm/progress_page.h"
#include "sfsdp/comm/tcp/job_token.h"
#include "sfsdp/tools/launch_group.h"
#include "sfsdp/train/progress_line.h"

namespace sfsdp::tools {
namespace {

constexpr int64_t kMaxRestarts = 1'000'000;
constexpr int kCannotRun = 127;
// A failure that repeats at one step is in the program or its data. Two may be chance: a machine that loses ranks at random
// may do so twice before the first step.
constexpr int kMostAtOnePlace = 3;

// throws: UserError
LaunchRequest read_request(const Request& given) {
  LaunchRequest request;
  if (!given.has("n")) throw UserError("-n is missing\n  expected -n N, the number of ranks");
  request.ranks = number_of("-n", given.get("n"), 1, kMaxRanks);
  if (given.has("master-port")) request.master_port = number_of("--master-port", given.get("master-port"), 1, 65535);
  request.executable = given.get("exec", request.executable);
  if (given.has("max-restarts"))
    request.max_restarts = number_of("--max-restarts", given.get("max-restarts"), 0, kMaxRestarts);
  if (given.has("grace"))
    request.grace = std::chrono::seconds(number_of("--grace", given.get("grace"), 0, int64_t{24} * 3600));
  if (given.has("log-rank"))
    for (const std::string& rank : split(given.get("log-rank"), ','))
      request.log_ranks.push_back(number_of("--log-rank", rank, 0, request.ranks - 1));
  std::ranges::sort(request.log_ranks);
  request.log_ranks.erase(std::unique(request.log_ranks.begin(), request.log_ranks.end()), request.log_ranks.end());
  if (!given.own.rest)
    throw UserError("no -- and nothing after it\n  expected what the ranks run, as in: sfsdp launch -n 2 -- train");
  request.args = *given.own.rest;
  return request;
}

// Nothing holds it until rank 0 listens; as the kernel hands such ports out in turn, nobody else gets it soon.
int64_t free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const bool ok = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  if (fd >= 0) close(fd);
  if (!ok) throw launch_error("no free port", "try --master-port");
  return ntohs(address.sin_port);
}

using Variables = std::map<std::string, std::string>;

// This process's environment and what torchrun adds to it, for one rank; `own`: what differs from group to group.
std::vector<std::string> environment(const LaunchRequest& request, int64_t rank, const Variables& own) {
  Variables variables;
  for (char** variable = environ; *variable; ++variable) {
    const std::string text = *variable;
    const size_t end = text.find('=');
    if (end != std::string::npos) variables[text.substr(0, end)] = text.substr(end + 1);
  }
  for (const char* name : {"RANK", "LOCAL_RANK", "ROLE_RANK"}) variables[name] = std::to_string(rank);
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"})
    variables[name] = std::to_string(request.ranks);
  variables["GROUP_RANK"] = "0";
  variables["GROUP_WORLD_SIZE"] = "1";
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(request.max_restarts);
  for (const auto& [name, value] : own) variables[name] = value;
  // Ranks write to pipes. The one whose output is shown may treat it as the terminal that it ends up on.
  const bool alone = request.ranks == 1 || request.log_ranks == std::vector{rank};
  variables.erase("SFSDP_TERMINAL_COLUMNS");
  if (alone && train::is_live_terminal(STDOUT_FILENO))
    variables["SFSDP_TERMINAL_COLUMNS"] = std::to_string(train::terminal_columns(STDOUT_FILENO));
  variables.erase(comm::JobToken::kVariable);  // of another run, if there is one
  variables.try_emplace("OMP_NUM_THREADS", std::to_string(share_of_cores(usable_cores(), request.ranks)));
  std::vector<std::string> lines;
  for (const auto& [name, value] : variables) lines.push_back(concat(name, "=", value));
  return lines;
}

// No other launch has it, on any host, even where each is process 1 of its container. One that is given makes several
// launches one job, such as all starts of a batch job.
std::string run_id() {
  if (const char* given = std::getenv("TORCHELASTIC_RUN_ID"); given && *given) return given;
  return "launch-" + comm::JobToken::fresh().hex().substr(0, 16);
}

// A job token in memory that the ranks inherit: neither their environment nor a file shows it.
class TokenFile {
 public:
  TokenFile() : fd_(memfd_create("sfsdp-token", MFD_CLOEXEC)) {
    std::string digits = comm::JobToken::fresh().hex();
    const bool written = fd_ >= 0 && write(fd_, digits.data(), digits.size()) == static_cast<ssize_t>(digits.size());
    explicit_bzero(digits.data(), digits.size());
    if (!written) throw launch_error("no memory file for the job token", "raise ulimit -n");
  }
  ~TokenFile() { close(fd_); }
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

// Ends as soon as the ranks have, restarts the group as often as it may and as it helps.
class Launcher {
 public:
  Launcher(LaunchRequest request, std::ostream& out, std::ostream& err)
      : request_(std::move(request)), out_(out), err_(err) {}

  int run() {
    for (int64_t restart = 0;; ++restart) {
      const GroupEnd end = run_group(restart);
      if (end.kind == GroupEnd::Kind::Stopped)
        err_ << "launch: all ranks have stopped and saved, exit code " << end.code << "\n";
      if (end.kind != GroupEnd::Kind::Failed || !may_restart(end, restart)) return end.code;
      if (const int signal = asked_to_stop()) return 128 + signal;
      err_ << "launch: restart " << restart + 1 << " of " << request_.max_restarts << ", as " << end.cause << "\n";
      err_.flush();
    }
  }

 private:
  GroupEnd run_group(int64_t restart) {
    const comm::ProgressPage page = comm::ProgressPage::make();
    const TokenFile token;  // a new one for each group: ranks that a failure has left over cannot join the next
    const int64_t port = request_.master_port == 0 ? free_port() : request_.master_port;
    const auto variables = [&](int64_t rank) {
      return environment(request_, rank,
                         {{"MASTER_PORT", std::to_string(port)},
                          {"TORCHELASTIC_RUN_ID", run_id_},
                          {"TORCHELASTIC_RESTART_COUNT", std::to_string(restart)},
                          {comm::ProgressPage::kVariable, std::to_string(page.fd())},
                          {comm::JobToken::kFdVariable, std::to_string(token.fd())}});
    };
    RankGroup group(request_, variables, {page.fd(), token.fd()}, signals_, out_, err_);
    const GroupEnd end = group.run();
    if (page.steps() == steps_ && end.kind == GroupEnd::Kind::Failed)
      ++same_place_;
    else
      same_place_ = 1;
    steps_ = page.steps();
    return end;
  }

  bool may_restart(const GroupEnd& end, int64_t restart) {
    if (request_.max_restarts == 0 || end.signalled) return false;
    if (end.code == kExitUserError || end.code == kCannotRun) {
      err_ << "launch: no restart, as it would fail again\n";
      return false;
    }
    if (restart == request_.max_restarts) {
      err_ << "launch: no restart is left of " << request_.max_restarts << "\n";
      return false;
    }
    if (steps_ != comm::ProgressPage::kNoReader && same_place_ == kMostAtOnePlace) {
      err_ << "launch: no restart, as it failed " << same_place_ << " times in a row "
           << (steps_ < 0 ? "before its first step" : concat("after step ", steps_)) << "\n";
      return false;
    }
    return true;
  }

  int asked_to_stop() {
    while (const int signal = signals_.next())
      if (signal != SIGCHLD) return signal;
    return 0;
  }

  LaunchRequest request_;
  const std::string run_id_ = run_id();  // of all its groups
  std::ostream& out_;
  std::ostream& err_;
  SignalPipe signals_;
  int64_t steps_ = comm::ProgressPage::kNoReader;  // done by the last group
  int same_place_ = 0;                             // groups in a row that failed after as many steps
};

}  // namespace

int run_launch(const Request& request, std::ostream& out, std::ostream& err) {
  return Launcher(read_request(request), out, err).run();
}

}  // namespace sfsdp::tools
