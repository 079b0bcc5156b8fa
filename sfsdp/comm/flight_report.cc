// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/flight_report.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::comm {
namespace {

constexpr size_t kMostFileBytes = size_t{1} << 30;
constexpr int64_t kLateUs = 1'000'000;  // after the others: worth saying

struct Group {
  std::string name;
  std::vector<int> ranks;
  bool operator<(const Group& other) const { return std::tie(name, ranks) < std::tie(other.name, other.ranks); }
};

// What one rank did in one group; null: nothing, or it is no longer in the record.
using Sequences = std::map<uint64_t, const FlightEntry*>;

// All records of a run, by rank and group. Built once, then asked.
class Flight {
 public:
  explicit Flight(const std::vector<FlightRecord>& records) {
    for (const FlightRecord& record : records) {
      records_[record.rank] = &record;
      for (const auto& [name, ranks] : record.groups) groups_.insert({name, ranks});
      for (const FlightEntry& entry : record.entries) calls_[record.rank][entry.group][entry.sequence] = &entry;
    }
  }

  const std::map<int, const FlightRecord*>& records() const { return records_; }
  const std::set<Group>& groups() const { return groups_; }
  bool has(int rank) const { return records_.contains(rank); }

  const Sequences& calls(int rank, const std::string& group) const {
    static const Sequences kNone;
    const auto of_rank = calls_.find(rank);
    if (of_rank == calls_.end()) return kNone;
    const auto found = of_rank->second.find(group);
    return found == of_rank->second.end() ? kNone : found->second;
  }
  uint64_t entered(int rank, const std::string& group) const {
    const Sequences& all = calls(rank, group);
    return all.empty() ? 0 : all.rbegin()->first;
  }
  // The call that the rank is in, of its groups the one entered last; null if it is in none.
  const FlightEntry* current(int rank) const {
    const auto of_rank = calls_.find(rank);
    const FlightEntry* latest = nullptr;
    if (of_rank == calls_.end()) return latest;
    for (const auto& [group, unused] : of_rank->second)
      if (const FlightEntry* now = current(rank, group); now && (!latest || now->entered_us > latest->entered_us))
        latest = now;
    return latest;
  }
  // In this group.
  const FlightEntry* current(int rank, const std::string& group) const {
    const Sequences& all = calls(rank, group);
    return all.empty() || all.rbegin()->second->finished_us != 0 ? nullptr : all.rbegin()->second;
  }
  const FlightEntry* last_finished(int rank) const {
    const auto found = records_.find(rank);
    if (found == records_.end()) return nullptr;
    const auto& entries = found->second->entries;
    const auto last = std::ranges::find_if(entries.rbegin(), entries.rend(),
                                           [](const FlightEntry& entry) { return entry.finished_us != 0; });
    return last == entries.rend() ? nullptr : &*last;
  }
  const std::vector<int>& ranks_of(int rank, const std::string& group) const {
    return records_.at(rank)->groups.at(group);
  }

  // Those whom `rank` waits for in the call that it is in: who has not entered it, or says nothing.
  std::vector<int> waits_for(int rank) const {
    const FlightEntry* call = current(rank);
    std::vector<int> missing;
    if (!call || !records_.at(rank)->groups.contains(call->group)) return missing;
    for (const int peer : ranks_of(rank, call->group))
      if (peer != rank && (!has(peer) || entered(peer, call->group) < call->sequence)) missing.push_back(peer);
    return missing;
  }

