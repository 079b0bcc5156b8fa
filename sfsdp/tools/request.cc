// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/request.h"

#include <algorithm>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/mesh/device_mesh.h"

namespace sfsdp::tools {
namespace {

int64_t read_count(const std::string& option, const std::string& text, const std::string& expected) {
  const auto value = parse_int(text);
  if (!value || *value < 1) throw UserError(concat(option, " ", text, "\n  expected ", expected));
  return *value;
}

// dp_replicate=2,dp_shard=4 as flags of train; the product of the sizes goes to `world`.
std::vector<std::string> mesh_flags(const std::string& text, int64_t& world) {
  static const std::vector<std::string> kAxes = {"dp_replicate", "dp_shard"};
  std::vector<std::string> flags, seen;
  std::vector<MeshAxis> axes;
  for (const std::string& part : split(text, ',')) {
    const size_t equals = part.find('=');
    const std::string axis(trim(part.substr(0, equals)));
    if (std::ranges::find(kAxes, axis) == kAxes.end())
      throw UserError(concat("--mesh ", text, ": no axis ", axis, "\n  expected ", join(kAxes, " or "),
                             "; the nearest is ", nearest(axis, kAxes)));
    if (std::ranges::find(seen, axis) != seen.end())
      throw UserError(concat("--mesh ", text, ": ", axis, " twice\n  expected each axis once"));
    seen.push_back(axis);
    const std::string size(equals == std::string::npos ? "" : trim(std::string_view(part).substr(equals + 1)));
    axes.push_back(
        {axis, read_count(concat("--mesh ", text, ": ", axis, " ="), size, "a size of at least 1, as in dp_shard=4")});
    const std::string key = axis == "dp_shard" ? "shard" : "replicate";
    flags.insert(flags.end(), {concat("--parallelism.data_parallel_", key, "_degree"), size});
  }
  world = init_device_mesh(std::move(axes)).world_size();
  return flags;
}

}  // namespace

std::string choice_of(const Request& request, const std::string& name, const std::vector<std::string>& choices) {
  const std::string got = request.get(name, choices.front());
  if (std::ranges::find(choices, got) == choices.end())
    throw UserError(concat("--", name, " ", got, "\n  expected ", join(choices, " or "), "; the nearest is ",
                           nearest(got, choices)));
  return got;
}

Request parse_request(std::span<const std::string> args, const std::vector<std::string>& with_value,
                      const std::vector<std::string>& switches) {
  Request request;
  bool has_world = false;
  int64_t mesh_size = 0;
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  // Meant for the command itself: train's keys have a section, and it is not one of the command's.
  const auto is_own = [&](const std::string& name) {
    if (name.empty()) return false;
    const std::string section = name.substr(0, name.find('.') + 1);
    return section.empty() || std::ranges::any_of(with_value, [&](const auto& o) { return o.starts_with(section); });
  };
  for (size_t i = 0; i < args.size(); ++i) {
    const size_t equals = args[i].starts_with("--") ? args[i].find('=') : std::string::npos;
    const std::string name = args[i].starts_with("--") ? args[i].substr(2, equals - 2) : "";
    const auto value = [&] {
      if (equals != std::string::npos) return args[i].substr(equals + 1);
      if (i + 1 == args.size()) throw UserError(concat(args[i], "\n  expected a value behind it"));
      return args[++i];
    };
    if (name == "config") {
      request.config_args.insert(request.config_args.begin(), {"--job.config_file", value()});
    } else if (name == "world") {
      request.world = read_count("--world", value(), "a number of ranks, at least 1");
      has_world = true;
    } else if (name == "mesh") {
      const auto flags = mesh_flags(value(), mesh_size);
      request.config_args.insert(request.config_args.end(), flags.begin(), flags.end());
    } else if (has(with_value, name)) {
      request.options[name] = value();
    } else if (has(switches, name)) {
      request.options[name] = "true";
    } else {
      if (is_own(name)) {
        std::vector<std::string> own = {"config", "world", "mesh"};
        own.insert(own.end(), with_value.begin(), with_value.end());
        own.insert(own.end(), switches.begin(), switches.end());
        throw UserError(concat("--", name, "\n  expected one of --", join(own, ", --"),
                               " or a key of train; the nearest is --", nearest(name, own)));
      }
      request.config_args.push_back(args[i]);
    }
  }
  if (!has_world && mesh_size > 0) request.world = mesh_size;
  return request;
}

train::JobConfig config_of(const Request& request) {
  train::JobConfig config = train::load_config(request.config_args);
  if (config.parallelism.fsdp_machine.empty()) config.parallelism.fsdp_machine = request.get("machine", "");
  return config;
}

}  // namespace sfsdp::tools
