// SPDX-License-Identifier: BSD-3-Clause
// axis= as the text form has it.
#pragma once

#include <string>
#include <vector>

#include "sfsdp/ir/attrs.h"

namespace sfsdp::ir {

// One mesh axis by its name, several as a list, outer first; axes_of reads it.
inline Attr axis_attr(const std::vector<std::string>& axes) { return axes.size() == 1 ? Attr(axes[0]) : Attr(axes); }

}  // namespace sfsdp::ir