 private:
  std::map<int, const FlightRecord*> records_;
  std::set<Group> groups_;
  std::map<int, std::map<std::string, Sequences>> calls_;
};

std::string call_text(const FlightEntry& entry) {
  return concat(entry.call, " over ", entry.group, ", sequence ", entry.sequence,
                entry.module_path.empty() ? "" : " at " + entry.module_path);
}

std::string seconds(int64_t us) { return with_commas(static_cast<double>(us) / 1e6, 1) + " s"; }

const char* plural(size_t count, const char* one, const char* several) { return count == 1 ? one : several; }

std::string ranks_text(const std::vector<int>& ranks) {
  return concat(plural(ranks.size(), "rank ", "ranks "), rank_list(ranks));
}

// Where a rank is that has not come.
std::string whereabouts(const Flight& flight, int rank) {
  if (!flight.has(rank)) return "it left no record: it was killed, is stopped, or its file is on another disk";
  const FlightEntry* last = flight.last_finished(rank);
  if (const FlightEntry* now = flight.current(rank)) return "it is in " + call_text(*now);
  return concat("it is in no collective, so it computes, reads data or writes a file",
                last ? "; it last finished " + call_text(*last) : "");
}

void explain_reasons(const Flight& flight, std::string& text) {
  std::map<std::string, std::vector<int>> reasons;
  for (const auto& [rank, record] : flight.records()) {
    // The rank is in front of a CommError's text: without it, those of several ranks are one.
    const std::string& why = record->reason;
    reasons[why.substr(why.starts_with("CommError on rank") ? why.find(": ") + 2 : 0)].push_back(rank);
  }
  for (const auto& [reason, ranks] : reasons) {
    const auto lines = split(reason, '\n');
    text += concat(ranks_text(ranks), ": ", lines[0], "\n");
    for (size_t i = 1; i < lines.size() && i < 4; ++i) text += lines[i] + "\n";
  }
}

// The first sequence number at which ranks of the group made different calls.
void explain_differences(const Flight& flight, const Group& group, std::string& text) {
  std::map<uint64_t, std::map<std::string, std::vector<int>>> by_sequence;
  for (const int rank : group.ranks)
    for (const auto& [sequence, entry] : flight.calls(rank, group.name))
      by_sequence[sequence][entry->call].push_back(rank);
  for (const auto& [sequence, calls] : by_sequence) {
    if (calls.size() == 1) continue;
    text += concat("\nGroup ", group.name, ": from sequence ", sequence, " on ranks make different calls\n");
    for (const auto& [call, ranks] : calls)
      text += concat("  ", ranks_text(ranks), ranks.size() == 1 ? " calls " : " call ", call, "\n");
    text += "  every rank must run the same program: compare their command lines and config files\n";
    return;
  }
}

// The call that ranks of the group are in, and who is not.
void explain_waiting(const Flight& flight, const Group& group, std::string& text) {
  uint64_t sequence = 0;
  for (const int rank : group.ranks)
    if (const FlightEntry* now = flight.current(rank, group.name)) sequence = std::max(sequence, now->sequence);
  if (sequence == 0) return;
  std::vector<int> inside, absent;
  std::vector<std::pair<int64_t, int>> entered;  // when, who
  const FlightEntry* call = nullptr;
  for (const int rank : group.ranks) {
    const Sequences& calls = flight.calls(rank, group.name);
    const auto found = calls.find(sequence);
    if (found == calls.end()) {
      if (flight.entered(rank, group.name) < sequence) absent.push_back(rank);
      continue;
    }
    call = found->second;
    inside.push_back(rank);
    entered.emplace_back(call->entered_us, rank);
  }
  text += concat("\n", call_text(*call), ", ", call->bytes, " bytes\n  ", ranks_text(inside),
                 inside.size() == 1 ? " has" : " have", " entered it\n");
  if (!absent.empty())
    text += concat("  ", ranks_text(absent), absent.size() == 1 ? " has" : " have", " not entered it\n");
  // With a few it is worth saying where each is.
  for (size_t i = 0; i < absent.size() && i < 4; ++i)
    text += concat("    rank ", absent[i], ": ", whereabouts(flight, absent[i]), "\n");
  std::ranges::sort(entered);
  const int64_t usual = entered[(entered.size() - 1) / 2].first;
  for (const auto& [when, rank] : entered)
    if (when - usual > kLateUs)
      text += concat("  rank ", rank, " entered it ", seconds(when - usual), " after the others\n");
}

// A cycle of ranks that wait for each other, found by walking from each along the first that it waits for.
std::vector<int> find_cycle(const Flight& flight) {
  for (const auto& [start, record] : flight.records()) {
    std::vector<int> path;
    int rank = start;
    while (std::ranges::find(path, rank) == path.end()) {
      path.push_back(rank);
      const auto missing = flight.waits_for(rank);
      const auto next = std::ranges::find_if(missing, [&](int peer) { return flight.current(peer) != nullptr; });
      if (next == missing.end()) break;
      rank = *next;
    }
    const auto begin = std::ranges::find(path, rank);
    if (path.end() - begin > 1 && !flight.waits_for(path.back()).empty() && rank != path.back())
      return {begin, path.end()};
  }
  return {};
}

void explain_verdict(const Flight& flight, std::string& text) {
  std::set<int> held_up, holds_up;
  for (const auto& [rank, record] : flight.records())
    for (const int peer : flight.waits_for(rank)) {
      held_up.insert(rank);
      if (flight.current(peer) == nullptr) holds_up.insert(peer);
    }
  text += "\n";
  if (const std::vector<int> cycle = find_cycle(flight); !cycle.empty()) {
    text += concat("So: ", ranks_text(cycle), " wait for each other, in different collectives:\n");
    for (const int rank : cycle) text += concat("  rank ", rank, ": ", call_text(*flight.current(rank)), "\n");
    text += "  the order of calls differs between them: compare their programs\n";
  } else if (!holds_up.empty()) {
    const std::vector<int> ranks(holds_up.begin(), holds_up.end());
    text += concat("So: ", ranks_text(ranks), ranks.size() == 1 ? " holds" : " hold", " up ", held_up.size(),
                   plural(held_up.size(), " rank", " ranks"), "; read ", ranks.size() == 1 ? "its log" : "their logs",
                   "\n");
  } else {
    text += "So: nobody waits for a rank that has not come; the reasons above are all there is\n";
  }
}

}  // namespace

