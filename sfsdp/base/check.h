// SPDX-License-Identifier: BSD-3-Clause
// Invariant checks that print values. A failed check is a bug in sfsdp, never a user's mistake: those are UserError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace sfsdp {

// Thrown by SFSDP_CHECK. The message holds file, line, the condition and the values passed.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

namespace detail {
template <class Part>
void append(std::string& text, const Part& part) {
  static_assert(!std::is_function_v<Part>, "a manipulator, such as std::hex, would change nothing here");
  if constexpr (std::is_convertible_v<const Part&, std::string_view>) {
    text += std::string_view(part);
  } else if constexpr (std::is_same_v<Part, char>) {
    text += part;
  } else if constexpr (std::is_same_v<Part, int> || std::is_same_v<Part, int64_t> || std::is_same_v<Part, size_t>) {
    text += std::to_string(part);
  } else {
    std::ostringstream out;
    out << part;
    text += std::move(out).str();
  }
}
}  // namespace detail

// "a" + 1 + x: anything with operator<<. A stream is made for what needs one alone.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  (detail::append(text, parts), ...);
  return text;
}

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace sfsdp

#define SFSDP_CHECK(condition, ...)                                                                        \
  do {                                                                                                     \
    if (!(condition)) ::sfsdp::check_failed(__FILE__, __LINE__, #condition, ::sfsdp::concat(__VA_ARGS__)); \
  } while (false)
