// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/borders_torch.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/parallel/model_parallel.h"
#include "sfsdp/testing/libtorch_kernels_torch.h"

namespace sfsdp::testing {

namespace {

using ir::interp::Array;

const ir::interp::RunOptions kExact = {.rounding = ir::interp::Rounding::None, .other = run_in_libtorch};

// Where a rank's row `at` of a dimension stands in the whole one of `size` elements. Axes are undone from the inner one on; in dimensions
// that are the sequence, or samples joined with it, cp takes two chunks of each block.
int64_t place_in_whole(const StepLayout& layout, const ir::Dim& dim, int64_t size, int64_t rank, int64_t at) {
  int64_t held = dim.size;  // of what the axis being undone leaves to a rank
  for (size_t k = dim.split.size(); k-- > 0;) {
    const std::string& axis = dim.split[k];
    const int64_t ranks = layout.mesh.size(axis), r = layout.mesh.axis_rank(rank, axis);
    const int64_t part = held / dim.blocks_of(k), block = at / part, in_part = at % part;
    const bool two_chunks =
        axis == "cp" && layout.balanced && size % kBorderSequence == 0 && part * ranks == kBorderSequence;
    int64_t place = r * part + in_part;
    if (two_chunks && in_part < part / 2)
      place = r * part / 2 + in_part;
    else if (two_chunks)
      place = (2 * ranks - 1 - r) * part / 2 + in_part - part / 2;
    at = block * part * ranks + place;
    held *= ranks;
  }
  return at;
}

// The element of the whole array at which a rank's element `i` of the last micro-batch stands.
//   shape: of what the ranks of all model axes have together
//   batch: the dimension in which other ranks and micro-batches have other samples
int64_t element_of_whole(const StepLayout& layout, const ir::Type& type, const std::vector<int64_t>& shape,
                         int64_t rank, int64_t i, std::optional<size_t> batch = {}) {
  int64_t element = 0, stride = 1;
  for (size_t d = type.dims.size(); d-- > 0;) {
    int64_t place = place_in_whole(layout, type.dims[d], shape[d], rank, i % type.dims[d].size);
    if (batch == d) place += layout.part(rank, layout.micro_batches - 1) * shape[d];
    element += stride * place;
    i /= type.dims[d].size;
    stride *= shape[d] * (batch == d ? layout.parts() : 1);
  }
  return element;
}

// The dimension in which the whole is `parts` times as large, where it is as large in all others.
std::optional<size_t> batch_dim(const std::vector<int64_t>& whole, const std::vector<int64_t>& shape, int64_t parts) {
  std::optional<size_t> batch;
  if (parts == 1 || whole.size() != shape.size()) return batch;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (whole[d] == shape[d]) continue;
    if (batch || whole[d] != shape[d] * parts) return {};
    batch = d;
  }
  return batch;
}

// The whole's sizes as the type has dimensions: a weight with blocks has one for them.
std::vector<int64_t> whole_shape(const DeviceMesh& mesh, const ir::Type& type) {
  std::vector<int64_t> shape;
  for (const ir::Dim& dim : type.dims) {
    int64_t size = dim.size;
    for (const std::string& axis : dim.split) size *= mesh.size(axis);
    shape.push_back(size);
  }
  return shape;
}

Array part_of(const Array& whole, const ir::Type& type, const StepLayout& layout, int64_t rank) {
  Array part = {whole.dtype, type.shape(), {}};
  const auto shape = whole_shape(layout.mesh, type);
  SFSDP_CHECK(ir::interp::numel(shape) == whole.numel(), "parts of ", type, " of ", whole.numel(), " elements");
  for (int64_t i = 0; i < type.numel(); ++i)
    part.data.push_back(whole.data[static_cast<size_t>(element_of_whole(layout, type, shape, rank, i))]);
  return part;
}

// The samples that a rank has in a micro-batch.
Array samples_of(const Array& whole, const StepLayout& layout, int64_t rank, int64_t micro_batch) {
  Array part = {whole.dtype, whole.shape, {}};
  part.shape[0] /= layout.parts();
  const int64_t size = whole.numel() / layout.parts();
  const auto first = whole.data.begin() + layout.part(rank, micro_batch) * size;
  part.data.assign(first, first + size);
  return part;
}

// What a rank stores of a weight: the rows of its box at its place along the axes that cut what is stored; beyond the last row
// there is padding, which is 0.
//   box: its type by model axes alone
Array stored_part(const Array& whole, const ir::Type& box, const ir::Op& param, const StepLayout& layout,
                  int64_t rank) {
  const Array rows = part_of(whole, box, layout, rank);
  if (!param.has_attr("rows")) return rows;
  const ir::Type& type = param.result()->type();
  const AxisList& cut = type.dims[0].split;
  const AxisList over(cut.begin() + std::ssize(box.dims[0].split), cut.end());
  Array stored = Array::zeros(rows.dtype, type.shape());
  const int64_t first = layout.mesh.group_rank(rank, over) * stored.numel();
  for (int64_t i = 0; i < std::min(stored.numel(), rows.numel() - first); ++i)
    stored.data[static_cast<size_t>(i)] = rows.data[static_cast<size_t>(first + i)];
  return stored;
}

AxisList axes_of(const ir::Type& type, ir::Placement::Kind kind) {
  AxisList axes;
  for (const ir::AxisPlacement& p : type.placements)
    if (p.placement.kind == kind) axes.insert(axes.end(), p.axes.begin(), p.axes.end());
  return axes;
}

// Where the rows of a rank's experts begin among all of them, which it has at its front, and how many they are.
struct OwnRows {
  int64_t begin = 0, count = 0;
};
OwnRows own_rows_of(const StepLayout& layout, const Array& ends, int64_t rank) {
  const int64_t groups = ends.numel() / layout.mesh.size("ep"), first = groups * layout.mesh.axis_rank(rank, "ep");
  const auto end_of = [&](int64_t group) { return group < 0 ? 0 : static_cast<int64_t>(ends.data.at(group)); };
  return {end_of(first - 1), end_of(first + groups - 1) - end_of(first - 1)};
}

// What has no samples: forward's is of weights and positions, but for the loss; backward's is made of samples.
bool is_same_for_all(const ir::Value& value) {
  return value.producer()->section == ir::Section::Fwd && !value.type().dims.empty();
}

// The largest difference between the whole and what ranks hold of it: each rank's summands are added to those of the ranks along the
// axes of its sum, then each element is compared where it stands. A rank's loss is the mean of its samples, so what it makes in backward
// is as many times larger as there are parts of the batch; what has no samples is a summand of their mean.
//   ends: of experts' rows, where there are experts
double difference(const Array& whole, const std::vector<const Array*>& held, const ir::Value& value,
                  const StepLayout& layout, const Array* ends) {
  const ir::Type& type = value.type();
  AxisList sum = axes_of(type, ir::Placement::Kind::Partial);
  const bool is_rows = !axes_of(type, ir::Placement::Kind::Rows).empty();
  const auto shape = whole_shape(layout.mesh, type);
  const auto batch = batch_dim(whole.shape, shape, layout.parts());
  if (!batch && ir::interp::numel(shape) != whole.numel()) return INFINITY;
  const bool is_mean = !batch && !is_same_for_all(value);
  if (is_mean) sum.insert(sum.end(), layout.data_axes.begin(), layout.data_axes.end());
  const bool is_backward = value.producer()->section == ir::Section::Bwd;
  const double scale = is_mean || is_backward ? 1.0 / static_cast<double>(layout.parts()) : 1;
  double most = 0;
  const double largest = ir::interp::largest_magnitude(whole);
  const int64_t row = is_rows ? type.numel() / type.dims[0].size : 0;  // elements of one
  for (int64_t rank = 0; rank < std::ssize(held); ++rank) {
    const OwnRows own = is_rows ? own_rows_of(layout, *ends, rank) : OwnRows();
    for (int64_t i = 0; i < (is_rows ? own.count * row : type.numel()); ++i) {
      double got = held[rank]->data[i];
      for (const int64_t other : layout.mesh.ranks_of_group(rank, sum))
        if (!sum.empty() && other != rank) got += held[other]->data[i];
      const int64_t at = element_of_whole(layout, type, shape, rank, i + own.begin * row, batch);
      const double expected = whole.data[static_cast<size_t>(at)];
      if (scale * got == expected) continue;  // infinities too
      const double error = std::abs(scale * got - expected);
      most = std::isnan(error) ? INFINITY : std::max(most, error);
    }
  }
  return most == 0 ? 0 : most / largest;
}

// Float32 becomes float64, so that the kernels of LibTorch, which make the tables of angles, compute in it too.
void widen(ir::Graph& graph) {
  for (const auto& op : graph.ops()) {
    for (const auto& result : op->results()) {
      ir::Type type = result->type();
      if (type.dtype == ir::DType::f32) type.dtype = ir::DType::f64;
      result->set_type(std::move(type));
    }
    for (const char* key : {"dtype", "out_dtype"})
      if (const auto* dtype = op->find_attr<ir::DType>(key); dtype && *dtype == ir::DType::f32)
        op->attrs[key] = ir::DType::f64;
  }
}

// What ops of another module path read, what is returned, and parameters' gradients. Not what is given, nor what is a view of it.
std::vector<ir::Value*> at_borders(const ir::Graph& graph) {
  std::set<const ir::Value*> crossing(graph.outputs.begin(), graph.outputs.end());
  for (const auto& op : graph.ops())
    for (const ir::Value* operand : op->operands)
      if (operand && (op->is("gradient") || operand->producer()->module_path != op->module_path))
        crossing.insert(operand);
  std::vector<ir::Value*> borders;
  for (const auto& op : graph.ops()) {
    if (ir::is_root(*op) || op->is("constant")) continue;
    for (const auto& result : op->results())
      if (crossing.contains(result.get()) || op->is("gradient")) borders.push_back(result.get());
  }
  return borders;
}

// A name of the parts under which something else stands: the gradient that one rank's keys make, in a ring.
bool is_one_turn(const ir::Value& value) { return value.producer()->has_attr("shift"); }

// Names and values of the parts that stand for the whole's: what is returned by its place, all else by name.
std::vector<std::pair<std::string, ir::Value*>> pairs_of(const WholeStep& whole, const ir::Graph& parts, size_t& gone) {
  std::vector<std::pair<std::string, ir::Value*>> pairs;
  for (const auto& [name, array] : whole.borders) {
    const auto output = std::ranges::find(whole.outputs, name);
    ir::Value* value = output == whole.outputs.end()
                           ? parts.find_value(name)
                           : parts.outputs.at(static_cast<size_t>(output - whole.outputs.begin()));
    if (value && !is_one_turn(*value))
      pairs.emplace_back(name, value);
    else
      ++gone;
  }
  return pairs;
}

void give_constants(const ir::Graph& graph, const std::vector<at::Tensor>& constants, ir::interp::Inputs& given) {
  for (const auto& op : graph.ops()) {
    if (!op->is("constant")) continue;
    const auto index = op->attr<int64_t>("index");
    given[concat("constant.", index)] = to_array(constants[static_cast<size_t>(index)], op->result()->type().dtype);
  }
}

// What each rank is given: of the batch its samples, of a weight what it stores.
std::vector<ir::interp::Inputs> given_to_ranks(const WholeStep& whole, const PlacedStep& placed,
                                               const StepLayout& layout) {
  std::vector<ir::interp::Inputs> given(static_cast<size_t>(layout.mesh.world_size()));
  for (int64_t rank = 0; rank < std::ssize(given); ++rank) {
    ir::interp::Inputs& own = given[static_cast<size_t>(rank)];
    give_constants(placed.graph, placed.constants, own);
    for (const auto& op : placed.graph.ops()) {
      if (op->is("state")) {
        const auto name = op->attr<std::string>("name");
        own[name] = whole.given.at(name);
      } else if (op->is("param", "input")) {
        const auto name = op->attr<std::string>("name");
        if (op->is("param"))
          own[name] = stored_part(whole.given.at(name), placed.boxes.at(name), *op, layout, rank);
        else
          for (int64_t m = 0; m < layout.micro_batches; ++m)
            own[ir::interp::input_key(name, m)] = samples_of(whole.given.at(name), layout, rank, m);
      }
    }
  }
  return given;
}

// What the ranks store of a gradient, beside the mean of the whole batch.
double difference_of_stored(const Array& whole, const std::vector<const Array*>& held, const ir::Op& param,
                            const ir::Type& box, const StepLayout& layout) {
  double most = 0;
  for (int64_t rank = 0; rank < std::ssize(held); ++rank) {
    const Array expected = stored_part(whole, box, param, layout, rank);
    Array got = *held[static_cast<size_t>(rank)];
    for (double& x : got.data) x /= static_cast<double>(layout.parts());
    most = std::max(most, ir::interp::largest_difference(got, expected));
  }
  return most == 0 ? 0 : most / ir::interp::largest_magnitude(whole);
}

// Copies of tokens in the order of their experts, and where an expert's end: of each data rank's samples by themselves.
bool is_sorted(const ir::Value& value, const StepLayout& layout) {
  if (layout.parts() == 1 || layout.sorted_rows == 0 || value.type().dims.empty()) return false;
  const bool is_ends = value.type().dtype == ir::DType::i32 && value.type().dims.size() == 1;
  return is_ends || value.type().dims[0].size == layout.sorted_rows;
}

}  // namespace

