// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/adapter_values.h"

#include <algorithm>
#include <cstring>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/train/weights/adapter_names.h"
#include "sfsdp/train/weights/float_convert.h"

namespace sfsdp::train {
namespace {

using checkpoint::StretchReader;

std::vector<float> floats_of(StretchReader& reader, const checkpoint::StoredTensor& t) {
  checkpoint::Piece piece = checkpoint::piece_of(t);
  piece.dtype = ir::DType::f32;
  const std::span<const std::byte> bytes = reader.read(piece, 0, t.numel());
  std::vector<float> values(static_cast<size_t>(t.numel()));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

double alpha_of(const checkpoint::Manifest& manifest) {
  const auto found = manifest.model_args.find(kLoraAlpha);
  const std::optional<double> alpha = found == manifest.model_args.end() ? std::nullopt : parse_double(found->second);
  if (!alpha || !(*alpha > 0))
    throw UserError(concat("the checkpoint has adapters, but its manifest no ", kLoraAlpha, " above 0",
                           "\n  expected a checkpoint as sfsdp train wrote it"));
  return *alpha;
}

}  // namespace

CheckpointAdapters::CheckpointAdapters(StretchReader& reader) {
  const checkpoint::Manifest& manifest = reader.manifest();
  if (!manifest.model_args.contains(kLoraAlpha)) return;  // parameters of such names are the model's own
  for (const checkpoint::StoredTensor& t : manifest.tensors) {
    if (t.kind != checkpoint::TensorKind::Parameter || !t.name.ends_with(kLoraA)) continue;
    AdapterValues adapter;
    adapter.path = t.name.substr(0, t.name.size() - kLoraA.size());
    const checkpoint::StoredTensor* b = manifest.find(concat(adapter.path, kLoraB));
    const checkpoint::StoredTensor* weight = manifest.find(adapter.path + ".weight");
    const bool whole = b && weight && t.shape.size() == 2 && b->shape.size() == 2 &&
                       weight->shape == std::vector<int64_t>{b->shape[0], t.shape[1]} && b->shape[1] == t.shape[0];
    if (!whole)
      throw UserError(concat(adapter.path, " has an adapter that does not fit it",
                             "\n  expected lora_A [rank, in], lora_B [out, rank] and weight [out, in]"));
    adapter.rank = t.shape[0];
    adapter.in = t.shape[1];
    adapter.out = b->shape[0];
    adapter.a = floats_of(reader, t);
    adapter.b = floats_of(reader, *b);
    by_path_.emplace(adapter.path, std::move(adapter));
  }
  if (!empty()) alpha_ = alpha_of(manifest);
}

const AdapterValues* CheckpointAdapters::beside(std::string_view weight) const {
  constexpr std::string_view kWeight = ".weight";
  if (!weight.ends_with(kWeight)) return nullptr;
  const auto found = by_path_.find(std::string(weight.substr(0, weight.size() - kWeight.size())));
  return found == by_path_.end() ? nullptr : &found->second;
}

void CheckpointAdapters::add_to(const AdapterValues& adapter, int64_t begin, std::span<float> weights) const {
  const auto scale = static_cast<float>(alpha_ / static_cast<double>(adapter.rank));
  std::vector<float> sums(static_cast<size_t>(adapter.in));
  const int64_t end = begin + static_cast<int64_t>(weights.size());
  SFSDP_CHECK(begin >= 0 && end <= adapter.in * adapter.out, adapter.path, " has no elements ", begin, " to ", end);
  for (int64_t row = adapter.in == 0 ? 0 : begin / adapter.in; row * adapter.in < end; ++row) {
    const int64_t first = std::max<int64_t>(0, begin - row * adapter.in);
    const int64_t last = std::min(adapter.in, end - row * adapter.in);
    std::fill(sums.begin(), sums.end(), 0.0F);
    for (int64_t k = 0; k < adapter.rank; ++k) {
      const float factor = adapter.b[static_cast<size_t>(row * adapter.rank + k)];
      const float* values = adapter.a.data() + k * adapter.in;
      for (int64_t column = first; column < last; ++column)
        sums[static_cast<size_t>(column)] += factor * values[column];
    }
    for (int64_t column = first; column < last; ++column)
      weights[static_cast<size_t>(row * adapter.in + column - begin)] += scale * sums[static_cast<size_t>(column)];
  }
}

MergedReader::MergedReader(StretchReader& reader, bool merge) : reader_(reader), adapters_(reader) {
  if (!merge && !adapters_.empty())
    throw UserError(
        concat("the checkpoint has adapters beside ", adapters_.by_path().size(),
               " weights, which this format has no place for\n  expected --merge, which adds them to the weights, or"
               " sfsdp export --format peft, which writes them alone"));
}

std::span<const std::byte> MergedReader::read(const checkpoint::Piece& piece, int64_t begin, int64_t end) {
  const AdapterValues* adapter = adapters_.beside(piece.name);
  if (!adapter) return reader_.read(piece, begin, end);
  checkpoint::Piece wide = piece;
  wide.dtype = ir::DType::f32;
  const std::span<const std::byte> bytes = reader_.read(wide, begin, end);
  wide_.resize(static_cast<size_t>(end - begin));
  std::memcpy(wide_.data(), bytes.data(), bytes.size());
  adapters_.add_to(*adapter, begin, wide_);
  narrow_.resize(wide_.size() * static_cast<size_t>(ir::size_in_bytes(piece.dtype)));
  convert_floats(std::as_bytes(std::span(wide_)), ir::DType::f32, narrow_, piece.dtype);
  return narrow_;
}

}  // namespace sfsdp::train
