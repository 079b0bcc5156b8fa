// SPDX-License-Identifier: BSD-3-Clause
// What all devices do with lanes and events, and what the fake one finds. The threaded one runs under TSan.
#include "sfsdp/device/device.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/device/cpu/inline_device.h"
#include "sfsdp/device/cpu/threaded_device.h"
#include "sfsdp/device/fake/conflicts.h"
#include "sfsdp/device/fake/fake_device.h"

namespace sfsdp::device::device_test {
namespace {

template <class T>
Bytes bytes_of(const T& value) {
  return {reinterpret_cast<const std::byte*>(&value), sizeof value};
}

class Act final : public Kernel {
 public:
  Act(std::string name, std::function<void(const Turn&)> act, Touched touched = {})
      : name_(std::move(name)), act_(std::move(act)), touched_(std::move(touched)) {}
  void run(const Turn& turn) override { act_(turn); }
  std::string name() const override { return name_; }
  Touched touched(const Turn& /*turn*/) const override { return touched_; }
  Spent spent() const override { return Spent::ForwardBackward; }

 private:
  std::string name_;
  std::function<void(const Turn&)> act_;
  Touched touched_;
};

struct Made {
  std::string name;
  std::unique_ptr<Device> device;
};
// The inline device, the threaded one, and the fake one under several schedules.
std::vector<Made> all_devices(size_t lanes, size_t events, std::vector<std::string>& faults) {
  std::vector<Made> devices;
  devices.push_back({"inline", make_inline_device()});
  devices.push_back({"threaded", make_threaded_device(lanes, events)});
  for (uint64_t schedule = 0; schedule < 20; ++schedule)
    devices.push_back({concat("fake ", schedule),
                       make_fake_device(lanes, events, {schedule, schedule % 2 == 1, [&](const auto& fault) {
                                                          faults.push_back(fault);
                                                        }})});
  return devices;
}

TEST_CASE("a value goes round three lanes in the order of events, captured and replayed, on all devices") {
  std::vector<std::string> faults;
  for (Made& made : all_devices(3, 3, faults)) {
    CAPTURE(made.name);
    int64_t value = 0, batch = 0, seen = 0;
    const auto step = [&](int64_t times, int64_t plus) {
      return [&value, times, plus](const Turn& turn) { value = value * times + plus + turn.micro_batch; };
    };
    const Touched own = {{bytes_of(value)}, {bytes_of(value)}};
    Act first("first", [&](const Turn&) { value += batch; }, {{bytes_of(value), bytes_of(batch)}, {bytes_of(value)}});
    Act second("second", step(3, 1), own), third("third", step(2, 5), own);
    Act last("last",
             [&](const Turn&) {
               seen = value % 1000003;
               value = seen;
             },
             {{bytes_of(value)}, {bytes_of(value), bytes_of(seen)}});
    Device& device = *made.device;
    device.set_memory({{"value", reinterpret_cast<std::byte*>(&value), sizeof value},
                       {"batch", reinterpret_cast<std::byte*>(&batch), sizeof batch},
                       {"seen", reinterpret_cast<std::byte*>(&seen), sizeof seen}});
    const size_t round = device.capture({{Command::Wait, 0, 2},
                                         {Command::Launch, 0, 0, &first},
                                         {Command::Record, 0, 0},
                                         {Command::Wait, 1, 0},
                                         {Command::Launch, 1, 0, &second},
                                         {Command::Record, 1, 1},
                                         {Command::Wait, 2, 1},
                                         {Command::Launch, 2, 0, &third},
                                         {Command::Launch, 2, 0, &last},
                                         {Command::Record, 2, 2}});
    int64_t expected = 0;
    for (int64_t k = 0; k < 300; ++k) {
      device.wait(0);  // the batch has been read
      device.upload(reinterpret_cast<std::byte*>(&batch), reinterpret_cast<const std::byte*>(&k), sizeof k);
      device.replay(round, {ir::Part::Middle, k});
      expected = (((expected + k) * 3 + 1 + k) * 2 + 5 + k) % 1000003;
      if (k % 50 == 0) {
        device.synchronize();
        CHECK(value == expected);
      }
    }
    device.synchronize();
    CHECK(seen == expected);
    if (made.name.starts_with("fake")) CHECK(sfsdp::join(faults, "\n") == "");
  }
}

TEST_CASE("a lane of the threaded device takes more commands than it has room for") {
  int64_t count = 0;
  Act add("add", [&](const Turn&) { ++count; });
  const auto device = make_threaded_device(2, 1);
  for (int i = 0; i < 50000; ++i) device->issue({Command::Launch, 1, 0, &add}, {});
  device->synchronize();
  CHECK(count == 50000);
}

TEST_CASE("an error of a lane reaches the host at its next wait, and what stands after it is not run") {
  for (const bool by_event : {false, true}) {
    int64_t count = 0;
    Act add("add", [&](const Turn&) { ++count; }),
        fail("fail", [](const Turn&) { throw std::runtime_error("no peer"); });
    const auto device = make_threaded_device(3, 1);
    device->issue({Command::Launch, 1, 0, &fail}, {});
    device->issue({Command::Launch, 1, 0, &add}, {});
    device->issue({Command::Record, 1, 0}, {});
    device->issue({Command::Wait, 2, 0}, {});
    CHECK_THROWS_WITH(by_event ? device->wait(0) : device->synchronize(), "no peer");
    CHECK(count == 0);
  }
  Act fail("fail", [](const Turn&) { throw std::runtime_error("own"); });
  for (const auto& device : {make_inline_device(), make_threaded_device(2, 0)})
    CHECK_THROWS_WITH(device->issue({Command::Launch, 0, 0, &fail}, {}), "own");
}

// ---- what the fake device finds

struct Two {
  int64_t a = 0, b = 0;
  std::vector<std::string> faults;
  std::unique_ptr<Device> device;

