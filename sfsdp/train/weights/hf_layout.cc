// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/hf_layout.h"

#include <algorithm>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/train/weights/hf_copy.h"
#include "sfsdp/train/weights/safetensors_header.h"

namespace sfsdp::train {
namespace {

std::string five_digits(size_t number) {
  const std::string digits = std::to_string(number);
  return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
}

// Assigns files; `begin` is still the place among the file's tensors.
void fill_files(HfLayout& layout, uint64_t max_file_bytes) {
  std::vector<uint64_t> filled;
  for (HfPlaced& tensor : layout.tensors) {
    if (filled.empty() || filled.back() + tensor.bytes > max_file_bytes) filled.push_back(0);
    tensor.file = filled.size() - 1;
    tensor.begin = filled.back();
    filled.back() += tensor.bytes;
    layout.tensor_bytes += tensor.bytes;
  }
  layout.files.resize(filled.size());
  for (size_t i = 0; i < filled.size(); ++i) {
    layout.files[i].bytes = filled[i];
    layout.files[i].name =
        filled.size() == 1 ? "model.safetensors"
                           : concat("model-", five_digits(i + 1), "-of-", five_digits(filled.size()), ".safetensors");
  }
}

// The format wants tensors packed and sees to their alignment by the header's length.
void write_headers(HfLayout& layout) {
  std::vector<SafetensorsHeader> headers(layout.files.size());
  for (const HfPlaced& tensor : layout.tensors)
    headers[tensor.file].add(tensor.tensor.hf_name, tensor.dtype, tensor.shape, tensor.bytes);
  for (size_t i = 0; i < headers.size(); ++i) {
    layout.files[i].header = headers[i].bytes();
    layout.files[i].bytes += layout.files[i].header.size();
  }
  for (HfPlaced& tensor : layout.tensors) tensor.begin += layout.files[tensor.file].header.size();
}

void place(const HfTensor& tensor, const HfSource& source, ir::DType dtype, HfLayout& layout) {
  HfPlaced placed;
  placed.source = source;
  placed.dtype = dtype;
  if (tensor.slices > 0) {
    SFSDP_CHECK(!source.shape.empty() && source.shape[0] == tensor.slices, source.name, " of ", tensor.slices);
    placed.source.shape.erase(placed.source.shape.begin());
  }
  int64_t bytes = ir::size_in_bytes(dtype);
  for (const int64_t size : placed.source.shape) bytes = ir::saturating_product(bytes, size);
  SFSDP_CHECK(bytes <= ir::kMaxBytes, source.name, " takes ", bytes, " bytes");
  placed.bytes = static_cast<uint64_t>(bytes);
  for (HfTensor& part : tensors_of(tensor)) {
    if (tensor.slices > 0) ++placed.slice;
    placed.shape = hf_shape_of(part, placed.source.shape);
    placed.tensor = std::move(part);
    layout.tensors.push_back(placed);
  }
}

std::string index_of(const HfLayout& layout) {
  std::vector<std::string> lines;
  for (const HfPlaced& tensor : layout.tensors)
    lines.push_back(
        concat("    ", json_quoted(tensor.tensor.hf_name), ": ", json_quoted(layout.files[tensor.file].name)));
  std::ranges::sort(lines);
  return concat("{\n  \"metadata\": {\n    \"total_size\": ", layout.tensor_bytes, "\n  },\n  \"weight_map\": {\n",
                join(lines, ",\n"), "\n  }\n}\n");
}

}  // namespace

const HfPlaced* HfLayout::find(const std::string& source) const {
  const auto found = std::ranges::find_if(tensors, [&](const HfPlaced& t) { return t.source.name == source; });
  return found == tensors.end() ? nullptr : &*found;
}

uint64_t HfLayout::largest_tensor() const {
  uint64_t largest = 0;
  for (const HfPlaced& tensor : tensors) largest = std::max(largest, tensor.bytes);
  return largest;
}

HfLayout lay_out_hf(const std::vector<HfSource>& sources, const HfConfig& config, ir::DType dtype,
                    uint64_t max_file_bytes) {
  if (dtype != ir::DType::f32 && dtype != ir::DType::bf16 && dtype != ir::DType::f16)
    throw UserError(concat("export_dtype is ", ir::to_string(dtype), "\n  expected float32, bfloat16 or float16"));
  HfLayout layout;
  std::set<std::string> names;
  for (const HfSource& source : sources) {
    const auto tensor = hf_tensor_of(config.model, source.name, config);
    if (!tensor)
      throw UserError(concat("parameter ", source.name, " has no place in a checkpoint of ", config.architecture,
                             "\n  expected a model of that architecture, as config.json describes it"));
    if (!names.insert(tensor->hf_name).second) continue;  // tied
    place(*tensor, source, is_saved_buffer(source.name) ? ir::DType::f32 : dtype, layout);
  }
  fill_files(layout, max_file_bytes);
  write_headers(layout);
  if (layout.files.size() > 1) layout.index = index_of(layout);
  return layout;
}

}  // namespace sfsdp::train
