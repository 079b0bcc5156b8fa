// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/token_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/durable_file.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/fd.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"

static_assert(std::endian::native == std::endian::little, "token files are mapped as they are: little-endian");

namespace sfsdp::train {
namespace {

constexpr uint64_t kMostTokens = uint64_t{1} << 48;  // sums of sizes below stay far from overflow

template <class Number>
Number number_at(const uint8_t* bytes) {
  Number value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

template <class Number>
void put(uint8_t* bytes, Number value) {
  std::memcpy(bytes, &value, sizeof value);
}

uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

using HeaderBytes = std::array<uint8_t, kTokenFileHeaderBytes>;

HeaderBytes bytes_of(const TokenFileHeader& header) {
  HeaderBytes bytes{};
  std::memcpy(bytes.data(), kTokenFileMagic.data(), kTokenFileMagic.size());
  put(bytes.data() + 8, header.version());
  put(bytes.data() + 12, header.width);
  put(bytes.data() + 16, header.tokens);
  put(bytes.data() + 24, header.documents);
  put(bytes.data() + 32, header.vocab_size);
  put(bytes.data() + 40, header.tokenizer_hash);
  put(bytes.data() + 48, header.content_hash);
  put(bytes.data() + 56, header.first_document);
  return bytes;
}

uint64_t number_of_blocks(uint64_t content_bytes) {
  return (content_bytes + kHashedBlockBytes - 1) / kHashedBlockBytes;
}

// How long ids and borders are.
uint64_t content_bytes_of(const TokenFileHeader& header) {
  return round_up(header.tokens * header.width, 8) + header.documents * 8;
}

// What stands at byte 48: of the header, its own place taken as zeros, and the hashes of all blocks.
uint64_t hash_of(TokenFileHeader header, std::span<const uint8_t> block_hashes) {
  header.content_hash = 0;
  ContentHash hash;
  hash.add(bytes_of(header));
  hash.add(block_hashes);
  return hash.value();
}

[[noreturn]] void fail_to_read(const std::string& path, const std::string& got, const std::string& expected) {
  throw UserError(concat(path, ": ", got, "\n  expected ", expected));
}

TokenFileHeader header_of(const std::string& path, const uint8_t* bytes, uint64_t file_bytes) {
  if (file_bytes < kTokenFileHeaderBytes)
    fail_to_read(path, concat(file_bytes, " bytes"),
                 concat("a token file, which has at least ", kTokenFileHeaderBytes));
  if (std::memcmp(bytes, kTokenFileMagic.data(), kTokenFileMagic.size()) != 0)
    fail_to_read(path, "does not begin with SFSDPTOK", "a token file, as sfsdp tokenize writes it");
  const auto version = number_at<uint32_t>(bytes + 8);
  if (version != kTokenFileVersion && version != kMaskedTokenFileVersion)
    fail_to_read(path, concat("version ", version),
                 concat("version ", kTokenFileVersion, ", or ", kMaskedTokenFileVersion,
                        " with masks; run sfsdp tokenize again"));
  const TokenFileHeader header = {number_at<uint32_t>(bytes + 12), number_at<uint64_t>(bytes + 16),
                                  number_at<uint64_t>(bytes + 24), number_at<uint64_t>(bytes + 32),
                                  number_at<uint64_t>(bytes + 40), number_at<uint64_t>(bytes + 48),
                                  number_at<uint64_t>(bytes + 56), version == kMaskedTokenFileVersion};
  if (header.width != 4 && (header.width != 2 || header.masked))
    fail_to_read(path, concat(header.width, " bytes per id"), header.masked ? "4, as it has masks" : "2 or 4");
  if (header.vocab_size == 0 || header.vocab_size > (uint64_t{1} << 31) ||
      (header.width == 2 && header.vocab_size > (1U << 16)))
    fail_to_read(path, concat("vocab_size ", header.vocab_size),
                 concat("one whose ids fit into ", header.width, " bytes"));
  if (header.tokens > kMostTokens || header.documents > kMostTokens || header.first_document > kMostTokens)
    fail_to_read(path, concat(header.tokens, " ids in ", header.documents, " documents"), "at most 2^48 of each");
  const uint64_t content = content_bytes_of(header);
  const uint64_t size = kTokenFileHeaderBytes + content + number_of_blocks(content) * 8;
  if (size != file_bytes)
    fail_to_read(path, concat(file_bytes, " bytes"),
                 concat(size, " for ", header.tokens, " ids in ", header.documents, " documents; was it cut off?"));
  return header;
}

}  // namespace

// --- reading ---

TokenFile TokenFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail_to_read(path, std::strerror(errno), "a token file, as sfsdp tokenize writes it");
  struct stat status {};
  const bool is_file = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  const auto size = static_cast<size_t>(is_file ? status.st_size : 0);
  void* memory = size == 0 ? MAP_FAILED : ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  const int error = errno;
  ::close(fd);
  if (!is_file || size == 0) fail_to_read(path, is_file ? "an empty file" : "no file", "a token file");
  if (memory == MAP_FAILED) fail_to_read(path, std::strerror(error), "a file that can be mapped");

