// SPDX-License-Identifier: BSD-3-Clause
// Where this tree lies. One object file knows it, so that a compiler cache serves all others to a clone elsewhere.
#pragma once

#include <string>

namespace sfsdp::testing {

const std::string& source_dir();  // absolute, without a slash at its end

}  // namespace sfsdp::testing
