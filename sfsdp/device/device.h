// SPDX-License-Identifier: BSD-3-Clause
// A device as an executor sees it: lanes that each run their kernels in order, beside each other, and events, by which they wait for
// each other. All calls come from one thread, the host, and none but those that say so waits for a lane. Torch-free.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sfsdp/base/lap_clock.h"
#include "sfsdp/ir/part.h"

namespace sfsdp::device {

// Bytes of memory side by side.
struct Bytes {
  const std::byte* begin = nullptr;
  int64_t size = 0;
};

struct Memory {
  std::string name;  // "window"
  std::byte* begin = nullptr;
  int64_t size = 0;
};

// What a kernel does with memory that others see.
struct Touched {
  std::vector<Bytes> reads, writes;
};

// Which run of a kernel within a step.
struct Turn {
  ir::Part part = ir::Part::Head;
  int64_t micro_batch = 0;
};

// What the time of the host's thread went to: what it ran, or what it waited for.
enum class Spent : uint8_t { ForwardBackward, Update, Communication };
inline constexpr size_t kKindsOfTime = 3;

// What a lane runs, with all of its arguments: made once, launched in each step.
class Kernel {
 public:
  virtual ~Kernel() = default;
  // On the CPU. An error of it reaches the host (Device).
  virtual void run(const Turn& turn) = 0;
  // For messages: the op that it begins with, "%x = linear".
  virtual std::string name() const = 0;
  // Asked by devices that look for conflicts.
  virtual Touched touched(const Turn& turn) const = 0;
  virtual Spent spent() const = 0;
};

// What the host asks of a lane. Events are numbers from 0.
struct Command {
  enum Kind : uint8_t {
    Launch,
    Record,  // the event happens once the lane has come here
    Wait,    // until the event's latest Record before this command has happened; no Record yet: not at all
  } kind = Launch;
  uint32_t lane = 0;
  uint32_t event = 0;        // of Record and Wait
  Kernel* kernel = nullptr;  // of Launch; must outlive the device
};

// An error of a kernel is thrown by the next call that waits, or by the call itself where it runs the kernel; the device is of no
// use after it.
class Device {
 public:
  virtual ~Device() = default;

  virtual void issue(const Command& command, const Turn& turn) = 0;
  // Commands that are issued together, again and again: a device may make one of them all. Returns their number.
  size_t capture(std::vector<Command> commands);
  virtual void replay(size_t number, const Turn& turn);
  // The host waits for the event's latest Record.
  virtual void wait(uint32_t event) = 0;
  // The host waits for all lanes.
  virtual void synchronize() = 0;
  // The host writes memory that no lane uses meanwhile. By itself: memory of the host's.
  virtual void upload(std::byte* to, const std::byte* from, int64_t bytes);
  // All memory that kernels write and others see; said once, before the first command.
  virtual void set_memory(const std::vector<Memory>& /*memory*/) {}
  // Whether Kernel::touched is asked.
  virtual bool looks_for_conflicts() const { return false; }

  // Begins anew to count the host's time.
  void restart_clock() { clock_ = {}; }
  // Since then, by Spent.
  std::array<double, kKindsOfTime> seconds() { return clock_.seconds(); }

 protected:
  // A device that makes no more of captured commands than the sum of them.
  const std::vector<Command>& captured(size_t number) const { return captured_[number]; }
  void spend(Spent on) { clock_.switch_to(static_cast<size_t>(on)); }

 private:
  std::vector<std::vector<Command>> captured_;
  LapClock<kKindsOfTime> clock_;
};

// Makes a device for one plan on one rank.
//   lanes: 0 computes, the others communicate
using MakeDevice = std::function<std::unique_ptr<Device>(size_t lanes, size_t events)>;

}  // namespace sfsdp::device