  TokenFile file;
  file.path_ = path;
  file.mapping_ = std::shared_ptr<const void>(memory, [size](const void* p) { ::munmap(const_cast<void*>(p), size); });
  file.file_bytes_ = size;
  const auto* bytes = static_cast<const uint8_t*>(memory);
  file.header_ = header_of(path, bytes, size);
  file.ids_ = bytes + kTokenFileHeaderBytes;
  file.borders_ = file.ids_ + round_up(file.header_.tokens * file.header_.width, 8);
  file.hashes_ = bytes + kTokenFileHeaderBytes + content_bytes_of(file.header_);
  if (const uint64_t hash = hash_of(file.header_, {file.hashes_, bytes + size}); hash != file.header_.content_hash)
    fail_to_read(
        path, concat("hash ", hex(hash), " of its header and hashes"),
        concat(hex(file.header_.content_hash), ", as byte 48 says; the file is damaged, run sfsdp tokenize again"));
  file.check_blocks(file.borders_ - bytes, file.hashes_ - bytes);
  const uint64_t last = file.documents() == 0 ? 0 : file.border(file.documents() - 1);
  if (last != file.header_.tokens)
    fail_to_read(path, concat("the last document ends at id ", last), concat("at ", file.header_.tokens, ", the last"));
  return file;
}

bool TokenFile::is_token_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<char, 8> magic{};
  return file.read(magic.data(), magic.size()) && std::string_view(magic.data(), magic.size()) == kTokenFileMagic;
}

uint64_t TokenFile::border(int64_t index) const { return number_at<uint64_t>(borders_ + 8 * index); }

TokenFile::Range TokenFile::document(int64_t index) const {
  SFSDP_CHECK(index >= 0 && index < documents(), "document ", index, " of ", documents());
  const uint64_t begin = index == 0 ? 0 : border(index - 1), end = border(index);
  if (begin > end || end > header_.tokens)
    fail_to_read(path_, concat("document ", index, " has ids ", begin, " to ", end),
                 concat("borders in order, up to ", header_.tokens, "; the file is damaged, run sfsdp tokenize again"));
  return {static_cast<int64_t>(begin), static_cast<int64_t>(end)};
}

TokenPiece TokenFile::piece() const {
  const TokenDtype dtype = header_.width == 2 ? TokenDtype::UInt16 : TokenDtype::UInt32;
  return {path_,
          static_cast<int64_t>(file_bytes_),
          static_cast<int64_t>(kTokenFileHeaderBytes),
          tokens(),
          dtype,
          blocks(),
          header_.masked};
}

HashedBlocks TokenFile::blocks() const {
  HashedBlocks blocks;
  blocks.begin = kTokenFileHeaderBytes;
  blocks.end = blocks.begin + static_cast<int64_t>(content_bytes_of(header_));
  blocks.hashes.resize(number_of_blocks(content_bytes_of(header_)));
  if (!blocks.hashes.empty()) std::memcpy(blocks.hashes.data(), hashes_, blocks.hashes.size() * 8);
  return blocks;
}

// Those that bytes [begin, end) of the file lie in.
void TokenFile::check_blocks(int64_t begin, int64_t end) const {
  const HashedBlocks all = blocks();
  if (begin == end) return;
  const auto first = static_cast<size_t>((begin - all.begin) / kHashedBlockBytes);
  for (size_t i = first; i < all.hashes.size() && all.range(i).begin < end; ++i) {
    const auto [from, to] = all.range(i);
    all.check(i, {ids_ + (from - all.begin), static_cast<size_t>(to - from)}, path_);
  }
}

