// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/checkpoint/convert.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "sfsdp/base/check.h"
#include "sfsdp/plan/common_runs.h"
#include "sfsdp/train/checkpoint/left_out.h"
#include "sfsdp/train/checkpoint/load.h"
#include "sfsdp/train/checkpoint/shard_file.h"
#include "sfsdp/train/checkpoint/store.h"
#include "sfsdp/train/checkpoint/stretch_reader.h"
#include "sfsdp/train/weights/adapter_names.h"
#include "sfsdp/train/weights/adapter_values.h"
#include "sfsdp/train/weights/float_convert.h"
#include "sfsdp/train/weights/hf_config_json.h"
#include "sfsdp/train/weights/hf_folder.h"
#include "sfsdp/train/weights/hf_parameters.h"

namespace sfsdp::train::checkpoint {
namespace {

// What file `rank` of `ranks` gets. A data rank's own buffers go to one file each, in turn.
std::vector<Piece> share_of(const Manifest& manifest, const ConvertOptions& options, int64_t rank, int64_t ranks) {
  std::vector<Piece> pieces;
  for (const StoredTensor& t : manifest.tensors) {
    if (t.digest || (options.model_only && t.kind == TensorKind::Optimizer)) continue;
    Piece piece = piece_of(t);
    if (options.dtype && t.kind == TensorKind::Parameter && is_weight_dtype(t.dtype)) piece.dtype = *options.dtype;
    if (t.rank < 0) {
      piece.holder = rank;
      piece.holders = ranks;
    } else if (t.rank % ranks != rank) {
      continue;
    }
    pieces.push_back(std::move(piece));
  }
  return share_out(pieces);
}

double difference(double a, double b) {
  if (std::isnan(a) || std::isnan(b))
    return std::isnan(a) && std::isnan(b) ? 0 : std::numeric_limits<double>::infinity();
  return a == b ? 0 : std::abs(a - b);
}

void compare(StretchReader& first, StretchReader& second, const StoredTensor& a, const StoredTensor& b,
             TensorDifference& found) {
  const bool floats = is_weight_dtype(a.dtype) && is_weight_dtype(b.dtype);
  const auto width = static_cast<size_t>(ir::size_in_bytes(a.dtype));
  const int64_t at_once = kBlockBytes / 8;
  for (int64_t begin = 0; begin < a.numel(); begin += at_once) {
    const int64_t end = std::min(a.numel(), begin + at_once);
    Piece left = piece_of(a), right = piece_of(b);
    if (floats) left.dtype = right.dtype = ir::DType::f64;
    const auto x = first.read(left, begin, end), y = second.read(right, begin, end);
    if (!floats) {
      for (size_t at = 0; at < x.size(); at += width) found.elements += std::memcmp(&x[at], &y[at], width) != 0;
      continue;
    }
    for (size_t at = 0; at < x.size(); at += sizeof(double)) {
      double one = 0, other = 0;
      std::memcpy(&one, &x[at], sizeof(one));
      std::memcpy(&other, &y[at], sizeof(other));
      found.elements += std::bit_cast<uint64_t>(one) != std::bit_cast<uint64_t>(other);
      found.largest = std::max(found.largest, difference(one, other));
    }
  }
}

}  // namespace

std::string convert(const std::string& from, const std::string& to, const ConvertOptions& options) {
  StretchReader source(from);
  const Manifest& manifest = source.manifest();
  const int64_t ranks = options.ranks > 0 ? options.ranks : static_cast<int64_t>(manifest.files.size());
  const int64_t step = manifest.run.step;
  Store store(to);
  store.lock();
  if (exists(store.path_of(step)))
    throw UserError(concat(store.path_of(step), " is there\n  expected a folder that has no step ", step));
  store.begin(step);
  try {
    std::vector<Manifest> fragments;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      Manifest& fragment = fragments.emplace_back(manifest);
      fragment.model_only = manifest.model_only || options.model_only;
      write_shard(store.temporary_path_of(step), shard_name(static_cast<int>(rank)),
                  share_of(manifest, options, rank, ranks), fragment,
                  [&](const Piece& piece, int64_t begin, int64_t end) { return source.read(piece, begin, end); });
    }
    Manifest all = merge(fragments);
    for (const StoredTensor* t : manifest.left_out()) all.tensors.push_back(*t);
    all.source = resolved(manifest.source, from);
    store.publish(std::move(all));
  } catch (...) {
    store.give_up(step);
    throw;
  }
  return store.path_of(step);
}

