// SPDX-License-Identifier: BSD-3-Clause
// Which files a dataset is made of.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace sfsdp::train {

// The files that a dataset_path stands for, in the order of their names, whatever the machine:
//   a file            itself
//   a folder          what lies below it, in subfolders too, that `accepts` takes by its name
//   a pattern         what it fits, such as data/*.bin
//   expected: what the message of an error expects, such as "a folder of *.bin files"
//   throws: UserError if there are none, or `path` is a pipe, a device or a socket
std::vector<std::string> data_files(const std::string& path,
                                    const std::function<bool(const std::string& name)>& accepts,
                                    std::string_view expected);

[[noreturn]] void fail_to_read_data(const std::string& path, const std::string& why, std::string_view expected);

}  // namespace sfsdp::train
