// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/interp/part_kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "sfsdp/base/check.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::ir::interp {
namespace {

using Arrays = std::vector<Array>;

size_t dim_of(const Op& op, size_t rank) {
  const auto dim = op.attr_or<int64_t>("dim", 0);
  return static_cast<size_t>(dim < 0 ? dim + static_cast<int64_t>(rank) : dim);
}

// A tensor as [outer, size, inner] around a dimension.
struct Around {
  size_t outer = 1, size, inner = 1;
  Around(const std::vector<int64_t>& shape, size_t dim) : size(static_cast<size_t>(shape[dim])) {
    for (size_t d = 0; d < dim; ++d) outer *= static_cast<size_t>(shape[d]);
    for (size_t d = dim + 1; d < shape.size(); ++d) inner *= static_cast<size_t>(shape[d]);
  }
  size_t at(size_t o, size_t index, size_t i) const { return (o * size + index) * inner + i; }
};

// part[:, j, :] and whole[:, start + j · step, :], in either direction.
template <class Copy>
void walk(const Array& part, const Array& whole, size_t dim, size_t start, size_t step, Copy copy) {
  const Around small(part.shape, dim), large(whole.shape, dim);
  for (size_t o = 0; o < small.outer; ++o)
    for (size_t j = 0; j < small.size; ++j)
      for (size_t i = 0; i < small.inner; ++i) copy(small.at(o, j, i), large.at(o, start + j * step, i));
}

Array part_of(const Array& whole, const Type& type, size_t dim, size_t start, size_t step) {
  Array part = Array::zeros(whole.dtype, type.shape());
  walk(part, whole, dim, start, step, [&](size_t to, size_t from) { part.data[to] = whole.data[from]; });
  return part;
}

// A start below 0 counts from the end; one beyond either end is that end.
size_t start_of(const Op& op, int64_t size) {
  const auto start = op.attr_or<int64_t>("start", 0);
  return static_cast<size_t>(std::clamp(start < 0 ? start + size : start, int64_t{0}, size));
}
size_t step_of(const Op& op) { return static_cast<size_t>(op.attr_or<int64_t>("step", 1)); }

Arrays slice(const KernelContext& c) {
  const size_t dim = dim_of(c.op, c.in().shape.size());
  return {part_of(c.in(), c.op.result()->type(), dim, start_of(c.op, c.in().shape[dim]), step_of(c.op))};
}

// In parts of one size, of which the last one may be less, or of given sizes: each begins where the one before it ends.
Arrays split(const KernelContext& c) {
  Arrays parts;
  const size_t dim = dim_of(c.op, c.in().shape.size());
  size_t start = 0;
  for (const auto& result : c.op.results()) {
    parts.push_back(part_of(c.in(), result->type(), dim, start, 1));
    start += static_cast<size_t>(result->type().dims[dim].size);
  }
  return parts;
}

Arrays slice_backward(const KernelContext& c) {
  Array out = Array::zeros(c.in().dtype, c.op.result()->type().shape());
  const size_t dim = dim_of(c.op, out.shape.size());
  walk(c.in(), out, dim, start_of(c.op, out.shape[dim]), step_of(c.op),
       [&](size_t from, size_t to) { out.data[to] = c.in().data[from]; });
  return {out};
}

Arrays cat(const KernelContext& c) {
  Array out = Array::zeros(c.in().dtype, c.op.result()->type().shape());
  const size_t dim = dim_of(c.op, out.shape.size());
  size_t start = 0;
  for (const Array* part : c.operands) {
    walk(*part, out, dim, start, 1, [&](size_t from, size_t to) { out.data[to] = part->data[from]; });
    start += static_cast<size_t>(part->shape[dim]);
  }
  return {out};
}

Arrays bmm(const KernelContext& c) {
  Array out = Array::zeros(c.in().dtype, c.op.result()->type().shape());
  const auto m = static_cast<size_t>(out.shape[1]), n = static_cast<size_t>(out.shape[2]);
  const auto k = static_cast<size_t>(c.in().shape[2]);
  for (size_t r = 0; r < out.data.size() / n; ++r)
    for (size_t j = 0; j < n; ++j)
      for (size_t i = 0; i < k; ++i)
        out.data[r * n + j] += c.in(0).data[r * k + i] * c.in(1).data[(r / m * k + i) * n + j];
  return {out};
}

Arrays own_part(const KernelContext& c) {
  const size_t dim = dim_of(c.op, c.in().shape.size());
  const Type& type = c.op.result()->type();
  const int64_t owner = (c.axis_rank + c.axis_ranks - c.op.attr_or<int64_t>("shift", 0)) % c.axis_ranks;
  return {part_of(c.in(), type, dim, static_cast<size_t>(owner * type.dims[dim].size), 1)};
}

Arrays join_parts(const KernelContext& c) {
  Array out = Array::zeros(c.in().dtype, c.op.result()->type().shape());
  const size_t dim = dim_of(c.op, out.shape.size());
  for (int64_t shift = 0; shift < c.axis_ranks; ++shift) {
    const Array& part = c.in(static_cast<size_t>(shift));
    const int64_t owner = (c.axis_rank + c.axis_ranks - shift) % c.axis_ranks;
    walk(part, out, dim, static_cast<size_t>(owner * part.shape[dim]), 1,
         [&](size_t from, size_t to) { out.data[to] = part.data[from]; });
  }
  return {out};
}

Arrays add_parts(const KernelContext& c) {
  Array sum = c.in();
  for (size_t k = 1; k < c.operands.size(); ++k)
    for (size_t i = 0; i < sum.data.size(); ++i) sum.data[i] += c.in(k).data[i];
  return {sum};
}

Arrays as_summand(const KernelContext& c) {
  return {c.axis_rank == 0 ? c.in() : Array::zeros(c.in().dtype, c.in().shape)};
}

// Rows of the first operand's dimension, by the second's indexes.
Arrays index_select(const KernelContext& c) {
  Array out = Array::zeros(c.in().dtype, c.op.result()->type().shape());
  const size_t dim = dim_of(c.op, out.shape.size());
  const Around to(out.shape, dim), from(c.in().shape, dim);
  for (size_t o = 0; o < to.outer; ++o)
    for (size_t j = 0; j < to.size; ++j)
      for (size_t i = 0; i < to.inner; ++i)
        out.data[to.at(o, j, i)] = c.in().data[from.at(o, index_in(c, c.in(1).data[j], c.in().shape[dim]), i)];
  return {out};
}

Arrays index_add(const KernelContext& c) {
  Array out = c.in();
  const size_t dim = dim_of(c.op, out.shape.size());
  const Around to(out.shape, dim), from(c.in(2).shape, dim);
  for (size_t o = 0; o < from.outer; ++o)
    for (size_t j = 0; j < from.size; ++j)
      for (size_t i = 0; i < from.inner; ++i)
        out.data[to.at(o, index_in(c, c.in(1).data[j], out.shape[dim]), i)] += c.in(2).data[from.at(o, j, i)];
  return {out};
}

Arrays new_zeros(const KernelContext& c) {
  return {Array::zeros(c.op.result()->type().dtype, c.op.result()->type().shape())};
}

// Row i of a [m, k] times the matrix of its group, or what the rows of each group add up to; what follows the last group is a number
// that nobody may read.
Arrays grouped_mm(const KernelContext& c) {
  Array out = Array::zeros(c.in().dtype, c.op.result()->type().shape());
  const auto m = static_cast<size_t>(c.in().shape[0]), k = static_cast<size_t>(c.in().shape[1]);
  const auto n = static_cast<size_t>(c.in(1).shape.back());
  const bool is_stack = c.in(1).shape.size() == 3;
  if (is_stack) std::ranges::fill(out.data, 1e9);
  size_t row = 0;
  for (size_t group = 0; group < c.in(2).data.size(); ++group)
    for (const auto end = static_cast<size_t>(c.in(2).data[group]); row < end; ++row)
      for (size_t j = 0; j < n; ++j) {
        if (is_stack) {
          double& sum = out.data[row * n + j] = 0;
          for (size_t i = 0; i < k; ++i) sum += c.in().data[row * k + i] * c.in(1).data[(group * k + i) * n + j];
        } else {
          for (size_t i = 0; i < m; ++i)
            out.data[(group * m + i) * n + j] += c.in().data[i * k + row] * c.in(1).data[row * n + j];
        }
      }
  return {out};
}

// The rows [begin, end) of the groups that a rank has.
struct OwnRows {
  size_t begin = 0, end = 0, first = 0, groups = 0;
};
OwnRows own_rows_of(const KernelContext& c, const Array& ends, size_t rows) {
  const size_t groups = ends.data.size() / static_cast<size_t>(c.axis_ranks);
  OwnRows own{.first = groups * static_cast<size_t>(c.axis_rank), .groups = groups};
  const auto at = [&](size_t i) { return i == 0 ? size_t{0} : static_cast<size_t>(ends.data[i - 1]); };
  own.begin = at(own.first);
  own.end = at(own.first + groups);
  SFSDP_CHECK(own.begin <= own.end && own.end <= rows, "groups end at ", own.end, " of ", rows, " rows");
  return own;
}

// From their place to the front, or back.
Arrays move_rows(const KernelContext& c, bool to_front) {
  const size_t dim = dim_of(c.op, c.in().shape.size());
  const OwnRows own = own_rows_of(c, c.in(1), static_cast<size_t>(c.in().shape[dim]));
  Array out = Array::zeros(c.in().dtype, c.in().shape);
  const Around around(out.shape, dim);
  for (size_t o = 0; o < around.outer; ++o)
    for (size_t j = own.begin; j < own.end; ++j)
      for (size_t i = 0; i < around.inner; ++i) {
        const size_t place = around.at(o, j, i), front = around.at(o, j - own.begin, i);
        out.data[to_front ? front : place] = c.in().data[to_front ? place : front];
      }
  return {out};
}
Arrays own_rows(const KernelContext& c) { return move_rows(c, true); }
Arrays spread_rows(const KernelContext& c) { return move_rows(c, false); }

Arrays own_ends(const KernelContext& c) {
  Array out = Array::zeros(c.in().dtype, c.op.result()->type().shape());
  const OwnRows own = own_rows_of(c, c.in(), std::numeric_limits<size_t>::max());
  const auto room = static_cast<double>(c.op.attr_or<int64_t>("room", 0));
  const double round = c.op.operands.size() > 1 ? c.in(1).data[0] : 0;
  for (size_t i = 0; i < out.data.size(); ++i) {
    const double end = c.in().data[own.first + i] - static_cast<double>(own.begin) - round * room;
    out.data[i] = room > 0 ? std::clamp(end, 0.0, room) : end;
  }
  return {out};
}

Arrays further_rounds(const KernelContext& c) {
  const auto ranks = static_cast<size_t>(c.axis_ranks), groups = c.in().data.size() / ranks;
  double most = 0, before = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const double end = c.in().data[(rank + 1) * groups - 1];
    most = std::max(most, end - before);
    before = end;
  }
  Array out = Array::zeros(DType::i64, {});
  out.data[0] = std::max(std::ceil(most / static_cast<double>(c.op.attr<int64_t>("room"))) - 1, 0.0);
  return {out};
}