void convert_to_hf(const std::string& from, const std::string& folder, const std::string& assets, ir::DType dtype,
                   bool merge) {
  StretchReader source(from);
  MergedReader merged(source, merge);
  std::vector<HfSource> parameters;
  for (const StoredTensor& t : source.manifest().tensors)
    if ((t.kind == TensorKind::Parameter && !is_adapter(t.name)) || is_saved_buffer(t.name))
      parameters.push_back({t.name, t.shape});
  const HfConfig config = read_hf_config(assets);
  const std::string file = assets + "/config.json";
  expect_parameters_of(config, parameters, from, file);
  expect_args_of(config, source.manifest().model, source.manifest().model_args, from, file);
  constexpr int64_t kMaxPositions = 2048;  // where that config.json has none, as export_hf_folder
  HfFolderWriter writer(lay_out_hf(parameters, config, dtype), folder);
  writer.create(hf_config_json(config, dtype, kMaxPositions, read_hf_config_text(assets)), assets);
  try {
    for (const HfPlaced& placed : writer.layout().tensors) {
      const StoredTensor& t = *source.manifest().find(placed.source.name);
      const int64_t at_once = kBlockBytes / ir::size_in_bytes(t.dtype);
      const int64_t numel = plan::elements_of(plan::whole_box(placed.source.shape).dims);
      const int64_t first = std::max<int64_t>(placed.slice, 0) * numel;
      for (int64_t begin = 0; begin < numel; begin += at_once) {
        const int64_t end = std::min(numel, begin + at_once);
        writer.write(placed, plan::whole_box(placed.source.shape, {begin, end - begin}),
                     merged.read(piece_of(t), first + begin, first + end), t.dtype);
      }
    }
    writer.flush();
    writer.publish();
  } catch (...) {
    writer.abandon();
    throw;
  }
}

std::vector<TensorDifference> differences(const std::string& first, const std::string& second, int64_t* compared) {
  StretchReader one(first), other(second);
  std::vector<TensorDifference> found;
  *compared = 0;
  const auto name_of = [](const StoredTensor& t) { return t.rank < 0 ? t.name : concat(t.name, "@", t.rank); };
  for (const StoredTensor& a : one.manifest().tensors) {
    TensorDifference difference{name_of(a), "", 0, 0};
    if (const StoredTensor* b = other.manifest().find(a.name, a.rank); !b) {
      difference.what = "only in the first";
    } else if (a.shape != b->shape) {
      difference.what = "another shape";
    } else if (a.dtype != b->dtype && !(is_weight_dtype(a.dtype) && is_weight_dtype(b->dtype))) {
      difference.what = "another dtype";
    } else if (a.digest && b->digest && a.dtype == b->dtype) {  // left out of both: no source need be there
      if (*a.digest != *b->digest) difference.what = "left out of both, with another digest";
      ++*compared;
    } else {
      compare(one, other, a, *b, difference);
      ++*compared;
    }
    if (!difference.what.empty() || difference.elements > 0) found.push_back(std::move(difference));
  }
  for (const StoredTensor& b : other.manifest().tensors)
    if (!one.manifest().find(b.name, b.rank)) found.push_back({name_of(b), "only in the second", 0, 0});
  return found;
}

}  // namespace sfsdp::train::checkpoint
