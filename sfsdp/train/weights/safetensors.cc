// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <tuple>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"

namespace sfsdp::train {

static_assert(std::endian::native == std::endian::little, "tensor bytes are little endian and handed out as they are");

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxTensors = 400'000;            // and so the header's values fit JsonLimits
constexpr size_t kMaxNameBytes = 4096;
constexpr size_t kMaxRank = 64;
constexpr int kMaxDepth = 3;  // the header, an entry, its shape
constexpr size_t kMaxIndexBytes = 100'000'000;

struct DTypeRow {
  std::string_view name;
  uint64_t bits;
  std::optional<ir::DType> dtype;
};

constexpr std::array<DTypeRow, 22> kDTypes = {{
    {"F4", 4, std::nullopt},           {"F6_E2M3", 6, std::nullopt},      {"F6_E3M2", 6, std::nullopt},
    {"BOOL", 8, ir::DType::b1},        {"U8", 8, ir::DType::u8},          {"I8", 8, ir::DType::i8},
    {"F8_E5M2", 8, ir::DType::f8e5m2}, {"F8_E4M3", 8, ir::DType::f8e4m3}, {"F8_E8M0", 8, std::nullopt},
    {"F8_E4M3FNUZ", 8, std::nullopt},  {"F8_E5M2FNUZ", 8, std::nullopt},  {"I16", 16, ir::DType::i16},
    {"U16", 16, std::nullopt},         {"F16", 16, ir::DType::f16},       {"BF16", 16, ir::DType::bf16},
    {"I32", 32, ir::DType::i32},       {"U32", 32, std::nullopt},         {"F32", 32, ir::DType::f32},
    {"C64", 64, ir::DType::c64},       {"F64", 64, ir::DType::f64},       {"I64", 64, ir::DType::i64},
    {"U64", 64, std::nullopt},
}};

const DTypeRow* row_of(std::string_view name) {
  const auto* found =
      std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DTypeRow& row) { return row.name == name; });
  return found == kDTypes.end() ? nullptr : found;
}

template <typename Got, typename Expected>
[[noreturn]] void refuse(const std::string& where, const Got& got, const Expected& expected) {
  throw UserError(concat(where, ": ", got, "\n  expected ", expected));
}

// What the header says of one tensor, before it is known to be true.
struct Entry {
  std::string name;
  const DTypeRow* dtype = nullptr;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

uint64_t read_offset(const JsonValue& value, const std::string& where, std::string_view what) {
  const auto* number = value.as<uint64_t>();
  if (!number) refuse(where, concat(what, " holds ", describe(value)), "an unsigned 64-bit integer");
  return *number;
}

Entry read_entry(const std::string& name, const JsonValue& value, const std::string& where) {
  const auto* object = value.as<JsonObject>();
  if (!object) refuse(where, describe(value), "an object with dtype, shape and data_offsets");
  for (const auto& [key, unused] : *object)
    if (key != "dtype" && key != "shape" && key != "data_offsets")
      refuse(where, "the key " + quote_safe(key), "only dtype, shape and data_offsets");
  const JsonValue* dtype = value.find("dtype");
  const JsonValue* shape = value.find("shape");
  const JsonValue* offsets = value.find("data_offsets");
  if (!dtype || !shape || !offsets) refuse(where, "a key is missing", "dtype, shape and data_offsets");

  Entry entry{name, nullptr, {}, 0, 0};
  if (const auto* text = dtype->as<std::string>()) entry.dtype = row_of(*text);
  if (!entry.dtype) refuse(where, "dtype " + describe(*dtype), "a dtype of the format, as \"F32\" or \"BF16\"");

  const auto* sizes = shape->as<JsonArray>();
  if (!sizes) refuse(where, "shape is " + describe(*shape), "an array of sizes");
  if (sizes->size() > kMaxRank) refuse(where, concat("rank ", sizes->size()), concat("at most ", kMaxRank));
  for (const JsonValue& size : *sizes) {
    const uint64_t number = read_offset(size, where, "shape");
    if (number > static_cast<uint64_t>(INT64_MAX)) refuse(where, concat("a size of ", number), "less than 2^63");
    entry.shape.push_back(static_cast<int64_t>(number));
  }

  const auto* pair = offsets->as<JsonArray>();
  if (!pair || pair->size() != 2)
    refuse(where, pair ? concat(pair->size(), " data_offsets") : "data_offsets is " + describe(*offsets),
           "[begin, end]");
  entry.begin = read_offset((*pair)[0], where, "data_offsets");
  entry.end = read_offset((*pair)[1], where, "data_offsets");
  return entry;
}

std::map<std::string, std::string> read_metadata(const JsonValue& value, const std::string& where) {
  const auto* object = value.as<JsonObject>();
  if (!object) refuse(where, describe(value), "an object of strings");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, member] : *object) {
    const auto* text = member.as<std::string>();
    if (!text) refuse(where, quote_safe(key) + " is " + describe(member), "a string");
    metadata.emplace(key, *text);
  }
  return metadata;
}

