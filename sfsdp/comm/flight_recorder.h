// SPDX-License-Identifier: BSD-3-Clause
// The last collectives of a rank, kept in memory and written to a file when the run fails: which one each rank is in tells
// why all wait. `sfsdp doctor --flight DIR` reads these files (flight_report.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "sfsdp/comm/call.h"

namespace sfsdp::comm {

struct FlightEntry {
  std::string group;
  uint64_t sequence = 0;  // in the group, from 1
  std::string call;       // "all_gather %layers.0.ag of 4096 bytes", as the order check compares it
  std::string module_path;
  int64_t bytes = 0;
  int64_t entered_us = 0;   // since the epoch
  int64_t finished_us = 0;  // 0: not yet
};

// What one file holds.
struct FlightRecord {
  int rank = 0;
  int world_size = 1;
  std::string reason;                              // why it was written: an error's text, a signal
  uint64_t calls = 0;                              // of the run; the oldest are not among the entries
  std::map<std::string, std::vector<int>> groups;  // by name: their ranks, in group order
  std::vector<FlightEntry> entries;                // oldest first
};

// Thread-safe. A call costs some 0.5 µs, and 40 bytes: a run makes the same calls over and over, so each text is kept once.
// Texts per entry would lie all over the heap and pin its pages: 20,000 entries cost 75 MB beside a model's temporaries.
class FlightRecorder {
 public:
  explicit FlightRecorder(size_t capacity) : capacity_(capacity) { ring_.reserve(capacity); }

  void enter(const CallSite& site, const Call& call, uint64_t sequence);
  void finish(const CallSite& site, uint64_t sequence);
  FlightRecord record(int rank, int world_size, const std::string& reason) const;

 private:
  struct Words {
    std::string group, call, module_path;
    int64_t bytes = 0;
  };
  // The same of a call that is made, whose texts need no copy to be found.
  struct WordsView {
    std::string_view group, call, module_path;
    int64_t bytes = 0;
  };
  struct Less {
    using is_transparent = void;
    template <class A, class B>
    bool operator()(const A& a, const B& b) const {
      return key(a) < key(b);
    }
    template <class W>
    static auto key(const W& w) {
      return std::tuple(std::string_view(w.group), std::string_view(w.call), std::string_view(w.module_path), w.bytes);
    }
  };
  using Uses = std::map<Words, size_t, Less>;  // how many entries have these words
  struct Entry {
    Uses::iterator words;
    uint64_t sequence = 0;
    int64_t entered_us = 0, finished_us = 0;
  };

  mutable std::mutex mutex_;
  size_t capacity_;
  std::map<std::string, std::vector<int>> groups_;
  Uses uses_;
  std::vector<Entry> ring_;
  uint64_t calls_ = 0;
};

// A JSON object; read_flight_record reads it back.
std::string to_json(const FlightRecord& record);
// Writes to a file beside `path` and renames it, so that no half file is found. Makes the folder.
//   throws: std::runtime_error naming the file and the system's reason
void write_flight_record(const std::string& path, const FlightRecord& record);
//   name: of the file, for messages.   throws: UserError naming what is wrong in which file
FlightRecord parse_flight_record(const std::string& text, const std::string& name);

}  // namespace sfsdp::comm
