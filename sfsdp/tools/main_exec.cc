// SPDX-License-Identifier: BSD-3-Clause
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "sfsdp/tools/main_torch.h"

namespace sfsdp::tools {

int run_with_torch(const std::string& name, const std::vector<std::string>& args) {
  std::error_code ignored;
  const std::string binary =
      std::filesystem::read_symlink("/proc/self/exe", ignored).replace_filename("sfsdp-torch").string();
  std::vector<char*> argv = {const_cast<char*>("sfsdp"), const_cast<char*>(name.c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  execv(binary.c_str(), argv.data());
  std::cerr << "error: " << binary << " cannot be started: " << std::strerror(errno)
            << "\n  expected sfsdp-torch beside sfsdp, where a build or cmake --install puts both\n";
  return 1;
}

}  // namespace sfsdp::tools
