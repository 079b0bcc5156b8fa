// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/hf_weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/train/hf_names.h"

namespace sfsdp::train {
namespace {

bool is_saved_constant(const std::string& name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

// Copies rows (of dimension 0) one by one, each through `source_of(i)`, into a tensor of the file's dtype: the file's
// bytes need not be aligned.
template <class SourceOf>
at::Tensor copy_rows(const TensorView& view, std::vector<int64_t> shape, int64_t row_bytes, c10::ScalarType dtype,
                     SourceOf source_of) {
  const int64_t rows = shape.empty() ? 1 : shape[0];
  at::Tensor out = at::empty(shape, at::TensorOptions(dtype));
  auto* to = static_cast<std::byte*>(out.mutable_data_ptr());
  for (int64_t r = 0; r < rows; ++r) {
    const std::span<const std::byte> from =
        view.data.subspan(static_cast<size_t>(source_of(r)), static_cast<size_t>(row_bytes));
    std::memcpy(to + r * row_bytes, from.data(), from.size());
  }
  return out;
}

// This rank's rows of a parameter, as the checkpoint holds them.
at::Tensor read_rows(const TensorView& view, const HfTensor& place, const std::vector<int64_t>& shape, Chunk rows,
                     c10::ScalarType dtype) {
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  if (place.transform == HfTensor::Transpose) {
    const int64_t columns = shape[0];  // ours are their columns
    return copy_rows(view, {shape[1], rows.length}, rows.length * element, dtype,
                     [&](int64_t r) { return (r * columns + rows.offset) * element; })
        .t();
  }
  std::vector<int64_t> local = shape;
  int64_t row_bytes = element;
  for (size_t d = 1; d < shape.size(); ++d) row_bytes *= shape[d];
  if (!local.empty()) local[0] = rows.length;
  return copy_rows(view, local, row_bytes, dtype, [&](int64_t r) {
    return source_row(place, shape.empty() ? 1 : shape[0], rows.offset + r) * row_bytes;
  });
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
    const auto dtype = capture::scalar_type_of(view->known_dtype(checkpoint.file_of(view->name)));
    const Chunk rows = step.rows_of(t.name);
    if (rows.length > 0) state.at(t.name).copy_(read_rows(*view, *place, t.global_shape, rows, dtype));
  }
  return {unused.begin(), unused.end()};
}

}  // namespace sfsdp::train
