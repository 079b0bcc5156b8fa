// SPDX-License-Identifier: BSD-3-Clause
// The rows that this rank trains on, read ahead by a thread of their own. Which sample is row j of which step is the same
// for any number of ranks: a function of the sources, the seed and the samples read before. A rank reads its rows alone.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "sfsdp/train/data/mix.h"
#include "sfsdp/train/data/samples.h"

namespace sfsdp::train {

struct LoaderOptions {
  int64_t local_batch_size = 1;  // rows of a rank's micro-batch
  int64_t micro_batches = 1;     // of a step
  int64_t data_rank = 0;         // of data_ranks, which read different rows
  int64_t data_ranks = 1;
  int64_t global_batch_size() const { return local_batch_size * micro_batches * data_ranks; }
};

struct LoadedStep {
  // Row r of this rank's micro-batch m is row (m * data_ranks + data_rank) * local_batch_size + r of the step.
  std::vector<MicroBatch> micro_batches;
  std::vector<const Samples*> wrapped;  // sources of which this step holds the first sample of the second epoch
};

// What decides the rows that follow: a few integers, the same on all ranks and on any number of them.
using LoaderState = std::map<std::string, int64_t>;

// State over time: the thread starts with the first next(), stays at most kAhead steps ahead, and ends with the loader or
// with the first error, which next() throws when its turn has come. One thread uses the loader, and its own reads the sources.
class Loader {
 public:
  Loader(std::vector<WeightedSource> sources, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next step's rows; waits until they are read.
  //   throws: UserError of a source: an id beyond the vocabulary, a file that changed
  LoadedStep next();

  // After the rows that next() returned last.
  //   samples                           drawn so far, over all ranks and sources
  //   seq_len                           of a sample
  //   source.<i>.{samples,credit,size}  drawn from source i; Mix's credit; samples of an epoch
  LoaderState state() const { return state_; }
  // Goes on from a state, also of another number of ranks, batch size or other weights.
  //   throws: UserError if it is not of these sources and this seq_len
  void restore(const LoaderState& state);

  const std::vector<WeightedSource>& sources() const { return sources_; }
  const std::vector<SampleTensor>& layout() const { return sources_.at(0).source->layout(); }

  static constexpr size_t kAhead = 2;  // steps: one while a step runs, one for a step that is slow to read

 private:
  struct Position {
    std::vector<int64_t> samples;  // drawn from each source
    Mix mix;
  };
  struct Ready {
    LoadedStep step;
    LoaderState after;
    std::exception_ptr error;
  };
  LoaderState state_of(const Position& position) const;
  LoadedStep read_step(Position& position);
  void read_ahead(Position position);
  void stop();

  std::vector<WeightedSource> sources_;  // read by the thread while it runs
  LoaderOptions options_;
  Position start_;  // where the thread begins
  LoaderState state_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Ready> ready_;  // guarded by mutex_, as stopping_
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace sfsdp::train
