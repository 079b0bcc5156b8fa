// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/tokenizer/decoder.h"

#include <cctype>
#include <optional>
#include <utility>

#include "sfsdp/train/data/tokenizer/normalizer.h"
#include "sfsdp/train/data/tokenizer/tokenizer.h"
#include "sfsdp/train/data/tokenizer/utf8.h"

namespace sfsdp::train::tokenizer {
namespace {

std::string joined(const std::vector<std::string>& tokens, std::string_view between) {
  std::string text;
  for (const std::string& token : tokens) {
    if (&token != &tokens.front()) text += between;
    text += token;
  }
  return text;
}

// Tokens as bytes; one with a character outside of the alphabet, such as an added token, stands for itself.
std::string from_bytes(const std::vector<std::string>& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) {
    const size_t begin = bytes.size();
    for (size_t at = 0; at < token.size(); at += utf8_length(token[at])) {
      const int byte = byte_of_char(utf8_at(token, at));
      if (byte < 0) {
        bytes.resize(begin);
        bytes += token;
        break;
      }
      bytes += static_cast<char>(byte);
    }
  }
  replace_invalid_utf8(bytes, bytes);
  return bytes;
}

// <0x41> is a byte; what Rust takes for two hexadecimal digits: +f too.
std::optional<char> byte_of_token(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int value = 0;
  for (size_t i = 3; i < 5; ++i) {
    const auto c = static_cast<unsigned char>(token[i]);
    if (i == 3 && c == '+') continue;
    if (!std::isxdigit(c)) return std::nullopt;
    value = value * 16 + (c <= '9' ? c - '0' : std::tolower(c) - 'a' + 10);
  }
  return static_cast<char>(value);
}

std::vector<std::string> from_fallback(std::vector<std::string> tokens) {
  std::vector<std::string> result;
  std::string bytes;
  const auto flush = [&] {
    if (!bytes.empty() && is_utf8(bytes))
      result.push_back(bytes);
    else
      result.insert(result.end(), bytes.size(), "\xef\xbf\xbd");
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const auto byte = byte_of_token(token)) {
      bytes += *byte;
      continue;
    }
    flush();
    result.push_back(std::move(token));
  }
  flush();
  return result;
}

void strip(std::string& token, const std::string& character, uint64_t start, uint64_t stop) {
  size_t begin = 0;
  for (uint64_t i = 0; i < start && token.compare(begin, character.size(), character) == 0; ++i)
    begin += character.size();
  size_t end = token.size();
  for (uint64_t i = 0; i < stop && end >= begin + character.size() &&
                       token.compare(end - character.size(), character.size(), character) == 0;
       ++i)
    end -= character.size();
  token = token.substr(begin, end - begin);
}

}  // namespace

Decoder Decoder::parse(const Field& field) {
  Decoder decoder;
  decoder.is_given_ = true;
  decoder.add(field, 0);
  return decoder;
}

void Decoder::add(const Field& field, int depth) {
  if (depth > kMostDepth) field.refuse("fewer sequences in sequences");
  const Field type = field.at("type");
  const std::string& name = type.text();
  if (name == "Sequence") {
    field.allow_only({"decoders"});
    for (const Field& item : field.at("decoders").items()) add(item, depth + 1);
  } else if (name == "ByteLevel") {
    field.allow_only({"add_prefix_space", "trim_offsets", "use_regex"});
    steps_.emplace_back(ByteLevel{});
  } else if (name == "ByteFallback") {
    field.allow_only({});
    steps_.emplace_back(ByteFallback{});
  } else if (name == "Fuse") {
    field.allow_only({});
    steps_.emplace_back(Fuse{});
  } else if (name == "Replace") {
    steps_.emplace_back(Replace(field));
  } else if (name == "Strip") {
    field.allow_only({"content", "start", "stop"});
    const Field content = field.at("content");
    const std::string& character = content.text();
    if (character.empty() || utf8_length(character[0]) != character.size()) content.refuse("one character");
    steps_.emplace_back(Strip{character, field.at("start").whole(1 << 20), field.at("stop").whole(1 << 20)});
  } else {
    type.refuse("ByteLevel, ByteFallback, Fuse, Replace, Strip or Sequence");
  }
}

std::string Decoder::decode(std::vector<std::string> tokens, MatchMemory& memory) const {
  if (!is_given_) return joined(tokens, " ");
  const size_t longest = longest_from(joined(tokens, "").size());
  for (const Step& step : steps_) {
    if (std::get_if<ByteLevel>(&step)) {
      tokens = {from_bytes(tokens)};
    } else if (std::get_if<ByteFallback>(&step)) {
      tokens = from_fallback(std::move(tokens));
    } else if (std::get_if<Fuse>(&step)) {
      tokens = {joined(tokens, "")};
    } else if (const auto* replace = std::get_if<Replace>(&step)) {
      size_t left = longest;  // of all tokens together
      for (std::string& token : tokens) {
        token = replace->apply(token, left, memory);
        left -= token.size();
      }
    } else {
      const auto& cut = std::get<Strip>(step);
      for (std::string& token : tokens) strip(token, cut.character, cut.start, cut.stop);
    }
  }
  return joined(tokens, "");
}

}  // namespace sfsdp::train::tokenizer
