// SPDX-License-Identifier: BSD-3-Clause
// Whether a graph that an axis has cut means on its ranks what the whole one does, in the interpreter, in float64.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/interp/interpreter.h"

namespace sfsdp::testing {

using ir::interp::Array;

// A weight that is cut in its blocks (parallel/separate_blocks.h), with these as the dimension that its type has for them.
inline Array with_blocks(Array whole, const ir::Type& type) {
  if (whole.shape.size() == type.dims.size()) return whole;
  const int64_t ranks = ir::interp::numel(whole.shape) / type.numel();
  whole.shape.clear();
  for (const ir::Dim& dim : type.dims) whole.shape.push_back(dim.split.empty() ? dim.size : dim.size * ranks);
  return whole;
}

// A rank's part of what the type says is cut in one dimension, and zeros where the last ranks have fewer.
inline Array part_of(const Array& given, const ir::Type& type, size_t rank) {
  const Array whole = with_blocks(given, type);
  Array part = whole;
  part.shape = type.shape();
  part.data.resize(std::max(part.data.size(), static_cast<size_t>(ir::interp::numel(part.shape))));
  for (size_t i = 0; i < static_cast<size_t>(ir::interp::numel(part.shape)); ++i) {
    size_t rest = i, at = 0, stride = 1;
    bool is_there = true;
    for (size_t d = type.dims.size(); d-- > 0;) {
      const auto size = static_cast<size_t>(part.shape[d]);
      const size_t place = rest % size + (type.dims[d].split.empty() ? 0 : rank * size);
      is_there &= place < static_cast<size_t>(whole.shape[d]);
      at += place * stride;
      rest /= size;
      stride *= static_cast<size_t>(whole.shape[d]);
    }
    part.data[i] = is_there ? whole.data[at] : 0;
  }
  part.data.resize(static_cast<size_t>(ir::interp::numel(part.shape)));
  return part;
}

inline void expect_close(const Array& got, const Array& expected) {
  REQUIRE(got.shape == expected.shape);
  CHECK(ir::interp::largest_difference(got, expected) <= 1e-11 * ir::interp::largest_magnitude(expected));
}

//   innermost: ranks of the innermost axis, the one that cuts parameters; 0: the only one
inline void expect_same_meaning(std::string_view text, const ir::Graph& parts, int64_t ranks, int64_t innermost = 0) {
  const auto coordinate = [&](size_t rank) { return innermost > 0 ? rank % static_cast<size_t>(innermost) : rank; };
  const ir::Graph whole = ir::parse_or_throw(dedent(text));
  const ir::interp::RunOptions exact = {.rounding = ir::interp::Rounding::None};
  const auto given = ir::interp::seeded_inputs(whole, 7);
  const auto expected = ir::interp::run(whole, given, exact).ranks[0];
  std::vector<ir::interp::Inputs> of_ranks(static_cast<size_t>(ranks));
  std::map<std::string, const ir::Type*> types;
  for (const auto& op : parts.ops())
    if (ir::is_root(*op)) types[op->attr<std::string>("name")] = &op->result()->type();
  for (size_t rank = 0; rank < of_ranks.size(); ++rank)
    for (const auto& [name, array] : given[0])
      of_ranks[rank].emplace(name, part_of(array, *types.at(name), coordinate(rank)));
  const auto got = ir::interp::run(parts, of_ranks, exact);
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    CAPTURE(rank);
    for (size_t i = 0; i < expected.outputs.size(); ++i) expect_close(got.ranks[rank].outputs[i], expected.outputs[i]);
    for (const auto& [name, array] : expected.carried) {
      CAPTURE(name);
      expect_close(got.ranks[rank].carried.at(name), part_of(array, *types.at(name), coordinate(rank)));
    }
  }
}

}  // namespace sfsdp::testing
