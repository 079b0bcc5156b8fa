// SPDX-License-Identifier: BSD-3-Clause
// Parameters that are not trained: gathered like others, neither reduced nor updated.
#pragma once

#include <torch/nn/module.h>

#include <span>
#include <string>

namespace sfsdp {

// requires_grad becomes false for the parameters whose path one of `patterns` matches ("*embed*": * any text, ? one character);
// for a tied one it is enough that one of its paths is matched. Before the module is compiled.
//   throws: UserError for a pattern that matches no parameter, naming what was probably meant
void freeze(torch::nn::Module& module, std::span<const std::string> patterns);

}  // namespace sfsdp
