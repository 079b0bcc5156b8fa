// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/archive_export.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/durable_file.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/exported/program.h"
#include "sfsdp/exported/read_values.h"
#include "sfsdp/train/checkpoint/stretch_reader.h"
#include "sfsdp/train/weights/adapter_values.h"
#include "sfsdp/train/weights/safetensors_header.h"

namespace sfsdp::train {
namespace {

using checkpoint::StretchReader;
using exported::StateTensor;
using exported::ZipEntry;

constexpr int64_t kExportBlock = 1 << 20;  // elements, and bytes of what is copied

// The tensor of the checkpoint that holds a tensor of the archive, under the first name of those that are tied.
struct Held {
  const StateTensor* tensor = nullptr;
  checkpoint::Piece piece;  // in the dtype of the archive
};

std::vector<Held> held_by(const exported::Program& program, const StretchReader& reader, const std::string& path) {
  std::vector<Held> all;
  for (const StateTensor& t : program.state) {
    if (t.kind == StateTensor::Kind::Constant) continue;
    const auto same = [&](const StateTensor& other) { return exported::is_tied(t, other); };
    const auto first = std::ranges::find_if(program.state, same);
    const auto& manifest = reader.manifest();
    const checkpoint::StoredTensor* stored = manifest.find(first->name);
    if (!stored) stored = manifest.find(first->name, 0);  // of batch norm's statistics, those of the first rank
    if (!stored || stored->shape != t.sizes)
      throw UserError(concat(path, ": ", stored ? concat(t.name, " has another shape") : concat("there is no ", t.name),
                             "\n  expected a checkpoint of a run of ", program.archive.path()));
    if (t.name != first->name && (manifest.find(t.name) || manifest.find(t.name, 0)))
      throw UserError(concat(path, ": ", first->name, " and ", t.name, " were trained as two tensors, and are one in ",
                             program.archive.path(),
                             "\n  expected an archive of the same model, with nothing tied that was not"));
    Held held = {&t, checkpoint::piece_of(*stored)};
    held.piece.dtype = t.dtype;
    all.push_back(std::move(held));
  }
  return all;
}

// That the copy is one of the file whose entries `program` names by their places.
void check_same(const exported::ZipArchive& archive, const exported::ZipArchive& copy) {
  const auto same = [](const ZipEntry& a, const ZipEntry& b) {
    return a.name == b.name && a.offset == b.offset && a.bytes == b.bytes && a.crc32_places == b.crc32_places;
  };
  if (!std::ranges::equal(archive.entries(), copy.entries(), same))
    throw UserError(concat(archive.path(),
                           ": was written to while it was copied\n  expected one file from start to end;"
                           " start again"));
}

// The values in the order of the archive.
void write_values(const Held& held, MergedReader& reader, const exported::ZipArchive& written, int file) {
  const StateTensor& t = *held.tensor;
  const ZipEntry& entry = written.entries()[t.entry];
  const std::string& path = written.path();
  const int64_t numel = ir::Type::tensor(t.dtype, t.sizes).numel(), element = ir::size_in_bytes(t.dtype);
  const auto at = [&](int64_t place) { return static_cast<int64_t>(entry.offset) + place * element; };
  if (exported::is_row_major(t)) {
    for (int64_t begin = 0; begin < numel; begin += kExportBlock)
      write_file(file, reader.read(held.piece, begin, std::min(numel, begin + kExportBlock)), at(t.offset + begin),
                 path);
    return;
  }
  // With other strides the whole entry is put together in memory.
  std::vector<std::byte> whole(entry.bytes);
  written.read(entry, 0, whole);  // other tensors may lie in it
  for (int64_t begin = 0; begin < numel; begin += kExportBlock) {
    const int64_t end = std::min(numel, begin + kExportBlock);
    const auto values = reader.read(held.piece, begin, end);
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(whole.data() + exported::place_of(t, i) * element, values.data() + (i - begin) * element,
                  static_cast<size_t>(element));
  }
  write_file(file, whole, at(0), path);
}

// The CRC of an entry as it is now, where the file says it.
void write_crc(const exported::ZipArchive& written, const ZipEntry& entry, int file) {
  uLong crc = 0;
  std::vector<std::byte> block;
  for (uint64_t begin = 0; begin < entry.bytes; begin += block.size()) {
    block.resize(std::min<uint64_t>(kExportBlock, entry.bytes - begin));
    written.read(entry, begin, block);
    crc = crc32_z(crc, reinterpret_cast<const Bytef*>(block.data()), block.size());
  }
  const auto value = static_cast<uint32_t>(crc);
  for (const uint64_t place : entry.crc32_places)
    write_file(file, std::as_bytes(std::span(&value, 1)), static_cast<int64_t>(place), written.path());
}

}  // namespace

void export_archive(const std::string& checkpoint, const std::string& archive, const std::string& out, bool merge) {
  const exported::Program program = exported::read_program(archive);
  StretchReader stored(checkpoint, archive);
  MergedReader reader(stored, merge);
  const std::vector<Held> all = held_by(program, stored, checkpoint);
  write_new_file(out, [&](int file, const std::string& path) {
    std::error_code error;
    std::filesystem::copy_file(archive, path, std::filesystem::copy_options::overwrite_existing, error);
    if (error) fail_on_file(path, "cannot be written", error.value());
    const auto written = exported::ZipArchive::open(path, exported::ZipArchive::Writes::Expected);
    check_same(program.archive, written);
    std::set<size_t> entries;
    for (const Held& held : all) {
      write_values(held, reader, written, file);
      entries.insert(held.tensor->entry);
    }
    for (const size_t entry : entries) write_crc(written, written.entries()[entry], file);
  });
}

void export_safetensors(const std::string& checkpoint, const std::string& archive, const std::string& out, bool merge) {
  const exported::Program program = exported::read_program(archive);
  StretchReader stored(checkpoint, archive);
  MergedReader reader(stored, merge);
  std::vector<Held> all = held_by(program, stored, checkpoint);
  std::erase_if(all, [](const Held& held) { return !held.tensor->persistent; });
  SafetensorsHeader header;
  for (const Held& held : all) {
    const StateTensor& t = *held.tensor;
    header.add(t.name, t.dtype, t.sizes, static_cast<uint64_t>(ir::Type::tensor(t.dtype, t.sizes).bytes()));
  }
  write_new_file(out, [&](int file, const std::string& path) {
    const std::string first = header.bytes();
    write_file(file, std::as_bytes(std::span(first)), 0, path);
    auto at = static_cast<int64_t>(first.size());
    for (const Held& held : all) {
      const int64_t numel = ir::Type::tensor(held.tensor->dtype, held.tensor->sizes).numel();
      for (int64_t begin = 0; begin < numel; begin += kExportBlock) {
        const auto values = reader.read(held.piece, begin, std::min(numel, begin + kExportBlock));
        write_file(file, values, at, path);
        at += static_cast<int64_t>(values.size());
      }
    }
  });
}

}  // namespace sfsdp::train