Arrays reorder(const KernelContext& c) {
  Array out = c.in();
  const size_t dim = dim_of(c.op, out.shape.size());
  const auto& order = c.op.attr<std::vector<int64_t>>("order");
  const auto chunk = static_cast<size_t>(out.shape[dim]) / order.size();
  size_t inner = 1;
  for (size_t d = dim + 1; d < out.shape.size(); ++d) inner *= static_cast<size_t>(out.shape[d]);
  const size_t row = static_cast<size_t>(out.shape[dim]) * inner;
  for (size_t i = 0; i < out.data.size(); ++i) {
    const size_t at = i % row / inner;
    const size_t from = static_cast<size_t>(order[at / chunk]) * chunk + at % chunk;
    out.data[i] = c.in().data[i - i % row + from * inner + i % inner];
  }
  return {out};
}

Arrays bernoulli_p(const KernelContext& c) { return {bernoulli(c.in(), number_of(c.op, "p", 0.5), draw_state(c))}; }
Arrays empty_like(const KernelContext& c) { return {Array::zeros(c.in().dtype, c.in().shape)}; }

struct Row {
  std::string_view opcode;
  Kernel kernel;
};
constexpr std::array kKernels = {
    Row{"aten._grouped_mm", &grouped_mm},
    Row{"aten.bernoulli.p", &bernoulli_p},
    Row{"aten.bmm", &bmm},
    Row{"aten.cat", &cat},
    Row{"aten.empty_like", &empty_like},
    Row{"aten.index_add", &index_add},
    Row{"aten.index_select", &index_select},
    Row{"aten.new_zeros", &new_zeros},
    Row{"aten.slice.Tensor", &slice},
    Row{"aten.slice_backward", &slice_backward},
    Row{"aten.split.Tensor", &split},
    Row{"aten.split_with_sizes", &split},
    Row{"add_parts", &add_parts},
    Row{"as_summand", &as_summand},
    Row{"further_rounds", &further_rounds},
    Row{"join_parts", &join_parts},
    Row{"own_ends", &own_ends},
    Row{"own_part", &own_part},
    Row{"own_rows", &own_rows},
    Row{"reorder", &reorder},
    Row{"spread_rows", &spread_rows},
};

}  // namespace