std::string rank_list(std::vector<int> ranks) {
  constexpr size_t kMostPieces = 12;
  std::ranges::sort(ranks);
  std::vector<std::string> pieces;
  size_t named = 0;
  for (size_t begin = 0; begin < ranks.size() && pieces.size() < kMostPieces;) {
    size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - begin == 2) end = begin + 1;  // "3, 4" reads better than "3-4"
    pieces.push_back(end - begin == 1 ? std::to_string(ranks[begin]) : concat(ranks[begin], "-", ranks[end - 1]));
    named += end - begin;
    begin = end;
  }
  return join(pieces, ", ") + (named < ranks.size() ? concat(" and ", ranks.size() - named, " more") : "");
}

std::vector<FlightRecord> read_flight_records(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> paths;
  for (const auto& file : std::filesystem::directory_iterator(folder, error)) {
    const std::string stem = file.path().stem().string();
    if (file.path().extension() == ".json" && !stem.empty() && std::isdigit(static_cast<unsigned char>(stem.back())))
      paths.push_back(file.path().string());
  }
  if (paths.empty())
    throw UserError(concat(
        folder, ": no flight record", error ? ": " + error.message() : "",
        "\n  expected rank_0.json, rank_1.json, …, as ranks write them to outputs/comm_traces when a run fails"));
  std::ranges::sort(paths);
  std::vector<FlightRecord> records;
  for (const std::string& path : paths) {
    records.push_back(parse_flight_record(read_text_file(path, kMostFileBytes), path));
    for (size_t i = 0; i + 1 < records.size(); ++i)
      if (records[i].rank == records.back().rank)
        throw UserError(concat(path, ": rank ", records.back().rank, " has another file, ", paths[i],
                               "\n  expected the records of one run; give each run a folder of its own"));
  }
  return records;
}

std::string explain_flight(const std::vector<FlightRecord>& records) {
  SFSDP_CHECK(!records.empty(), "no record");
  const Flight flight(records);
  std::vector<int> silent;
  for (int rank = 0; rank < records[0].world_size; ++rank)
    if (!flight.has(rank)) silent.push_back(rank);
  std::string text = concat("Flight records of ", records.size(), " of ", records[0].world_size, " ranks\n");
  if (!silent.empty()) text += concat(ranks_text(silent), " left none\n");
  explain_reasons(flight, text);
  for (const Group& group : flight.groups()) {
    explain_differences(flight, group, text);
    explain_waiting(flight, group, text);
  }
  explain_verdict(flight, text);
  return text;
}

}  // namespace sfsdp::comm
