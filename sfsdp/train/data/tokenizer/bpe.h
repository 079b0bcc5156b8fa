// SPDX-License-Identifier: BSD-3-Clause
// Byte-pair encoding: the ids of one word, by the merges of a tokenizer.json, in time that grows as n log n.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sfsdp/train/data/tokenizer/fields.h"

namespace sfsdp::train::tokenizer {

// Words that were encoded before and their ids: most words of a text are among a few thousand. Full, it starts anew.
class WordCache {
 public:
  // The ids of `word`; none where it is not there. Valid until the next add().
  std::optional<std::span<const int32_t>> find(std::string_view word) const;
  void add(std::string_view word, std::span<const int32_t> ids);

 private:
  struct Slot {
    uint32_t word = 0, ids = 0;  // where they begin in letters_ and ids_
    uint32_t letters = 0;        // 0: empty
    uint32_t count = 0;
  };

  std::vector<Slot> slots_;
  std::string letters_;
  std::vector<int32_t> ids_;
  size_t used_ = 0;
};

// What encoding a word writes to; one per thread at a time.
struct BpeMemory {
  struct Symbol {
    int32_t id, previous, next;  // -1: none
    bool merged_away;
  };
  WordCache cache;
  std::vector<Symbol> symbols;
  std::vector<uint64_t> queue;
  std::vector<int32_t> ids;
};

// `model` of a tokenizer.json: byte pair encoding, whose merges join the pair of the lowest rank first, the leftmost of
// these first. Immutable.
//   known: vocab, merges, ignore_merges, unk_token, fuse_unk, byte_fallback
class BpeModel {
 public:
  static BpeModel parse(const Field& field);
  BpeModel() = default;
  BpeModel(BpeModel&&) = default;  // not copied: ids_ refers to texts of tokens_
  BpeModel& operator=(BpeModel&&) = default;

  // Appends the ids of one word. `is_bytes`: each byte stands for a character of GPT-2's alphabet. Takes n log n.
  void encode(std::string_view word, bool is_bytes, BpeMemory& memory, std::vector<int32_t>& ids) const;

  std::optional<int32_t> find(std::string_view token) const;
  // Null for an id that no token has.
  const std::string* token(int32_t id) const;
  size_t size() const { return ids_.size(); }
  int32_t largest_id() const { return static_cast<int32_t>(tokens_.size()) - 1; }

 private:
  struct Merge {
    uint64_t pair;
    uint32_t rank;
    int32_t result;
  };

  void read_vocabulary(const Field& field);
  void read_merges(const Field& field);
  void add_merge(std::string_view left, std::string_view right, uint32_t rank, const Field& field);
  void spell_bytes();
  const Merge* find_merge(int32_t left, int32_t right) const;

  void begin_word(std::string_view word, bool is_bytes, BpeMemory& memory) const;
  void add_unknown(std::string_view character, std::optional<int32_t>& unknown, BpeMemory& memory) const;
  void merge_all(BpeMemory& memory) const;

  std::vector<std::string> tokens_;  // by id; "" for an id without one
  std::unordered_map<std::string_view, int32_t> ids_;
  std::unordered_map<std::string, int32_t> ids_of_bytes_;  // with ignore_merges: tokens as the bytes they stand for
  std::array<int32_t, 256> byte_ids_{};                    // of the alphabet's characters; -1: none
  std::array<int32_t, 256> fallback_ids_{};                // of <0x00> to <0xFF>; -1: none
  std::vector<Merge> merges_;                              // a hash table; rank kNone: empty
  uint64_t merge_mask_ = 0;
  std::vector<int32_t> merge_results_;  // by rank
  std::optional<int32_t> unknown_;
  bool ignores_merges_ = false, fuses_unknown_ = false, byte_fallback_ = false;
};

}  // namespace sfsdp::train::tokenizer
