// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/device/cpu/threaded_device.h"

#include <pthread.h>

#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#include "sfsdp/base/check.h"

namespace sfsdp::device {
namespace {

// What a lane does next, and which of the event's records it waits for.
struct Entry {
  Command command;
  Turn turn;
  uint32_t record = 0;
};

// How often events have happened: written by their lane, read by all.
class Events {
 public:
  explicit Events(size_t count) : happened_(count) {}
  void record(uint32_t event, uint32_t number) {
    happened_[event].store(number, std::memory_order_release);
    happened_[event].notify_all();
  }
  bool has_happened(uint32_t event, uint32_t number) const {
    return static_cast<int32_t>(happened_[event].load(std::memory_order_acquire) - number) >= 0;
  }
  void wait(uint32_t event, uint32_t number) const {
    while (true) {
      const uint32_t seen = happened_[event].load(std::memory_order_acquire);
      if (static_cast<int32_t>(seen - number) >= 0) return;
      happened_[event].wait(seen, std::memory_order_acquire);
    }
  }

 private:
  std::vector<std::atomic<uint32_t>> happened_;
};

// A thread that does what it is given, in order. After an error it launches nothing more, and its events happen all the same, so
// that nobody waits for ever.
class LaneThread {
 public:
  LaneThread(Events& events, size_t lane) : events_(events), entries_(kEntries) {
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), concat("sfsdp lane ", lane).c_str());
  }
  ~LaneThread() {
    put({});
    thread_.join();
  }
  LaneThread(const LaneThread&) = delete;
  LaneThread& operator=(const LaneThread&) = delete;

  void put(const Entry& entry) {
    const uint32_t end = end_.load(std::memory_order_relaxed);
    for (uint32_t begin = begin_.load(std::memory_order_acquire); end - begin == kEntries;
         begin = begin_.load(std::memory_order_acquire))
      begin_.wait(begin, std::memory_order_acquire);
    entries_[end % kEntries] = entry;
    end_.store(end + 1, std::memory_order_release);
    end_.notify_one();
  }
  void drain() const {
    const uint32_t end = end_.load(std::memory_order_relaxed);
    for (uint32_t begin = begin_.load(std::memory_order_acquire); begin != end;
         begin = begin_.load(std::memory_order_acquire))
      begin_.wait(begin, std::memory_order_acquire);
  }
  // The error of the thread, after which the lane is of no use.
  void rethrow() const {
    if (failed_.load(std::memory_order_acquire)) std::rethrow_exception(error_);
  }

 private:
  static constexpr uint32_t kEntries = 4096;

  void run() {
    for (uint32_t begin = 0;; ++begin) {
      while (end_.load(std::memory_order_acquire) == begin) end_.wait(begin, std::memory_order_acquire);
      const Entry entry = entries_[begin % kEntries];
      const bool is_last = entry.command.kind == Command::Launch && !entry.command.kernel;
      if (!is_last) run(entry);
      begin_.store(begin + 1, std::memory_order_release);
      begin_.notify_all();
      if (is_last) return;
    }
  }
  void run(const Entry& entry) {
    const Command& command = entry.command;
    if (command.kind == Command::Record) return events_.record(command.event, entry.record);
    if (command.kind == Command::Wait) return events_.wait(command.event, entry.record);
    if (failed_.load(std::memory_order_relaxed)) return;
    try {
      command.kernel->run(entry.turn);
    } catch (...) {
      error_ = std::current_exception();
      failed_.store(true, std::memory_order_release);
    }
  }

  Events& events_;
  std::vector<Entry> entries_;                 // a ring
  std::atomic<uint32_t> begin_ = 0, end_ = 0;  // of what is in it
  std::exception_ptr error_;
  std::atomic<bool> failed_ = false;
  std::thread thread_;
};

// What a lane waits for has been issued before, and what the compute lane is to do is over once it is issued: whatever error the host
// leaves by, no thread waits for ever.
class ThreadedDevice final : public Device {
 public:
  ThreadedDevice(size_t lanes, size_t events) : events_(events), issued_(events, 0) {
    for (size_t lane = 1; lane < lanes; ++lane) threads_.push_back(std::make_unique<LaneThread>(events_, lane));
  }

  void issue(const Command& command, const Turn& turn) override {
    Entry entry = {command, turn};
    if (command.kind == Command::Record) entry.record = ++issued_[command.event];
    if (command.kind == Command::Wait) entry.record = issued_[command.event];
    if (command.lane != 0) return threads_[command.lane - 1]->put(entry);
    if (command.kind == Command::Record) return events_.record(command.event, entry.record);
    if (command.kind == Command::Wait) return wait_for(command.event, entry.record);
    spend(command.kernel->spent());
    command.kernel->run(turn);
  }
  void wait(uint32_t event) override { wait_for(event, issued_[event]); }
  void synchronize() override {
    spend(Spent::Communication);
    for (const auto& thread : threads_) thread->drain();
    for (const auto& thread : threads_) thread->rethrow();
  }

 private:
  void wait_for(uint32_t event, uint32_t record) {
    if (!events_.has_happened(event, record)) {
      spend(Spent::Communication);
      events_.wait(event, record);
    }
    for (const auto& thread : threads_) thread->rethrow();
  }

  Events events_;
  std::vector<uint32_t> issued_;                      // by event, how many records
  std::vector<std::unique_ptr<LaneThread>> threads_;  // by lane from 1
};

}  // namespace

std::unique_ptr<Device> make_threaded_device(size_t lanes, size_t events) {
  return std::make_unique<ThreadedDevice>(lanes, events);
}

}  // namespace sfsdp::device
