// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>

namespace sfsdp::train {

// Under a temporary name, fsynced, then visible by one rename: a reader sees all of it or nothing.
//   throws: UserError naming the file and what the system said
void write_atomically(const std::string& path, std::string_view text);
// A rename is on disk once its folder is.  throws: UserError
void sync_folder_of(const std::string& path);

}  // namespace sfsdp::train