// Rules 8 and 9.
void check_size(const Entry& entry, const std::string& where) {
  uint64_t bits = 1;
  bool overflow = false;
  // in this order: [2^40, 2^40, 0] overflows although its product is 0, as in the format's own reader
  for (const int64_t size : entry.shape)
    overflow = overflow || __builtin_mul_overflow(bits, static_cast<uint64_t>(size), &bits);
  overflow = overflow || __builtin_mul_overflow(bits, entry.dtype->bits, &bits);
  if (overflow) refuse(where, "a shape whose size overflows 64 bits", "fewer elements");
  if (bits % 8 != 0) refuse(where, concat(bits, " bits of ", entry.dtype->name), "a whole number of bytes");
  if (bits / 8 != entry.end - entry.begin)
    refuse(where, concat(entry.end - entry.begin, " bytes in data_offsets"), concat(bits / 8, ", by dtype and shape"));
}

// Rules 7 to 10, in the order of the bytes.
void check_layout(const std::vector<Entry>& entries, uint64_t data_bytes, const std::string& path) {
  uint64_t at = 0;
  for (const Entry& entry : entries) {
    const std::string where = path + ": tensor " + quote_safe(entry.name);
    if (entry.begin != at)
      refuse(where, concat("data_offsets begin at ", entry.begin), concat(at, ", where the tensor before it ends"));
    if (entry.end < entry.begin)
      refuse(where, concat("data_offsets [", entry.begin, ", ", entry.end, "]"), "an end not before the begin");
    check_size(entry, where);
    at = entry.end;
  }
  if (at != data_bytes)
    refuse(path, concat(data_bytes, " bytes of data"),
           concat(at, ", the end of the last tensor; is the file cut off?"));
}

}  // namespace

std::optional<ir::DType> dtype_of_safetensors(std::string_view name) {
  const DTypeRow* row = row_of(name);
  return row ? row->dtype : std::nullopt;
}

std::string_view safetensors_name(ir::DType dtype) {
  for (const DTypeRow& row : kDTypes)
    if (row.dtype == dtype) return row.name;
  SFSDP_CHECK(false, "no safetensors name for ", ir::to_string(dtype));
  return {};
}

// --- one file ---

namespace {

// A regular file and its size.
Fd open_regular(const std::string& path, uint64_t& bytes) {
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a FIFO must not block us
  if (!file) refuse(path, std::string("cannot be opened: ") + std::strerror(errno), "a readable safetensors file");
  struct stat info {};
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode))
    refuse(path, "is no regular file", "a readable safetensors file");
  bytes = static_cast<uint64_t>(info.st_size);
  return file;
}