  explicit Two(uint64_t schedule, bool hides_memory = false)
      : device(
            make_fake_device(2, 2, {schedule, hides_memory, [this](const auto& fault) { faults.push_back(fault); }})) {
    device->set_memory(
        {{"a", reinterpret_cast<std::byte*>(&a), sizeof a}, {"b", reinterpret_cast<std::byte*>(&b), sizeof b}});
  }
  std::string said() const { return faults.empty() ? "" : faults[0]; }
};

TEST_CASE("the fake device finds a missing event under every schedule") {
  for (uint64_t schedule = 0; schedule < 30; ++schedule)
    for (const int missing : {0, 1, 2}) {
      CAPTURE(schedule);
      Two two(schedule);
      Act write("write", [&](const Turn&) { two.a = 1; }, {{}, {bytes_of(two.a)}});
      Act read("read", [&](const Turn&) { two.b = two.a; }, {{bytes_of(two.a)}, {bytes_of(two.b)}});
      for (int k = 0; k < 2; ++k) {
        if (missing != 1) two.device->issue({Command::Wait, 0, 1}, {});
        two.device->issue({Command::Launch, 0, 0, &write}, {});
        two.device->issue({Command::Record, 0, 0}, {});
        if (missing != 2) two.device->issue({Command::Wait, 1, 0}, {});
        two.device->issue({Command::Launch, 1, 0, &read}, {});
        two.device->issue({Command::Record, 1, 1}, {});
      }
      two.device->synchronize();
      CHECK(two.faults.empty() == (missing == 0));
      if (missing != 0) CHECK(two.said().find("expected an event between them") != std::string::npos);
    }
}

TEST_CASE("the fake device finds a batch that is written while a lane may read the one before") {
  for (const bool waits : {true, false}) {
    Two two(3);
    Act read("%x = embedding", [&](const Turn&) { two.b += two.a; }, {{bytes_of(two.a)}, {bytes_of(two.b)}});
    for (int64_t k = 0; k < 2; ++k) {
      if (waits) two.device->wait(0);
      two.device->upload(reinterpret_cast<std::byte*>(&two.a), reinterpret_cast<const std::byte*>(&k), sizeof k);
      two.device->issue({Command::Launch, 1, 0, &read}, {});
      two.device->issue({Command::Record, 1, 0}, {});
      if (k == 0 && !waits) two.device->wait(1);  // of nobody
    }
    two.device->synchronize();
    CHECK(two.faults.empty() == waits);
    if (waits) CHECK(two.b == 1);
  }
}

TEST_CASE("the fake device finds what a kernel touches and does not say") {
  Two reads(0, true), writes(0, true), outside(0);
  Act read("read", [&](const Turn&) { reads.b = reads.a; }, {{}, {bytes_of(reads.b)}});
  reads.device->issue({Command::Launch, 0, 0, &read}, {});
  reads.device->synchronize();
  CHECK(reads.b != 0);  // other bytes than a's
  CHECK(reads.a == 0);
  Act write("write", [&](const Turn&) { writes.a = writes.b = 7; }, {{bytes_of(writes.a)}, {bytes_of(writes.b)}});
  writes.device->issue({Command::Launch, 0, 0, &write}, {});
  writes.device->synchronize();
  CHECK(writes.said() == "write writes at a+0, of which it says nothing");
  CHECK(writes.b == 7);
  int64_t elsewhere = 0;
  Act far("far", [](const Turn&) {}, {{}, {bytes_of(elsewhere)}});
  const auto run = [&] {
    outside.device->issue({Command::Launch, 0, 0, &far}, {});
    outside.device->synchronize();
  };
  CHECK_THROWS_AS(run(), UserError);
  CHECK(outside.said() == "far writes 8 bytes outside of all memory");
}

// Against a history of each byte that knows no segments.
TEST_CASE("conflicts of random accesses are those of each byte by itself") {
  std::mt19937 random(5);
  const auto draw = [&](size_t n) { return static_cast<size_t>(random() % n); };
  size_t found = 0;
  for (int round = 0; round < 200; ++round) {
    constexpr size_t kLanes = 3, kBytes = 24;
    std::vector<std::byte> memory(kBytes + 1);
    Conflicts conflicts;
    std::vector<Clock> clocks(kLanes, Clock(kLanes));
    struct Past {
      size_t lane;
      int64_t time;
      std::string name;
      bool writes;
    };
    std::vector<std::vector<Past>> history(kBytes);
    for (int k = 0; k < 40; ++k) {
      const size_t lane = draw(kLanes), begin = draw(kBytes), size = draw(kBytes - begin + 1);
      if (draw(2) == 0) join(clocks[lane], clocks[draw(kLanes)]);
      const bool writes = draw(2) == 0;
      const Past now = {lane, ++clocks[lane][lane], concat("kernel ", k), writes};
      std::vector<std::string> expected;
      for (size_t b = begin; b < begin + size; ++b) {
        // since the last write, and that write
        for (auto past = history[b].rbegin(); past != history[b].rend(); ++past) {
          bool newest_of_lane = true;
          for (auto later = history[b].rbegin(); later != past; ++later)
            newest_of_lane &= later->writes || past->writes || later->lane != past->lane;
          if ((writes || past->writes) && newest_of_lane && past->lane != lane && clocks[lane][past->lane] < past->time)
            expected.push_back(past->name);
          if (past->writes) break;
        }
        history[b].push_back(now);
      }
      auto got = conflicts.note({memory.data() + begin, static_cast<int64_t>(size)}, writes, {lane, now.time, now.name},
                                clocks[lane]);
      std::ranges::sort(expected);
      expected.erase(std::ranges::unique(expected).begin(), expected.end());
      std::ranges::sort(got);
      CHECK(got == expected);
      found += got.size();
    }
  }
  CHECK(found > 1000);
}

}  // namespace
}  // namespace sfsdp::device::device_test
