// SPDX-License-Identifier: BSD-3-Clause
// What a value is: a dtype and a shape, and on which mesh axes it is split, partial or a rank's own.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/ir/placement.h"

namespace sfsdp::ir {

enum class DType : uint8_t { f64, f32, bf16, f16, f8e4m3, f8e5m2, c64, i64, i32, i16, i8, u8, b1 };

// "bf16"; the spelling of the text form.
std::string_view to_string(DType dtype);
std::optional<DType> parse_dtype(std::string_view text);
// Bytes of one element; b1 takes one byte.
int64_t size_in_bytes(DType dtype);
bool is_floating(DType dtype);
bool is_half(DType dtype);  // bf16 or f16
// What sums of such elements are computed in: f32 for halves, else the dtype itself.
DType wide(DType dtype);

// The most bytes that all values of a graph may have together: sums of sizes, offsets and strides then fit into int64.
inline constexpr int64_t kMaxBytes = int64_t{1} << 60;

// a · b, neither below 0; the largest int64 where it does not fit.
int64_t saturating_product(int64_t a, int64_t b);

// One dimension. `size` is what this view of the graph holds: the rank's own (view local) or the whole (view global).
// `split` lists the mesh axes that cut it, outer first; `padded` says that the last ranks' rows are padding.
// `blocks` says of each of these axes how many equal ranges of the dimension it cuts, one by one (Placement::blocks); empty: 1.
struct Dim {
  int64_t size = 0;
  std::vector<std::string> split;
  bool padded = false;
  std::vector<int64_t> blocks = {};
  bool operator==(const Dim&) const = default;

  int64_t blocks_of(size_t axis) const { return axis < blocks.size() ? blocks[axis] : 1; }
  // By one more axis: within those that cut it already, but for those that cut ranges of what this one cuts. `size` becomes a rank's.
  void cut(const std::string& axis, int64_t ranks, int64_t in_blocks = 1);
  // By an axis within all others, where `size` is a rank's already.
  void add_axis(const std::string& axis, int64_t in_blocks = 1);
};

// tensor: bf16[4096/dp_shard, 1024] own(dp_shard), f32[24/cp:4, 8] with 4 blocks; async: a tensor in flight, to be read after `wait`; token: order only.
struct Type {
  enum class Kind : uint8_t { Tensor, Async, Token };
  Kind kind = Kind::Tensor;
  DType dtype = DType::f32;
  std::vector<Dim> dims;
  std::vector<AxisPlacement> placements;  // Own, Partial and Rows; a split stands in its dimension
  // In elements; empty means contiguous. Printed as f32[8, 4]{1, 8}.
  std::vector<int64_t> strides;

  static Type tensor(DType dtype, const std::vector<int64_t>& shape);
  std::vector<int64_t> shape() const;
  int64_t numel() const;
  // The elements alone, without what lies between them.
  int64_t bytes() const;
  // From the first element to the end of the last: what memory of its own a value needs. More than bytes() where the
  // strides leave gaps, as in a copy of a slice; less where they read an element twice.
  int64_t span_bytes() const;
  // No size or stride is below 0, and neither the elements nor what the strides span take more than kMaxBytes. numel(),
  // bytes() and span_bytes() may be asked of such a type alone, as the verifier makes sure.
  bool fits() const;
  // Replicate on an axis that the type does not name.
  Placement placement_on(std::string_view axis) const;
  bool operator==(const Type&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Type& type);

}  // namespace sfsdp::ir
