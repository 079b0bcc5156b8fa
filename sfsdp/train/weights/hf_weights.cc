// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/hf_weights.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <set>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/comm/same_texts.h"
#include "sfsdp/comm/work_beside.h"
#include "sfsdp/plan/common_runs.h"
#include "sfsdp/step/holders.h"
#include "sfsdp/train/weights/adapter_names.h"
#include "sfsdp/train/weights/block_scales.h"
#include "sfsdp/train/weights/float_convert.h"
#include "sfsdp/train/weights/hf_config_json.h"
#include "sfsdp/train/weights/hf_copy.h"
#include "sfsdp/train/weights/hf_names.h"
#include "sfsdp/train/weights/hf_unread.h"

namespace sfsdp::train {
namespace {

// On all threads of this rank, each its part of what the rank has of a tensor of that shape. Returns how many values became
// infinite in our dtype.
int64_t copy_on_threads(const HfNumbers& numbers, const HfTensor& place, const std::vector<int64_t>& shape,
                        const plan::Box& box, std::span<std::byte> mine, ir::DType dtype) {
  constexpr int64_t kLeast = 1 << 18;  // elements: what a thread costs is 1 % of copying these
  constexpr size_t kStaging = 256 << 10;
  const int64_t element = ir::size_in_bytes(dtype);
  std::atomic<int64_t> lost = 0;
  at::parallel_for(0, box.flat.length, kLeast, [&](int64_t begin, int64_t end) {
    const auto part = mine.subspan(static_cast<size_t>(begin * element), static_cast<size_t>((end - begin) * element));
    std::vector<std::byte> staging(kStaging);
    lost += copy_from_hf(place, shape, {box.dims, {box.flat.offset + begin, end - begin}, box.block_shape},
                         numbers.read, numbers.dtype, staging, part, dtype);
  });
  return lost;
}

bool is_saved(const Program& program, const StoredTensor& t) {
  return t.source >= 0 && (!program.state()[static_cast<size_t>(t.source)].is_buffer || is_saved_buffer(t.name));
}

std::span<std::byte> bytes_in(const at::Tensor& t) {
  return {static_cast<std::byte*>(t.mutable_data_ptr()), static_cast<size_t>(t.nbytes())};
}

const TensorView& find_view(const SafetensorsCheckpoint& checkpoint, const HfTensor& place) {
  const TensorView* view = checkpoint.find(place.hf_name);
  if (!view && !place.other_name.empty()) view = checkpoint.find(place.other_name);
  return view ? *view : checkpoint.at(place.hf_name);  // throws
}

// Elements `range` of a box that these bytes hold.
std::span<std::byte> part_of_bytes(std::span<std::byte> bytes, const plan::Box& box, Chunk range,
                                   const StoredTensor& t) {
  const auto element = static_cast<int64_t>(c10::elementSize(t.dtype));
  return bytes.subspan(static_cast<size_t>((range.offset - box.flat.offset) * element),
                       static_cast<size_t>(range.length * element));
}

// Ranks that hold the same elements write a share of them each: a range of what this one holds.
Chunk share_of(const Step& step, const StoredTensor& t, int64_t held, int64_t rank) {
  const Strategy& strategy = step.program().strategy();
  const AxisList axes = step::holder_axes(strategy, t);
  return chunk_of(held, strategy.mesh.group_size(axes), strategy.mesh.group_rank(rank, axes));
}

void write_shares(const Step& step, int64_t rank, HfFolderWriter& writer) {
  const auto state = step.state_dict();
  for (const HfPlaced& placed : writer.layout().tensors) {
    const StoredTensor& t = *std::ranges::find(step.program().tensors(), placed.source.name, &StoredTensor::name);
    const plan::Box box = step.box_of(t.name);
    const Chunk share = share_of(step, t, box.flat.length, rank);
    SlicePart part{{box.dims, {box.flat.offset + share.offset, share.length}, box.block_shape}, {}};
    part.range = part.box.flat;
    if (placed.slice >= 0) part = part_of_slice(part.box, placed.slice);
    writer.write(placed, part.box, part_of_bytes(bytes_in(state.at(t.name)), box, part.range, t),
                 capture::dtype_of(t.dtype));
  }
}

// Reads our elements `box`, of a tensor of that shape, into `mine`. Returns the tensor's name in the checkpoint, and that of
// its scales.
std::set<std::string> load_tensor(const SafetensorsCheckpoint& checkpoint, const HfConfig& config,
                                  const HfTensor& place, const StoredTensor& t, const std::vector<int64_t>& shape,
                                  const plan::Box& box, std::span<std::byte> mine) {
  const TensorView& view = find_view(checkpoint, place);
  if (const auto expected = hf_shape_of(place, shape); view.shape != expected)
    throw UserError(concat(checkpoint.file_of(view.name), ": tensor ", view.name, " has shape ",
                           at::IntArrayRef(view.shape), "\n  expected ", at::IntArrayRef(expected), ", as ", t.name,
                           " of the model has; config.json or model.args are of another one"));
  const TensorView* scales = find_scales(checkpoint, view, config);
  std::set<std::string> names = {view.name};
  if (scales) names.insert(scales->name);
  if (mine.empty()) return names;
  const ir::DType dtype = capture::dtype_of(t.dtype);
  const int64_t lost = copy_on_threads(numbers_of(checkpoint, view, scales, config), place, shape, box, mine, dtype);
  if (lost > 0)
    throw UserError(concat(checkpoint.file_of(view.name), ": ", lost, " values of tensor ", view.name,
                           " become infinite as ", t.dtype, ", which ", t.name,
                           " is stored in\n  expected values that it can hold; store the model in float32"));
  if (const auto first = first_not_finite(mine, dtype))
    throw UserError(concat(checkpoint.file_of(view.name), ": tensor ", view.name,
                           " holds infinite values or no numbers, the first of them element ",
                           plan::place_in_whole(shape, box, *first), " of ", t.name,
                           "\n  expected finite numbers; the file is damaged, or the run that wrote it "
                           "had diverged"));
  return names;
}

// Runs `body` on this rank; where one rank's throws, all ranks throw. A collective call, which waits for a slow disk.
void on_all_ranks(comm::CommWorld* world, comm::Communicator* ranks, const std::function<void()>& body) {
  if (!world) return body();
  std::string failure;
  const auto attempt = [&] {
    try {
      body();
    } catch (const std::exception& error) {
      failure = error.what();
    }
  };
  comm::work_beside(*ranks, attempt, "export progress");
  comm::expect_same_hash(*world, 0, {}, {}, failure);
}

}  // namespace

void load_hf_weights(Step& step, const SafetensorsCheckpoint& checkpoint, const HfConfig& config) {
  std::set<std::string> read;
  const auto state = step.state_dict();
  for (const StoredTensor& t : step.program().tensors()) {
    if (!is_saved(step.program(), t) || is_adapter(t.name)) continue;
    const auto place = hf_tensor_of(config.model, t.name, config);
    if (!place)
      throw UserError(
          concat(checkpoint.dir(), ": a ", config.architecture, " by its config.json has no ", t.name,
                 "\n  expected the tensors of that model; leave out what adds others, a key of model.args"));
    const plan::Box box = step.box_of(t.name);
    const std::span<std::byte> mine = bytes_in(state.at(t.name));
    if (place->slices == 0) {
      read.merge(load_tensor(checkpoint, config, *place, t, t.global_shape, box, mine));
      continue;
    }
    const std::vector<int64_t> shape(t.global_shape.begin() + 1, t.global_shape.end());
    int64_t slice = 0;
    for (const HfTensor& one : tensors_of(*place)) {
      const SlicePart part = part_of_slice(box, slice++);
      read.merge(load_tensor(checkpoint, config, one, t, shape, part.box, part_of_bytes(mine, box, part.range, t)));
    }
  }
  expect_all_read(checkpoint, read, config);
  step.load_state_dict({});  // whole copies are gathered anew from what was written
}

std::vector<HfSource> hf_sources(const Program& program) {
  std::vector<HfSource> sources;
  for (const StoredTensor& t : program.tensors())
    if (is_saved(program, t)) sources.push_back({t.name, t.global_shape});
  return sources;
}

HfExported export_hf_folder(const Step& step, comm::CommWorld* world, const HfConfig& config, const std::string& folder,
                            const HfExportOptions& options) {
  const int64_t rank = world ? world->rank() : 0;
  HfFolderWriter writer(lay_out_hf(hf_sources(step.program()), config, options.dtype, options.max_file_bytes), folder,
                        options.staging_bytes);
  const auto create = [&] {
    const std::string base = options.assets.empty() ? "" : read_hf_config_text(options.assets);
    writer.create(hf_config_json(config, options.dtype, options.max_positions, base), options.assets);
  };
  const auto ranks = world ? world->all_ranks("export") : nullptr;
  try {
    on_all_ranks(world, ranks.get(), [&] {
      if (rank == 0) create();
    });
    on_all_ranks(world, ranks.get(), [&] {
      write_shares(step, rank, writer);
      writer.flush();
    });
    on_all_ranks(world, ranks.get(), [&] {
      if (rank == 0) writer.publish();
    });
  } catch (...) {
    writer.abandon();  // rank 0's, which made it
    throw;
  }
  return {writer.layout().tensor_bytes, writer.layout().files.size(), writer.staging_bytes(), writer.set_aside()};
}

}  // namespace sfsdp::train
