// SPDX-License-Identifier: BSD-3-Clause
// Arguments of the commands that look at a config without running it: --config F --world N --mesh dp_replicate=2,dp_shard=4,
// options of their own (spelled as train's keys, --simulate.jitter 0.1, or plain, --json), and every flag that train takes.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/train/config/config.h"

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

// An option of `request` that must be one of `choices`; the first of them where it is not given.
//   throws: UserError naming the choices and the nearest
std::string choice_of(const Request& request, const std::string& name, const std::vector<std::string>& choices);

// with_value: options that take one, as "machine" or "simulate.jitter"; --name value or --name=value
// --mesh is short for the degrees of [parallelism]; without --world its axes multiply to the world.
//   throws: UserError for an option without its value, a world that is no number, an axis that is none, or an option of
//   the command's own section ("simulate.") that it does not have
Request parse_request(std::span<const std::string> args, const std::vector<std::string>& with_value,
                      const std::vector<std::string>& switches);

// What train would take; costs are counted on --machine where parallelism.fsdp_machine is not set.
train::JobConfig config_of(const Request& request);

}  // namespace sfsdp::tools
