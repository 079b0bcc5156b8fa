// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/messages/watch.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kBeat(1000);
// Three beats missed: a machine out of breath may swallow two.
constexpr int64_t kSilentMs = 3500;
// A rank that has left has told all it has done before, or a beat later.
constexpr int64_t kLeftMs = 1500;
constexpr const char* kHasLeft = "it has closed its communicators";

// What a rank has told: "<entered> <finished> <group>\n..."
struct Told {
  bool ever = false;
  int64_t age_ms = 0;
  uint64_t entered = 0;
  uint64_t finished = 0;

  bool is_silent() const { return ever && age_ms > kSilentMs; }
};

Told read_told(Store& store, int rank, const std::string& group) {
  const auto value = store.get(progress_key(rank));
  if (!value) return {};
  Told told = {true, value->age_ms, 0, 0};
  std::istringstream lines(value->text);
  uint64_t entered = 0, finished = 0;
  std::string name;
  while (lines >> entered >> finished && std::getline(lines >> std::ws, name))
    if (name == group) {
      told.entered = entered;
      told.finished = finished;
    }
  return told;
}

std::string get(Store& store, const std::string& key) {
  const auto value = store.get(key);
  return value ? value->text : "";
}

// The first cause that a rank of the group tells becomes that of all.
FoundCause agree(Store& store, const Wait& wait, const std::string& cause) {
  return {FoundCause::Kind::Failed, store.set_first("failed/" + wait.group, cause)};
}

std::optional<FoundCause> told_by_others(Store& store, const Wait& wait) {
  if (std::string aborted = get(store, "aborted"); !aborted.empty())
    return FoundCause{FoundCause::Kind::Aborted, std::move(aborted)};
  if (std::string failed = get(store, "failed/" + wait.group); !failed.empty())
    return FoundCause{FoundCause::Kind::Failed, std::move(failed)};
  return std::nullopt;
}

std::string lost_text(Store& store, const Wait& wait, int rank, const std::string& why) {
  const Told told = read_told(store, rank, wait.group);
  return silence_text({{rank, told.finished}}, 1, 0, wait.waited_ms, why);
}

// A rank of the world whose process has ended without a goodbye.
std::optional<FoundCause> lost(Store& store, const Wait& wait) {
  const std::string rank = get(store, "lost");
  if (rank.empty()) return std::nullopt;
  return agree(store, wait,
               lost_text(store, wait, static_cast<int>(parse_int(rank).value_or(-1)), "its process is gone"));
}

std::string call_key(const std::string& group, int rank) { return concat("call/", group, "/", rank); }

std::string disagreement(int rank, const std::string& call, int peer, const std::string& others) {
  const bool first = rank < peer;
  if (call == others)
    return concat("ranks disagree: rank ", first ? rank : peer, " and rank ", first ? peer : rank,
                  " have made other calls before this one; every rank must run the same program: compare their command "
                  "lines and config files");
  return first ? disagreement_text(rank, call, peer, others) : disagreement_text(peer, others, rank, call);
}

FoundCause store_is_gone(const std::string& seen, const std::string& reason) {
  return {FoundCause::Kind::Failed,
          concat("no answer from rank 0, which hosts the store: ", reason,
                 "; its process is stopped or gone, or its host is cut off (", seen, "); read rank 0's log")};
}

}  // namespace

std::string progress_key(int rank) { return concat("progress/", rank); }
std::string goodbye_key(int rank) { return concat("bye/", rank); }

Heartbeat::Heartbeat(std::unique_ptr<Store> connection, int rank)
    : connection_(std::move(connection)), rank_(rank), thread_([this] { run(); }) {}

Heartbeat::~Heartbeat() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  connection_->interrupt();  // a store that hangs must not hold up a rank that has something to say
  wanted_.notify_all();
  thread_.join();
}

std::shared_ptr<Progress> Heartbeat::add(const std::string& group) {
  auto progress = std::make_shared<Progress>();
  const std::lock_guard lock(mutex_);
  groups_[group] = progress;
  return progress;
}

