// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/token_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/fd.h"

namespace sfsdp::train {

namespace {

constexpr std::string_view kExpected =
    "\n  expected a flat file of little-endian token ids, or one of llm.c's or sfsdp's; set --training.dataset_path";

Fd open_regular(const std::string& path, int64_t& bytes) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!fd) throw UserError(concat(path, ": ", std::strerror(errno), kExpected));
  if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode))
    throw UserError(concat(path, ": not a file", kExpected));
  bytes = status.st_size;
  return fd;
}

uint32_t little_endian(const uint8_t* bytes, size_t width) {  // on any host
  uint32_t value = 0;
  for (size_t i = 0; i < width; ++i) value |= static_cast<uint32_t>(bytes[i]) << (8 * i);
  return value;
}

// Fills `out` from `offset` on. What fails is named with the place; `bytes`: the file's size when it was opened.
void read_at(int fd, const std::string& path, int64_t bytes, int64_t offset, std::span<uint8_t> out) {
  for (size_t done = 0; done < out.size();) {
    const ssize_t n = ::pread(fd, out.data() + done, out.size() - done, offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw UserError(concat(path, ": ", std::strerror(errno), " at byte ", offset, "\n  check the disk"));
    if (n == 0)
      throw UserError(concat(path, ": ends at byte ", offset + static_cast<int64_t>(done), ", but had ", bytes,
                             " when it was opened\n  expected a file that stays as it is while a run reads it; write a"
                             " new one beside it instead"));
    done += static_cast<size_t>(n);
  }
}

constexpr int64_t kLlmcHeader = 1024;

struct LlmcFormat {
  uint32_t magic, version;
  TokenDtype dtype;
};
constexpr std::array<LlmcFormat, 2> kLlmcFormats = {
    {{20240520, 1, TokenDtype::UInt16}, {20240801, 7, TokenDtype::UInt32}}};

// The piece after a header of llm.c's, which must agree with the file's size.
TokenPiece after_llmc_header(const std::string& path, const LlmcFormat& format, std::span<const uint8_t> header,
                             int64_t bytes) {
  const std::string begin = concat(path, ": begins as llm.c's files do, with ", format.magic);
  if (static_cast<int64_t>(header.size()) < kLlmcHeader)
    throw UserError(
        concat(begin, ", but has ", bytes, " bytes\n  expected a header of ", kLlmcHeader, "; the file is cut short"));
  const uint32_t version = little_endian(header.data() + 4, 4), count = little_endian(header.data() + 8, 4);
  if (version != format.version)
    throw UserError(concat(begin, ", but with version ", version, "\n  expected version ", format.version));
  const int64_t width = static_cast<int64_t>(format.dtype), expected = kLlmcHeader + width * int64_t{count};
  if (bytes != expected)
    throw UserError(concat(begin, " and a count of ", count, " ids, but has ", bytes, " bytes\n  expected ", expected,
                           bytes < expected ? "; the file is cut short" : "; something was appended"));
  return {path, bytes, kLlmcHeader, int64_t{count}, format.dtype};
}

}  // namespace

TokenDtype parse_token_dtype(std::string_view text) {
  if (text == "uint16") return TokenDtype::UInt16;
  if (text == "uint32") return TokenDtype::UInt32;
  throw UserError(concat("training.token_dtype = \"", text, "\"\n  expected uint16 or uint32"));
}

TokenPiece find_tokens(const std::string& path, TokenDtype flat_dtype) {
  int64_t bytes = 0;
  const Fd fd = open_regular(path, bytes);
  if (bytes == 0) throw UserError(concat(path, ": an empty file", kExpected));
  std::vector<uint8_t> header(static_cast<size_t>(std::min(bytes, kLlmcHeader)));
  read_at(fd.get(), path, bytes, 0, header);
  for (const LlmcFormat& format : kLlmcFormats)
    if (header.size() >= 4 && little_endian(header.data(), 4) == format.magic)
      return after_llmc_header(path, format, header, bytes);
  const auto width = static_cast<int64_t>(flat_dtype);
  if (bytes % width != 0)
    throw UserError(concat(path, ": ", bytes, " bytes are no whole number of ", width,
                           "-byte tokens\n  expected a flat file of ids without a header; check training.token_dtype"));
  return {path, bytes, 0, bytes / width, flat_dtype};
}

TokenStore::TokenStore(std::string name, std::vector<TokenPiece> pieces, std::vector<int64_t> borders)
    : name_(std::move(name)), pieces_(std::move(pieces)), begins_{0}, borders_(std::move(borders)) {
  for (const TokenPiece& piece : pieces_) {
    begins_.push_back(begins_.back() + piece.tokens);
    checked_.emplace_back(piece.blocks.hashes.size());
  }
  fds_.assign(pieces_.size(), -1);
  SFSDP_CHECK(borders_.empty() || (borders_.front() == 0 && borders_.back() == size() &&
                                   std::is_sorted(borders_.begin(), borders_.end())),
              "borders of ", borders_.size(), " documents do not fit ", size(), " tokens of ", name_);
}

