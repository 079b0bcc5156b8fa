// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/opcode.h"

#include <deque>
#include <mutex>
#include <ostream>
#include <shared_mutex>
#include <unordered_map>

#include "sfsdp/ir/opset.h"

namespace sfsdp::ir {

const Opcode::Entry* Opcode::intern(std::string_view name) {
  struct Table {
    std::shared_mutex mutex;
    std::deque<Entry> entries;  // which never move: the keys are views of their names
    std::unordered_map<std::string_view, const Entry*> by_name;
  };
  static auto* const table = new Table;  // never destroyed: opcodes of static graphs may outlive it
  {
    const std::shared_lock lock(table->mutex);
    if (const auto found = table->by_name.find(name); found != table->by_name.end()) return found->second;
  }
  const OpRow* row = find_row(name);
  const std::unique_lock lock(table->mutex);
  if (const auto found = table->by_name.find(name); found != table->by_name.end()) return found->second;
  const Entry& entry = table->entries.emplace_back(Entry{std::string(name), row});
  table->by_name.emplace(entry.name, &entry);
  return &entry;
}

std::ostream& operator<<(std::ostream& out, const Opcode& opcode) { return out << opcode.str(); }

}  // namespace sfsdp::ir
