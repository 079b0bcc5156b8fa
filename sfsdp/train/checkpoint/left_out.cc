// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/checkpoint/left_out.h"

#include <cstring>
#include <filesystem>

#include "sfsdp/base/check.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/plan/common_runs.h"

namespace sfsdp::train::checkpoint {
namespace {

// The last mixing of splitmix64: each bit of the result depends on each bit of x.
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

template <class Bits>
uint64_t sum_of(std::span<const std::byte> bytes, int64_t begin) {
  uint64_t sum = 0, place = static_cast<uint64_t>(begin) * 0x9e3779b97f4a7c15u;
  for (size_t at = 0; at < bytes.size(); at += sizeof(Bits)) {
    Bits bits = 0;
    std::memcpy(&bits, bytes.data() + at, sizeof(bits));
    place += 0x9e3779b97f4a7c15u;  // 2^64 over the golden ratio: places are far from each other, bits are small
    sum += mixed(place + bits);
  }
  return sum;
}

}  // namespace

uint64_t digest_of(std::span<const std::byte> bytes, int64_t width, int64_t begin) {
  switch (width) {
    case 1: return sum_of<uint8_t>(bytes, begin);
    case 2: return sum_of<uint16_t>(bytes, begin);
    case 4: return sum_of<uint32_t>(bytes, begin);
    default: SFSDP_CHECK(width == 8, "elements of ", width, " bytes"); return sum_of<uint64_t>(bytes, begin);
  }
}

uint64_t digest_of(const Piece& piece) {
  const int64_t width = ir::size_in_bytes(piece.dtype);
  uint64_t sum = 0;
  const plan::Box own = piece.place();
  plan::for_each_run(own, plan::whole_beside(own, piece.shape), [&](const plan::BoxRun& run) {
    sum += digest_of(piece.bytes().subspan(static_cast<size_t>((run.first - piece.begin) * width),
                                           static_cast<size_t>(run.count * width)),
                     width, run.second);
  });
  return sum;
}

std::string to_string(const WeightSource& source) {
  switch (source.kind) {
    case WeightSource::Kind::Initial: return "the initial values by debug.seed";
    case WeightSource::Kind::Archive: return "the archive " + quote_safe(source.path);
    case WeightSource::Kind::HuggingFace: return "the Hugging Face folder " + quote_safe(source.path);
    case WeightSource::Kind::Checkpoint: return "the checkpoint " + quote_safe(source.path);
  }
  return "";
}

std::string path_of(const WeightSource& source, const std::string& checkpoint) {
  if (source.kind != WeightSource::Kind::Checkpoint || source.path.find('/') != std::string::npos) return source.path;
  std::filesystem::path own(checkpoint);
  if (!own.has_filename()) own = own.parent_path();  // "folder/step-4/"
  return (own.parent_path() / source.path).string();
}

WeightSource resolved(const WeightSource& source, const std::string& checkpoint) {
  if (source.path.empty()) return source;
  std::error_code error;
  const std::string path = path_of(source, checkpoint);
  const std::filesystem::path whole = std::filesystem::absolute(path, error).lexically_normal();
  return {source.kind, error ? path : whole.string()};
}

std::vector<Piece> take_left_out(const Manifest& manifest, std::vector<Piece>& pieces, const std::string& checkpoint) {
  std::vector<Piece> taken, kept;
  for (Piece& p : pieces) {
    const StoredTensor* stored = manifest.find(p.name);
    if (!stored || !stored->digest) {
      kept.push_back(std::move(p));
      continue;
    }
    const auto fail = [&](const char* what, const std::string& expected) {
      throw UserError(concat(checkpoint, ": leaves out tensor ", quote_safe(p.name), " of another ", what,
                             "\n  expected ", expected));
    };
    if (stored->shape != p.shape) fail("shape", "a checkpoint of the same model");
    if (stored->dtype != p.dtype)
      fail("dtype", concat("training.dtype as of the run that saved it: its digest is that of ",
                           ir::to_string(stored->dtype), ", this run keeps ", ir::to_string(p.dtype)));
    taken.push_back(std::move(p));
  }
  pieces = std::move(kept);
  return taken;
}

std::string is_left_out(const Manifest& manifest, const StoredTensor& tensor, const std::string& checkpoint) {
  return concat(checkpoint, ": ", quote_safe(tensor.name),
                " is left out, as checkpoint.frozen = none asked for; it is of ", to_string(manifest.source),
                "\n  expected a checkpoint that holds all weights: go on from it with"
                " checkpoint.frozen = all, whose next save does");
}

std::string cure_of_change(const WeightSource& source) {
  if (source.kind == WeightSource::Kind::Initial)
    return "go on with the debug.seed, the model and the versions of sfsdp and PyTorch of the run that saved it";
  return "put back what the run began with, under the same name, or begin a run on what is there now";
}

std::string has_changed(const WeightSource& source, const StoredTensor& tensor, uint64_t got, size_t others,
                        const std::string& checkpoint) {
  const std::string more = others == 0 ? "" : concat(", and ", others, others == 1 ? " more tensor" : " more tensors");
  return concat(checkpoint, " leaves out frozen weights, and those of ", to_string(source),
                " are not what they were: ", quote_safe(tensor.name), " has digest ", hex(got), more, "\n  expected ",
                hex(*tensor.digest), "; ", cure_of_change(source));
}

}  // namespace sfsdp::train::checkpoint
