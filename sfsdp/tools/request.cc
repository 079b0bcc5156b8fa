// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/request.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::tools {

Request parse_request(std::span<const std::string> args, const std::vector<std::string>& with_value,
                      const std::vector<std::string>& switches) {
  Request request;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string name = args[i].starts_with("--") ? args[i].substr(2) : "";
    const auto value = [&] {
      if (i + 1 == args.size()) throw UserError(concat(args[i], "\n  expected a value behind it"));
      return args[++i];
    };
    if (name == "config") {
      request.config_args.insert(request.config_args.begin(), {"--job.config_file", value()});
    } else if (name == "world") {
      const std::string text = value();
      const auto world = parse_int(text);
      if (!world || *world < 1) throw UserError(concat("--world ", text, "\n  expected a number of ranks, at least 1"));
      request.world = *world;
    } else if (std::ranges::find(with_value, name) != with_value.end()) {
      request.options[name] = value();
    } else if (std::ranges::find(switches, name) != switches.end()) {
      request.options[name] = "true";
    } else {
      request.config_args.push_back(args[i]);
    }
  }
  return request;
}

}  // namespace sfsdp::tools
