// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/type.h"

#include <algorithm>
#include <array>
#include <limits>
#include <ostream>

#include "sfsdp/base/check.h"

namespace sfsdp::ir {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int64_t bytes;
  bool floating;
};

// In enum order, so that a dtype indexes its row.
constexpr std::array<DTypeRow, 13> kDTypes = {{{DType::f64, "f64", 8, true},
                                               {DType::f32, "f32", 4, true},
                                               {DType::bf16, "bf16", 2, true},
                                               {DType::f16, "f16", 2, true},
                                               {DType::f8e4m3, "f8e4m3", 1, true},
                                               {DType::f8e5m2, "f8e5m2", 1, true},
                                               {DType::c64, "c64", 8, false},
                                               {DType::i64, "i64", 8, false},
                                               {DType::i32, "i32", 4, false},
                                               {DType::i16, "i16", 2, false},
                                               {DType::i8, "i8", 1, false},
                                               {DType::u8, "u8", 1, false},
                                               {DType::b1, "b1", 1, false}}};

const DTypeRow& row(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  SFSDP_CHECK(index < kDTypes.size() && kDTypes[index].dtype == dtype, "dtype ", index, " has no row");
  return kDTypes[index];
}

// In enum order.
constexpr std::array<std::string_view, 3> kReduceOps = {"sum", "max", "min"};

void print_dims(std::ostream& out, const std::vector<Dim>& dims) {
  const char* separator = "";
  for (const Dim& dim : dims) {
    out << separator << dim.size;
    for (size_t i = 0; i < dim.split.size(); ++i) {
      out << '/' << dim.split[i];
      if (dim.blocks_of(i) != 1) out << ':' << dim.blocks_of(i);
    }
    if (dim.padded) out << '~';
    separator = ", ";
  }
}

template <class T>
void print_joined(std::ostream& out, const std::vector<T>& items) {
  const char* separator = "";
  for (const T& item : items) {
    out << separator << item;
    separator = ", ";
  }
}

}  // namespace

std::string_view to_string(DType dtype) { return row(dtype).name; }

std::optional<DType> parse_dtype(std::string_view text) {
  for (const DTypeRow& candidate : kDTypes)
    if (candidate.name == text) return candidate.dtype;
  return std::nullopt;
}

int64_t size_in_bytes(DType dtype) { return row(dtype).bytes; }

bool is_half(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

DType wide(DType dtype) { return is_half(dtype) ? DType::f32 : dtype; }

bool is_floating(DType dtype) { return row(dtype).floating; }

void Dim::cut(const std::string& axis, int64_t ranks, int64_t in_blocks) {
  SFSDP_CHECK(in_blocks > 0 && size % (ranks * in_blocks) == 0, "a dimension of ", size, " in ", in_blocks,
              " blocks over ", ranks);
  size /= ranks;
  // Ranges that other axes cut, within one that this one cuts, are fewer now. Where this one's parts end within such ranges, it
  // cuts what those axes have left.
  size_t at = split.size();
  while (at > 0 && blocks_of(at - 1) > in_blocks && blocks_of(at - 1) % (in_blocks * ranks) == 0) --at;
  blocks.resize(split.size(), 1);
  for (size_t i = at; i < split.size(); ++i) blocks[i] /= ranks;
  split.insert(split.begin() + static_cast<std::ptrdiff_t>(at), axis);
  blocks.insert(blocks.begin() + static_cast<std::ptrdiff_t>(at), in_blocks);
  if (std::ranges::all_of(blocks, [](int64_t b) { return b == 1; })) blocks.clear();
}

void Dim::add_axis(const std::string& axis, int64_t in_blocks) {
  split.push_back(axis);
  if (in_blocks == 1 && blocks.empty()) return;
  blocks.resize(split.size() - 1, 1);
  blocks.push_back(in_blocks);
}

Type Type::tensor(DType dtype, const std::vector<int64_t>& shape) {
  Type type;
  type.dtype = dtype;
  type.dims.reserve(shape.size());
  for (const int64_t size : shape) type.dims.push_back({.size = size, .split = {}, .padded = false});
  return type;
}

std::vector<int64_t> Type::shape() const {
  std::vector<int64_t> shape;
  shape.reserve(dims.size());
  for (const Dim& dim : dims) shape.push_back(dim.size);
  return shape;
}

int64_t Type::numel() const {
  if (kind == Kind::Token) return 0;
  int64_t count = 1;
  for (const Dim& dim : dims) count *= dim.size;
  return count;
}

int64_t Type::bytes() const { return numel() * size_in_bytes(dtype); }

int64_t Type::span_bytes() const {
  if (strides.empty() || numel() == 0) return bytes();
  int64_t last = 0;
  for (size_t i = 0; i < std::min(strides.size(), dims.size()); ++i) last += (dims[i].size - 1) * strides[i];
  return (last + 1) * size_in_bytes(dtype);
}

bool Type::fits() const {
  const int64_t most = kind == Kind::Token ? 1 : kMaxBytes / size_in_bytes(dtype);
  int64_t count = 1;  // a size of 0 must not hide the product of the others
  for (const Dim& dim : dims) {
    if (dim.size < 0) return false;
    count = saturating_product(count, std::max<int64_t>(dim.size, 1));
  }
  int64_t span = 0;
  for (size_t i = 0; i < std::min(strides.size(), dims.size()); ++i) {
    if (strides[i] < 0) return false;
    const int64_t reach = saturating_product(std::max<int64_t>(dims[i].size - 1, 0), strides[i]);
    if (reach >= most - span) return false;
    span += reach;
  }
  return count <= most;
}

int64_t saturating_product(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

std::string_view to_string(ReduceOp op) {
  const auto index = static_cast<size_t>(op);
  SFSDP_CHECK(index < kReduceOps.size(), "no such reduction: ", index);
  return kReduceOps[index];
}

std::optional<ReduceOp> parse_reduce_op(std::string_view text) {
  const auto found = std::ranges::find(kReduceOps, text);
  if (found == kReduceOps.end()) return std::nullopt;
  return static_cast<ReduceOp>(found - kReduceOps.begin());
}

Placement Type::placement_on(std::string_view axis) const {
  for (size_t dim = 0; dim < dims.size(); ++dim)
    if (const auto found = std::ranges::find(dims[dim].split, axis); found != dims[dim].split.end())
      return Placement::shard(static_cast<int64_t>(dim),
                              dims[dim].blocks_of(static_cast<size_t>(found - dims[dim].split.begin())));
  for (const auto& [placement, axes] : placements)
    if (std::ranges::find(axes, axis) != axes.end()) return placement;
  return Placement::replicate();
}

namespace {

std::string word_of(const Placement& placement) {
  if (placement.kind == Placement::Kind::Own) return "own";
  if (placement.kind == Placement::Kind::Rows) return concat("rows", placement.dim);
  return std::string(to_string(placement.reduce));
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Type& type) {
  if (type.kind == Type::Kind::Token) return out << "token";
  if (type.kind == Type::Kind::Async) out << "async ";
  out << to_string(type.dtype) << '[';
  print_dims(out, type.dims);
  out << ']';
  if (!type.strides.empty()) {
    out << '{';
    print_joined(out, type.strides);
    out << '}';
  }
  for (const auto& [placement, axes] : type.placements) {
    out << ' ' << word_of(placement) << '(';
    print_joined(out, axes);
    out << ')';
  }
  return out;
}

}  // namespace sfsdp::ir
