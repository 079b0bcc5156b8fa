// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/hf_weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/train/weights/hf_names.h"

namespace sfsdp::train {
namespace {

bool is_saved_constant(const std::string& name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

// Elements `range` of a parameter of this shape, in our row-major order, out of the checkpoint's tensor: a flat tensor
// of the file's dtype. Copied byte by byte, as the file's bytes need not be aligned.
at::Tensor read_range(const TensorView& view, const HfTensor& place, const std::vector<int64_t>& shape, Chunk range,
                      c10::ScalarType dtype) {
  at::Tensor out = at::empty({range.length}, at::TensorOptions(dtype));
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  auto* to = static_cast<std::byte*>(out.mutable_data_ptr());
  const auto copy = [&](int64_t source, int64_t count) {
    const auto from = view.data.subspan(static_cast<size_t>(source * element), static_cast<size_t>(count * element));
    std::memcpy(to, from.data(), from.size());
    to += from.size();
  };
  if (place.transform == HfTensor::None) {
    copy(range.offset, range.length);
    return out;
  }
  const int64_t rows = shape[0], columns = c10::multiply_integers(shape) / std::max<int64_t>(rows, 1);
  for (int64_t at = range.offset; at < range.offset + range.length;) {
    const int64_t row = at / columns, column = at % columns;
    const int64_t count = std::min(columns - column, range.offset + range.length - at);
    if (place.transform == HfTensor::Transpose)
      for (int64_t c = column; c < column + count; ++c) copy(c * rows + row, 1);
    else
      copy(source_row(place, rows, row) * columns + column, count);
    at += count;
  }
  return out;
}

// Anything else would be cast: quantised weights without their scales are numbers, but not these parameters.
c10::ScalarType float_dtype_of(const TensorView& view, const std::string& file) {
  if (view.dtype_name != "F16" && view.dtype_name != "BF16" && view.dtype_name != "F32" && view.dtype_name != "F64")
    throw UserError(
        concat(file, ": tensor ", view.name, " has dtype ", view.dtype_name,
               "\n  expected F16, BF16, F32 or F64, as the parameter is of floating point; quantised weights"
               " are not supported, save the model as bfloat16 or float32"));
  return capture::scalar_type_of(*view.dtype);
}

}  // namespace

std::vector<std::string> load_hf_weights(Step& step, const SafetensorsCheckpoint& checkpoint, const HfConfig& config) {
  std::set<std::string> unused;
  for (const std::string& name : checkpoint.names())
    if (!is_saved_constant(name)) unused.insert(name);
  const auto state = step.state_dict();
  for (const StoredTensor& t : step.program().tensors()) {
    if (t.source < 0 || step.program().state()[static_cast<size_t>(t.source)].is_buffer) continue;
    const auto place = hf_tensor_of(config.model, t.name, config);
    SFSDP_CHECK(place, "parameter ", t.name, " of model ", config.model, " has no place in its checkpoints");
    const TensorView* view = checkpoint.find(place->hf_name);
    if (!view && !place->other_name.empty()) view = checkpoint.find(place->other_name);
    if (!view) view = &checkpoint.at(place->hf_name);  // throws
    unused.erase(view->name);

    std::vector<int64_t> expected = t.global_shape;
    if (place->transform == HfTensor::Transpose) std::reverse(expected.begin(), expected.end());
    if (view->shape != expected)
      throw UserError(concat(checkpoint.file_of(view->name), ": tensor ", view->name, " has shape ",
                             at::IntArrayRef(view->shape), "\n  expected ", at::IntArrayRef(expected),
                             ", as config.json says; the two are not of one model"));
    const auto dtype = float_dtype_of(*view, checkpoint.file_of(view->name));
    const Chunk range = step.range_of(t.name);
    at::Tensor mine = state.at(t.name);
    if (range.length > 0) mine = read_range(*view, *place, t.global_shape, range, dtype).view(mine.sizes());
    step.load_state_dict({{t.name, mine}});
  }
  return {unused.begin(), unused.end()};
}

}  // namespace sfsdp::train
