// SPDX-License-Identifier: BSD-3-Clause
// A checkpoint's manifest, with the hash that its content asks for: else no changed input would get past the first line.
#include "sfsdp/train/checkpoint/manifest.h"

#include "sfsdp/base/check.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/plan/common_runs.h"
#include "sfsdp/train/checkpoint/load.h"
#include "sfsdp/train/checkpoint/stretch_reader.h"
#include "target.h"

namespace sfsdp::fuzz {
namespace {

using namespace train::checkpoint;  // NOLINT(google-build-using-namespace): the target is all about it

// As a rank of two reads that holds the second half of the last dimension: of each range what lies in it, and nothing twice.
void plan_half(const Manifest& manifest, const StoredTensor& t) {
  if (t.shape.empty() || t.digest) return;
  Piece half = piece_of(t);
  half.box = plan::whole_box(t.shape).dims;
  half.box.back() = chunk_of(t.shape.back(), 2, 1);
  half.end = half.box_numel();
  const StoredRange* before = nullptr;
  for (const PlannedRead& planned : plan_reads(manifest, {half}, "checkpoint")) {
    const StoredRange& range = *planned.range;
    SFSDP_CHECK(range.begin <= planned.begin && planned.begin < planned.end && planned.end <= range.end, "outside");
    SFSDP_CHECK(&range != before, "a range twice");
    before = &range;
  }
}

void read(std::string_view bytes) {
  const size_t line = bytes.find('\n');
  const std::string_view rest = line == std::string_view::npos ? bytes : bytes.substr(line + 1);
  const std::string first = concat("{\"format\": \"sfsdp checkpoint 1\", \"xxh3\": \"", hex(xxh3(rest)), "\",\n");
  const Manifest manifest = parse_manifest(first + std::string(rest), "manifest.json");
  SFSDP_CHECK(parse_manifest(print(manifest), "manifest.json") == manifest, "another manifest is printed");
  for (const StoredTensor& t : manifest.tensors) {
    int64_t elements = 0;
    for (const PlannedRead& planned : plan_reads(manifest, {piece_of(t)}, "checkpoint")) {
      const StoredFile& file = manifest.files.at(static_cast<size_t>(planned.file));
      const int64_t count = planned.end - planned.begin;
      SFSDP_CHECK(count > 0 && planned.offset + count * ir::size_in_bytes(t.dtype) <= file.bytes, "past the end");
      elements += count;
    }
    SFSDP_CHECK(elements == t.numel(), elements, " of ", t.numel(), " elements");
    plan_half(manifest, t);
  }
}

std::vector<std::string> seeds() {
  Manifest m;
  m.run = {.step = 20, .tokens = 4096, .seed = 7, .data = {{"samples", 80}}, .schedule = {{"decay_type", "linear"}}};
  m.world_size = m.data_ranks = 2;
  m.files = {{"rank-00000.safetensors", 1000, 200, 1}, {"rank-00001.safetensors", 700, 200, 2}};
  m.tensors = {{"w", TensorKind::Parameter, ir::DType::f32, {10, 3}, -1, {{0, 20, 0, 200, {5}}, {20, 30, 1, 200, {6}}}},
               {"norm.running_mean", TensorKind::Buffer, ir::DType::f64, {2}, 1, {{0, 2, 1, 240, {7}}}},
               {"none", TensorKind::Optimizer, ir::DType::bf16, {0, 4}, -1, {}}};
  Manifest large = m;
  large.files[0].bytes = 3 * kBlockBytes;
  large.tensors = {
      {"v", TensorKind::Optimizer, ir::DType::f32, {kBlockBytes / 2}, -1, {{0, kBlockBytes / 2, 0, 200, {1, 2}}}}};
  Manifest boxes = m;
  boxes.tensors[0].boxes = {{{0, 10}, {0, 2}}, {{0, 10}, {2, 1}}};
  boxes.tensors[0].ranges = {{0, 16, 0, 200, {5}, 0}, {16, 20, 1, 200, {6}, 0}, {0, 10, 1, 216, {7}, 1}};
  return {print(m), print(large), print(boxes)};
}

SFSDP_FUZZ_TARGET(manifest, read, seeds)

}  // namespace
}  // namespace sfsdp::fuzz
