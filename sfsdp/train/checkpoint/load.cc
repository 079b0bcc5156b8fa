// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/checkpoint/load.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "sfsdp/base/check.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/mesh/chunk.h"
#include "sfsdp/plan/common_runs.h"
#include "sfsdp/train/checkpoint/comparable.h"
#include "sfsdp/train/checkpoint/files.h"
#include "sfsdp/train/checkpoint/left_out.h"
#include "sfsdp/train/weights/float_convert.h"

namespace sfsdp::train::checkpoint {
namespace {

std::string sizes(const std::vector<int64_t>& shape) {
  std::vector<std::string> parts;
  for (int64_t size : shape) parts.push_back(std::to_string(size));
  return "[" + join(parts, ", ") + "]";
}

const StoredTensor& find_tensor(const Manifest& manifest, const Piece& piece, const std::string& checkpoint) {
  const StoredTensor* found = manifest.find(piece.name, piece.rank < 0 ? -1 : piece.rank % manifest.data_ranks);
  if (!found && piece.kind == TensorKind::Buffer)  // saved where buffers were per rank, or where they were not
    found = manifest.find(piece.name, piece.rank < 0 ? 0 : -1);
  if (!found)
    throw UserError(concat(checkpoint, ": no tensor ", quote_safe(piece.name),
                           "\n  expected a checkpoint of the same model",
                           piece.kind == TensorKind::Optimizer
                               ? " and optimizer; without its state: checkpoint.exclude_from_loading = optimizer"
                               : ""));
  if (found->digest) throw UserError(is_left_out(manifest, *found, checkpoint));
  if (found->shape != piece.shape)
    throw UserError(concat(checkpoint, ": tensor ", quote_safe(piece.name), " has shape ", sizes(found->shape),
                           "\n  expected ", sizes(piece.shape), ", as the model has it"));
  if (!(found->dtype == piece.dtype || (is_weight_dtype(found->dtype) && is_weight_dtype(piece.dtype))))
    throw UserError(concat(checkpoint, ": tensor ", quote_safe(piece.name), " is ", ir::to_string(found->dtype),
                           "\n  expected ", ir::to_string(piece.dtype), ", as the model has it"));
  return *found;
}

// Reads and hashes one rank's share, a block at a time, file after file.
class BlockReader {
 public:
  BlockReader(const Manifest& manifest, std::string path) : manifest_(manifest), path_(std::move(path)) {}

  void run(const PlannedRead& read) {
    const StoredRange& range = *read.range;
    const int64_t width = ir::size_in_bytes(read.tensor->dtype);
    const int64_t per_block = kBlockBytes / width;
    const int64_t first = (read.begin - range.begin) / per_block, last = ceil_div(read.end - range.begin, per_block);
    for (int64_t block = first; block < last; ++block) {
      const int64_t from = range.begin + block * per_block, to = std::min(range.end, from + per_block);
      run_block(read, block, from, to);
    }
  }

 private:
  // Elements [from, to) share a hash: all of them are read, those that the piece has are kept. Where it has none between two
  // that it has, nothing is read.
  void run_block(const PlannedRead& read, int64_t block, int64_t from, int64_t to) {
    const Piece& piece = *read.piece;
    plan::Box stored = read.tensor->place_of(*read.range);
    stored.flat = {from, to - from};
    const BesideEachOther boxes = beside_each_other(*read.tensor, stored, piece);
    plan::CommonRuns runs(boxes.stored, boxes.mine);
    std::optional<plan::BoxRun> run = runs.next();
    if (!run) return;
    const int64_t width = ir::size_in_bytes(read.tensor->dtype);
    const bool straight = read.tensor->dtype == piece.dtype && run->count == to - from;
    const std::span<std::byte> bytes =
        straight ? part_of(piece, *run) : staging(static_cast<size_t>((to - from) * width));
    read_block(read, block, from, to, bytes);
    if (straight) return;
    int64_t lost = 0;
    for (; run; run = runs.next())
      lost +=
          keep(bytes.subspan(static_cast<size_t>((run->first - from) * width), static_cast<size_t>(run->count * width)),
               read.tensor->dtype, part_of(piece, *run), piece.dtype);
    if (lost > 0)
      throw UserError(concat(path_, ": ", lost, " numbers of ", quote_safe(read.tensor->name), " are too large for ",
                             ir::to_string(piece.dtype), "\n  expected a dtype that holds them: bfloat16 or float32"));
  }

  void read_block(const PlannedRead& read, int64_t block, int64_t from, int64_t to, std::span<std::byte> bytes) {
    const int64_t offset = read.range->offset + (from - read.range->begin) * ir::size_in_bytes(read.tensor->dtype);
    const StoredFile& file = manifest_.files[static_cast<size_t>(read.file)];
    read_all(open(read.file), offset, bytes, path_ + "/" + file.name);
    if (xxh3(bytes) != read.range->hashes[static_cast<size_t>(block)])
      throw DamagedError(concat(path_, "/", file.name, ": bytes ", offset, " to ",
                                offset + static_cast<int64_t>(bytes.size()),
                                " are not what was written there: ", read.tensor->name_of(*read.range, from, to),
                                "\n  expected the hash that ", kManifestFile, " has"));
  }

