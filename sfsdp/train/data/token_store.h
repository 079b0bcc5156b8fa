// SPDX-License-Identifier: BSD-3-Clause
// Token ids in files or in memory, as one row of ids. Files are read with pread and never mapped: a file that is cut while a
// run reads it is an error that names it, where a mapping would end the process with SIGBUS.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/train/data/hashed_blocks.h"

namespace sfsdp::train {

enum class TokenDtype : uint8_t { UInt8 = 1, UInt16 = 2, UInt32 = 4 };  // the value is the width in bytes
// "uint16", "uint32"; throws UserError.
TokenDtype parse_token_dtype(std::string_view text);

// The top bit of an id that the loss does not count as a target; no vocabulary has ids with it.
inline constexpr int32_t kNoTarget = std::numeric_limits<int32_t>::min();
inline int32_t id_of(int32_t token) { return token & ~kNoTarget; }
inline bool is_target(int32_t token) { return token >= 0; }

// Ids that lie side by side in one file, little-endian.
struct TokenPiece {
  std::string file;
  int64_t file_bytes = 0;  // the file's size when the run began; another size later is an error
  int64_t offset = 0;      // bytes before the first id
  int64_t tokens = 0;
  TokenDtype dtype = TokenDtype::UInt16;
  HashedBlocks blocks = {};  // of files that have hashes: each block is checked when it is first read of
  bool masked = false;       // ids are of 4 bytes, and may have kNoTarget
};

// State over time: at most kMaxOpen files are open, the ones opened last. For one thread at a time.
class TokenStore {
 public:
  // `borders`: document d is tokens borders[d] .. borders[d + 1] of the row, the first 0, the last size(); empty: the
  // documents are not known.
  TokenStore(std::string name, std::vector<TokenPiece> pieces, std::vector<int64_t> borders = {});
  // Ids of one byte each, in memory.
  TokenStore(std::string name, std::vector<uint8_t> bytes);
  ~TokenStore();
  TokenStore(TokenStore&& other) noexcept;
  TokenStore(const TokenStore&) = delete;
  TokenStore& operator=(const TokenStore&) = delete;

  const std::string& name() const { return name_; }  // file or folder, for messages
  int64_t size() const { return begins_.back(); }    // in tokens
  std::span<const int64_t> borders() const { return borders_; }
  bool masked() const;  // whether any piece is

  // Fills `ids` with tokens first .. first + ids.size() - 1 of the row, of masked pieces with kNoTarget where it stands.
  //   throws: UserError naming file and position of an id that is not below vocab_size, a damaged block, or a file that
  //           changed
  void read(int64_t first, std::span<int32_t> ids, int64_t vocab_size);

  // Until the next read.
  void close_files();

  static constexpr size_t kMaxOpen = 64;  // a process may open 1024 by default, and sockets need some

 private:
  void read_piece(size_t piece, int64_t first, std::span<int32_t> ids, int64_t vocab_size);
  std::span<const uint8_t> bytes_of(size_t piece, int64_t begin, int64_t count);
  int open_file(size_t piece);
  void check_blocks(size_t piece, int64_t begin, int64_t end);

  std::string name_;
  std::vector<TokenPiece> pieces_;
  std::vector<int64_t> begins_;  // where each piece begins in the row, and the row's end
  std::vector<int64_t> borders_;
  std::vector<uint8_t> in_memory_;          // the one piece's bytes, if it has no file
  std::vector<int> fds_;                    // of each piece; -1: closed
  std::deque<size_t> open_;                 // pieces with a file open, the oldest first
  std::vector<std::vector<bool>> checked_;  // of each piece: which blocks are known to be whole
  std::vector<uint8_t> buffer_;
};

// Whether a file is flat ids, or begins with a header that we know.
//   flat   ids of `flat_dtype` and nothing else, as nanoGPT writes them
//   llm.c  256 int32: 20240520, 1, count, zeros, then uint16 ids; or 20240801, 7, count, zeros, then uint32 ids
//   throws: UserError for a file that cannot be read, is empty, or is not as long as its header says
TokenPiece find_tokens(const std::string& path, TokenDtype flat_dtype);

}  // namespace sfsdp::train
