// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/gloo/watch.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"

namespace sfsdp::comm {
namespace {

constexpr std::chrono::milliseconds kBeat(1000);

// What a rank has told: "beat 17\n<entered> <finished> <group>\n..."
struct Told {
  uint64_t beat = 0;
  uint64_t entered = 0;
  uint64_t finished = 0;
};

Told parse(const std::string& text, const std::string& group) {
  Told told;
  std::istringstream lines(text);
  std::string word;
  lines >> word >> told.beat;
  uint64_t entered = 0, finished = 0;
  while (lines >> entered >> finished && std::getline(lines >> std::ws, word))
    if (word == group) {
      told.entered = entered;
      told.finished = finished;
    }
  return told;
}

std::vector<Told> read_all(Rendezvous& store, const CallSite& site, const std::string& group) {
  std::vector<Told> all;
  for (const int rank : site.ranks) all.push_back(parse(store.get("progress/" + std::to_string(rank)), group));
  return all;
}

}  // namespace

Heartbeat::Heartbeat(std::unique_ptr<Rendezvous> connection, int rank)
    : connection_(std::move(connection)), rank_(rank), thread_([this] { run(); }) {}

Heartbeat::~Heartbeat() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wanted_.notify_all();
  thread_.join();
}

std::shared_ptr<Progress> Heartbeat::add(const std::string& group) {
  auto progress = std::make_shared<Progress>();
  const std::lock_guard lock(mutex_);
  groups_[group] = progress;
  return progress;
}

void Heartbeat::beat_now() {
  std::unique_lock lock(mutex_);
  const uint64_t beat = ++beats_wanted_;
  wanted_.notify_all();
  done_.wait(lock, [&] { return beats_done_ >= beat; });
}

void Heartbeat::run() {
  std::unique_lock lock(mutex_);
  for (uint64_t beat = 1; !stop_; ++beat) {
    const uint64_t wanted = beats_wanted_;
    std::string text = concat("beat ", beat, "\n");
    for (const auto& [group, progress] : groups_)
      text += concat(progress->entered.load(), " ", progress->finished.load(), " ", group, "\n");
    lock.unlock();
    try {
      connection_->set("progress/" + std::to_string(rank_), text);
    } catch (const std::exception&) {
      // The store is gone: whoever reads it finds that out and says so.
    }
    lock.lock();
    beats_done_ = std::max(beats_done_, wanted);
    done_.notify_all();
    wanted_.wait_for(lock, kBeat, [&] { return stop_ || beats_wanted_ > beats_done_; });
  }
}

FoundCause find_cause(Rendezvous& store, Heartbeat& heartbeat, const CallSite& site, const std::string& group,
                      uint64_t sequence, int64_t waited_ms, const std::string& transfer_error) {
  try {
    heartbeat.beat_now();
    if (const std::string aborted = store.aborted(); !aborted.empty()) return {FoundCause::Kind::Aborted, aborted};
    const auto before = read_all(store, site, group);
    std::this_thread::sleep_for(2 * kBeat + kBeat / 2);  // so that who lives has told at least twice
    if (const std::string aborted = store.aborted(); !aborted.empty()) return {FoundCause::Kind::Aborted, aborted};
    const auto now = read_all(store, site, group);
    std::vector<Silence> silent;
    uint64_t others_min = UINT64_MAX, others_max = 0;
    std::string why;
    for (size_t i = 0; i < now.size(); ++i) {
      const bool dead = now[i].beat == before[i].beat && static_cast<int>(i) != site.rank;
      if ((dead && now[i].finished < sequence) || now[i].entered < sequence) {
        if (silent.empty() && dead) why = "its process sends no heartbeat";
        silent.push_back({site.ranks[i], now[i].finished});
      } else {
        others_min = std::min(others_min, now[i].finished);
        others_max = std::max(others_max, now[i].finished);
      }
    }
    const std::string cause =
        silent.empty() ? transfer_error : silence_text(silent, others_min, others_max, waited_ms, why);
    return {FoundCause::Kind::Failed, store.set_first(concat("failed/", group), cause)};
  } catch (const std::exception& error) {
    return {FoundCause::Kind::Failed, concat(transfer_error, "; the store at ", store.place(),
                                             " does not answer either: ", first_line(error.what()))};
  }
}

}  // namespace sfsdp::comm