  static std::span<std::byte> part_of(const Piece& piece, const plan::BoxRun& run) {
    const int64_t width = ir::size_in_bytes(piece.dtype);
    return piece.bytes().subspan(static_cast<size_t>((run.second - piece.begin) * width),
                                 static_cast<size_t>(run.count * width));
  }

  // Returns how many numbers are too large.
  static int64_t keep(std::span<const std::byte> from, ir::DType stored, std::span<std::byte> to, ir::DType dtype) {
    if (stored != dtype) return convert_floats(from, stored, to, dtype);
    std::memcpy(to.data(), from.data(), from.size());
    return 0;
  }

  std::span<std::byte> staging(size_t bytes) {
    if (!staging_) staging_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(kBlockBytes));
    return {staging_.get(), bytes};
  }
  int open(int64_t file) {
    if (file != opened_) {
      const std::string path = path_ + "/" + manifest_.files[static_cast<size_t>(file)].name;
      handle_ = open_file(path, nullptr);
      opened_ = file;
    }
    return handle_.get();
  }

  const Manifest& manifest_;
  std::string path_;
  Fd handle_;
  int64_t opened_ = -1;
  std::unique_ptr<std::byte[]> staging_;
};

// Piece by piece of one file: its header, then every block of every range in it.
void verify_file(const Manifest& manifest, const std::string& path, int64_t number, std::vector<std::string>& wrong) {
  const StoredFile& file = manifest.files[static_cast<size_t>(number)];
  const std::string name = path + "/" + file.name;
  int64_t bytes = 0;
  const Fd handle = open_file(name, &bytes);
  if (bytes != file.bytes) {
    wrong.push_back(concat(name, ": ", bytes, " bytes, expected ", file.bytes));
    return;
  }
  std::vector<std::byte> block(static_cast<size_t>(std::max(kBlockBytes, std::min(file.header_bytes, bytes))));
  const auto check = [&](int64_t offset, int64_t size, uint64_t hash, const std::string& what) {
    const auto part = std::span(block).first(static_cast<size_t>(size));
    read_all(handle.get(), offset, part, name);
    if (xxh3(part) != hash)
      wrong.push_back(
          concat(name, ": bytes ", offset, " to ", offset + size, " are not what was written there: ", what));
  };
  check(0, file.header_bytes, file.header_hash, "the header");
  int64_t covered = file.header_bytes;
  for (const StoredTensor& t : manifest.tensors)
    for (const StoredRange& r : t.ranges) {
      if (r.file != number) continue;
      const int64_t width = ir::size_in_bytes(t.dtype), size = (r.end - r.begin) * width;
      covered += size;
      for (size_t i = 0; i < r.hashes.size(); ++i) {
        const int64_t at = static_cast<int64_t>(i) * kBlockBytes, part = std::min(kBlockBytes, size - at);
        check(r.offset + at, part, r.hashes[i], t.name_of(r, r.begin + at / width, r.begin + (at + part) / width));
      }
    }
  if (covered != bytes) wrong.push_back(concat(name, ": ", bytes, " bytes, of which ", covered, " are listed"));
}

}  // namespace

std::vector<PlannedRead> plan_reads(const Manifest& manifest, const std::vector<Piece>& pieces,
                                    const std::string& checkpoint) {
  std::vector<PlannedRead> reads;
  for (const Piece& piece : pieces) {
    const StoredTensor& tensor = find_tensor(manifest, piece, checkpoint);
    for (const auto ranges : tensor.by_box()) {
      plan::Box stored = tensor.place_of(ranges[0]);
      stored.flat = {0, plan::elements_of(stored.dims)};
      const auto shared = [&] {
        const BesideEachOther boxes = beside_each_other(tensor, stored, piece);
        return plan::CommonRuns(boxes.stored, boxes.mine).range();  // of the stored box
      };
      const Chunk wanted = shared();
      auto range = std::ranges::upper_bound(ranges, wanted.offset, {}, &StoredRange::end);
      for (; range != ranges.end() && range->begin < wanted.offset + wanted.length; ++range) {
        stored.flat = {range->begin, range->end - range->begin};
        if (const Chunk some = shared(); some.length > 0)
          reads.push_back(
              {range->file, range->offset, &*range, &tensor, &piece, some.offset, some.offset + some.length});
      }
    }
  }
  std::ranges::sort(reads, {}, [](const PlannedRead& r) { return std::tuple(r.file, r.offset, r.begin); });
  return reads;
}

void load(const Manifest& manifest, const std::string& path, const std::vector<Piece>& pieces) {
  BlockReader reader(manifest, path);
  const std::vector<Piece> comparable = comparable_pieces(manifest, pieces);
  for (const PlannedRead& read : plan_reads(manifest, comparable, path)) reader.run(read);
}

std::vector<std::string> verify(const Manifest& manifest, const std::string& path) {
  std::vector<std::string> wrong;
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    try {
      verify_file(manifest, path, static_cast<int64_t>(i), wrong);
    } catch (const UserError& error) {
      wrong.push_back(error.what());
    }
  }
  return wrong;
}

}  // namespace sfsdp::train::checkpoint
