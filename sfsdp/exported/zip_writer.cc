// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exported/zip_writer.h"

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "sfsdp/base/check.h"
#include "sfsdp/exported/zip_format.h"

namespace sfsdp::exported {

static_assert(std::endian::native == std::endian::little, "numbers of a zip file are little endian");

namespace {

constexpr uint64_t kAlignment = 64;  // torch reads tensors where they lie
constexpr uint16_t kWide16 = 0xffff, kZip64Version = 45;
constexpr uint16_t kFiller = 0x4246;     // an extra field without meaning, whose length moves the bytes; torch's "FB"
constexpr uint16_t kMsDosDate = 0x0021;  // 1 January 1980, as files of equal content are to be equal
constexpr size_t kFieldHead = 4, kLocalField = 16, kCentralField = 24;

template <class Number>
void put(std::string& out, Number value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

// How long the filler's text is, so that the bytes after the header begin on a boundary.
uint64_t filler_of(uint64_t header, const std::string& name) {
  const uint64_t begin = header + kLocalBytes + name.size() + kFieldHead + kLocalField + kFieldHead;
  return (kAlignment - begin % kAlignment) % kAlignment;
}

// What a local and a central header have in common, from the version to the length of the name.
void put_common(std::string& out, uint32_t crc32, const std::string& name) {
  put<uint16_t>(out, kZip64Version);
  put<uint16_t>(out, 0);  // flags
  put<uint16_t>(out, 0);  // stored
  put<uint16_t>(out, 0);  // time
  put<uint16_t>(out, kMsDosDate);
  put<uint32_t>(out, crc32);
  put<uint32_t>(out, kWide);
  put<uint32_t>(out, kWide);
  put<uint16_t>(out, static_cast<uint16_t>(name.size()));
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

}  // namespace

std::string ZipWriter::local_header(const Entry& entry) const {
  const uint64_t filler = filler_of(entry.header, entry.name);
  std::string out;
  put(out, kLocalHeader);
  put_common(out, entry.crc32, entry.name);
  put<uint16_t>(out, static_cast<uint16_t>(kFieldHead + kLocalField + kFieldHead + filler));
  out += entry.name;
  put(out, kZip64Extra);
  put<uint16_t>(out, kLocalField);
  put<uint64_t>(out, entry.bytes);
  put<uint64_t>(out, entry.bytes);
  put(out, kFiller);
  put<uint16_t>(out, static_cast<uint16_t>(filler));
  return out.append(filler, 'Z');
}

void ZipWriter::add(const std::string& name, std::string_view text) {
  begin(name, text.size());
  append(bytes_of(text));
}

void ZipWriter::begin(const std::string& name, uint64_t bytes) {
  end_entry();
  SFSDP_CHECK(!name.empty() && name.size() < kWide16, "a name of ", name.size(), " bytes");
  Entry entry;
  entry.name = name;
  entry.header = end_;
  entry.bytes = bytes;
  entry.offset = end_ + local_header(entry).size();
  end_ = entry.offset;
  entries_.push_back(std::move(entry));
}

void ZipWriter::append(std::span<const std::byte> part) {
  SFSDP_CHECK(!entries_.empty(), "bytes without an entry");
  Entry& entry = entries_.back();
  entry.crc32 = static_cast<uint32_t>(
      crc32_z(entry.crc32, reinterpret_cast<const Bytef*>(part.data()), static_cast<z_size_t>(part.size())));
  write_(part, end_);
  end_ += part.size();
}

// The header has the CRC, so it is written once all bytes are.
void ZipWriter::end_entry() {
  if (entries_.empty()) return;
  const Entry& entry = entries_.back();
  SFSDP_CHECK(end_ == entry.offset + entry.bytes, entry.name, " has ", end_ - entry.offset, " bytes, expected ",
              entry.bytes);
  write_(bytes_of(local_header(entry)), entry.header);
}

void ZipWriter::finish() {
  end_entry();
  std::string out;
  for (const Entry& entry : entries_) {
    put(out, kCentralHeader);
    put<uint16_t>(out, kZip64Version);  // that wrote it
    put_common(out, entry.crc32, entry.name);
    put<uint16_t>(out, kFieldHead + kCentralField);
    out.append(10, '\0');  // comment, disk, attributes
    put<uint32_t>(out, kWide);
    out += entry.name;
    put(out, kZip64Extra);
    put<uint16_t>(out, kCentralField);
    put<uint64_t>(out, entry.bytes);
    put<uint64_t>(out, entry.bytes);
    put<uint64_t>(out, entry.header);
  }
  const uint64_t directory_bytes = out.size(), end64 = end_ + out.size();
  put(out, kEnd64);
  put<uint64_t>(out, 44);  // bytes of this record after this number
  put<uint16_t>(out, kZip64Version);
  put<uint16_t>(out, kZip64Version);
  put<uint64_t>(out, 0);  // disks
  put<uint64_t>(out, entries_.size());
  put<uint64_t>(out, entries_.size());
  put<uint64_t>(out, directory_bytes);
  put<uint64_t>(out, end_);
  put(out, kEnd64Locator);
  put<uint32_t>(out, 0);
  put<uint64_t>(out, end64);
  put<uint32_t>(out, 1);
  put(out, kEnd);
  put<uint32_t>(out, 0);
  put(out, kWide16);
  put(out, kWide16);
  put(out, kWide);
  put(out, kWide);
  put<uint16_t>(out, 0);
  write_(bytes_of(out), end_);
  end_ += out.size();
}

std::string zip_in_memory(const std::function<void(ZipWriter& zip)>& fill) {
  std::string file;
  ZipWriter zip([&](std::span<const std::byte> bytes, uint64_t offset) {
    if (bytes.empty()) return;
    file.resize(std::max(file.size(), static_cast<size_t>(offset) + bytes.size()));
    std::memcpy(file.data() + offset, bytes.data(), bytes.size());
  });
  fill(zip);
  zip.finish();
  return file;
}

}  // namespace sfsdp::exported
