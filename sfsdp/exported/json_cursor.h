// SPDX-License-Identifier: BSD-3-Clause
// A value of a JSON document and the way to it, which becomes text only where something is wrong: a graph of 10,000 nodes
// has some million values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sfsdp/base/json.h"

namespace sfsdp::exported {

// Lives no longer than the cursor that it came from: each points at the one outside of it. So none is made of one that ends
// with its line.
class JsonCursor {
 public:
  JsonCursor(const JsonValue& document, std::string_view file) : value_(&document), key_(file) {}

  // throws: UserError if this is no object or has no such member
  JsonCursor member(std::string_view key) const&;
  // None: no such member, or null.
  std::optional<JsonCursor> optional(std::string_view key) const&;
  size_t size() const;  // of an array.  throws: UserError if this is none
  JsonCursor at(size_t index) const& { return {items()[index], this, {}, static_cast<int64_t>(index)}; }
  // Calls `visit(key, cursor)` for each member of an object.
  template <class Visit>
  void for_members(Visit visit) const {
    for (const auto& [key, value] : object()) visit(key, JsonCursor(value, this, key, -1));
  }
  // The one member of a union, such as {"as_tensor": …}.  throws: UserError if there are more or none
  JsonCursor variant(std::string& key) const&;
  JsonCursor member(std::string_view key) const&& = delete;
  std::optional<JsonCursor> optional(std::string_view key) const&& = delete;
  JsonCursor at(size_t index) const&& = delete;
  JsonCursor variant(std::string& key) const&& = delete;

  const std::string& text() const;
  // A text that may stand in messages and in IR: of 1 to 1000 bytes, printable.
  const std::string& name() const;
  int64_t integer() const;
  bool boolean() const;
  double number() const;  // also "Infinity", "-Infinity" and "NaN", as the format writes them

  bool is_object() const { return value_->as<JsonObject>() != nullptr; }
  // "model.pt2: models/model.json: graph_module.graph.nodes[12].inputs[0]"
  std::string where() const;
  [[noreturn]] void refuse(const std::string& got, const std::string& expected) const;

 private:
  JsonCursor(const JsonValue& value, const JsonCursor* outer, std::string_view key, int64_t index)
      : value_(&value), outer_(outer), key_(key), index_(index) {}
  const JsonObject& object() const;
  const JsonArray& items() const;

  const JsonValue* value_;
  const JsonCursor* outer_ = nullptr;
  std::string_view key_;  // of the document: its file
  int64_t index_ = -1;
};

}  // namespace sfsdp::exported