WholeStep run_whole(ir::Graph captured, std::vector<at::Tensor> constants) {
  WholeStep whole{std::move(captured), std::move(constants), {}, {}, {}};
  ir::Graph named = whole.graph.clone();
  parallel::name_ops(named);
  widen(named);
  whole.given = ir::interp::seeded_inputs(named, 7)[0];
  give_constants(named, whole.constants, whole.given);
  for (const auto& op : named.ops()) {
    if (op->is("param")) {  // near what is drawn for a weight, so that no softmax is 0 and 1 alone
      for (double& x : whole.given.at(op->attr<std::string>("name")).data) x = x / 8 + 1.0 / 32;
    } else if (op->is("input")) {
      Array& ids = whole.given.at(op->attr<std::string>("name"));
      for (size_t i = 0; i < ids.data.size(); ++i)
        ids.data[i] = static_cast<double>((7 * i * i + 3 * i + (op->attr<std::string>("name").back() - '0')) % 28);
    }
  }
  for (const ir::Value* output : named.outputs) whole.outputs.push_back(output->name());
  named.outputs = at_borders(named);
  const auto run = ir::interp::run(named, {whole.given}, kExact);
  for (size_t i = 0; i < named.outputs.size(); ++i) whole.borders[named.outputs[i]->name()] = run.ranks[0].outputs[i];
  return whole;
}

