// SPDX-License-Identifier: BSD-3-Clause
// A checkpoint's weights for Python: the archive that the model came from with the trained values in it, or a safetensors file
// under the Python names. Torch-free; tensors are read and written in blocks.
#pragma once

#include <string>

namespace sfsdp::train {

// Writes a copy of `archive` whose parameters and buffers have the values of the checkpoint, in the archive's dtypes and strides:
// torch.export.load opens it. It appears under its name once all of it is on the disk.
//   checkpoint: a folder step-N of a run of that archive
//   merge:      low-rank adapters are added to the weights; without it there must be none
//   throws:     UserError naming tensor, expected and got: the checkpoint is of another model; `out` is there; a file damaged
void export_archive(const std::string& checkpoint, const std::string& archive, const std::string& out, bool merge);

// Writes the parameters and persistent buffers as one safetensors file: load_state_dict(strict=True) takes it. Tied
// tensors stand under each of their names.
//   merge, throws: as export_archive
void export_safetensors(const std::string& checkpoint, const std::string& archive, const std::string& out, bool merge);

}  // namespace sfsdp::train