void TokenFile::verify() const {
  constexpr auto kBegin = static_cast<int64_t>(kTokenFileHeaderBytes);
  check_blocks(kBegin, kBegin + static_cast<int64_t>(content_bytes_of(header_)));
}

// --- a folder ---

namespace {

constexpr size_t kMostManifestBytes = 256 << 20;

uint64_t whole_number(const JsonValue& object, std::string_view key, const std::string& where) {
  const JsonValue* value = object.find(key);
  const uint64_t* number = value ? value->as<uint64_t>() : nullptr;
  if (!number || *number > kMostTokens)
    fail_to_read(where, concat(key, " = ", value ? describe(*value) : "nothing"), "a whole number up to 2^48");
  return *number;
}

std::string text_of(const JsonValue& object, std::string_view key, const std::string& where) {
  const JsonValue* value = object.find(key);
  const std::string* text = value ? value->as<std::string>() : nullptr;
  if (!text) fail_to_read(where, concat(key, " = ", value ? describe(*value) : "nothing"), "a text");
  return *text;
}

uint64_t hash_at(const JsonValue& object, std::string_view key, const std::string& where) {
  const std::string text = text_of(object, key, where);
  const std::optional<uint64_t> value = parse_hash(text);
  if (!value) fail_to_read(where, concat(key, " = ", quote_safe(text)), "16 hexadecimal digits");
  return *value;
}

}  // namespace

bool TokenFolder::is_token_folder(const std::string& folder) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(std::filesystem::path(folder) / "dataset.json", ignored);
}

TokenFolder TokenFolder::load(const std::string& folder) {
  const std::string file = (std::filesystem::path(folder) / "dataset.json").string();
  if (!is_token_folder(folder))
    fail_to_read(folder, "no dataset.json", "a folder that sfsdp tokenize has finished; start the same command again");
  const JsonValue json = parse_json(read_text_file(file, kMostManifestBytes), file);
  const uint64_t version = whole_number(json, "version", file);
  if (version != kTokenFileVersion && version != kMaskedTokenFileVersion)
    fail_to_read(file, concat("version ", version),
                 concat("version ", kTokenFileVersion, ", or ", kMaskedTokenFileVersion, " with masks"));
  TokenFolder result;
  result.path = folder;
  result.masked = version == kMaskedTokenFileVersion;
  result.tokens = static_cast<int64_t>(whole_number(json, "tokens", file));
  result.documents = static_cast<int64_t>(whole_number(json, "documents", file));
  result.vocab_size = static_cast<int64_t>(whole_number(json, "vocab_size", file));
  result.tokenizer_hash = hash_at(json, "tokenizer_hash", file);
  const JsonValue* shards = json.find("shards");
  if (!shards || !shards->as<JsonArray>()) fail_to_read(file, "no list shards", "the folder's shards");
  int64_t tokens = 0, documents = 0;
  for (const JsonValue& entry : *shards->as<JsonArray>()) {
    const std::string where = concat(file, ": shards[", result.shards.size(), "]");
    Shard shard = {text_of(entry, "file", where), static_cast<int64_t>(whole_number(entry, "tokens", where)),
                   static_cast<int64_t>(whole_number(entry, "documents", where)),
                   hash_at(entry, "content_hash", where)};
    if (shard.file.empty() || shard.file.front() == '.' || shard.file.find('/') != std::string::npos ||
        shard.file.find('\0') != std::string::npos)
      fail_to_read(where, concat("file = ", quote_safe(shard.file)), "a name inside the folder");
    tokens += shard.tokens;
    documents += shard.documents;
    if (tokens > result.tokens || documents > result.documents) break;
    result.shards.push_back(std::move(shard));
  }
  if (tokens != result.tokens || documents != result.documents)
    fail_to_read(file, concat("shards of ", tokens, " ids in ", documents, " documents"),
                 concat(result.tokens, " in ", result.documents, ", which it says in all"));
  return result;
}