void read_at(int file, uint64_t offset, std::span<std::byte> out, const std::string& where) {
  for (size_t done = 0; done < out.size();) {
    const ssize_t got = ::pread(file, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      refuse(where, got < 0 ? std::strerror(errno) : "its file has become shorter",
             "a safetensors file that stays as it is while it is read");
    done += static_cast<size_t>(got);
  }
}

// Rules 1 and 2: the header's bytes.
std::string header_of(int file, uint64_t file_bytes, const std::string& path) {
  if (file_bytes < 8) refuse(path, concat(file_bytes, " bytes"), "a safetensors file of at least 8 bytes");
  uint64_t length = 0;
  read_at(file, 0, std::as_writable_bytes(std::span(&length, 1)), path);
  if (length > kMaxHeaderBytes)
    refuse(path, concat("a header of ", length, " bytes"), concat("at most ", kMaxHeaderBytes, "; is it safetensors?"));
  if (length > file_bytes - 8)
    refuse(path, concat("a header of ", length, " bytes in a file of ", file_bytes),
           "the whole header in the file; is it cut off?");
  std::string text(static_cast<size_t>(length), '\0');
  read_at(file, 8, std::as_writable_bytes(std::span(text)), path);
  return text;
}

// Rules 3 and 5; 4 and 6 are parse_json's. The header without the blanks that pad it.
std::string_view without_padding(std::string_view text, const std::string& path) {
  if (!is_utf8(text)) refuse(path, "the header is not UTF-8", "valid UTF-8");
  if (text.empty() || text.front() != '{')
    refuse(path, text.empty() ? "an empty header" : "a header starting with " + quote_safe(text.substr(0, 1)), "a {");
  while (text.back() == ' ') text.remove_suffix(1);
  if (text.back() != '}')
    refuse(path, "a header ending in " + quote_safe(text.substr(text.size() - 1)), "a }, and only blanks after it");
  return text;
}

}  // namespace

void TensorView::read(uint64_t first, std::span<std::byte> out) const {
  SFSDP_CHECK(first <= bytes && out.size() <= bytes - first, first, " + ", out.size(), " of ", bytes, " bytes of ",
              name);
  read_at(file, offset + first, out, "tensor " + quote_safe(name));
}

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  uint64_t file_bytes = 0;
  SafetensorsFile file(path, open_regular(path, file_bytes));
  const std::string header_text = header_of(file.file_.get(), file_bytes, path);
  const std::string_view text = without_padding(header_text, path);
  const uint64_t data_begin = 8 + header_text.size();

  const JsonValue header = parse_json(text, path, {kMaxDepth, JsonLimits{}.max_values});
  const auto* members = header.as<JsonObject>();
  SFSDP_CHECK(members, "a document starting with { is an object");
  if (members->size() > kMaxTensors) refuse(path, concat(members->size(), " tensors"), concat("at most ", kMaxTensors));
  std::vector<Entry> entries;
  for (const auto& [name, value] : *members) {
    const std::string where = path + ": tensor " + quote_safe(name);
    if (name.size() > kMaxNameBytes)
      refuse(where, concat("a name of ", name.size(), " bytes"), concat("at most ", kMaxNameBytes));
    if (name == "__metadata__")
      file.metadata_ = read_metadata(value, path + ": __metadata__");
    else
      entries.push_back(read_entry(name, value, where));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  check_layout(entries, file_bytes - data_begin, path);

  for (Entry& entry : entries) {
    file.index_.emplace(entry.name, file.tensors_.size());
    file.tensors_.push_back({std::move(entry.name), std::string(entry.dtype->name), entry.dtype->dtype,
                             std::move(entry.shape), entry.end - entry.begin, file.file_.get(),
                             data_begin + entry.begin});
  }
  return file;
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

// --- a folder ---

namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// tensor -> file, as the index says.
std::map<std::string, std::string> read_weight_map(const JsonValue& index, const std::string& path) {
  const JsonValue* map = index.find("weight_map");
  const auto* members = map ? map->as<JsonObject>() : nullptr;
  if (!members) refuse(path, map ? "weight_map is " + describe(*map) : "no weight_map", "an object: tensor to file");
  std::map<std::string, std::string> weight_map;
  for (const auto& [tensor, value] : *members) {
    const auto* file = value.as<std::string>();
    if (!file) refuse(path, "the file of " + quote_safe(tensor) + " is " + describe(value), "a file name");
    const bool leaves = file->find_first_of(std::string_view("/\\\0", 3)) != std::string::npos;
    if (file->empty() || leaves || *file == "." || *file == "..")
      refuse(path, "the file of " + quote_safe(tensor) + " is " + quote_safe(*file),
             "the name of a file in the same folder");
    weight_map.emplace(tensor, *file);
  }
  return weight_map;
}

// Some writers spelled the sum as a float. None: the index has no total_size.
std::optional<uint64_t> read_total_size(const JsonValue& index, const std::string& path) {
  const JsonValue* metadata = index.find("metadata");
  const JsonValue* total = metadata ? metadata->find("total_size") : nullptr;
  if (!total) return std::nullopt;
  if (const auto* number = total->as<uint64_t>()) return *number;
  constexpr double kExact = 9007199254740992.0;  // 2^53: up to it a double holds every integer
  if (const auto* number = total->as<double>())
    if (*number >= 0 && *number <= kExact && *number == static_cast<double>(static_cast<uint64_t>(*number)))
      return static_cast<uint64_t>(*number);
  refuse(path, "total_size is " + describe(*total), "a number of bytes");
}

}  // namespace

