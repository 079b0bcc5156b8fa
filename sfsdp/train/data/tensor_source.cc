// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/tensor_source.h"

#include <algorithm>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/train/data/data_files.h"

namespace sfsdp::train {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& what, const std::string& expected) {
  throw UserError(concat(path, ": ", what, "\n  expected ", expected));
}

SampleTensor sample_of(const TensorView& view, const std::string& path) {
  if (!view.dtype)
    refuse(path, concat("tensor ", view.name, " has dtype ", view.dtype_name), "a dtype that models take");
  if (view.shape.empty())
    refuse(path, concat("tensor ", view.name, " is one number"), "a first dimension that counts samples");
  return {view.name, *view.dtype, {view.shape.begin() + 1, view.shape.end()}};
}

}  // namespace

TensorSource::TensorSource(const std::string& path, const TensorSourceOptions& options)
    : name_(path), options_(options) {
  constexpr std::string_view kExpected = "a safetensors file, a folder of *.safetensors, or a pattern";
  const auto accepts = [](const std::string& name) { return name.ends_with(".safetensors"); };
  for (const std::string& file : data_files(path, accepts, kExpected)) add_file(file);
  if (size_ == 0) refuse(path, "holds no samples", "tensors whose first dimension is the number of samples, 1 or more");
  content_ = make_content();
}

void TensorSource::add_file(const std::string& path) {
  File file = {SafetensorsFile::open(path), size_, -1, {}};
  std::vector<SampleTensor> layout;
  for (const TensorView& view : file.file.tensors()) layout.push_back(sample_of(view, path));
  std::ranges::sort(layout, {}, &SampleTensor::name);
  if (layout.empty()) refuse(path, "holds no tensors", "one for each input of the model");
  if (files_.empty()) layout_ = layout;
  if (layout != layout_)
    refuse(path, concat("has other tensors than ", files_.front().file.path()),
           "the same names, dtypes and shapes of a sample");
  for (const SampleTensor& tensor : layout_) {
    const TensorView* view = file.file.find(tensor.name);
    if (file.samples >= 0 && view->shape[0] != file.samples)
      refuse(path,
             concat("tensor ", tensor.name, " has ", view->shape[0], " samples, ", layout_.front().name, " has ",
                    file.samples),
             "as many of each");
    file.samples = view->shape[0];
    file.tensors.push_back(view);
  }
  size_ += file.samples;
  files_.push_back(std::move(file));
}

int64_t TensorSource::make_content() const {
  constexpr int64_t kSamples = 16;
  ContentHash hash;
  hash.add(concat(size_, " ", options_.shuffle));
  for (const SampleTensor& tensor : layout_)
    hash.add(concat(tensor.name, " ", ir::Type::tensor(tensor.dtype, tensor.shape)));
  std::vector<std::vector<std::byte>> parts(layout_.size());
  for (int64_t i = 0; i < kSamples; ++i) read((size_ - 1) * i / (kSamples - 1), parts);
  for (const auto& part : parts) hash.add({reinterpret_cast<const uint8_t*>(part.data()), part.size()});
  return static_cast<int64_t>(hash.value() >> 1);
}

std::string TensorSource::describe() const {
  std::vector<std::string> tensors;
  for (const SampleTensor& t : layout_) tensors.push_back(concat(t.name, " ", ir::Type::tensor(t.dtype, t.shape)));
  return concat(with_commas(size_), " samples in ", files_.size(),
                files_.size() == 1 ? " file: " : " files: ", join(tensors, ", "));
}

void TensorSource::append(int64_t sample, std::span<std::vector<std::byte>> out) {
  SFSDP_CHECK(sample >= 0 && out.size() == layout_.size(), "sample ", sample, ", ", out.size(), " tensors");
  const int64_t epoch = sample / size_;
  if (options_.shuffle && epoch_ != epoch) {
    order_.emplace(size_, options_.seed, epoch);
    epoch_ = epoch;
  }
  read(options_.shuffle ? (*order_)[sample % size_] : sample % size_, out);
}

void TensorSource::read(int64_t index, std::span<std::vector<std::byte>> out) const {
  const auto after = std::ranges::upper_bound(files_, index, {}, &File::first);
  const File& file = *std::prev(after);
  for (size_t t = 0; t < out.size(); ++t) {
    const size_t bytes = layout_[t].bytes(), begin = out[t].size();
    out[t].resize(begin + bytes);
    file.tensors[t]->read(static_cast<uint64_t>(index - file.first) * bytes, std::span(out[t]).subspan(begin));
  }
}

}  // namespace sfsdp::train
