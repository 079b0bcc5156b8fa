// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/state_addresses.h"

#include <map>
#include <string_view>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/mesh/device_mesh.h"

namespace sfsdp::plan {
namespace {

struct Place {
  Region region;
  int64_t offset, bytes;
  bool operator==(const Place&) const = default;
};
std::string text_of(const Place& p) { return concat(to_string(p.region), " +", p.offset, " with ", p.bytes, " bytes"); }

std::string check_stamp(const StepPlan& plan, const StorageLayout& layout) {
  const std::string got = plan.layout ? concat(hex(plan.layout->hash), '/', plan.layout->entries) : "none";
  const bool fits = plan.layout && plan.layout->entries >= 0 && plan.layout->entries <= std::ssize(layout.entries);
  const size_t entries = fits ? static_cast<size_t>(plan.layout->entries) : layout.entries.size();
  const uint64_t expected = hash(layout, entries);
  if (fits && plan.layout->hash == expected) return "";
  return concat("the plan was made with storage layout ", got, "\n  expected ", hex(expected), '/', entries,
                ", that of the run");
}

}  // namespace

std::vector<std::string> check_state_addresses(const StepPlan& plan, const StorageLayout& layout) {
  std::vector<std::string> errors;
  if (const std::string wrong = check_stamp(plan, layout); !wrong.empty()) errors.push_back(wrong);
  if (plan.graph.mesh != layout.mesh)
    errors.push_back(concat("the plan is of mesh ", to_string(DeviceMesh(plan.graph.mesh)), "\n  expected ",
                            to_string(DeviceMesh(layout.mesh)), ", as the storage layout"));
  if (!errors.empty()) return errors;
  std::map<std::string_view, const StateEntry*> missing;
  for (size_t i = 0; i < static_cast<size_t>(plan.layout->entries); ++i)
    missing.emplace(layout.entries[i].name, &layout.entries[i]);
  const auto check = [&](const std::string& name, const Place& got) -> const StateEntry* {
    const auto found = missing.find(name);
    if (found == missing.end()) {
      errors.push_back(concat(name, " lies at ", text_of(got),
                              "\n  expected once what the storage layout has, which has it no more"));
      return nullptr;
    }
    const StateEntry* entry = found->second;
    missing.erase(found);
    if (const Place expected{entry->region, entry->offset, entry->bytes}; got != expected)
      errors.push_back(concat(name, " lies at ", text_of(got), "\n  expected ", text_of(expected),
                              ", where all programs of the run have it"));
    return entry;
  };
  for (const Buffer& b : plan.memory.state) {
    const auto& name = b.value->producer()->attr<std::string>("name");
    const StateEntry* entry = check(name, {b.region, b.offset, b.bytes});
    if (!entry) continue;
    const ir::Type& type = b.value->type();
    if (const int64_t part = largest_part(layout, *entry); type.numel() != part || type.dtype != entry->dtype)
      errors.push_back(concat(name, " has ", type.numel(), " elements of ", to_string(type.dtype),
                              " on a rank\n  expected ", part, " of ", to_string(entry->dtype),
                              ", as the storage layout has it"));
  }
  for (const UnreadState& u : plan.memory.unread) check(u.name, {u.region, u.offset, u.bytes});
  for (const auto& [name, entry] : missing)
    errors.push_back(concat(name, " has no place in the plan\n  expected ",
                            text_of({entry->region, entry->offset, entry->bytes}),
                            ": nothing else may lie there, though the plan does not read it"));
  return errors;
}

}  // namespace sfsdp::plan