TokenStore::TokenStore(std::string name, std::vector<uint8_t> bytes)
    : TokenStore(std::move(name), {{"", 0, 0, static_cast<int64_t>(bytes.size()), TokenDtype::UInt8}}) {
  in_memory_ = std::move(bytes);
}

TokenStore::~TokenStore() { close_files(); }

bool TokenStore::masked() const { return std::ranges::any_of(pieces_, &TokenPiece::masked); }

void TokenStore::close_files() {
  for (const size_t piece : open_) ::close(std::exchange(fds_[piece], -1));
  open_.clear();
}

TokenStore::TokenStore(TokenStore&& other) noexcept
    : name_(std::move(other.name_)),
      pieces_(std::move(other.pieces_)),
      begins_(std::move(other.begins_)),
      borders_(std::move(other.borders_)),
      in_memory_(std::move(other.in_memory_)),
      fds_(std::exchange(other.fds_, {})),
      open_(std::exchange(other.open_, {})),
      checked_(std::move(other.checked_)),
      buffer_(std::move(other.buffer_)) {}

void TokenStore::read(int64_t first, std::span<int32_t> ids, int64_t vocab_size) {
  const auto count = static_cast<int64_t>(ids.size());
  SFSDP_CHECK(first >= 0 && count <= size() && first <= size() - count, "tokens ", first, " + ", count, " of ", size());
  auto piece = static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), first) - begins_.begin() - 1);
  while (!ids.empty()) {
    const auto here = std::min(static_cast<int64_t>(ids.size()), begins_[piece + 1] - first);
    if (here > 0) read_piece(piece, first - begins_[piece], ids.first(static_cast<size_t>(here)), vocab_size);
    ids = ids.subspan(static_cast<size_t>(here));
    first += here;
    ++piece;
  }
}

void TokenStore::read_piece(size_t piece, int64_t first, std::span<int32_t> ids, int64_t vocab_size) {
  const auto width = static_cast<size_t>(pieces_[piece].dtype);
  const auto bytes = bytes_of(piece, first * static_cast<int64_t>(width), static_cast<int64_t>(ids.size() * width));
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t token = little_endian(bytes.data() + i * width, width);
    const uint32_t no_target = pieces_[piece].masked ? token & static_cast<uint32_t>(kNoTarget) : 0;
    const uint32_t id = token ^ no_target;
    if (int64_t{id} >= vocab_size)
      throw UserError(concat(pieces_[piece].file.empty() ? name_ : pieces_[piece].file, ": token ", id, " at position ",
                             first + static_cast<int64_t>(i), "\n  expected ids below ", vocab_size,
                             ", the model's vocab_size; check training.token_dtype, the file and the model"));
    ids[i] = static_cast<int32_t>(token);
  }
}

std::span<const uint8_t> TokenStore::bytes_of(size_t piece, int64_t begin, int64_t count) {
  const TokenPiece& p = pieces_[piece];
  if (p.file.empty()) return std::span(in_memory_).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
  check_blocks(piece, p.offset + begin, p.offset + begin + count);
  buffer_.resize(static_cast<size_t>(count));
  read_at(open_file(piece), p.file, p.file_bytes, p.offset + begin, buffer_);
  return buffer_;
}

// Those that bytes [begin, end) of the piece's file lie in.
void TokenStore::check_blocks(size_t piece, int64_t begin, int64_t end) {
  const TokenPiece& p = pieces_[piece];
  for (int64_t at = begin; at < end && !p.blocks.hashes.empty();) {
    const auto block = static_cast<size_t>((at - p.blocks.begin) / kHashedBlockBytes);
    const auto [from, to] = p.blocks.range(block);
    at = to;
    if (checked_[piece][block]) continue;
    buffer_.resize(static_cast<size_t>(to - from));
    read_at(open_file(piece), p.file, p.file_bytes, from, buffer_);
    p.blocks.check(block, buffer_, p.file);
    checked_[piece][block] = true;
  }
}

int TokenStore::open_file(size_t piece) {
  if (fds_[piece] >= 0) return fds_[piece];
  int64_t bytes = 0;
  Fd fd = open_regular(pieces_[piece].file, bytes);
  if (bytes != pieces_[piece].file_bytes)
    throw UserError(
        concat(pieces_[piece].file, ": ", bytes, " bytes, but ", pieces_[piece].file_bytes,
               " when the run began\n  expected a file that stays as it is while a run reads it; write a new"
               " one beside it instead"));
  if (open_.size() == kMaxOpen) {
    ::close(std::exchange(fds_[open_.front()], -1));
    open_.pop_front();
  }
  open_.push_back(piece);
  return fds_[piece] = fd.release();
}

}  // namespace sfsdp::train
