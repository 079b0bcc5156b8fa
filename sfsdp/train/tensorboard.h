// SPDX-License-Identifier: BSD-3-Clause
// Event files as TensorBoard reads them: records of TFRecord, each an Event of tensorflow's event.proto. No protobuf
// library: the few fields of a scalar are written by hand.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "sfsdp/train/append_file.h"

namespace sfsdp::train {

struct Scalar {
  std::string_view tag;  // "loss_metrics/global_avg_loss": what stands before the slash is the card's group
  double value = 0;      // stored as a 32-bit float
};

// Encoded events. wall_time: seconds since 1970.
//   Source: tensorboard/compat/proto/event.proto and summary.proto
std::string version_event(double wall_time);
// What a writer that goes on after `step - 1` says first: TensorBoard then drops what other files of the folder have at
// `step` and later.
std::string restart_event(double wall_time, int64_t step);
std::string scalar_event(double wall_time, int64_t step, std::span<const Scalar> scalars);

// A record: length in 8 bytes, its checksum, the data, its checksum; all little-endian.
//   Source: https://www.tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format details"
std::string framed(std::string_view data);
// CRC-32C (Castagnoli), rotated right by 15 and added to 0xa282ead8, so that a checksum of checksums keeps its strength.
uint32_t masked_crc32c(std::string_view data);

// One file, events.out.tfevents.<seconds>.<host>.<pid>, in a folder that is made if need be.
class TensorBoardFile {
 public:
  //   last_step: done before this start; above 0 the file begins with a restart_event
  //   say:    is told when records are dropped on a full disk, and when no more are; see AppendFile
  //   throws: UserError if the folder or the file cannot be made
  TensorBoardFile(const std::string& folder, int64_t last_step, Say say);

  void write(int64_t step, std::span<const Scalar> scalars);
  const std::string& path() const { return file_.path(); }
  int64_t dropped() const { return file_.dropped(); }

 private:
  AppendFile file_;
  std::string begin_;  // written with the first record
};

// "20261122-1359" of seconds since 1970, in local time: the name of a run's folder.
std::string minute_text(int64_t seconds);

}  // namespace sfsdp::train
