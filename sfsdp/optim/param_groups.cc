// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/optim/param_groups.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/optim/check_field.h"

namespace sfsdp {
namespace {

// What a pattern may have meant: whole paths, and names of modules for one like "*norm*".
std::string meant_by(const std::string& pattern, std::span<const std::string> paths) {
  std::set<std::string> wholes, names;
  for (const std::string& path : paths) {
    wholes.insert(with_stars(path));
    for (const std::string& name : split(path, '.')) names.insert(name);
  }
  std::string core = pattern;
  std::erase(core, '*');
  const std::string whole = nearest(pattern, {wholes.begin(), wholes.end()});
  const std::string name = nearest(core, {names.begin(), names.end()});
  if (whole.empty() && name.empty()) return "";
  return concat("; did you mean ", whole.empty() ? concat('*', name, '*') : whole, '?');
}

// Throws where every path of `fitting`, those that `group` matches, takes another number from a group before it.
void expect_number_is_used(std::span<const ParamGroup> groups, std::span<const std::string> fitting,
                           const ParamGroup& group, std::optional<double> ParamGroup::*number, const char* name) {
  if (!(group.*number)) return;
  const ParamGroup* taken_by = nullptr;
  for (const std::string& path : fitting) {
    const auto first = std::ranges::find_if(
        groups, [&](const ParamGroup& other) { return other.*number && matches(other.pattern, path); });
    if (*first.*number == group.*number) return;
    taken_by = &*first;
  }
  throw UserError(concat(name, " = ", *(group.*number), " of ", group.pattern,
                         " holds for no parameter: each that it matches takes ", *(taken_by->*number), " from ",
                         taken_by->pattern,
                         ", which stands before it\n  expected a pattern that matches others too;"
                         " put narrow patterns before wide ones"));
}

}  // namespace

ParamNumbers numbers_of(std::string_view path, std::span<const ParamGroup> groups, double weight_decay) {
  std::optional<double> decay, factor;
  for (const ParamGroup& group : groups) {
    if (!matches(group.pattern, path)) continue;
    if (!decay) decay = group.weight_decay;
    if (!factor) factor = group.lr_factor;
  }
  return {decay.value_or(weight_decay), factor.value_or(1)};
}

void check_groups(std::span<const ParamGroup> groups) {
  for (const ParamGroup& group : groups) {
    if (group.weight_decay) check_at_least_0("ParamGroup::weight_decay", *group.weight_decay);
    if (group.lr_factor) check_at_least_0("ParamGroup::lr_factor", *group.lr_factor);
  }
}

void expect_match(std::string_view key, const std::string& pattern, std::span<const std::string> paths,
                  std::string_view what) {
  if (std::ranges::any_of(paths, [&](const std::string& path) { return matches(pattern, path); })) return;
  throw UserError(concat(key, " = ", pattern, " matches no ", what, "\n  expected the path of a ", what,
                         ", where * stands for any text, such as ", paths.empty() ? "*" : paths[0],
                         meant_by(pattern, paths)));
}

void check_matches(std::span<const ParamGroup> groups, std::span<const std::string> paths) {
  for (const ParamGroup& group : groups) {
    std::vector<std::string> fitting;
    std::ranges::copy_if(paths, std::back_inserter(fitting),
                         [&](const std::string& path) { return matches(group.pattern, path); });
    expect_match("compile: ParamGroup::pattern", group.pattern, paths);
    expect_number_is_used(groups, fitting, group, &ParamGroup::weight_decay, "ParamGroup::weight_decay");
    expect_number_is_used(groups, fitting, group, &ParamGroup::lr_factor, "ParamGroup::lr_factor");
  }
}

}  // namespace sfsdp