std::string Heartbeat::told() const {
  std::string text;
  for (const auto& [group, progress] : groups_)
    text += concat(progress->entered.load(), " ", progress->finished.load(), " ", group, "\n");
  return text;
}

std::string Heartbeat::text() const {
  const std::lock_guard lock(mutex_);
  return told();
}

void Heartbeat::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const std::string text = told();
    lock.unlock();
    try {
      connection_->set(progress_key(rank_), text);
    } catch (const TransportError&) {
      // The store is gone: whoever reads it finds that out and says so.
    }
    lock.lock();
    wanted_.wait_for(lock, kBeat, [&] { return stop_; });
  }
}

FoundCause look_at_peer(Store& store, const Wait& wait, int peer) {
  try {
    if (auto told = told_by_others(store, wait)) return *told;
    if (auto gone = lost(store, wait)) return *gone;
    const Told told = read_told(store, peer, wait.group);
    if (const auto left = store.get(goodbye_key(peer)); left && told.entered < wait.sequence && left->age_ms > kLeftMs)
      return agree(store, wait, lost_text(store, wait, peer, kHasLeft));
    if (!told.is_silent()) return {};
    return agree(store, wait,
                 lost_text(store, wait, peer,
                           concat("it has sent no heartbeat for ", told.age_ms,
                                  " ms: its process is stopped, or its host is cut off")));
  } catch (const TransportError& error) {
    return store_is_gone(concat("no answer from rank ", peer, " in ", wait.waited_ms, " ms"), error.what());
  }
}

FoundCause find_cause(Store& store, const Wait& wait, const std::string& error, bool timed_out) {
  constexpr std::chrono::milliseconds kGrace(500);  // connections to peers close before, or after, that to the store
  try {
    const auto deadline = Clock::now() + kGrace;
    do {
      if (auto told = told_by_others(store, wait)) return *told;
      if (auto gone = lost(store, wait)) return *gone;
      if (timed_out) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    } while (Clock::now() < deadline);
    // All live: who has not entered the call holds up the others. What they have told is a beat old.
    std::this_thread::sleep_for(kBeat + kBeat / 5);
    if (auto told = told_by_others(store, wait)) return *told;
    std::vector<Silence> silent;
    uint64_t others_min = UINT64_MAX, others_max = 0;
    std::string why;
    for (const int rank : wait.site.ranks) {
      const Told told = read_told(store, rank, wait.group);
      if (rank != wait.site.global_rank() && told.entered < wait.sequence) {
        if (silent.empty() && store.get(goodbye_key(rank))) why = kHasLeft;
        silent.push_back({rank, told.finished});
      } else {
        others_min = std::min(others_min, told.finished);
        others_max = std::max(others_max, told.finished);
      }
    }
    return agree(store, wait,
                 silent.empty() ? error : silence_text(silent, others_min, others_max, wait.waited_ms, why));
  } catch (const TransportError& reason) {
    return store_is_gone(error, reason.what());
  }
}

FoundCause find_disagreement(Store& store, const Wait& wait, int peer, const std::string& call) {
  constexpr std::chrono::milliseconds kPatience(2000), kPause(5);
  const int rank = wait.site.global_rank();
  try {
    store.set(call_key(wait.group, rank), call);
    std::string others;
    for (const auto deadline = Clock::now() + kPatience; others.empty() && Clock::now() < deadline;) {
      if (auto told = told_by_others(store, wait)) return *told;
      others = get(store, call_key(wait.group, peer));
      if (others.empty()) std::this_thread::sleep_for(kPause);
    }
    return agree(store, wait, disagreement(rank, call, peer, others.empty() ? "something else" : others));
  } catch (const TransportError& error) {
    return store_is_gone(concat("a message of rank ", peer, " is of another call"), error.what());
  }
}

}  // namespace sfsdp::comm
