// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/safetensors_header.h"

#include <cstring>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/mesh/chunk.h"
#include "sfsdp/train/weights/safetensors.h"

namespace sfsdp::train {

void SafetensorsHeader::add(std::string_view name, ir::DType dtype, std::span<const int64_t> shape, uint64_t bytes) {
  std::vector<std::string> sizes;
  for (const int64_t size : shape) sizes.push_back(std::to_string(size));
  entries_ += concat(",", json_quoted(name), R"(:{"dtype":")", safetensors_name(dtype), R"(","shape":[)",
                     join(sizes, ","), R"(],"data_offsets":[)", end_, ",", end_ + bytes, "]}");
  end_ += bytes;
}

std::string SafetensorsHeader::bytes(int64_t alignment) const {
  std::string text = concat(R"({"__metadata__":{"format":"pt"})", entries_, "}");  // transformers asks for the format
  constexpr size_t kLength = sizeof(uint64_t);
  text.resize(static_cast<size_t>(round_up(static_cast<int64_t>(text.size() + kLength), alignment)) - kLength, ' ');
  const uint64_t length = text.size();
  std::string header(kLength, '\0');
  std::memcpy(header.data(), &length, kLength);
  return header + text;
}

}  // namespace sfsdp::train
