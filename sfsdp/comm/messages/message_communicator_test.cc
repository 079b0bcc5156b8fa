// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/messages/message_communicator.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/testing/comm_suite.h"

namespace sfsdp::comm::message_communicator_test {
namespace {

class MapStore final : public Store {
 public:
  void set(const std::string& key, const std::string& value, Patience /*patience*/) override { values[key] = value; }
  std::string set_first(const std::string& key, const std::string& value, Patience /*patience*/) override {
    return values.try_emplace(key, value).first->second;
  }
  std::optional<Value> get(const std::string& key) override {
    const auto found = values.find(key);
    return found == values.end() ? std::nullopt : std::optional(Value{found->second, 0});
  }
  void interrupt() override {}

  std::map<std::string, std::string> values;
};

// What messages have seen.
struct Seen {
  std::vector<uint64_t> orders;
  std::optional<TransferError> fault;  // of the next wait
  bool is_dropped = false, was_told = false;
};

// The other rank of two does what this one does.
class Mirror final : public Messages {
 public:
  Mirror(Seen& seen, const MapStore& store) : seen_(seen), store_(store) {}
  void set_order(uint64_t order) override { seen_.orders.push_back(order); }
  void send(std::span<const std::byte> data, int /*peer*/) override { sent_.push_back(data); }
  void receive(std::span<std::byte> data, int /*peer*/) override { places_.push_back(data); }
  void wait(std::chrono::milliseconds /*silence*/, const Look& /*look*/) override {
    if (seen_.fault) throw TransferError(*seen_.fault);
    for (size_t i = 0; i < sent_.size(); ++i) copy(sent_[i], places_[i]);
    sent_.clear();
    places_.clear();
  }
  bool drop() override {
    seen_.is_dropped = true;
    seen_.was_told = store_.values.contains("failed/pair");
    return true;
  }
  void abort() override {}

 private:
  Seen& seen_;
  const MapStore& store_;
  std::vector<std::span<const std::byte>> sent_;
  std::vector<std::span<std::byte>> places_;
};

// Rank 0 of two.
struct Pair {
  Seen seen;
  std::shared_ptr<MapStore> store = std::make_shared<MapStore>();
  MessageCommunicator group{CallSite{"dp_shard", {0, 1}, 0, 2},
                            std::make_unique<Mirror>(seen, *store),
                            Observer{nullptr, nullptr, std::make_shared<Progress>(), "pair"},
                            store,
                            std::make_shared<Timeout>(60'000),
                            nullptr};
};

TEST_CASE("messages: who has made another call at any time is in another order ever after") {
  const auto orders_of = [](const std::vector<std::string>& names) {
    Pair pair;
    for (const std::string& name : names) pair.group.barrier({name, ""});
    return pair.seen.orders;
  };
  const auto plain = orders_of({"%a", "%b", "%a", "%c"});
  REQUIRE(plain.size() == 4);
  CHECK(orders_of({"%a", "%b", "%a", "%c"}) == plain);
  for (const auto& names :
       {std::vector<std::string>{"%x", "%b", "%a", "%c"}, {"%b", "%a", "%a", "%c"}, {"%a", "%b", "%c", "%a"}}) {
    const auto other = orders_of(names);
    CHECK(other.back() != plain.back());
  }
  CHECK(orders_of({"%x", "%b"})[1] != plain[1]);
}

TEST_CASE(
    "messages: a message of another call is told with both calls, before anything is waited for that is on its way") {
  Pair pair;
  pair.store->values["call/pair/1"] = "barrier %b";
  pair.seen.fault = TransferError{1, "its message is of another call", false, true};
  const std::string error = testing::comm_error_of([&] { pair.group.barrier({"%a", ""}); });
  CHECK(error ==
        "CommError on rank 0 of 2: barrier %a over dp_shard, sequence 1, 0 bytes\n  ranks disagree: rank 0 calls "
        "barrier %a, rank 1 "
        "calls barrier %b; every rank must run the same program: compare their command lines and config files");
  CHECK(pair.store->values.at("call/pair/0") == "barrier %a");
  CHECK(pair.seen.is_dropped);
  CHECK(pair.seen.was_told);
}

TEST_CASE("messages: ranks that make one call and have made others before are told so") {
  Pair pair;
  pair.store->values["call/pair/1"] = "barrier %a";
  pair.seen.fault = TransferError{1, "its message is of another call", false, true};
  const std::string error = testing::comm_error_of([&] { pair.group.barrier({"%a", ""}); });
  CHECK(error.find("ranks disagree: rank 0 and rank 1 have made other calls before this one; ") != std::string::npos);
}

}  // namespace
}  // namespace sfsdp::comm::message_communicator_test
