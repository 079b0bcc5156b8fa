// SPDX-License-Identifier: BSD-3-Clause
// Reads safetensors files and Hugging Face checkpoint folders. Fails closed: a file that breaks any rule of the format is
// refused before one of its tensors can be seen. Files are read with pread and never mapped: one that is cut while it is
// read is an error that names the tensor, where a mapping would end the process with SIGBUS.
// Source: safetensors README and tensor.rs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sfsdp/base/fd.h"
#include "sfsdp/ir/type.h"

namespace sfsdp::train {

// One tensor of a file: little endian, C order, packed. Read while the SafetensorsFile it came from lives.
struct TensorView {
  std::string name;
  std::string dtype_name;          // as in the file: "BF16"
  std::optional<ir::DType> dtype;  // none for what the format knows and we do not: U16, U32, U64, F4, F6, F8_E8M0, ...
  std::vector<int64_t> shape;      // rank 0 is one element
  uint64_t bytes = 0;              // of all elements
  int file = -1;                   // a descriptor that the SafetensorsFile owns
  uint64_t offset = 0;             // of the first byte in it

  // Copies the tensor's bytes [first, first + out.size()). From any thread.
  //   throws: UserError naming the tensor, also where the file has become shorter
  void read(uint64_t first, std::span<std::byte> out) const;
};

// "BF16" -> bf16. None when we have no such dtype.
std::optional<ir::DType> dtype_of_safetensors(std::string_view name);
// bf16 -> "BF16".
std::string_view safetensors_name(ir::DType dtype);

class SafetensorsFile {
 public:
  // throws: UserError naming file, tensor, expected and got.
  static SafetensorsFile open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<TensorView>& tensors() const { return tensors_; }  // in the order of their bytes
  const TensorView* find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  SafetensorsFile(std::string path, Fd file) : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  Fd file_;
  std::vector<TensorView> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
  std::map<std::string, std::string> metadata_;
};

// DIR/model.safetensors, or the files DIR/model.safetensors.index.json lists. Both at once is an error: one is stale.
// Where there are several files, only tensors that the index lists are seen.
class SafetensorsCheckpoint {
 public:
  // throws: UserError; a listed tensor is missing, a name is in two files, a file name leaves the folder, or the sizes
  // do not add up to the index's total_size (where it has one).
  static SafetensorsCheckpoint open(const std::string& dir);

  const std::string& dir() const { return dir_; }
  const TensorView* find(std::string_view name) const;
  // throws: UserError naming the folder when there is no such tensor.
  const TensorView& at(std::string_view name) const;
  std::vector<std::string> names() const;  // sorted
  const std::vector<SafetensorsFile>& files() const { return files_; }
  // The path of the file that holds the tensor; "" if none does.
  std::string file_of(std::string_view name) const;

 private:
  struct Place {
    size_t file = 0;
    const TensorView* tensor = nullptr;  // in files_[file].tensors(), whose storage moving does not change
  };
  void open_index(const std::string& index_path);

  std::string dir_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Place, std::less<>> places_;
};

}  // namespace sfsdp::train
