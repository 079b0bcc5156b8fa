// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/config/config.h"

#include <algorithm>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/train/config/config_fields.h"
#include "sfsdp/train/config/toml_reader.h"

namespace sfsdp::train {

namespace {

constexpr std::string_view kModelArgs = "model.args";

// Runs `body`; what it throws is added to `errors`, so that one run reports every mistake.
template <class Body>
bool collect(std::vector<std::string>& errors, const Body& body) {
  try {
    body();
    return true;
  } catch (const UserError& error) {
    errors.push_back(error.what());
    return false;
  }
}

// --- the TOML file ---

bool is_section_or_part(const std::string& path) {  // "quantize" is a part of "quantize.linear.float8"
  if (path == kModelArgs) return true;
  const auto fits = [&](const SectionInfo& s) { return s.path == path || s.path.starts_with(path + "."); };
  return std::any_of(config_sections().begin(), config_sections().end(), fits);
}

[[noreturn]] void fail_unknown_section(const std::string& path, const std::string& where) {
  StringList sections{std::string(kModelArgs)};
  for (const SectionInfo& section : config_sections()) sections.push_back(section.path);
  throw UserError(concat("error at ", where, ": unknown section [", path,
                         "]\n  expected a section of a job; did you mean [", nearest(path, sections), "]?"));
}

[[noreturn]] void fail_unknown_key(const std::string& path, const std::string& where) {
  throw UserError(concat("error at ", where, ": unknown key ", path, "\n  expected a key of a job; did you mean ",
                         nearest_path(path), "?"));
}

ModelArg model_arg_of(const TomlEntry& entry) {
  const auto convert = [&](const auto& value) -> ModelArg {
    using T = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_constructible_v<ModelArg, T> && !std::is_same_v<T, TomlTable>)
      return value;
    else
      throw UserError(concat("error at ", entry.where, ": ", entry.path,
                             " is a table or a list\n  expected an integer, number, boolean or string"));
  };
  return std::visit(convert, entry.value);
}

class FileReader {
 public:
  FileReader(JobConfig& config, std::vector<std::string>& errors) : config_(config), errors_(errors) {}

  void read(const std::vector<TomlEntry>& entries) {
    for (const TomlEntry& entry : entries) {
      if (!unknown_table_.empty() && entry.path.starts_with(unknown_table_ + ".")) continue;  // said once
      const bool ok = collect(errors_, [&] { apply(entry); });
      if (!ok && std::holds_alternative<TomlTable>(entry.value)) unknown_table_ = entry.path;
    }
  }

 private:
  void apply(const TomlEntry& entry) {
    const std::string prefix = concat(kModelArgs, '.');
    if (entry.path.starts_with(prefix)) {
      config_.model_args[entry.path.substr(prefix.size())] = model_arg_of(entry);
      return;
    }
    if (std::holds_alternative<TomlTable>(entry.value)) {
      if (!is_section_or_part(entry.path)) fail_unknown_section(entry.path, entry.where);
      return;
    }
    const Field* field = find_field(entry.path);
    if (!field) fail_unknown_key(entry.path, entry.where);
    // TOML itself refuses a key twice; here it can only come by its old and its new name.
    const auto [first, is_new] = set_at_.emplace(field->path(), entry.where);
    if (!is_new)
      throw UserError(concat("error at ", entry.where, ": ", entry.path, " sets ", field->path(), ", set before at ",
                             first->second, "\n  keep one of the two"));
    assign(*field, config_, entry.value, entry.where);
  }

  JobConfig& config_;
  std::vector<std::string>& errors_;
  std::map<std::string, std::string> set_at_;
  std::string unknown_table_;
};

// --- flags ---

struct Flag {
  std::string name;  // "training.steps", - turned into _
  std::optional<std::string> value;
};

// The field of --section.no_key, nullptr if the name is not of that form.
const Field* negated_field(const std::string& name) {
  const size_t key_at = name.rfind('.') + 1;
  if (!name.substr(key_at).starts_with("no_")) return nullptr;
  const Field* field = find_field(name.substr(0, key_at) + name.substr(key_at + 3));
  return field && field->is_bool() ? field : nullptr;
}

enum class Takes { Value, Nothing, Unknown };

Takes takes(const std::string& name) {
  if (name.starts_with(concat(kModelArgs, '.'))) return Takes::Value;
  if (const Field* field = find_field(name)) return field->is_bool() ? Takes::Nothing : Takes::Value;
  return negated_field(name) ? Takes::Nothing : Takes::Unknown;
}

// Pairs names with values. A value may start with one dash (-1), not with two.
std::vector<Flag> split_flags(std::span<const std::string> args, std::vector<std::string>& errors) {
  std::vector<Flag> flags;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!args[i].starts_with("--") || args[i].size() == 2) {
      errors.push_back(
          concat("error at argument \"", args[i], "\": not a flag\n  expected --section.key value",
                 args[i] == "true" || args[i] == "false" ? "; booleans are --section.key or --section.no_key" : ""));
      continue;
    }
    const size_t equals = args[i].find('=');
    Flag flag{args[i].substr(2, equals == std::string::npos ? equals : equals - 2), std::nullopt};
    std::replace(flag.name.begin(), flag.name.end(), '-', '_');
    const bool has_next = i + 1 < args.size() && !args[i + 1].starts_with("--");
    const Takes wanted = takes(flag.name);
    if (equals != std::string::npos) {
      flag.value = args[i].substr(equals + 1);
    } else if (wanted == Takes::Value && !has_next) {
      errors.push_back(concat("error at ", args[i], ": no value\n  expected ", args[i], " value"));
      continue;
    } else if (wanted != Takes::Nothing && has_next) {  // an unknown flag's value is no mistake of its own
      flag.value = args[++i];
    }
    flags.push_back(std::move(flag));
  }
  return flags;
}

