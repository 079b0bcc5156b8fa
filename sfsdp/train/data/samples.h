// SPDX-License-Identifier: BSD-3-Clause
// What a run reads: samples by number, each of the same tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/ir/type.h"

namespace sfsdp::train {

// One tensor of a sample.
struct SampleTensor {
  std::string name;  // "tokens", "pixel_values"
  ir::DType dtype = ir::DType::i64;
  std::vector<int64_t> shape;  // of one sample
  size_t bytes() const { return static_cast<size_t>(ir::Type::tensor(dtype, shape).bytes()); }
  bool operator==(const SampleTensor&) const = default;
};

// One source. For one thread at a time.
class Samples {
 public:
  Samples() = default;
  Samples(Samples&&) = default;
  Samples& operator=(Samples&&) = default;
  virtual ~Samples() = default;

  virtual const std::string& name() const = 0;
  virtual int64_t size() const = 0;     // of an epoch
  virtual int64_t seq_len() const = 0;  // what metrics count as tokens of a sample
  // A fingerprint of what is read in which order, 0 or more, the same on every machine.
  virtual int64_t content() const = 0;
  virtual std::string describe() const = 0;  // "805 tokens, 50 samples"
  virtual const std::vector<SampleTensor>& layout() const = 0;
  // Appends each tensor of the sample to its part of `out`. `sample` counts on over the epochs.
  //   throws: UserError where a file does not hold what it did
  virtual void append(int64_t sample, std::span<std::vector<std::byte>> out) = 0;
};

// Rows of a micro-batch: those of one tensor lie one after the other; tensors in the order of Samples::layout().
struct MicroBatch {
  explicit MicroBatch(const std::vector<SampleTensor>& layout) : tensors(layout.size()) {}
  std::vector<std::vector<std::byte>> tensors;
};

// The ids of a tensor of i64.
std::span<const int64_t> ids_of(const MicroBatch& batch, size_t tensor);

struct WeightedSource {
  template <class Source>
  WeightedSource(Source of, double share) : source(std::make_shared<Source>(std::move(of))), weight(share) {}
  WeightedSource(std::shared_ptr<Samples> of, double share) : source(std::move(of)), weight(share) {}
  std::shared_ptr<Samples> source;
  double weight = 1;  // above 0; its share of the samples is weight / the sum of all
};

}  // namespace sfsdp::train