namespace {
constexpr uint64_t kExact = uint64_t{1} << 52, kStreams = uint64_t{1} << 20;
}  // namespace

// Key and micro-batch are mixed as exec::ReferenceExecutor does it, in 64 bits; the key is then cut to what i64 holds exactly here.
std::vector<double> draw_state(const KernelContext& c) {
  uint64_t key = hash_path(c.op.module_path) ^ (c.host.seed * 0x9E3779B97F4A7C15ull) ^
                 (static_cast<uint64_t>(c.host.step) * 0xC2B2AE3D27D4EB4Full);
  key ^= key >> 52;
  const auto micro_batch =  // whatever memory holds there
      c.op.has_attr("replicated") ? 0 : static_cast<uint64_t>(c.host.micro_batch) % (kExact / kStreams);
  const auto stream = static_cast<uint64_t>(c.op.attr_or<int64_t>("stream", 0));
  SFSDP_CHECK(stream < kStreams, c.op.opcode, " draws stream ", stream);
  return {static_cast<double>(key % kExact), static_cast<double>(micro_batch * kStreams + stream)};
}

Array bernoulli(const Array& like, double p, const std::vector<double>& state) {
  Array out = Array::zeros(like.dtype, like.shape);
  const auto key = static_cast<uint64_t>(state[0]), second = static_cast<uint64_t>(state[1]);
  const uint64_t first_element = second / kStreams * out.data.size();
  for (size_t i = 0; i < out.data.size(); ++i)
    out.data[i] = philox4x32(key, second % kStreams, first_element + i)[0] * 0x1p-32 < p ? 1 : 0;
  return out;
}

Kernel find_part_kernel(std::string_view opcode) {
  const auto* found = std::ranges::find(kKernels, opcode, &Row::opcode);
  return found == kKernels.end() ? nullptr : found->kernel;
}

}  // namespace sfsdp::ir::interp
