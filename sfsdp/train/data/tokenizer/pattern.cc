// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/tokenizer/pattern.h"

#include <oniguruma.h>

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/train/data/tokenizer/utf8.h"

namespace sfsdp::train::tokenizer {
namespace {

constexpr size_t kMostPatternBytes = 1 << 16;
// A well-known pattern goes back a few times per byte. One that does so n^2 or 2^n times ends here.
constexpr size_t kLeastRetries = 10'000'000, kRetriesPerByte = 20;
// A place to go back to takes 56 bytes; a group that repeats leaves two of them per turn.
constexpr size_t kLeastPlaces = 1 << 20, kPlacesPerByte = 4;

const OnigUChar* bytes_of(std::string_view text) { return reinterpret_cast<const OnigUChar*>(text.data()); }

std::string message_of(int error, OnigErrorInfo* info = nullptr) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN + 1> text{};
  onig_error_code_to_str(text.data(), error, info);
  return reinterpret_cast<const char*>(text.data());
}

void initialise() {
  static const int kDone = [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    return onig_initialize(encodings, 1);
  }();
  SFSDP_CHECK(kDone == ONIG_NORMAL, message_of(kDone));
}

// In the library's Oniguruma, 6.9.10, [:punct:] has all symbols too, in 6.9.8 nine of them.
std::string with_symbols(std::string_view pattern) {
  constexpr std::string_view kPunct = "[:punct:]";
  std::string out(pattern);
  for (size_t at = out.find(kPunct); at != std::string::npos; at = out.find(kPunct, at))
    out.replace(at, kPunct.size(), R"(\p{P}\p{S})");
  return out;
}

}  // namespace

struct MatchMemory::State {
  OnigRegion* region = onig_region_new();
  OnigMatchParam* limits = onig_new_match_param();

  State() {
    if (!region || !limits) throw std::bad_alloc();
  }
  ~State() {
    onig_region_free(region, 1);
    onig_free_match_param(limits);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

MatchMemory::MatchMemory() : state_(std::make_unique<State>()) {}
MatchMemory::~MatchMemory() = default;

struct Pattern::State {
  regex_t* code = nullptr;  // nullptr: `literal` is matched
  std::string literal, where;

  State() = default;
  ~State() { onig_free(code); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Pattern Pattern::compile(std::string_view pattern, const std::string& where) {
  if (pattern.size() > kMostPatternBytes)
    throw UserError(concat(where, ": a pattern of ", pattern.size(), " bytes\n  expected at most ", kMostPatternBytes));
  initialise();
  auto state = std::make_shared<State>();
  state->where = where;
  OnigErrorInfo info{};
  const std::string given = with_symbols(pattern);
  const int error = onig_new(&state->code, bytes_of(given), bytes_of(given) + given.size(), ONIG_OPTION_NONE,
                             ONIG_ENCODING_UTF8, ONIG_SYNTAX_RUBY, &info);
  if (error != ONIG_NORMAL)
    throw UserError(concat(where, ": pattern ", quote_safe(pattern),
                           "\n  expected one that Oniguruma takes; it says: ", message_of(error, &info)));
  Pattern result;
  result.state_ = std::move(state);
  return result;
}

Pattern Pattern::literal(std::string_view text) {
  auto state = std::make_shared<State>();
  state->literal = text;
  Pattern result;
  result.state_ = std::move(state);
  return result;
}

Matches::Matches(const Pattern& pattern, std::string_view text, MatchMemory& memory)
    : pattern_(*pattern.state_), memory_(*memory.state_), text_(text) {
  if (!pattern_.code) return;
  const size_t retries = std::max(kLeastRetries, kRetriesPerByte * text.size());
  onig_set_retry_limit_in_match_of_match_param(memory_.limits, retries);
  onig_set_retry_limit_in_search_of_match_param(memory_.limits, retries);
  const size_t places = std::min<size_t>(std::max(kLeastPlaces, kPlacesPerByte * text.size()), 1U << 31);
  onig_set_match_stack_limit_size_of_match_param(memory_.limits, static_cast<unsigned>(places));
}

std::optional<Matches::Range> Matches::search() {
  if (!pattern_.code) {
    const size_t found = text_.find(pattern_.literal, from_);
    if (found == std::string_view::npos) return std::nullopt;
    return Range{found, found + pattern_.literal.size()};
  }
  const OnigUChar *begin = bytes_of(text_), *end = begin + text_.size();
  const int found = onig_search_with_param(pattern_.code, begin, end, begin + from_, end, memory_.region,
                                           ONIG_OPTION_NONE, memory_.limits);
  if (found == ONIG_MISMATCH) return std::nullopt;
  if (found < 0)
    throw UserError(
        concat(pattern_.where, ": the pattern cannot be matched at byte ", from_, " of a text of ", text_.size(),
               " bytes: ", message_of(found),
               "\n  expected a pattern whose time grows with the text; shorten the text or mend the pattern"));
  return Range{static_cast<size_t>(memory_.region->beg[0]), static_cast<size_t>(memory_.region->end[0])};
}

std::optional<Matches::Range> Matches::next() {
  while (from_ <= text_.size()) {
    const std::optional<Range> range = search();
    if (!range) return std::nullopt;
    if (range->begin == range->end && last_end_ == range->end) {
      from_ += from_ < text_.size() ? utf8_length(text_[from_]) : 1;
      continue;
    }
    from_ = range->end;
    last_end_ = range->end;
    return range;
  }
  return std::nullopt;
}

}  // namespace sfsdp::train::tokenizer
