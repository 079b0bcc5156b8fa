// SPDX-License-Identifier: BSD-3-Clause
// What an op does, by name: "all_gather", "aten.add.Tensor". Each name is kept once for the process, with its row of the op
// set, so that opcodes are copied and compared as a pointer and the row costs no search.
#pragma once

#include <concepts>
#include <iosfwd>
#include <string>
#include <string_view>

namespace sfsdp::ir {

struct OpRow;

class Opcode {
 public:
  Opcode() : Opcode(std::string_view()) {}
  // May be called by several threads.
  template <class Text>
  requires std::convertible_to<const Text&, std::string_view> Opcode(const Text& name)
      : entry_(intern(name)) {}  // NOLINT(google-explicit-constructor): an opcode is its name

  const std::string& str() const { return entry_->name; }
  const OpRow* row() const { return entry_->row; }              // nullptr: no row
  operator const std::string&() const { return entry_->name; }  // NOLINT(google-explicit-constructor)
  operator std::string_view() const { return entry_->name; }    // NOLINT(google-explicit-constructor)

  bool empty() const { return entry_->name.empty(); }
  bool starts_with(std::string_view text) const { return entry_->name.starts_with(text); }
  bool ends_with(std::string_view text) const { return entry_->name.ends_with(text); }

  friend bool operator==(const Opcode& a, const Opcode& b) { return a.entry_ == b.entry_; }
  template <class Text>
  requires std::convertible_to<const Text&, std::string_view>
  friend bool operator==(const Opcode& a, const Text& b) {
    return std::string_view(a.entry_->name) == std::string_view(b);
  }
  friend std::ostream& operator<<(std::ostream& out, const Opcode& opcode);

 private:
  struct Entry {
    std::string name;
    const OpRow* row;
  };
  static const Entry* intern(std::string_view name);
  const Entry* entry_;
};

}  // namespace sfsdp::ir
