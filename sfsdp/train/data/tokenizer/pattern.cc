// SPDX-License-Identifier: BSD-3-Clause
#define PCRE2_CODE_UNIT_WIDTH 8
#include "sfsdp/train/data/tokenizer/pattern.h"

#include <pcre2.h>

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/train/data/tokenizer/pattern_syntax.h"
#include "sfsdp/train/data/tokenizer/unicode.h"
#include "sfsdp/train/data/tokenizer/utf8.h"

namespace sfsdp::train::tokenizer {
namespace {

// Groups that repeat push a frame per turn; what does not fit into the stack is matched again on the heap.
constexpr size_t kFirstStack = 64 << 10, kMostStack = 64 << 20;
constexpr uint32_t kMostHeapKiB = 1 << 20;
// A well-known pattern takes a few steps per byte. One that goes back and forth takes n^2 or 2^n: that ends here.
constexpr uint64_t kLeastSteps = 10'000'000, kStepsPerByte = 20;

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct MatchMemory::State {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kFirstStack, kMostStack, nullptr);

  State() {
    if (!data || !context || !stack) throw std::bad_alloc();
    pcre2_jit_stack_assign(context, nullptr, stack);
    pcre2_set_heap_limit(context, kMostHeapKiB);
  }
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

MatchMemory::MatchMemory() : state_(std::make_unique<State>()) {}
MatchMemory::~MatchMemory() = default;

struct Pattern::State {
  pcre2_code* code = nullptr;
  bool has_jit = false;
  bool reads_categories = false;
  std::string where;

  State() = default;
  ~State() { pcre2_code_free(code); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // given: what the message shows
  void compile(const std::string& text, std::string_view given) {
    const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
        pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
    if (!context) throw std::bad_alloc();
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    int error = 0;
    PCRE2_SIZE place = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), PCRE2_UTF | PCRE2_UCP, &error, &place,
                         context.get());
    if (!code)
      throw UserError(concat(where, ": pattern ", quote_safe(given),
                             "\n  expected one that PCRE2 takes; it says: ", message_of(error)));
    has_jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
  }
};

Pattern Pattern::compile(std::string_view pattern, const std::string& where) {
  TranslatedPattern translated = translate_pattern(pattern, where);
  auto state = std::make_shared<State>();
  state->where = where;
  state->reads_categories = translated.reads_categories;
  state->compile(translated.text, pattern);
  Pattern result;
  result.state_ = std::move(state);
  return result;
}

Pattern Pattern::literal(std::string_view text, const std::string& where) {
  auto state = std::make_shared<State>();
  state->where = where;
  state->compile(quote_pattern(text), text);
  Pattern result;
  result.state_ = std::move(state);
  return result;
}

Matches::Matches(const Pattern& pattern, std::string_view text, MatchMemory& memory)
    : pattern_(*pattern.state_), memory_(*memory.state_), text_(text) {
  if (pattern_.reads_categories && replace_new_characters(text, replaced_)) text_ = replaced_;
  const uint64_t steps = std::max<uint64_t>(kLeastSteps, kStepsPerByte * text.size());
  pcre2_set_match_limit(memory_.context, static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
}

std::optional<Matches::Range> Matches::next() {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text_.data());
  while (from_ <= text_.size()) {
    int found = PCRE2_ERROR_JIT_STACKLIMIT;
    if (pattern_.has_jit)
      found = pcre2_jit_match(pattern_.code, subject, text_.size(), from_, 0, memory_.data, memory_.context);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
      found = pcre2_match(pattern_.code, subject, text_.size(), from_, PCRE2_NO_JIT | PCRE2_NO_UTF_CHECK, memory_.data,
                          memory_.context);
    if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (found < 0)
      throw UserError(
          concat(pattern_.where, ": the pattern cannot be matched at byte ", from_, " of a text of ", text_.size(),
                 " bytes: ", message_of(found),
                 "\n  expected a pattern whose time grows with the text; shorten the text or mend the pattern"));
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(memory_.data);
    const Range range = {ends[0], ends[1]};
    if (range.begin == range.end && last_end_ == range.end) {
      from_ += from_ < text_.size() ? utf8_length(text_[from_]) : 1;
      continue;
    }
    from_ = range.end;
    last_end_ = range.end;
    return range;
  }
  return std::nullopt;
}

}  // namespace sfsdp::train::tokenizer
