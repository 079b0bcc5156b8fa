// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/device/fake/fake_device.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/device/fake/conflicts.h"

namespace sfsdp::device {
namespace {

// The memory that a kernel says nothing of has other bytes while it runs, and what it may only read must be the same afterwards. All bytes
// are gone through for each kernel, so eight at a time, by bits.
class Hidden {
 public:
  void reset(const Memory& memory) {
    before_.assign(memory.begin, memory.begin + memory.size);
    other_.assign(before_.size(), std::byte{0x5a});
    kept_.assign(before_.size(), std::byte{0xff});
  }
  void show(const std::vector<Bytes>& ranges, bool writes, const Memory& memory) {
    for (const Bytes& bytes : ranges) {
      const std::byte* begin = std::max<const std::byte*>(bytes.begin, memory.begin);
      const std::byte* end = std::min<const std::byte*>(bytes.begin + bytes.size, memory.begin + memory.size);
      if (begin >= end) continue;
      std::memset(other_.data() + (begin - memory.begin), 0, static_cast<size_t>(end - begin));
      if (writes) std::memset(kept_.data() + (begin - memory.begin), 0, static_cast<size_t>(end - begin));
    }
  }
  void hide(const Memory& memory) const {
    by_words([&](size_t i, auto size) {
      const uint64_t hidden = word(memory.begin + i, size) ^ word(other_.data() + i, size);
      std::memcpy(memory.begin + i, &hidden, size);
    });
  }
  // Puts all back but what it says it writes.   returns: the places of what it has changed else
  std::vector<size_t> restore(const Memory& memory) const {
    std::vector<size_t> changed;
    by_words([&](size_t i, auto size) {
      const uint64_t now = word(memory.begin + i, size), before = word(before_.data() + i, size),
                     kept = word(kept_.data() + i, size);
      const uint64_t change = (now ^ before ^ word(other_.data() + i, size)) & kept;
      for (size_t b = 0; change != 0 && b < size; ++b)
        if ((reinterpret_cast<const unsigned char*>(&change))[b] != 0) changed.push_back(i + b);
      const uint64_t put = (now & ~kept) | (before & kept);
      std::memcpy(memory.begin + i, &put, size);
    });
    return changed;
  }

 private:
  template <class See>
  void by_words(See see) const {
    constexpr std::integral_constant<size_t, sizeof(uint64_t)> kWord;
    size_t i = 0;
    for (; i + kWord <= before_.size(); i += kWord) see(i, kWord);
    if (i < before_.size()) see(i, before_.size() - i);
  }
  static uint64_t word(const std::byte* at, size_t size) {
    uint64_t bits = 0;
    std::memcpy(&bits, at, size);
    return bits;
  }

  // other_: what bits of a byte are turned while it is hidden; kept_: all of one that is not written
  std::vector<std::byte> before_, other_, kept_;
};

class FakeDevice final : public Device {
 public:
  FakeDevice(size_t lanes, size_t events, FakeOptions options)
      : options_(std::move(options)),
        host_(lanes),
        queues_(lanes),
        clocks_(lanes + 1, Clock(lanes + 1)),
        issued_(events, 0),
        happened_(events, 0),
        priority_(lanes) {
    std::iota(priority_.begin(), priority_.end(), size_t{0});
  }

  void set_memory(const std::vector<Memory>& memory) override { memory_ = memory; }
  bool looks_for_conflicts() const override { return true; }

  void issue(const Command& command, const Turn& turn) override {
    Entry entry = {command, turn, 0, clocks_[host_]};
    if (command.kind == Command::Record) entry.record = ++issued_[command.event];
    if (command.kind == Command::Wait) entry.record = issued_[command.event];
    queues_[command.lane].push_back(std::move(entry));
    if (draw(16) == 0) shuffle_priorities();
    for (size_t n = draw(8) == 0 ? draw(32) : draw(3); n > 0 && advance_one(); --n) {
    }
  }
  void wait(uint32_t event) override {
    const int64_t record = issued_[event];
    while (happened_[event] < record) advance();
    join_record(clocks_[host_], event, record);
  }
  void synchronize() override {
    while (std::ranges::any_of(queues_, [](const auto& queue) { return !queue.empty(); })) advance();
    for (size_t lane = 0; lane < host_; ++lane) join(clocks_[host_], clocks_[lane]);
    records_.clear();  // what they say, the host knows now, and with it whatever it issues
  }
  void upload(std::byte* to, const std::byte* from, int64_t bytes) override {
    ++clocks_[host_][host_];
    note({to, bytes}, true, {host_, clocks_[host_][host_], "the host's next batch"}, clocks_[host_]);
    Device::upload(to, from, bytes);
  }

 private:
  struct Entry {
    Command command;
    Turn turn;
    int64_t record = 0;
    Clock issued;  // what the host knew to be over
  };

