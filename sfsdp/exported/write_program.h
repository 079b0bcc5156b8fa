// SPDX-License-Identifier: BSD-3-Clause
// Writes an archive that torch.export.load opens, and read_program.
// Source: torch/_export/serde/schema.py (schema 8), torch/export/pt2_archive/constants.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "sfsdp/exported/program.h"
#include "sfsdp/exported/zip_writer.h"

namespace sfsdp::exported {

// Elements [begin, end) of a tensor of Contents::state in row-major order, in its dtype; valid until the next call.
using ReadElements = std::function<std::span<const std::byte>(const StateTensor& tensor, int64_t begin, int64_t end)>;

// Writes the file's bytes, tensors a block at a time. Tensors are row-major, their strides are not read; those with the same
// `entry` are one in the file, and its values are asked for under the first one's name. An input's example sizes are the values
// of its SymInts.
//   torch_version: of the LibTorch whose ops the graph calls: "2.13.0"
void write_program(const Contents& contents, const std::string& torch_version, const ReadElements& values,
                   const WriteBytes& write);

}  // namespace sfsdp::exported
