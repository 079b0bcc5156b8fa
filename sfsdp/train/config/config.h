// SPDX-License-Identifier: BSD-3-Clause
// The configuration of a training job: TorchTitan's TOML keys and flags. Flags win over the TOML file, the file over
// defaults. Which keys exist, their types, defaults and ranges: config_fields.def; which do nothing: config_inert.def.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sfsdp/base/arguments.h"

namespace sfsdp::train {

using OptInt = std::optional<int64_t>;
using OptDouble = std::optional<double>;
using OptString = std::optional<std::string>;
using StringList = std::vector<std::string>;

#define SFSDP_SECTION(member, Struct, path, help) struct Struct {
#define SFSDP_KEY(Struct, type, name, default_value, rule, help) type name = default_value;
#define SFSDP_END(Struct)                         \
  bool operator==(const Struct&) const = default; \
  }                                               \
  ;
#include "sfsdp/train/config/config_fields.def"
#undef SFSDP_SECTION
#undef SFSDP_KEY
#undef SFSDP_END

// One entry of [model.args]: the model checks that it has such an argument.
using ModelArg = std::variant<bool, int64_t, double, std::string>;

// What [compile] asks TorchTitan for. The step is always compiled here; simulate asks, of PyTorch's systems.
struct UpstreamCompile {
  std::optional<bool> enable;  // unset: false there
  bool loss = true;            // components hold it
  bool operator==(const UpstreamCompile&) const = default;
};

struct JobConfig {
#define SFSDP_SECTION(member, Struct, path, help) Struct member;
#define SFSDP_KEY(Struct, type, name, default_value, rule, help)
#define SFSDP_END(Struct)
#include "sfsdp/train/config/config_fields.def"
#undef SFSDP_SECTION
#undef SFSDP_KEY
#undef SFSDP_END
  std::map<std::string, ModelArg> model_args;  // [model.args], --model.args.<key> <value>
  std::vector<std::string> notes;              // to be logged once: keys that change nothing beside the others
  UpstreamCompile compile;
  bool operator==(const JobConfig&) const = default;
};

// Reads `args`, without the program's name: --section.key value, --section.key=value, booleans bare or with true or
// false and --section.no_key, lists a,b,c, `None` for an unset optional; - and _ are one in names. --job.config_file, or
// --config, is read first.
//   throws: UserError naming the file's line or the flag, what was expected, and the key that was probably meant
JobConfig load_config(std::span<const std::string> args);
// One file alone, with `flags` over it.
JobConfig load_config_file(const std::string& path, std::span<const std::string> flags = {});

// The whole configuration as TOML that loads back to an equal one; only job.config_file, where it came from, is not in it.
std::string to_toml(const JobConfig& config);
// The same as one object of sections; what is unset is null.
std::string to_json(const JobConfig& config);
// What train --print-config prints: to_toml, with its hash above it. Read as a file, it prints itself again.
std::string printed(const JobConfig& config);
// Writes job.save_config_file, if it is set.
//   throws: UserError if it cannot be written
void save_config(const JobConfig& config);
// What a command takes that takes a config: --config and a flag for each key, also for those that do nothing.
std::vector<Option> key_options();
// For --help: the flags of keys that do something, their meaning, range and default.
std::string describe_flags();

}  // namespace sfsdp::train