ModelArg parse_model_arg(const std::string& text) {
  if (text == "true") return true;
  if (text == "false") return false;
  if (const auto value = parse_int(text)) return *value;
  if (const auto value = parse_double(text)) return *value;
  return text;
}

void apply_flag(const Flag& flag, JobConfig& config) {
  const std::string where = "--" + flag.name;
  const std::string prefix = concat(kModelArgs, '.');
  if (flag.name.starts_with(prefix)) {
    config.model_args[flag.name.substr(prefix.size())] = parse_model_arg(*flag.value);
    return;
  }
  const Field* field = find_field(flag.name);
  const Field* negated = field ? nullptr : negated_field(flag.name);
  if (!field && !negated)
    throw UserError(concat("error at ", where, ": unknown flag\n  expected a key of a job; did you mean --",
                           nearest_path(flag.name), "?"));
  if (negated || field->is_bool()) {
    const Field& boolean = negated ? *negated : *field;
    if (flag.value)
      throw UserError(concat("error at ", where, ": ", *flag.value, " is no value of a flag\n  expected --",
                             boolean.path(), " or --", boolean.section, ".no_", boolean.key));
    assign(boolean, config, negated == nullptr, where);
    return;
  }
  assign_text(*field, config, *flag.value, where);
}

// --- the whole ---

void check_together(const JobConfig& config, std::vector<std::string>& errors) {
  if (config.training.dataset == "tokens" && !config.training.dataset_path)
    errors.push_back(
        "error at training.dataset_path: unset, but training.dataset = \"tokens\"\n"
        "  expected the file of token ids; try --training.dataset_path tokens.bin");
}

std::vector<std::string> notes_of(const JobConfig& config) {
  std::vector<std::string> notes;
  const JobConfig defaults;
  for (const Field& field : config_fields()) {
    const std::string value = literal(field, config);
    if (field.status == KeyStatus::Inert && value != literal(field, defaults))
      notes.push_back(concat(field.path(), " = ", value.empty() ? "None" : value, " changes nothing: ", field.help));
  }
  const int64_t schedule_steps = config.lr_scheduler.total_steps.value_or(config.training.steps);
  if (config.lr_scheduler.warmup_steps > schedule_steps)
    notes.push_back(concat("lr_scheduler.warmup_steps = ", config.lr_scheduler.warmup_steps, " is cut to the ",
                           schedule_steps, " steps of the schedule"));
  if (config.optimizer.momentum != 0 && config.optimizer.name != "SGD")
    notes.push_back("optimizer.momentum changes nothing: it belongs to SGD");
  if (config.parallelism.zero_stage < 3 && config.parallelism.fsdp_reshard_after_forward != "default")
    notes.push_back(concat("parallelism.fsdp_reshard_after_forward changes nothing at zero_stage = ",
                           config.parallelism.zero_stage, ": parameters are whole"));
  return notes;
}

JobConfig load(const std::optional<std::string>& file, std::span<const std::string> args) {
  std::vector<std::string> errors;
  const std::vector<Flag> flags = split_flags(args, errors);
  std::optional<std::string> config_file = file;
  for (const Flag& flag : flags)
    if (flag.name == "job.config_file" && flag.value) config_file = flag.value;

  JobConfig config;
  if (config_file && !config_file->empty()) {
    FileReader(config, errors).read(read_toml(*config_file));
    config.job.config_file = *config_file;
  }
  for (const Flag& flag : flags) collect(errors, [&] { apply_flag(flag, config); });
  if (errors.empty()) check_together(config, errors);
  if (!errors.empty()) throw UserError(join(errors, "\n"));
  config.notes = notes_of(config);
  return config;
}

}  // namespace

JobConfig load_config(std::span<const std::string> args) { return load(std::nullopt, args); }

JobConfig load_config_file(const std::string& path, std::span<const std::string> flags) { return load(path, flags); }

std::string to_toml(const JobConfig& config) {
  std::string text;
  for (const SectionInfo& section : config_sections()) {
    text += concat(text.empty() ? "" : "\n", '[', section.path, "]\n");
    for (const Field& field : config_fields()) {
      const std::string value = field.section == section.path ? literal(field, config) : "";
      if (!value.empty()) text += concat(field.key, " = ", value, '\n');
    }
  }
  if (!config.model_args.empty()) text += concat("\n[", kModelArgs, "]\n");
  for (const auto& [key, arg] : config.model_args) {
    const auto print = [](const auto& value) -> std::string {
      using T = std::remove_cvref_t<decltype(value)>;
      if constexpr (std::is_same_v<T, bool>) return value ? "true" : "false";
      if constexpr (std::is_same_v<T, int64_t>) return std::to_string(value);
      if constexpr (std::is_same_v<T, double>) return shortest(value);
      if constexpr (std::is_same_v<T, std::string>) return json_quoted(value);
    };
    text += concat(json_quoted(key), " = ", std::visit(print, arg), '\n');
  }
  return text;
}

}  // namespace sfsdp::train
