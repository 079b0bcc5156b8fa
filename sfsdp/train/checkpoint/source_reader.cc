// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/checkpoint/source_reader.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "sfsdp/base/json.h"
#include "sfsdp/base/passing_error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/exported/program.h"
#include "sfsdp/plan/common_runs.h"
#include "sfsdp/train/checkpoint/left_out.h"
#include "sfsdp/train/checkpoint/stretch_reader.h"
#include "sfsdp/train/weights/archive_values.h"
#include "sfsdp/train/weights/block_scales.h"
#include "sfsdp/train/weights/float_convert.h"
#include "sfsdp/train/weights/hf_config.h"
#include "sfsdp/train/weights/hf_copy.h"
#include "sfsdp/train/weights/hf_names.h"
#include "sfsdp/train/weights/safetensors.h"

namespace sfsdp::train::checkpoint {
namespace {

[[noreturn]] void not_there(const std::string& source, const StoredTensor& t) {
  throw UserError(
      concat(source, ": has no tensor ", quote_safe(t.name),
             " of the shape and kind of dtype that the checkpoint says\n  expected what the run began with"));
}

ReadElements of_archive(const std::string& path) {
  auto program = std::make_shared<const exported::Program>(exported::read_program(path));
  return [program](const StoredTensor& t, int64_t begin, std::span<std::byte> out) {
    const auto found = std::ranges::find(program->state, t.name, &exported::StateTensor::name);
    if (found == program->state.end() || found->sizes != t.shape) not_there(program->archive.path(), t);
    if (found->dtype != t.dtype && (!is_weight_dtype(found->dtype) || !is_weight_dtype(t.dtype)))
      not_there(program->archive.path(), t);
    const auto count = static_cast<int64_t>(out.size()) / ir::size_in_bytes(t.dtype);
    read_archive_values(program->archive, *found, plan::whole_box(t.shape, {begin, count}), out, t.dtype);
  };
}

// Elements `box` of one tensor of the folder, or of a slice, which has that shape here.
void read_source(const SafetensorsCheckpoint& files, const HfConfig& config, const HfTensor& place,
                 const StoredTensor& t, const std::vector<int64_t>& shape, const plan::Box& box,
                 std::span<std::byte> out) {
  const TensorView* view = files.find(place.hf_name);
  if (!view && !place.other_name.empty()) view = files.find(place.other_name);
  if (!view || view->shape != hf_shape_of(place, shape)) not_there(files.dir(), t);
  const HfNumbers numbers = numbers_of(files, *view, find_scales(files, *view, config), config);
  std::array<std::byte, 65536> staging;
  copy_from_hf(place, shape, box, numbers.read, numbers.dtype, staging, out, t.dtype);
}

ReadElements of_hf_folder(const std::string& path) {
  auto config = std::make_shared<const HfConfig>(read_hf_config(path));
  auto files = std::make_shared<const SafetensorsCheckpoint>(SafetensorsCheckpoint::open(path));
  return [config, files](const StoredTensor& t, int64_t begin, std::span<std::byte> out) {
    const auto place = hf_tensor_of(config->model, t.name, *config);
    if (!place || !is_weight_dtype(t.dtype)) not_there(files->dir(), t);
    const int64_t element = ir::size_in_bytes(t.dtype);
    const plan::Box box = plan::whole_box(t.shape, {begin, static_cast<int64_t>(out.size()) / element});
    if (place->slices == 0) return read_source(*files, *config, *place, t, t.shape, box, out);
    int64_t slice = 0;
    for (const HfTensor& one : tensors_of(*place)) {
      const SlicePart part = part_of_slice(box, slice++);
      if (part.range.length > 0)
        read_source(*files, *config, one, t, {t.shape.begin() + 1, t.shape.end()}, part.box,
                    out.subspan(static_cast<size_t>((part.range.offset - begin) * element),
                                static_cast<size_t>(part.range.length * element)));
    }
  };
}

ReadElements of_checkpoint(const std::string& path, int depth) {
  auto reader = std::make_shared<StretchReader>(path, "", depth);
  return [reader, path](const StoredTensor& t, int64_t begin, std::span<std::byte> out) {
    const StoredTensor* stored = reader->manifest().find(t.name);
    if (!stored || stored->shape != t.shape) not_there(path, t);
    Piece piece = piece_of(*stored);
    piece.dtype = t.dtype;
    const auto count = static_cast<int64_t>(out.size()) / ir::size_in_bytes(t.dtype);
    std::ranges::copy(reader->read(piece, begin, begin + count), out.begin());
  };
}

}  // namespace

SourceReader::SourceReader(const Manifest& manifest, const std::string& checkpoint, const std::string& archive,
                           int depth)
    : manifest_(manifest), checkpoint_(checkpoint), source_(resolved(manifest.source, checkpoint)) {
  using Kind = WeightSource::Kind;
  if (source_.kind == Kind::Archive && !archive.empty()) source_.path = archive;
  if (source_.kind == Kind::Initial)
    throw UserError(concat(checkpoint, " leaves out frozen weights, which are ", to_string(source_),
                           "\n  expected a checkpoint that holds them, as a run alone draws them: go on from it with"
                           " checkpoint.frozen = all, whose next save does"));
  if (depth > kMostSources) throw UserError(concat(checkpoint, ": ", kCircle));
  try {
    read_ = source_.kind == Kind::Archive       ? of_archive(source_.path)
            : source_.kind == Kind::HuggingFace ? of_hf_folder(source_.path)
                                                : of_checkpoint(source_.path, depth + 1);
  } catch (const PassingError&) {
    throw;
  } catch (const UserError& error) {  // not what is damaged here
    throw UserError(
        concat(checkpoint, " leaves out frozen weights, which are of ", to_string(source_), ", but ", error.what()));
  }
}

void SourceReader::read(const StoredTensor& tensor, int64_t begin, std::span<std::byte> out) {
  const int64_t width = ir::size_in_bytes(tensor.dtype);
  if (checked_.insert(tensor.name).second) {
    std::vector<std::byte> block;
    uint64_t digest = 0;
    const int64_t numel = tensor.numel(), at_once = kBlockBytes / width;
    for (int64_t first = 0; first < numel; first += at_once) {
      block.resize(static_cast<size_t>(std::min(at_once, numel - first) * width));
      read_(tensor, first, block);
      digest += digest_of(block, width, first);
    }
    if (digest != *tensor.digest) {
      checked_.erase(tensor.name);
      throw UserError(has_changed(source_, tensor, digest, 0, checkpoint_));
    }
  }
  read_(tensor, begin, out);
}

}  // namespace sfsdp::train::checkpoint
