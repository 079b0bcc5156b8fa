// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/flight_recorder.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::comm {
namespace {

int64_t now_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

// Members of a record's object, checked one by one.
class ObjectReader {
 public:
  ObjectReader(const JsonValue& object, const std::string& file) : object_(object), file_(file) {}
  std::string text(const char* key) const {
    const auto* value = member(key).as<std::string>();
    return value ? *value : refuse(key, "a text");
  }
  int64_t number(const char* key, int64_t low, int64_t high = std::numeric_limits<int64_t>::max()) const {
    const auto* value = member(key).as<uint64_t>();
    if (!value || *value > static_cast<uint64_t>(high) || static_cast<int64_t>(*value) < low)
      refuse(key, concat("a whole number from ", low));
    return static_cast<int64_t>(*value);
  }
  const JsonObject& object(const char* key) const {
    const auto* value = member(key).as<JsonObject>();
    if (!value) refuse(key, "an object");
    return *value;
  }
  const JsonArray& list(const char* key) const {
    const auto* value = member(key).as<JsonArray>();
    if (!value) refuse(key, "a list");
    return *value;
  }

 private:
  const JsonValue& member(const char* key) const {
    const JsonValue* value = object_.find(key);
    if (!value) refuse(key, "it to be there");
    return *value;
  }
  [[noreturn]] std::string refuse(const char* key, const std::string& expected) const {
    const JsonValue* value = object_.find(key);
    throw UserError(concat(file_, ": ", key, " = ", value ? describe(*value) : "nothing", "\n  expected ", expected,
                           ": a flight record, as a rank of sfsdp writes it"));
  }
  const JsonValue& object_;
  const std::string& file_;
};

}  // namespace

void FlightRecorder::enter(const CallSite& site, const Call& call, uint64_t sequence) {
  const WordsView words = {site.group, call.text(), call.info().module_path, call.bytes()};
  const std::lock_guard lock(mutex_);
  if (capacity_ == 0) return;
  groups_.try_emplace(site.group, site.ranks);
  auto found = uses_.find(words);
  if (found == uses_.end())
    found = uses_.try_emplace({site.group, call.text(), call.info().module_path, call.bytes()}, 0).first;
  const Entry entry = {found, sequence, now_us(), 0};
  ++entry.words->second;
  const size_t place = calls_++ % capacity_;
  if (place == ring_.size()) {
    ring_.push_back(entry);
    return;
  }
  const Uses::iterator old = std::exchange(ring_[place], entry).words;
  if (--old->second == 0) uses_.erase(old);
}

void FlightRecorder::finish(const CallSite& site, uint64_t sequence) {
  const int64_t now = now_us();
  const std::lock_guard lock(mutex_);
  if (ring_.empty()) return;
  // Calls of a group follow each other, so it is the group's last one; other groups may have begun calls since.
  for (uint64_t i = calls_; i > calls_ - ring_.size(); --i) {
    Entry& entry = ring_[(i - 1) % capacity_];
    if (entry.words->first.group != site.group) continue;
    if (entry.sequence == sequence) entry.finished_us = now;
    return;
  }
}

FlightRecord FlightRecorder::record(int rank, int world_size, const std::string& reason) const {
  const std::lock_guard lock(mutex_);
  FlightRecord record = {rank, world_size, reason, calls_, groups_, {}};
  const uint64_t first = calls_ - ring_.size();
  for (uint64_t i = first; i < calls_; ++i) {
    const Entry& e = ring_[i % capacity_];
    const Words& words = e.words->first;
    record.entries.push_back(
        {words.group, e.sequence, words.call, words.module_path, words.bytes, e.entered_us, e.finished_us});
  }
  return record;
}

std::string to_json(const FlightRecord& record) {
  std::string text =
      concat("{\"rank\": ", record.rank, ", \"world_size\": ", record.world_size,
             ", \"reason\": ", json_quoted(record.reason), ", \"calls\": ", record.calls, ", \"groups\": {");
  const char* separator = "";
  for (const auto& [name, ranks] : record.groups) {
    std::vector<std::string> numbers;
    for (const int rank : ranks) numbers.push_back(std::to_string(rank));
    text += concat(separator, json_quoted(name), ": [", join(numbers, ", "), "]");
    separator = ", ";
  }
  text += "}, \"entries\": [";
  separator = "\n";
  for (const FlightEntry& e : record.entries) {
    text +=
        concat(separator, "{\"group\": ", json_quoted(e.group), ", \"sequence\": ", e.sequence,
               ", \"call\": ", json_quoted(e.call), ", \"module_path\": ", json_quoted(e.module_path),
               ", \"bytes\": ", e.bytes, ", \"entered_us\": ", e.entered_us, ", \"finished_us\": ", e.finished_us, "}");
    separator = ",\n";
  }
  return text + "\n]}\n";
}

void write_flight_record(const std::string& path, const FlightRecord& record) {
  const std::filesystem::path target(path), beside(path + ".part");
  std::error_code error;
  if (target.has_parent_path()) std::filesystem::create_directories(target.parent_path(), error);
  std::ofstream out(beside);
  out << to_json(record) << std::flush;
  const bool written = out.good();
  if (written) std::filesystem::rename(beside, target, error);
  if (!written || error)
    throw std::runtime_error(concat(path, ": cannot be written", error ? ": " + error.message() : ""));
}

FlightRecord parse_flight_record(const std::string& text, const std::string& name) {
  const JsonValue root = parse_json(text, name);
  const ObjectReader reader(root, name);
  FlightRecord record;
  record.world_size = static_cast<int>(reader.number("world_size", 1, 1 << 20));
  record.rank = static_cast<int>(reader.number("rank", 0, record.world_size - 1));
  record.reason = reader.text("reason");
  record.calls = static_cast<uint64_t>(reader.number("calls", 0));
  for (const auto& [group, ranks] : reader.object("groups")) {
    const auto* list = ranks.as<JsonArray>();
    if (!list) continue;
    for (const JsonValue& value : *list) {
      const auto* rank = value.as<uint64_t>();
      if (rank && *rank < static_cast<uint64_t>(record.world_size))
        record.groups[group].push_back(static_cast<int>(*rank));
    }
  }
  for (const JsonValue& value : reader.list("entries")) {
    const ObjectReader entry(value, name);
    record.entries.push_back({entry.text("group"), static_cast<uint64_t>(entry.number("sequence", 1)),
                              entry.text("call"), entry.text("module_path"), entry.number("bytes", 0),
                              entry.number("entered_us", 0), entry.number("finished_us", 0)});
  }
  return record;
}

}  // namespace sfsdp::comm