Compared compare_borders(const WholeStep& whole, const PlacedStep& placed, const StepLayout& layout) {
  PlacedStep parts = {placed.graph.clone(), placed.constants, placed.boxes};
  ir::Graph& graph = parts.graph;
  widen(graph);
  Compared compared;
  const auto pairs = pairs_of(whole, graph, compared.gone);
  graph.outputs.clear();
  for (const auto& [name, value] : pairs) graph.outputs.push_back(value);
  for (const auto& op : graph.ops())  // one mixture, so one of these
    if (op->is("own_rows", "own_ends") && graph.outputs.size() == pairs.size())
      graph.outputs.push_back(op->operands[op->is("own_rows") ? 1 : 0]);
  std::map<std::string, const ir::Op*> params;
  for (const auto& op : graph.ops())
    if (op->is("param")) params[op->attr<std::string>("name")] = op.get();
  const auto run = ir::interp::run(graph, given_to_ranks(whole, parts, layout), kExact);
  const Array* ends = graph.outputs.size() > pairs.size() ? &run.ranks[0].outputs.back() : nullptr;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const ir::Value& value = *pairs[i].second;
    const Array& expected = whole.borders.at(pairs[i].first);
    std::vector<const Array*> held;
    for (const auto& rank : run.ranks) held.push_back(&rank.outputs[i]);
    double most = 0;
    if (is_sorted(value, layout)) {
      ++compared.sorted;
      continue;
    }
    if (value.producer()->section == ir::Section::Clip) {
      const auto name = value.producer()->attr<std::string>("param");
      most = difference_of_stored(expected, held, *params.at(name), placed.boxes.at(name), layout);
    } else if (layout.micro_batches == 1 || is_same_for_all(value) ||
               batch_dim(expected.shape, whole_shape(layout.mesh, value.type()), layout.parts())) {
      most = difference(expected, held, value, layout, ends);
    } else {
      ++compared.summands;
      continue;
    }
    if (!(most <= compared.most)) {
      compared.most = most;
      compared.worst = concat('%', value.name(), " : ", value.type(), " at ", value.producer()->module_path);
    }
    ++compared.values;
    compared.cut += std::ranges::any_of(value.type().dims, [](const ir::Dim& d) { return !d.split.empty(); }) ? 1 : 0;
  }
  return compared;
}

}  // namespace sfsdp::testing
