// SPDX-License-Identifier: BSD-3-Clause
// Which ops cannot be captured, told without a capture, of an archive that nobody has trained yet.
#pragma once

#include <string>

namespace sfsdp::capture {

// Why an op ("aten::relu", "") whose operands are traced cannot be, as far as its name and its kernels tell: it has no shape
// function. Ends in what to do; "": none is known, it may be.
std::string lacks_shape_function(const std::string& name, const std::string& overload);

}  // namespace sfsdp::capture
