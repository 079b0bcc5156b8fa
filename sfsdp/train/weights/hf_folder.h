// SPDX-License-Identifier: BSD-3-Clause
// Writes a Hugging Face folder: by one process, or by several that each write their own parts. Until the last call the
// folder does not exist under its name. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/base/fd.h"
#include "sfsdp/plan/storage_layout.h"
#include "sfsdp/train/weights/hf_layout.h"

namespace sfsdp::train {

inline constexpr size_t kHfStagingBytes = size_t{8} << 20;

// Before hours of training that end in such a folder: `assets`, whose tokenizer's files it will hold, must be there.
//   returns: a line for the log if it has no tokenizer; "" if it has one, or where `assets` is ""
//   throws:  UserError if it is no folder
std::string check_hf_assets(const std::string& assets);

// The order of calls:
//   one process:   create();
//   all, after it: write() for their parts, then flush();
//   one process:   publish(), after all have flushed; or none does, and the folder's name never appears
// All processes make it from the same layout and see one file system. Not thread-safe.
class HfFolderWriter {
 public:
  //   folder:         what publish() leaves; what is being written lies in `folder` + ".incomplete"
  //   staging_bytes:  the most memory that write() takes, whatever the size of the model
  HfFolderWriter(HfLayout layout, const std::string& folder, size_t staging_bytes = kHfStagingBytes);

  // Makes the files at their full size, with their headers, config.json, and copies of the tokenizer's files of `assets`,
  // of those that are there; "" for none. What an export that died has left is set aside. Where it throws, it leaves nothing.
  //   throws: UserError naming what is in the way: a folder of that name with files in it, another process that is
  //           writing it, no permission, no space
  void create(const std::string& config_json, const std::string& assets);

  // Our elements `box` of a tensor of the layout: `values` in row-major order.
  //   throws: UserError for a number too large for the layout's dtype, and for what the system refuses, naming the file
  void write(const HfPlaced& tensor, const plan::Box& box, std::span<const std::byte> values, ir::DType dtype);
  void flush();  // what this process has written is on disk

  void publish();
  void abandon() noexcept;  // removes what this object has created and not published

  const HfLayout& layout() const { return layout_; }
  const std::string& folder() const { return folder_; }
  size_t staging_bytes() const { return staging_size_; }  // taken so far
  // The new name of what had that of the incomplete folder; "" if nothing had.
  const std::string& set_aside() const { return set_aside_; }

 private:
  void lock();
  bool take();
  void move_aside();
  void write_small_files(const std::string& config_json, const std::string& assets);
  int file_of(size_t index);

  HfLayout layout_;
  std::string folder_, incomplete_, set_aside_;
  size_t most_staging_;
  size_t staging_size_ = 0;
  std::unique_ptr<std::byte[]> staging_;
  std::vector<Fd> files_;  // of the layout, opened when first written to
  Fd lock_;                // the incomplete folder, from create() on
};

}  // namespace sfsdp::train
