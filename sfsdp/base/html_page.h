// SPDX-License-Identifier: BSD-3-Clause
// HTML pages that draw data which is put into them.
#pragma once

#include <string>
#include <string_view>

namespace sfsdp {

// `page` with `data`, JSON, where it says /*DATA*/ inside a script. No text in the data can end that script.
std::string fill_page(std::string_view page, std::string_view data);

}  // namespace sfsdp
