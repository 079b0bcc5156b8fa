// SPDX-License-Identifier: BSD-3-Clause
// The plan machine on what a program compiles.
#pragma once

#include <string>

#include "sfsdp/step/step.h"
#include "sfsdp/testing/machine/reference.h"

namespace sfsdp::testing {

// plan::machine::find_difference of a variant's plan, with LibTorch's kernels where the interpreter has none, and the
// variant's own constants.
std::string run_on_machine(const Held<const Program::Variant>& variant, plan::machine::Comparison comparison = {});

}  // namespace sfsdp::testing
