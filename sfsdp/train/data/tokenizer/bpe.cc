// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/train/data/tokenizer/utf8.h"

namespace sfsdp::train::tokenizer {
namespace {

constexpr uint32_t kNone = UINT32_MAX;
constexpr size_t kMostTokens = 1 << 24, kMostMerges = 1 << 24;
constexpr size_t kSlots = 1 << 17;   // of the cache: 2 MiB, half of them used
constexpr size_t kMostCached = 256;  // bytes of a word: longer ones hardly come again

// splitmix64's last steps.
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

std::string fallback_token(unsigned byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

}  // namespace

// --- cache ---

std::optional<std::span<const int32_t>> WordCache::find(std::string_view word) const {
  if (slots_.empty()) return std::nullopt;
  for (size_t at = xxh3(word) % kSlots; slots_[at].letters != 0; at = (at + 1) % kSlots) {
    const Slot& slot = slots_[at];
    if (slot.letters == word.size() && std::memcmp(letters_.data() + slot.word, word.data(), word.size()) == 0)
      return std::span(ids_).subspan(slot.ids, slot.count);
  }
  return std::nullopt;
}

void WordCache::add(std::string_view word, std::span<const int32_t> ids) {
  if (word.empty() || word.size() > kMostCached) return;
  if (slots_.empty() || used_ == kSlots / 2) {
    slots_.assign(kSlots, {});
    letters_.clear();
    ids_.clear();
    used_ = 0;
  }
  size_t at = xxh3(word) % kSlots;
  while (slots_[at].letters != 0) at = (at + 1) % kSlots;
  slots_[at] = {static_cast<uint32_t>(letters_.size()), static_cast<uint32_t>(ids_.size()),
                static_cast<uint32_t>(word.size()), static_cast<uint32_t>(ids.size())};
  letters_.append(word);
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++used_;
}

// --- reading ---

BpeModel BpeModel::parse(const Field& field) {
  const JsonValue* type = field.value().find("type");  // older files leave it out
  if (type && (!type->as<std::string>() || *type->as<std::string>() != "BPE")) field.at("type").refuse("BPE");
  field.allow_only({"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                    "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (const auto dropout = field.find("dropout")) {
    const auto* number = dropout->value().as<double>();
    const auto* whole = dropout->value().as<uint64_t>();
    if (!(number && *number == 0) && !(whole && *whole == 0)) dropout->refuse("null: ids must not be drawn");
  }
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (const auto text = field.find(affix); text && !text->text().empty()) text->refuse("null or \"\"");
  BpeModel model;
  model.fuses_unknown_ = field.flag_or("fuse_unk", false);
  model.byte_fallback_ = field.flag_or("byte_fallback", false);
  model.ignores_merges_ = field.flag_or("ignore_merges", false);
  model.read_vocabulary(field.at("vocab"));
  model.read_merges(field.at("merges"));
  if (const auto unknown = field.find("unk_token")) {
    model.unknown_ = model.find(unknown->text());
    if (!model.unknown_) unknown->refuse("a token of vocab");
  }
  model.spell_bytes();
  return model;
}

void BpeModel::read_vocabulary(const Field& field) {
  const JsonObject& entries = field.object();
  if (entries.size() > kMostTokens) field.refuse(concat("at most ", kMostTokens, " tokens"));
  const uint64_t limit = (1 << 20) + 8 * entries.size();  // some leave holes; one id must not take gigabytes
  uint64_t most = 0;
  for (const auto& [token, id] : entries) {
    const auto* number = id.as<uint64_t>();
    if (!number || *number >= limit)
      throw UserError(
          concat(field.where(), "[", quote_safe(token), "] = ", describe(id), "\n  expected an id below ", limit));
    most = std::max(most, *number + 1);
  }
  tokens_.resize(most);
  ids_.reserve(entries.size());
  for (const auto& [token, id] : entries) {
    const uint64_t number = *id.as<uint64_t>();
    std::string& place = tokens_[number];
    const auto found = ids_.find(std::string_view(place));
    if (found != ids_.end() && found->second == static_cast<int32_t>(number))
      throw UserError(concat(field.where(), "[", quote_safe(token), "] = ", number, "\n  expected an id of its own; ",
                             quote_safe(place), " has that one"));
    place = token;
    ids_.emplace(place, static_cast<int32_t>(number));
  }
}

void BpeModel::read_merges(const Field& field) {
  const auto* list = field.value().as<JsonArray>();
  if (!list || list->size() > kMostMerges) field.refuse(concat("a list of at most ", kMostMerges, " merges"));
  merges_.assign(std::bit_ceil(list->size() * 2 + 1), {0, kNone, 0});
  merge_mask_ = merges_.size() - 1;
  merge_results_.reserve(list->size());
  for (const JsonValue& entry : *list) {
    const auto rank = static_cast<uint32_t>(merge_results_.size());
    const auto refuse = [&] {
      throw UserError(concat(field.where(), "[", rank, "] = ", describe(entry),
                             "\n  expected two tokens, as [\"a\", \"b\"] or \"a b\""));
    };
    if (const auto* text = entry.as<std::string>()) {
      const size_t blank = text->find(' ');
      if (blank == std::string::npos || text->find(' ', blank + 1) != std::string::npos) refuse();
      add_merge(std::string_view(*text).substr(0, blank), std::string_view(*text).substr(blank + 1), rank, field);
      continue;
    }
    const auto* pair = entry.as<JsonArray>();
    if (!pair || pair->size() != 2 || !(*pair)[0].as<std::string>() || !(*pair)[1].as<std::string>()) refuse();
    add_merge(*(*pair)[0].as<std::string>(), *(*pair)[1].as<std::string>(), rank, field);
  }
}

void BpeModel::add_merge(std::string_view left, std::string_view right, uint32_t rank, const Field& field) {
  std::array<int32_t, 3> ids{};
  const std::array<std::string, 3> tokens = {std::string(left), std::string(right), concat(left, right)};
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto id = find(tokens[i]);
    if (!id)
      throw UserError(concat(field.where(), "[", rank, "]: ", quote_safe(left), " and ", quote_safe(right),
                             "\n  expected ", quote_safe(tokens[i]), " to be a token of vocab"));
    ids[i] = *id;
  }
  merge_results_.push_back(ids[2]);
  const uint64_t pair = pair_of(ids[0], ids[1]);
  uint64_t at = mix(pair) & merge_mask_;
  while (merges_[at].rank != kNone && merges_[at].pair != pair) at = (at + 1) & merge_mask_;
  merges_[at] = {pair, rank, ids[2]};  // of two equal pairs the last counts
}

void BpeModel::spell_bytes() {
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string character;
    append_utf8(character, char_of_byte(static_cast<uint8_t>(byte)));
    byte_ids_[byte] = find(character).value_or(-1);
    fallback_ids_[byte] = find(fallback_token(byte)).value_or(-1);
  }
  if (!ignores_merges_) return;
  for (const auto& [token, id] : ids_) {
    std::string bytes;
    for (size_t at = 0; at < token.size(); at += utf8_length(token[at])) {
      const int byte = byte_of_char(utf8_at(token, at));
      if (byte < 0) {
        bytes.clear();
        break;
      }
      bytes += static_cast<char>(byte);
    }
    if (!bytes.empty()) ids_of_bytes_.emplace(std::move(bytes), id);
  }
}

// --- lookup ---

std::optional<int32_t> BpeModel::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

const std::string* BpeModel::token(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= tokens_.size()) return nullptr;
  const std::string& token = tokens_[static_cast<size_t>(id)];
  const bool is_hole = token.empty() && find("") != id;
  return is_hole ? nullptr : &token;
}

const BpeModel::Merge* BpeModel::find_merge(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  uint64_t at = mix(pair) & merge_mask_;
  while (merges_[at].rank != kNone && merges_[at].pair != pair) at = (at + 1) & merge_mask_;
  return merges_[at].rank == kNone ? nullptr : &merges_[at];
}

// --- encoding ---

void BpeModel::encode(std::string_view word, bool is_bytes, BpeMemory& memory, std::vector<int32_t>& ids) const {
  if (const auto known = memory.cache.find(word)) {
    ids.insert(ids.end(), known->begin(), known->end());
    return;
  }
  const size_t begin = ids.size();
  std::optional<int32_t> whole;
  if (ignores_merges_ && is_bytes) {
    const auto found = ids_of_bytes_.find(std::string(word));
    if (found != ids_of_bytes_.end()) whole = found->second;
  } else if (ignores_merges_) {
    whole = find(word);
  }
  if (whole) {
    ids.push_back(*whole);
  } else {
    begin_word(word, is_bytes, memory);
    merge_all(memory);
    for (const BpeMemory::Symbol& symbol : memory.symbols)
      if (!symbol.merged_away) ids.push_back(symbol.id);
  }
  memory.cache.add(word, std::span(ids).subspan(begin));
}

// The word's characters as symbols.
void BpeModel::begin_word(std::string_view word, bool is_bytes, BpeMemory& memory) const {
  memory.symbols.clear();
  std::optional<int32_t> unknown;  // waits, as the next one may be fused with it
  const auto add_known = [&](int32_t id) {
    if (unknown) memory.symbols.push_back({*std::exchange(unknown, std::nullopt), 0, 0, false});
    memory.symbols.push_back({id, 0, 0, false});
  };
  std::string spelt;
  for (size_t at = 0; at < word.size();) {
    const size_t length = is_bytes ? 1 : utf8_length(word[at]);
    std::string_view character = word.substr(at, length);
    at += length;
    const auto byte = static_cast<uint8_t>(character[0]);
    const std::optional<int32_t> id = !is_bytes              ? find(character)
                                      : byte_ids_[byte] >= 0 ? std::optional(byte_ids_[byte])
                                                             : std::nullopt;
    if (id) {
      add_known(*id);
      continue;
    }
    if (is_bytes) {
      spelt.clear();
      append_utf8(spelt, char_of_byte(byte));
      character = spelt;
    }
    add_unknown(character, unknown, memory);
  }
  if (unknown) memory.symbols.push_back({*unknown, 0, 0, false});
  const auto count = static_cast<int32_t>(memory.symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    BpeMemory::Symbol& symbol = memory.symbols[static_cast<size_t>(i)];
    symbol.previous = i - 1;
    symbol.next = i + 1 < count ? i + 1 : -1;
  }
}

// A character without a token: its bytes, if all of them have tokens; else the unknown token; else nothing.
void BpeModel::add_unknown(std::string_view character, std::optional<int32_t>& unknown, BpeMemory& memory) const {
  const auto fallback = [&](char c) { return fallback_ids_[static_cast<uint8_t>(c)]; };
  if (byte_fallback_ && std::ranges::all_of(character, [&](char c) { return fallback(c) >= 0; })) {
    // An unknown one that waits stays waiting, and comes after these bytes: so does Hugging Face's library.
    for (const char c : character) memory.symbols.push_back({fallback(c), 0, 0, false});
    return;
  }
  if (!unknown_) return;
  if (unknown && !fuses_unknown_) memory.symbols.push_back({*unknown, 0, 0, false});
  unknown = unknown_;
}

// A queue of (rank, place) has the pairs that may be merged. An entry whose pair has changed since is passed over, unless
// what is there now makes the same token: so does Hugging Face's library.
void BpeModel::merge_all(BpeMemory& memory) const {
  std::vector<BpeMemory::Symbol>& symbols = memory.symbols;
  std::vector<uint64_t>& queue = memory.queue;
  queue.clear();
  const auto entry_of = [&](int32_t left) -> std::optional<uint64_t> {
    const auto& symbol = symbols[static_cast<size_t>(left)];
    const Merge* merge = find_merge(symbol.id, symbols[static_cast<size_t>(symbol.next)].id);
    if (!merge) return std::nullopt;
    return static_cast<uint64_t>(merge->rank) << 32 | static_cast<uint32_t>(left);
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i)
    if (const auto entry = entry_of(static_cast<int32_t>(i))) queue.push_back(*entry);
  std::ranges::make_heap(queue, std::greater<>());
  const auto push = [&](int32_t left) {
    if (const auto entry = entry_of(left)) {
      queue.push_back(*entry);
      std::ranges::push_heap(queue, std::greater<>());
    }
  };
  while (!queue.empty()) {
    std::ranges::pop_heap(queue, std::greater<>());
    const uint64_t entry = queue.back();
    queue.pop_back();
    const int32_t result = merge_results_[entry >> 32];
    const auto at = static_cast<int32_t>(entry & UINT32_MAX);
    BpeMemory::Symbol& left = symbols[static_cast<size_t>(at)];
    if (left.merged_away || left.next < 0) continue;
    BpeMemory::Symbol& right = symbols[static_cast<size_t>(left.next)];
    const Merge* merge = find_merge(left.id, right.id);
    if (!merge || merge->result != result) continue;
    left.id = result;
    left.next = right.next;
    right.merged_away = true;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = at;
    if (left.previous >= 0) push(left.previous);
    if (left.next >= 0) push(at);
  }
}

}  // namespace sfsdp::train::tokenizer
