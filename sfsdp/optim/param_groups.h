// SPDX-License-Identifier: BSD-3-Clause
// Which parameters an optimizer updates with other numbers than the rest. Torch-free.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/base/glob.h"

namespace sfsdp {

// Parameters whose path the pattern matches; that of a tied one is its first. Each number is that of the first group that
// matches and has it; where none does, the optimizer's own.
struct ParamGroup {
  std::string pattern;                 // of whole paths: "*norm*", "layers.?.wq.weight"; * any text, ? one character
  std::optional<double> weight_decay;  // instead of the optimizer's
  std::optional<double> lr_factor;     // the learning rate of every step is multiplied by it; 1 without
  bool operator==(const ParamGroup&) const = default;
};

// Throws UserError where `pattern` matches none of `paths`, naming what was probably meant.
//   key: of which it is the value: "ParamGroup::pattern"
//   what: the paths are of: "parameter"
void expect_match(std::string_view key, const std::string& pattern, std::span<const std::string> paths,
                  std::string_view what = "parameter");

struct ParamNumbers {
  double weight_decay = 0;
  double lr_factor = 1;
};
ParamNumbers numbers_of(std::string_view path, std::span<const ParamGroup> groups, double weight_decay);

// Throws UserError for a number that is not finite or below 0.
void check_groups(std::span<const ParamGroup> groups);
// Throws UserError for a pattern that matches none of the parameters, naming what was probably meant, and for one whose
// number none of them takes, as groups before it have another.
void check_matches(std::span<const ParamGroup> groups, std::span<const std::string> paths);

}  // namespace sfsdp
