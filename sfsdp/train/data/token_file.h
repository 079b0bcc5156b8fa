// SPDX-License-Identifier: BSD-3-Clause
// Token files, which `sfsdp tokenize` writes and the dataset `tokens` reads: ids with the borders of their documents.
//
//   DIR/00000.tok, 00001.tok, ...   shards in order; no document crosses a border between two
//   DIR/dataset.json                written last: totals, hashes, tokenizer, inputs; without it the folder is not complete
//
// A shard, all numbers little-endian:
//   byte 0    "SFSDPTOK"
//        8    u32 version, 2 or 3     12  u32 bytes per id, 2 or 4
//       16    u64 ids                 24  u64 documents
//       32    u64 vocab_size          40  u64 Tokenizer::hash()
//       48    u64 XXH3 of this header without these 8 bytes, and of the hashes at the end
//       56    u64 documents of the whole input before this shard's first
//       64    the ids, then zeros up to a multiple of 8, then per document the u64 number of ids up to its end, then
//             per 65,536 bytes from 64 on (the last ones may be fewer) their u64 XXH3
//
// So a run that reads a few ids here and there checks each block once, when it first reads of it: no start hashes a terabyte.
//
// In version 3, which has masks, an id has 4 bytes, the top bit set where the loss does not count it (kNoTarget).
//
// Neither BOS nor EOS is stored: a document's ids are those of its text alone, and packing adds what a run asks for. An
// empty document has no ids, but a border.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/train/data/hashed_blocks.h"
#include "sfsdp/train/data/token_store.h"

namespace sfsdp::train {

inline constexpr std::string_view kTokenFileMagic = "SFSDPTOK";
inline constexpr uint32_t kTokenFileVersion = 2;
inline constexpr uint32_t kMaskedTokenFileVersion = 3;
inline constexpr size_t kTokenFileHeaderBytes = 64;

struct TokenFileHeader {
  uint32_t width = 2;  // bytes per id: 2 or 4
  uint64_t tokens = 0;
  uint64_t documents = 0;
  uint64_t vocab_size = 0;
  uint64_t tokenizer_hash = 0;
  uint64_t content_hash = 0;
  uint64_t first_document = 0;
  bool masked = false;
  uint32_t version() const { return masked ? kMaskedTokenFileVersion : kTokenFileVersion; }
};

// One shard, mapped. Read-only: may be read from several threads.
class TokenFile {
 public:
  // Opens and maps; reads header, hashes and borders, not the ids.
  //   throws: UserError naming the file and what does not fit: magic, version, width, sizes; a changed byte of what it reads
  static TokenFile open(const std::string& path);
  // Whether a file begins with the magic, so that other layouts can be told from it.
  static bool is_token_file(const std::string& path);

  const std::string& path() const { return path_; }
  const TokenFileHeader& header() const { return header_; }
  int64_t tokens() const { return static_cast<int64_t>(header_.tokens); }
  int64_t documents() const { return static_cast<int64_t>(header_.documents); }

  struct Range {
    int64_t begin = 0, end = 0;  // of ids
    int64_t size() const { return end - begin; }
  };
  // Where document `index` of 0 .. documents() - 1 lies.  throws: UserError naming a border that is out of order
  Range document(int64_t index) const;
  // Where its ids lie, for a TokenStore.
  TokenPiece piece() const;
  // Hashes all ids and borders.  throws: UserError naming the bytes that differ from what was written
  void verify() const;

 private:
  TokenFile() = default;
  uint64_t border(int64_t index) const;
  HashedBlocks blocks() const;  // hashes of ids and borders
  void check_blocks(int64_t begin, int64_t end) const;

  std::string path_;
  TokenFileHeader header_;
  std::shared_ptr<const void> mapping_;
  const uint8_t* ids_ = nullptr;
  const uint8_t* borders_ = nullptr;
  const uint8_t* hashes_ = nullptr;
  size_t file_bytes_ = 0;
};

// dataset.json of a folder.
struct TokenFolder {
  struct Shard {
    std::string file;  // its name inside the folder
    int64_t tokens = 0, documents = 0;
    uint64_t content_hash = 0;
  };
  std::string path;
  int64_t tokens = 0, documents = 0;
  int64_t vocab_size = 0;
  uint64_t tokenizer_hash = 0;
  bool masked = false;
  std::vector<Shard> shards;

  // Reads dataset.json; the shards are not opened.
  //   throws: UserError if it is missing (`sfsdp tokenize` has not finished), or holds what it should not, such as a path
  static TokenFolder load(const std::string& folder);
  static bool is_token_folder(const std::string& folder);
  // Opens shard `index`, and compares its header with dataset.json.  throws: UserError
  TokenFile open(size_t index) const;
};

// Writes one shard under a temporary name; finish() makes it visible by one rename.
class TokenFileWriter {
 public:
  // width: 2 for vocabularies of at most 65,536, else 4, as with masks
  TokenFileWriter(std::string path, uint64_t vocab_size, uint64_t tokenizer_hash, uint64_t first_document,
                  bool masked = false);
  ~TokenFileWriter();  // removes what is not finished
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  // One document; with masks, ids may have kNoTarget.  throws: UserError naming the file and what the system said
  void add(std::span<const int32_t> ids);
  int64_t tokens() const;
  int64_t documents() const;
  // Borders and header, fsync, rename, fsync of the folder.
  TokenFileHeader finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sfsdp::train