  size_t draw(size_t n) { return philox4x32(options_.schedule, 1, drawn_++)[0] % n; }
  void shuffle_priorities() {
    for (size_t i = priority_.size(); i > 1; --i) std::swap(priority_[i - 1], priority_[draw(i)]);
  }
  void fault(const std::string& what) {
    if (options_.on_fault) options_.on_fault(what);
  }

  // ---- lanes

  bool is_ready(size_t lane) const {
    if (queues_[lane].empty()) return false;
    const Entry& next = queues_[lane].front();
    return next.command.kind != Command::Wait || happened_[next.command.event] >= next.record;
  }
  bool advance_one() {
    std::vector<size_t> ready;
    for (size_t lane = 0; lane < host_; ++lane)
      if (is_ready(lane)) ready.push_back(lane);
    if (ready.empty()) return false;
    const auto first = std::ranges::min_element(ready, {}, [&](size_t lane) { return priority_[lane]; });
    run_next(draw(4) == 0 ? ready[draw(ready.size())] : *first);
    return true;
  }
  void advance() {
    if (advance_one()) return;
    fault("no lane can go on");
    throw UserError(
        "device: no lane can go on: each waits for an event of another\n  expected edges that some order fulfils");
  }
  void run_next(size_t lane) {
    const Entry next = std::move(queues_[lane].front());
    queues_[lane].pop_front();
    Clock& clock = clocks_[lane];
    join(clock, next.issued);
    const Command& command = next.command;
    if (command.kind == Command::Wait) return join_record(clock, command.event, next.record);
    if (command.kind == Command::Record) {
      records_[{command.event, next.record}] = clock;
      happened_[command.event] = next.record;
      return;
    }
    const Touched touched = command.kernel->touched(next.turn);
    ++clock[lane];
    const Conflicts::Access access = {lane, clock[lane], command.kernel->name()};
    for (const Bytes& bytes : touched.reads) note(bytes, false, access, clock);
    for (const Bytes& bytes : touched.writes) note(bytes, true, access, clock);
    if (options_.hides_memory)
      run_hidden(*command.kernel, next.turn, touched);
    else
      command.kernel->run(next.turn);
  }
  void join_record(Clock& clock, uint32_t event, int64_t record) const {
    if (const auto found = records_.find({event, record}); found != records_.end()) join(clock, found->second);
  }

  // ---- memory

  std::string place_of(const std::byte* byte) const {
    for (const Memory& memory : memory_)
      if (byte >= memory.begin && byte < memory.begin + memory.size)
        return concat(memory.name, "+", byte - memory.begin);
    return "";
  }
  void note(const Bytes& bytes, bool writes, const Conflicts::Access& access, const Clock& clock) {
    if (bytes.size == 0) return;
    for (const std::string& other : conflicts_.note(bytes, writes, access, clock))
      fault(concat(access.name, writes ? " writes " : " reads ", bytes.size, " bytes at ", place_of(bytes.begin),
                   " while ", other, " may use them\n  expected an event between them"));
    if (!writes || (!place_of(bytes.begin).empty() && !place_of(bytes.begin + bytes.size - 1).empty())) return;
    const std::string outside = concat(access.name, " writes ", bytes.size, " bytes outside of all memory");
    fault(outside);
    throw UserError(outside);  // it would write over what is not the plan's
  }

  // Runs it while the memory that it says nothing of has other bytes.
  void run_hidden(Kernel& kernel, const Turn& turn, const Touched& touched) {
    hidden_.resize(memory_.size());
    for (size_t m = 0; m < memory_.size(); ++m) {
      hidden_[m].reset(memory_[m]);
      hidden_[m].show(touched.reads, false, memory_[m]);
      hidden_[m].show(touched.writes, true, memory_[m]);
      hidden_[m].hide(memory_[m]);
    }
    kernel.run(turn);
    for (size_t m = 0; m < memory_.size(); ++m)
      for (const size_t i : hidden_[m].restore(memory_[m]))
        fault(concat(kernel.name(), " writes at ", memory_[m].name, "+", i, ", of which it says nothing"));
  }

  const FakeOptions options_;
  const size_t host_;  // the number of its clock
  std::vector<Memory> memory_;
  std::vector<Hidden> hidden_;              // by memory
  std::vector<std::deque<Entry>> queues_;   // by lane
  std::vector<Clock> clocks_;               // by lane, then the host's
  std::vector<int64_t> issued_, happened_;  // by event, how many records
  std::map<std::pair<uint32_t, int64_t>, Clock> records_;
  Conflicts conflicts_;
  std::vector<size_t> priority_;  // by lane
  uint64_t drawn_ = 0;
};

}  // namespace

std::unique_ptr<Device> make_fake_device(size_t lanes, size_t events, FakeOptions options) {
  return std::make_unique<FakeDevice>(lanes, events, std::move(options));
}

}  // namespace sfsdp::device