TokenFile TokenFolder::open(size_t index) const {
  SFSDP_CHECK(index < shards.size(), "shard ", index, " of ", shards.size());
  const Shard& shard = shards[index];
  TokenFile file = TokenFile::open((std::filesystem::path(path) / shard.file).string());
  const TokenFileHeader& header = file.header();
  if (file.tokens() != shard.tokens || file.documents() != shard.documents ||
      header.content_hash != shard.content_hash || static_cast<int64_t>(header.vocab_size) != vocab_size ||
      header.tokenizer_hash != tokenizer_hash || header.masked != masked)
    fail_to_read(file.path(), "another header than dataset.json says", "the shard that was written with dataset.json");
  return file;
}

// --- writing ---

struct TokenFileWriter::State {
  std::string path, temporary;
  Fd fd;
  TokenFileHeader header;
  BlockHasher hasher;
  std::vector<uint8_t> buffer;    // ids that are not written yet
  std::vector<uint64_t> borders;  // kept until the end: 8 bytes per document

  int64_t written = kTokenFileHeaderBytes;
  void flush() {
    hasher.add(buffer);
    write();
  }
  void write() {
    write_file(fd.get(), std::as_bytes(std::span(buffer)), written, temporary);
    written += static_cast<int64_t>(buffer.size());
    buffer.clear();
  }

  template <class Number>
  void append(std::span<const int32_t> ids) {
    const size_t at = buffer.size();
    buffer.resize(at + ids.size() * sizeof(Number));
    for (size_t i = 0; i < ids.size(); ++i)
      put(buffer.data() + at + i * sizeof(Number), static_cast<Number>(static_cast<uint32_t>(ids[i])));
  }
};

TokenFileWriter::TokenFileWriter(std::string path, uint64_t vocab_size, uint64_t tokenizer_hash,
                                 uint64_t first_document, bool masked)
    : state_(std::make_unique<State>()) {
  SFSDP_CHECK(vocab_size >= 1 && vocab_size <= (uint64_t{1} << 31), "vocab_size ", vocab_size);
  state_->path = std::move(path);
  state_->temporary = state_->path + ".tmp";
  state_->header.width = vocab_size <= (1U << 16) && !masked ? 2 : 4;
  state_->header.masked = masked;
  state_->header.vocab_size = vocab_size;
  state_->header.tokenizer_hash = tokenizer_hash;
  state_->header.first_document = first_document;
  state_->fd = create_file(state_->temporary);
}

TokenFileWriter::~TokenFileWriter() {
  if (state_->fd) ::unlink(state_->temporary.c_str());
}

void TokenFileWriter::add(std::span<const int32_t> ids) {
  constexpr size_t kBuffer = 4 << 20;
  State& state = *state_;
  for (const int32_t token : ids) {
    const int32_t id = state.header.masked ? id_of(token) : token;
    SFSDP_CHECK(id >= 0 && static_cast<uint64_t>(id) < state.header.vocab_size, "id ", id);
  }
  if (state.header.width == 2)
    state.append<uint16_t>(ids);
  else
    state.append<uint32_t>(ids);
  state.header.tokens += ids.size();
  ++state.header.documents;
  state.borders.push_back(state.header.tokens);
  if (state.buffer.size() >= kBuffer) state.flush();
}

int64_t TokenFileWriter::tokens() const { return static_cast<int64_t>(state_->header.tokens); }
int64_t TokenFileWriter::documents() const { return static_cast<int64_t>(state_->header.documents); }

TokenFileHeader TokenFileWriter::finish() {
  State& state = *state_;
  const uint64_t id_bytes = state.header.tokens * state.header.width;
  state.buffer.resize(state.buffer.size() + (round_up(id_bytes, 8) - id_bytes));
  state.flush();
  state.buffer.resize(state.borders.size() * 8);
  if (!state.borders.empty()) std::memcpy(state.buffer.data(), state.borders.data(), state.buffer.size());
  state.flush();
  const std::vector<uint64_t> hashes = state.hasher.finish();
  state.buffer.resize(hashes.size() * 8);
  if (!hashes.empty()) std::memcpy(state.buffer.data(), hashes.data(), state.buffer.size());
  state.header.content_hash = hash_of(state.header, state.buffer);
  state.write();
  const HeaderBytes bytes = bytes_of(state.header);
  write_file(state.fd.get(), std::as_bytes(std::span(bytes)), 0, state.temporary);
  sync_file(state.fd.get(), state.temporary);
  state.fd = Fd();
  rename_file(state.temporary, state.path);
  return state.header;
}

}  // namespace sfsdp::train
