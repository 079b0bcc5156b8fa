// SPDX-License-Identifier: BSD-3-Clause
// When a run saves, what it goes on from, what it says of both: TorchTitan's [checkpoint] keys.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/comm/communicator.h"
#include "sfsdp/train/checkpoint/launch.h"
#include "sfsdp/train/checkpoint/resume.h"
#include "sfsdp/train/checkpoint/saver.h"
#include "sfsdp/train/checkpoint/store.h"

namespace sfsdp::train::checkpoint {

// Frozen weights that are read again, not saved: checkpoint.frozen = none.
struct FrozenWeights {
  bool leave_out = false;
  WeightSource source = {};  // what a run of this configuration begins with
  // Fills the state with the values of a source that is no checkpoint, as a start does. Not a collective call.
  std::function<void(const WeightSource&)> read = {};
};

struct CheckpointOptions {
  bool enable = false;
  std::string folder;
  int64_t interval = 500;
  int64_t keep_latest_k = 10;
  bool in_background = false;  // async_mode
  int64_t load_step = -1;      // -1: the newest
  std::string initial_load_path;
  bool initial_load_model_only = true;
  bool last_save_model_only = true;
  bool last_save_in_hf = false;             // the last step is not saved here: the trainer exports it
  ir::DType export_dtype = ir::DType::f32;  // of a last save of the model alone; f32: as stored
  std::vector<std::string> exclude_from_loading;
  bool enable_first_step_checkpoint = false;
  bool load_only = false;
  int64_t lock_seconds = 30;  // how long a start waits for who writes there: its predecessor, which may be ending
  Launch launch = {};         // that this process belongs to
  int64_t total_steps = 0;    // of the run
  uint64_t seed = 0;
  FrozenWeights frozen = {};
  std::map<std::string, std::string> schedule = {};  // its settings: written down, and compared when a run goes on
  std::map<std::string, std::string> kernels = {};   // that decide last bits: likewise
  Manifest about;                                    // mesh, plan, versions, ranks: written down with each save
};

// What a run has taken from a checkpoint.
struct Loaded {
  RunState run;  // where it goes on
  std::string path;
  bool has_model = true;                   // its model was read
  std::vector<std::string> left_out = {};  // of exclude_from_loading: what begins anew
};

// A rank's. All calls are collective. The state's pieces alias what the steps compute on.
class Checkpointer {
 public:
  using Say = std::function<void(const std::string&)>;
  //   world: null: one rank; must outlive this
  //   state: this rank's pieces as they are now
  //   say:   takes lines for the log; called on the caller's thread, on rank 0 alone
  //   throws: UserError on all ranks where the folder cannot be written; PassingError where it is another run's
  Checkpointer(CheckpointOptions options, comm::CommWorld* world, std::function<std::vector<Piece>()> state, Say say);
  ~Checkpointer();

  // Fills the state from the newest complete checkpoint of the folder, or from load_step, or, where the folder has none,
  // from initial_load_path. A damaged one is said, set aside, and the one before it taken.
  //   returns: none if there is nothing to load
  //   throws:  UserError on all ranks: all are damaged, or the one asked for is; it is of another model or seed.
  //            PassingError where one of those could not be read, and may be at a later try
  std::optional<Loaded> load();

  // Saves where the options ask for it: every interval, after the first step and after the last. A save that fails is
  // said, and the run goes on; see finish.
  void after_step(const RunState& run);
  // Now: all of the state, waited for. Interval: in the background if asked for. Last: of the run, waited for; of the model
  // alone with last_save_model_only.
  //   returns: all of this state is on the disk, by this save or by the one before it
  enum class When : uint8_t { Interval, Last, Now };
  bool save(const RunState& run, When when);
  // Waits for the save in flight.  throws: UserError if the newest one has failed
  void finish();

 private:
  std::vector<Candidate> candidates();
  std::optional<Loaded> load_initial();
  Loaded read(const Candidate& from, bool goes_on);
  void read_model(const Manifest& manifest, const std::string& path, std::vector<Piece> pieces);
  void read_elsewhere(const Manifest& manifest, const std::string& path, std::vector<Piece> pieces, int depth);
  WeightSource as_given(const WeightSource& named) const;
  bool replaces_source(int64_t step) const;
  void say_of_dependents(int64_t step) const;
  void compare_digests(const std::string& path);
  void leave_out_frozen(SaveRequest& request);
  void compare_model(const Manifest& saved, const std::string& path, bool goes_on) const;
  void compare_settings(const RunState& saved) const;
  void report(const SaveResult& result);
  std::string of_first_rank(const std::function<std::string()>& work, const char* what);
  bool is_first() const { return !ranks_ || ranks_->rank() == 0; }

  CheckpointOptions options_;
  std::shared_ptr<comm::Communicator> ranks_;
  std::function<std::vector<Piece>()> state_;
  Say say_;
  Store store_;
  std::unique_ptr<Saver> saver_;
  std::string last_failure_;
  int64_t saved_step_ = -1;                  // of the newest save that holds all of the state
  WeightSource source_;                      // that the frozen weights in memory are of
  std::map<std::string, uint64_t> digests_;  // this rank's part of those of frozen weights, each once it is needed
  std::vector<StoredTensor> elsewhere_;      // what the checkpoint that was read last leaves out
  WeightSource elsewhere_source_;            // of them
  bool said_ = false;                        // what saves leave out, once
};

}  // namespace sfsdp::train::checkpoint