void SafetensorsCheckpoint::open_index(const std::string& index_path) {
  const JsonValue index = parse_json(read_text_file(index_path, kMaxIndexBytes), index_path);
  const std::map<std::string, std::string> weight_map = read_weight_map(index, index_path);
  std::map<std::string, size_t> file_index;
  for (const auto& [tensor, name] : weight_map) file_index.emplace(name, 0);
  for (auto& [name, position] : file_index) {
    position = files_.size();
    files_.push_back(SafetensorsFile::open((fs::path(dir_) / name).string()));
  }
  std::map<std::string_view, const SafetensorsFile*> seen;
  for (const SafetensorsFile& file : files_)
    for (const TensorView& tensor : file.tensors())
      if (const auto [first, fresh] = seen.emplace(tensor.name, &file); !fresh)
        refuse(index_path,
               "tensor " + quote_safe(tensor.name) + " is in " + first->second->path() + " and in " + file.path(),
               "every tensor in one file");
  uint64_t sum = 0;
  for (const auto& [name, file] : weight_map) {
    const size_t position = file_index.at(file);
    const TensorView* tensor = files_[position].find(name);
    if (!tensor)
      refuse(index_path, "tensor " + quote_safe(name) + " is not in " + quote_safe(file), "the file to hold it");
    sum += tensor->bytes;
    places_.emplace(name, Place{position, tensor});
  }
  if (const auto total = read_total_size(index, index_path); total && *total != sum)
    refuse(index_path, concat("total_size is ", *total), concat(sum, ", the bytes of the tensors it lists"));
}

SafetensorsCheckpoint SafetensorsCheckpoint::open(const std::string& dir) {
  SafetensorsCheckpoint checkpoint;
  checkpoint.dir_ = dir;
  const std::string single = (fs::path(dir) / kSingleFile).string();
  const std::string index = (fs::path(dir) / kIndexFile).string();
  std::error_code ignored;  // what cannot be looked at cannot be opened either, and that error says why
  const bool has_single = fs::exists(single, ignored);
  const bool has_index = fs::exists(index, ignored);
  if (has_single && has_index)
    refuse(dir, concat(kSingleFile, " and ", kIndexFile), "one of them; remove the one that is out of date");
  if (!has_single && !has_index)
    refuse(dir, "no checkpoint", concat("a folder with ", kSingleFile, " or ", kIndexFile));
  if (has_index) {
    checkpoint.open_index(index);
    return checkpoint;
  }
  checkpoint.files_.push_back(SafetensorsFile::open(single));
  for (const TensorView& tensor : checkpoint.files_[0].tensors())
    checkpoint.places_.emplace(tensor.name, Place{0, &tensor});
  return checkpoint;
}

const TensorView* SafetensorsCheckpoint::find(std::string_view name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : found->second.tensor;
}

const TensorView& SafetensorsCheckpoint::at(std::string_view name) const {
  const TensorView* tensor = find(name);
  if (!tensor) refuse(dir_, "no tensor " + quote_safe(name), concat("it among the ", places_.size(), " tensors there"));
  return *tensor;
}

std::vector<std::string> SafetensorsCheckpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : places_) names.push_back(name);
  return names;
}

std::string SafetensorsCheckpoint::file_of(std::string_view name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? "" : files_[found->second.file].path();
}

}  // namespace sfsdp::train
