// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exported/zip_archive.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/exported/printable.h"
#include "sfsdp/exported/zip_format.h"

namespace sfsdp::exported {

static_assert(std::endian::native == std::endian::little, "numbers of a zip file are little endian");

namespace {

constexpr uint64_t kMaxEntries = 1'000'000;         // 671B parameters in single experts are 60,000
constexpr uint64_t kMaxDirectoryBytes = 256 << 20;  // some 256 bytes an entry
constexpr size_t kMaxNameBytes = 4096;
constexpr uint16_t kEncrypted = 1, kDescribed = 8;
constexpr const char* kCure = "\n  expected an archive of torch.export.save; write it again";

[[noreturn]] void refuse(const std::string& path, const std::string& what, const std::string& expected = "") {
  throw UserError(concat(path, ": ", what, expected.empty() ? kCure : "\n  expected " + expected));
}

template <class Number>
Number number_at(std::span<const std::byte> bytes, size_t at) {
  SFSDP_CHECK(at + sizeof(Number) <= bytes.size(), at, " in ", bytes.size());
  Number value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

void read_at(int file, const std::string& path, const std::string& what, uint64_t offset, std::span<std::byte> out) {
  for (size_t done = 0; done < out.size();) {
    const ssize_t got = pread(file, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(path, concat(what, " cannot be read: ", std::strerror(errno)), "a file that can be read");
    if (got == 0) refuse(path, concat("ends within ", what), "the whole file; copy it again");
    done += static_cast<size_t>(got);
  }
}

FileState state_of(const struct stat& status) {
  return {status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

struct Directory {
  uint64_t entries = 0, bytes = 0, offset = 0;
};

// Where ZIP64's own end record stands, if there is one.
std::optional<Directory> read_end64(int file, const std::string& path, uint64_t end_at) {
  if (end_at < kLocatorBytes) return std::nullopt;
  std::array<std::byte, kLocatorBytes> locator;
  read_at(file, path, "its end", end_at - kLocatorBytes, locator);
  if (number_at<uint32_t>(locator, 0) != kEnd64Locator) return std::nullopt;
  const auto at = number_at<uint64_t>(locator, 8);
  if (at > end_at - kLocatorBytes || end_at - kLocatorBytes - at < kEnd64Bytes)
    refuse(path, "its ZIP64 end lies outside");
  std::array<std::byte, kEnd64Bytes> end;
  read_at(file, path, "its ZIP64 end", at, end);
  if (number_at<uint32_t>(end, 0) != kEnd64) refuse(path, "its ZIP64 end is none");
  if (number_at<uint32_t>(end, 16) != 0 || number_at<uint32_t>(end, 20) != 0)
    refuse(path, "is a part of several files");
  return Directory{number_at<uint64_t>(end, 32), number_at<uint64_t>(end, 40), number_at<uint64_t>(end, 48)};
}

// The end record is the last of the file: an archive with a comment, or with anything after it, is none of torch's.
Directory read_end(int file, const std::string& path, uint64_t size) {
  if (size < kEndBytes) refuse(path, concat("has ", size, " bytes, which is no zip file"));
  const uint64_t at = size - kEndBytes;
  std::array<std::byte, kEndBytes> end;
  read_at(file, path, "its end", at, end);
  if (number_at<uint32_t>(end, 0) != kEnd || number_at<uint16_t>(end, 20) != 0)
    refuse(path, "does not end as a zip file does: it is another kind of file, or was cut");
  if (number_at<uint16_t>(end, 4) != 0 || number_at<uint16_t>(end, 6) != 0) refuse(path, "is a part of several files");
  Directory directory = {number_at<uint16_t>(end, 10), number_at<uint32_t>(end, 12), number_at<uint32_t>(end, 16)};
  if (const auto wide = read_end64(file, path, at)) directory = *wide;
  if (directory.offset > at || directory.bytes > at - directory.offset) refuse(path, "its directory lies outside");
  if (directory.bytes > kMaxDirectoryBytes || directory.entries > kMaxEntries)
    refuse(path, concat("its directory has ", directory.entries, " entries of ", directory.bytes, " bytes"),
           concat("at most ", kMaxEntries, " entries of ", kMaxDirectoryBytes, " bytes"));
  if (directory.entries > directory.bytes / kCentralBytes) refuse(path, "its directory is cut");
  return directory;
}

// Sizes and offset that do not fit 32 bits stand in an extra field, those alone, in this order.
void read_zip64(std::span<const std::byte> extra, uint64_t& bytes, uint64_t& packed, uint64_t& offset,
                const std::string& path, const std::string& name) {
  if (bytes != kWide && packed != kWide && offset != kWide) return;
  for (size_t at = 0; at + 4 <= extra.size();) {
    const size_t length = number_at<uint16_t>(extra, at + 2);
    if (at + 4 + length > extra.size()) break;
    if (number_at<uint16_t>(extra, at) == kZip64Extra) {
      const auto field = extra.subspan(at + 4, length);
      size_t next = 0;
      for (uint64_t* value : {&bytes, &packed, &offset}) {
        if (*value != kWide) continue;
        if (next + 8 > field.size()) refuse(path, concat("entry ", quote_safe(name), " has a ZIP64 field that is cut"));
        *value = number_at<uint64_t>(field, next);
        next += 8;
      }
      return;
    }
    at += 4 + length;
  }
  refuse(path, concat("entry ", quote_safe(name), " has no ZIP64 field"));
}

void check_name(const std::string& name, const std::string& path) {
  if (name.empty() || name.size() > kMaxNameBytes || name.front() == '/' || name.find('\\') != std::string::npos ||
      ("/" + name + "/").find("/../") != std::string::npos || !is_printable(name))
    refuse(path, concat("has an entry named ", quote_safe(name)),
           "names such as model/data/weights/weight_0, as torch.export.save writes them");
}

// Where sizes or CRC stand after the bytes: 16 bytes, 24 where sizes do not fit 32 bits, and 4 less without a signature.
// Returns the place of the CRC.
uint64_t find_record(int file, const std::string& path, const ZipEntry& entry, uint64_t limit) {
  const std::string what = "entry " + quote_safe(entry.name);
  const uint64_t end = entry.offset + entry.bytes;
  std::array<std::byte, 8> record;
  if (limit - end < record.size() + 4) refuse(path, what + " has a record that reaches into the directory");
  read_at(file, path, what, end, record);
  const bool is_signed = number_at<uint32_t>(record, 0) == kDescriptor;
  if (number_at<uint32_t>(record, is_signed ? 4 : 0) != entry.crc32)
    refuse(path, what + " has another CRC in the record after it than in the directory");
  return end + (is_signed ? 4 : 0);
}

// What a local header without a record after its bytes repeats of the directory. 2^32 - 1: in an extra field of its own.
void check_repeated(std::span<const std::byte> local, const ZipEntry& entry, const std::string& path) {
  for (const size_t at : {size_t{18}, size_t{22}})
    if (const uint64_t bytes = number_at<uint32_t>(local, at); bytes != entry.bytes && bytes != kWide)
      refuse(path, concat("entry ", quote_safe(entry.name), " has ", bytes, " bytes by its header, ", entry.bytes,
                          " by the directory"));
  if (number_at<uint32_t>(local, 14) != entry.crc32)
    refuse(path, concat("entry ", quote_safe(entry.name), " has another CRC in its header than in the directory"));
}

// From an entry of the directory to its bytes: the local header has a name and an extra field of its own.
ZipEntry locate(int file, const std::string& path, ZipEntry entry, uint64_t header, uint64_t limit) {
  const std::string what = "entry " + quote_safe(entry.name);
  if (header > limit || limit - header < kLocalBytes) refuse(path, what + " lies outside");
  std::array<std::byte, kLocalBytes> local;
  read_at(file, path, what, header, local);
  const uint64_t name_bytes = number_at<uint16_t>(local, 26), extra_bytes = number_at<uint16_t>(local, 28);
  if (number_at<uint32_t>(local, 0) != kLocalHeader || name_bytes != entry.name.size())
    refuse(path, what + " is another one than the directory says");
  if (number_at<uint16_t>(local, 8) != 0 || (number_at<uint16_t>(local, 6) & kEncrypted))
    refuse(path, what + " is compressed or encrypted");
  std::string name(name_bytes, '\0');
  read_at(file, path, what, header + kLocalBytes, std::as_writable_bytes(std::span(name)));
  if (name != entry.name) refuse(path, what + " is another one than the directory says");
  entry.offset = header + kLocalBytes + name_bytes + extra_bytes;
  if (entry.offset > limit || entry.bytes > limit - entry.offset) refuse(path, what + " reaches into the directory");
  if (number_at<uint16_t>(local, 6) & kDescribed) {  // a record after the bytes has the CRC
    entry.crc32_places.push_back(find_record(file, path, entry, limit));
  } else {
    check_repeated(local, entry, path);
    entry.crc32_places.push_back(header + 14);
  }
  return entry;
}

}  // namespace

ZipArchive ZipArchive::open(const std::string& path, Writes writes) {
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) refuse(path, concat("cannot be opened: ", std::strerror(errno)), "a file written by torch.export.save");
  struct stat status = {};
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    refuse(path, "is no regular file", "a file written by torch.export.save");
  const Directory directory = read_end(file.get(), path, static_cast<uint64_t>(status.st_size));
  std::vector<std::byte> bytes(directory.bytes);
  read_at(file.get(), path, "its directory", directory.offset, bytes);

  std::vector<ZipEntry> entries;
  std::vector<uint64_t> headers;  // where the local header of each begins
  for (size_t at = 0; entries.size() < directory.entries;) {
    if (at + kCentralBytes > bytes.size() || number_at<uint32_t>(bytes, at) != kCentralHeader)
      refuse(path, "its directory is damaged");
    const std::span<const std::byte> row = std::span(bytes).subspan(at);
    const size_t name_bytes = number_at<uint16_t>(row, 28), extra_bytes = number_at<uint16_t>(row, 30),
                 comment_bytes = number_at<uint16_t>(row, 32);
    if (row.size() < kCentralBytes + name_bytes + extra_bytes + comment_bytes) refuse(path, "its directory is cut");
    ZipEntry entry;
    entry.name.assign(reinterpret_cast<const char*>(row.data()) + kCentralBytes, name_bytes);
    check_name(entry.name, path);
    entry.crc32 = number_at<uint32_t>(row, 16);
    entry.crc32_places.push_back(directory.offset + at + 16);
    entry.bytes = number_at<uint32_t>(row, 24);
    uint64_t packed = number_at<uint32_t>(row, 20), header = number_at<uint32_t>(row, 42);
    read_zip64(row.subspan(kCentralBytes + name_bytes, extra_bytes), entry.bytes, packed, header, path, entry.name);
    if (number_at<uint16_t>(row, 10) != 0 || (number_at<uint16_t>(row, 8) & kEncrypted) || packed != entry.bytes)
      refuse(path, concat("entry ", quote_safe(entry.name), " is compressed or encrypted"));
    entries.push_back(locate(file.get(), path, std::move(entry), header, directory.offset));
    headers.push_back(header);
    at += kCentralBytes + name_bytes + extra_bytes + comment_bytes;
    if (entries.size() == directory.entries && at != bytes.size())
      refuse(path, concat("its directory has ", bytes.size() - at, " bytes after its last entry"));
  }

  // By place: each begins after the end of the one before it.
  std::vector<size_t> order(entries.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::sort(order, {}, [&](size_t i) { return headers[i]; });
  ZipArchive archive(path, std::move(file), writes == Writes::Refused ? std::optional(state_of(status)) : std::nullopt);
  uint64_t end = 0;
  for (const size_t i : order) {
    ZipEntry& entry = entries[i];
    if (headers[i] < end) refuse(path, concat("entry ", quote_safe(entry.name), " overlaps another"));
    end = entry.crc32_places.back() > headers[i] + 14 ? entry.crc32_places.back() + 4 : entry.offset + entry.bytes;
    if (!archive.index_.emplace(entry.name, archive.entries_.size()).second)
      refuse(path, concat("has two entries named ", quote_safe(entry.name)));
    archive.entries_.push_back(std::move(entry));
  }
  return archive;
}

const ZipEntry* ZipArchive::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

void ZipArchive::read(const ZipEntry& entry, uint64_t first, std::span<std::byte> out) const {
  SFSDP_CHECK(first <= entry.bytes && out.size() <= entry.bytes - first, entry.name, " has ", entry.bytes, " bytes");
  const std::string what = "entry " + quote_safe(entry.name);
  read_at(file_.get(), path_, what, entry.offset + first, out);
  struct stat status = {};
  if (opened_ && (fstat(file_.get(), &status) != 0 || state_of(status) != *opened_))
    refuse(path_, concat("was written to before ", what, " was read"), "one file from start to end; start again");
}

std::string ZipArchive::read_text(const ZipEntry& entry, uint64_t max_bytes) const {
  if (entry.bytes > max_bytes)
    refuse(path_, concat("entry ", quote_safe(entry.name), " has ", entry.bytes, " bytes"),
           concat("at most ", max_bytes));
  std::string text(entry.bytes, '\0');
  read(entry, 0, std::as_writable_bytes(std::span(text)));
  const auto crc = crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size());
  if (crc != entry.crc32) refuse(path_, concat("entry ", quote_safe(entry.name), " is damaged: its CRC differs"));
  return text;
}

}  // namespace sfsdp::exported
