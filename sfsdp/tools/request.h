// SPDX-License-Identifier: BSD-3-Clause
// Arguments of the commands that look at a config without running it: --config F --world N, options of their own, and
// every flag that train takes.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace sfsdp::tools {

struct Request {
  int64_t world = 1;
  std::map<std::string, std::string> options;  // by name without --, of those named below; switches are "true"
  std::vector<std::string> config_args;        // the rest, as train::load_config takes it

  bool has(const std::string& name) const { return options.contains(name); }
  std::string get(const std::string& name, const std::string& fallback) const {
    const auto found = options.find(name);
    return found == options.end() ? fallback : found->second;
  }
};

// throws: UserError for an option without its value, or a world that is no number
Request parse_request(std::span<const std::string> args, const std::vector<std::string>& with_value,
                      const std::vector<std::string>& switches);

}  // namespace sfsdp::tools
