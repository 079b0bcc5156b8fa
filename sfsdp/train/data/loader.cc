// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/loader.h"

#include <algorithm>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"

namespace sfsdp::train {

namespace {

std::vector<double> weights_of(const std::vector<WeightedSource>& sources) {
  std::vector<double> weights;
  for (const WeightedSource& source : sources) weights.push_back(source.weight);
  return weights;
}

std::string key(size_t source, std::string_view what) { return concat("source.", source, ".", what); }

constexpr std::string_view kCure =
    "; give the run the data it was saved with, or start the data anew: --checkpoint.exclude_from_loading dataloader";

constexpr int64_t kMostSamples = int64_t{1} << 46;  // so that those of 2^16 sources can be added

int64_t number_in(const LoaderState& state, const std::string& name) {
  const auto found = state.find(name);
  if (found == state.end())
    throw UserError(concat("data state: no ", name, "\n  expected the state of a loader", kCure));
  return found->second;
}

// A number that must not have changed since the state was saved.
void expect_same(const LoaderState& state, const std::string& name, int64_t expected, const std::string& what) {
  const int64_t saved = number_in(state, name);
  if (saved != expected)
    throw UserError(concat("data state: ", name, " = ", saved, ", but ", what, " has ", expected,
                           "\n  expected the same data as when it was saved", kCure));
}

}  // namespace

Loader::Loader(std::vector<WeightedSource> sources, const LoaderOptions& options)
    : sources_(std::move(sources)),
      options_(options),
      start_{std::vector<int64_t>(sources_.size(), 0), Mix(weights_of(sources_))},
      state_(state_of(start_)) {
  SFSDP_CHECK(options.local_batch_size >= 1 && options.micro_batches >= 1, "an empty step");
  SFSDP_CHECK(options.data_rank >= 0 && options.data_rank < options.data_ranks, "rank ", options.data_rank, " of ",
              options.data_ranks);
  for (const WeightedSource& s : sources_) SFSDP_CHECK(s.source->layout() == layout(), "sources of different samples");
}

Loader::~Loader() { stop(); }

void Loader::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  thread_ = {};
  stopping_ = false;
  ready_.clear();
}

LoadedStep Loader::next() {
  if (!thread_.joinable()) thread_ = std::thread([this, position = start_] { read_ahead(position); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !ready_.empty(); });
  if (ready_.front().error) std::rethrow_exception(ready_.front().error);  // it stays: asking again changes nothing
  Ready ready = std::move(ready_.front());
  ready_.pop_front();
  lock.unlock();
  changed_.notify_all();
  state_ = std::move(ready.after);
  return std::move(ready.step);
}

// The thread: one step after the other, kAhead at most, until it is stopped or cannot go on.
void Loader::read_ahead(Position position) {
  while (true) {
    Ready ready;
    try {
      ready.step = read_step(position);
      ready.after = state_of(position);
    } catch (...) {
      ready.error = std::current_exception();
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopping_ || ready_.size() < kAhead; });
    if (stopping_) return;
    const bool failed = ready.error != nullptr;
    ready_.push_back(std::move(ready));
    lock.unlock();
    changed_.notify_all();
    if (failed) return;
  }
}

// Draws a source for every row of the step, and reads those rows that are this rank's.
LoadedStep Loader::read_step(Position& position) {
  const int64_t local = options_.local_batch_size;
  LoadedStep step;
  std::vector<int64_t> before = position.samples;
  for (int64_t m = 0; m < options_.micro_batches; ++m) {
    MicroBatch batch(layout());
    for (size_t t = 0; t < batch.tensors.size(); ++t)
      batch.tensors[t].reserve(static_cast<size_t>(local) * layout()[t].bytes());
    for (int64_t row = 0; row < local * options_.data_ranks; ++row) {
      const size_t source = position.mix.draw();
      const int64_t sample = position.samples[source]++;
      if (row / local == options_.data_rank) sources_[source].source->append(sample, batch.tensors);
    }
    step.micro_batches.push_back(std::move(batch));
  }
  for (size_t i = 0; i < sources_.size(); ++i) {
    const int64_t epoch = sources_[i].source->size();
    if (before[i] <= epoch && position.samples[i] > epoch) step.wrapped.push_back(sources_[i].source.get());
  }
  return step;
}

LoaderState Loader::state_of(const Position& position) const {
  LoaderState state = {{"samples", 0}, {"seq_len", sources_.empty() ? 0 : sources_[0].source->seq_len()}};
  for (size_t i = 0; i < sources_.size(); ++i) {
    state["samples"] += position.samples[i];
    state[key(i, "samples")] = position.samples[i];
    state[key(i, "credit")] = position.mix.credits()[i];
    state[key(i, "size")] = sources_[i].source->size();
    state[key(i, "content")] = sources_[i].source->content();
  }
  return state;
}

void Loader::restore(const LoaderState& state) {
  Position position{{}, Mix(weights_of(sources_))};
  std::vector<int64_t> credits;
  expect_same(state, "seq_len", sources_[0].source->seq_len(), "training.seq_len");
  for (size_t i = 0; i < sources_.size(); ++i) {
    expect_same(state, key(i, "size"), sources_[i].source->size(), sources_[i].source->name());
    expect_same(state, key(i, "content"), sources_[i].source->content(), sources_[i].source->name());
    position.samples.push_back(number_in(state, key(i, "samples")));
    credits.push_back(number_in(state, key(i, "credit")));
    if (position.samples.back() < 0 || position.samples.back() > kMostSamples)
      throw UserError(concat("data state: ", key(i, "samples"), " = ", position.samples.back(), "\n  expected 0 to ",
                             kMostSamples, kCure));
  }
  if (state.contains(key(sources_.size(), "size")))
    throw UserError(concat("data state: of more sources than the ", sources_.size(),
                           " of this run\n  expected the same data as when it was saved", kCure));
  if (!position.mix.set_credits(credits))
    throw UserError(concat("data state: credits that do not add up\n  expected the state of a loader", kCure));
  stop();
  start_ = std::move(position);
  state_ = state_of(start_);
}

}  // namespace sfsdp::train
