// SPDX-License-Identifier: BSD-3-Clause
// Reads the weights that a checkpoint leaves out from where they are, for tools: no model is built. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>

#include "sfsdp/train/checkpoint/manifest.h"

namespace sfsdp::train::checkpoint {

// Reads elements [begin, …) of the tensor, in its dtype.
using ReadElements = std::function<void(const StoredTensor& tensor, int64_t begin, std::span<std::byte> out)>;

class SourceReader {
 public:
  //   checkpoint: path of the manifest's folder step-N
  //   archive:    read instead of the one that the manifest names; "": that one
  //   throws:     UserError where the source is not there, or is initial values, which a run alone draws
  //   depth:      checkpoints that led here; a circle of them is refused
  SourceReader(const Manifest& manifest, const std::string& checkpoint, const std::string& archive, int depth);

  // Elements [begin, …) of a tensor that is left out, in its dtype. The whole tensor has been compared with its digest.
  //   throws: UserError naming tensor, source and digests where it has changed
  void read(const StoredTensor& tensor, int64_t begin, std::span<std::byte> out);

 private:
  const Manifest& manifest_;
  std::string checkpoint_;
  WeightSource source_;
  ReadElements read_;
  std::set<std::string> checked_;
};

}  // namespace sfsdp::train::checkpoint
