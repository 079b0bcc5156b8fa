// SPDX-License-Identifier: BSD-3-Clause
// All passes by name: ours, and those of users' own code.
#pragma once

#include <string_view>
#include <vector>

#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

// Ours in alphabetical order, then registered ones in the order they came. Pointers stay valid.
std::vector<const PassInfo*> all_passes();
const PassInfo* find_pass(std::string_view name);  // nullptr: none

bool is_registered(const PassInfo& pass);  // by register_pass

// Makes a pass of the user's own known by name, to pipelines (PipelineOptions::extra) and to texts; from any thread, once
// per process, before the first compile that names it.
//   throws: UserError for a name that is taken or no word ([A-Za-z0-9_.]+), two options of one name, or no function
void register_pass(PassInfo info);

}  // namespace sfsdp::passes
