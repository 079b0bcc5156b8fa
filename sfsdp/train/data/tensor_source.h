// SPDX-License-Identifier: BSD-3-Clause
// Samples that are tensors in safetensors files: each tensor's first dimension counts samples. Files are read sample by
// sample, never whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/train/data/permutation.h"
#include "sfsdp/train/data/samples.h"
#include "sfsdp/train/weights/safetensors.h"

namespace sfsdp::train {

struct TensorSourceOptions {
  bool shuffle = true;  // in another order each epoch; false: the files' order
  uint64_t seed = 0;    // of the order
};

class TensorSource : public Samples {
 public:
  //   path:   a file, a folder of *.safetensors or a pattern; files are one after the other by name
  //   throws: UserError naming file and tensor: no tensors or no samples, files of different tensors, as many samples not of
  //           each tensor, a dtype that we have not
  TensorSource(const std::string& path, const TensorSourceOptions& options);

  const std::string& name() const override { return name_; }
  int64_t size() const override { return size_; }
  int64_t seq_len() const override { return 1; }
  // Made of names, dtypes, shapes, order, and 16 samples over all of the files.
  int64_t content() const override { return content_; }
  std::string describe() const override;
  // By name.
  const std::vector<SampleTensor>& layout() const override { return layout_; }
  void append(int64_t sample, std::span<std::vector<std::byte>> out) override;

 private:
  struct File {
    SafetensorsFile file;
    int64_t first = 0, samples = 0;
    std::vector<const TensorView*> tensors;  // by place in layout_
  };
  void add_file(const std::string& path);
  void read(int64_t index, std::span<std::vector<std::byte>> out) const;
  int64_t make_content() const;

  std::string name_;
  TensorSourceOptions options_;
  std::vector<File> files_;
  std::vector<SampleTensor> layout_;
  int64_t size_ = 0;
  int64_t content_ = 0;
  std::optional<Permutation> order_;  // of epoch_
  int64_t epoch_ = -1;
};

}  // namespace sfsdp::train
