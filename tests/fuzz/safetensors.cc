// SPDX-License-Identifier: BSD-3-Clause
// A safetensors file: header and bytes.
#include "sfsdp/train/weights/safetensors.h"

#include <cstring>

#include "sfsdp/base/check.h"
#include "sfsdp/testing/tensor_bytes.h"
#include "target.h"

namespace sfsdp::fuzz {
namespace {

void read(std::string_view bytes) {
  const auto file = train::SafetensorsFile::open(as_file(bytes));
  int64_t sum = 0;  // every byte is read: all of them must be there
  for (const train::TensorView& tensor : file.tensors())
    for (const std::byte byte : testing::bytes_of(tensor)) sum += static_cast<int64_t>(byte);
  SFSDP_CHECK(sum >= 0, "sum of bytes ", sum);
}

std::string file_of(const std::string& header, size_t bytes) {
  const uint64_t length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file + header + std::string(bytes, 'x');
}

std::vector<std::string> seeds() {
  return {file_of(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[],)"
                  R"("data_offsets":[24,26]}})",
                  26),
          file_of(R"({"__metadata__":{"format":"pt"},"w":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                  R"("empty":{"dtype":"F16","shape":[0,4],"data_offsets":[8,8]}})",
                  8)};
}

SFSDP_FUZZ_TARGET(safetensors, read, seeds)

}  // namespace
}  // namespace sfsdp::fuzz
