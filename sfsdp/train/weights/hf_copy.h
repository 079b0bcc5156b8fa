// SPDX-License-Identifier: BSD-3-Clause
// Moves a box of one of our parameters, or a range of that box, from and to its tensor of a Hugging Face checkpoint: rows are ordered as there,
// dtypes converted. Works on bytes, needs no whole tensor on the side of ours, and is torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "sfsdp/ir/type.h"
#include "sfsdp/plan/storage_layout.h"
#include "sfsdp/train/weights/hf_names.h"

namespace sfsdp::train {

// The checkpoint's shape for a parameter of ours, or for a slice of one: reversed for Transpose.
std::vector<int64_t> hf_shape_of(const HfTensor& tensor, const std::vector<int64_t>& our_shape);

// What a box has of one slice of a parameter along its first dimension.
struct SlicePart {
  plan::Box box;  // of the slice, which has a dimension less
  Chunk range;    // which of the box's elements these are
};
SlicePart part_of_slice(const plan::Box& box, int64_t slice);

// Fills `out` with bytes [first, first + out.size()) of the checkpoint's tensor. What it throws ends the copy.
using HfRead = std::function<void(uint64_t first, std::span<std::byte> out)>;

// Writes our elements `box` (a box of the parameter, or a range of that), in row-major order, into `ours`; allocates nothing
// of their size. Reads are as long as the staging allows.
//   our_shape:  of the whole parameter
//   staging:    holds at least one element of their_dtype; 256 KiB stay in the cache. It is not touched where neither order
//               nor dtype changes
//   returns:    finite numbers that our dtype is too small for
int64_t copy_from_hf(const HfTensor& tensor, const std::vector<int64_t>& our_shape, const plan::Box& box,
                     const HfRead& read, ir::DType their_dtype, std::span<std::byte> staging, std::span<std::byte> ours,
                     ir::DType our_dtype);

// Elements [first, …) of the checkpoint's tensor, in row-major order, in its dtype; the bytes last until it returns.
using HfSink = std::function<void(int64_t first, std::span<const std::byte> bytes)>;

// Calls `sink` for each stretch of the checkpoint's tensor that our elements `box` make up. Stretches are as long as the
// staging allows; no two overlap.
//   ours:     the elements of `box`
//   staging:  holds at least one element of their_dtype; 8 MiB stay in the cache and are long stretches. It is not
//             touched where neither order nor dtype changes
//   returns:  finite numbers that their dtype is too small for
int64_t copy_to_hf(const HfTensor& tensor, const std::vector<int64_t>& our_shape, const plan::Box& box,
                   std::span<const std::byte> ours, ir::DType our_dtype, ir::DType their_dtype,
                   std::span<std::byte> staging, const HfSink& sink);

}  // namespace sfsdp::train
