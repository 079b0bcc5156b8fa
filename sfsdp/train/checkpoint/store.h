// SPDX-License-Identifier: BSD-3-Clause
// The folder of a run's checkpoints, and the one order of its changes that survives a crash at any of them.
//
//   step-20          a checkpoint: it has this name only once all of it is on the disk
//   step-30.tmp      being written, or left by a crash: the next run sets it aside
//   step-30.leftover what a crash has left of a save; never removed
//   step-10.deleted  being removed; the next save finishes that
//   step-30.replaced its name is being given to a newer save of the step, where the file system cannot exchange names
//   step-20.damaged  set aside, because it was not what had been written; never removed
//   lock             held by the run that writes here; says which
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/train/checkpoint/files.h"
#include "sfsdp/train/checkpoint/launch.h"
#include "sfsdp/train/checkpoint/manifest.h"

namespace sfsdp::train::checkpoint {

// The manifest of a checkpoint's folder, whose files are all there with their sizes; no data is read. What is damaged here
// is damaged for a run that goes on, for `checkpoint ls` and for `checkpoint verify`.
//   path:   a folder named step-N holds step N; a folder of another name any step
//   throws: DamagedError naming the file, what is wrong with it; UserError where the folder cannot be read
Manifest open_checkpoint(const std::string& path);

// "2026-01-31 23:59:59 UTC" of seconds since 1970.
std::string time_text(int64_t seconds);

struct Listed {
  enum class State : uint8_t { Complete, Damaged, Unfinished, Deleted, SetAside, Leftover, Foreign };
  State state = State::Foreign;
  std::string name;       // of the entry
  std::string link = {};  // where it points to, if it is a symbolic link
  int64_t step = -1;
  std::string why;                        // of Damaged
  bool may_pass = false;                  // of Damaged: it could not be read, and a later try may
  std::optional<Manifest> manifest = {};  // of Complete
};

// Reads and changes one folder. Rank 0's; the other ranks write files into what begin() has made.
class Store {
 public:
  explicit Store(std::string folder) : folder_(std::move(folder)) {}
  const std::string& folder() const { return folder_; }
  std::string path_of(int64_t step) const;
  std::string temporary_path_of(int64_t step) const;

  // Makes the folder and takes it for this process, until the Store goes. What crashes have left of saves is set aside.
  //   launch: without an id of its own it gets one here, which its restarts find in the lock's file
  //   throws: PassingError naming the run that has it, UserError saying why it cannot be written
  struct Taken {
    std::string launch;              // its id
    std::vector<std::string> notes;  // for the log
  };
  // Another process that holds it may be ending, as the one that this one is started after.
  struct LockWait {
    int64_t seconds = 0;
    std::function<void(const std::string&)> say = {};  // takes a line for the log, once, where there is a wait
  };
  Taken lock(const Launch& launch, const LockWait& wait);
  Taken lock() { return lock({}, {}); }

  // What is there, newest step first; nothing for a folder that does not exist.  throws: UserError
  std::vector<Listed> list() const;

  // Makes temporary_path_of(step), an empty folder. What has that name is set aside.  returns: lines for the log
  std::vector<std::string> begin(int64_t step);
  // Writes the manifest, numbered as the newest save, syncs, and gives the folder its name: after this call the checkpoint survives a crash.
  //   returns: a line for the log where something damaged had that name; "" else
  std::string publish(Manifest manifest);
  // Best effort, after a save that failed: room for the next one.
  void give_up(int64_t step);
  // Removes all but the `keep` complete checkpoints that were saved last; 0 keeps all. So where a run has gone back by
  // load_step, the higher steps of the branch that it left go first. One that a kept one takes its frozen weights from stays.
  //   saved:   stays in any case
  //   returns: what could not be removed, a line each
  std::vector<std::string> purge(int64_t keep, int64_t saved);
  // Renames step-N, which has turned out not to be what was written.  returns: its new name
  std::string set_aside(int64_t step);

 private:
  std::string free_name(int64_t step, const std::string& ending) const;
  std::vector<std::string> set_aside_leftovers();
  void wait_for_lock(int fd, const std::string& path, const LockWait& wait) const;
  int64_t next_save();
  int64_t bytes_in(const std::string& name) const;

  std::string folder_;
  Fd lock_;
  int64_t last_save_ = -1;  // number of the newest save here, once one was looked for
};

}  // namespace sfsdp::train::checkpoint
