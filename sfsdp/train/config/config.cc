// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/config/config.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/durable_file.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/train/config/config_fields.h"
#include "sfsdp/train/config/toml_reader.h"

namespace sfsdp::train {

namespace {

constexpr std::string_view kModelArgs = "model.args", kCompile = "compile.enable", kComponents = "compile.components";

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
  const auto fits = [&](const std::string& s) { return s == path || s.starts_with(path + "."); };
  return std::ranges::any_of(config_sections(), fits, &SectionInfo::path) ||
         std::ranges::any_of(inert_keys(), fits, &InertKey::section);
}

[[noreturn]] void fail_unknown_section(const std::string& path, const std::string& where) {
  StringList sections{std::string(kModelArgs)};
  for (const SectionInfo& section : config_sections()) sections.push_back(section.path);
  for (const InertKey& key : inert_keys()) sections.push_back(key.section);
  const std::string near = nearest(path, sections);
  throw UserError(concat(where, ": unknown section [", path, "]\n  expected a section of a job",
                         near.empty() ? "" : concat("; did you mean [", near, "]?")));
}

[[noreturn]] void fail_unknown_key(const std::string& path, const std::string& where) {
  StringList paths;
  for (const Field& field : config_fields()) paths.push_back(field.path());
  for (const InertKey& key : inert_keys()) paths.push_back(key.path());
  const std::string near = nearest_key(path, paths);
  throw UserError(concat(where, ": unknown key ", path, "\n  expected a key of a job",
                         near.empty() ? "" : concat("; did you mean ", near, "?")));
}

ModelArg model_arg_of(const TomlEntry& entry) {
  const auto convert = [&](const auto& value) -> ModelArg {
    using T = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_constructible_v<ModelArg, T> && !std::is_same_v<T, TomlTable>)
      return value;
    else
      throw UserError(concat(entry.where, ": ", entry.path,
                             " is a table or a list\n  expected an integer, number, boolean or string"));
  };
  return std::visit(convert, entry.value);
}

void add_note(JobConfig& config, const std::string& note) {
  if (!note.empty()) config.notes.push_back(note);
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
    const std::string name = concat(entry.where, ": ", entry.path);
    if (const InertKey* inert = find_inert(entry.path)) {
      if (const bool* flag = std::get_if<bool>(&entry.value); flag && inert->path() == kCompile)
        config_.compile.enable = *flag;
      if (const auto* parts = std::get_if<StringList>(&entry.value); parts && inert->path() == kComponents)
        config_.compile.loss = std::ranges::find(*parts, "loss") != parts->end();
      return add_note(config_, check_inert(*inert, entry.value, name));
    }
    const Field* field = find_field(entry.path);
    if (!field) fail_unknown_key(entry.path, entry.where);
    // TOML itself refuses a key twice; here it can only come by its old and its new name.
    const auto [first, is_new] = set_at_.emplace(field->path(), entry.where);
    if (!is_new)
      throw UserError(
          concat(name, " sets ", field->path(), ", set before at ", first->second, "\n  expected one of the two"));
    assign(*field, config_, entry.value, name);
  }

  JobConfig& config_;
  std::vector<std::string>& errors_;
  std::map<std::string, std::string> set_at_;
  std::string unknown_table_;
};

// --- flags ---

ModelArg parse_model_arg(const std::string& text) {
  if (text == "true") return true;
  if (text == "false") return false;
  if (const auto value = parse_int(text)) return *value;
  if (const auto value = parse_double(text)) return *value;
  return text;
}

void apply_flag(const GivenOption& flag, JobConfig& config) {
  const std::string path = flag.name.substr(2);
  const std::string prefix = concat(kModelArgs, '.');
  if (path.starts_with(prefix))
    config.model_args[path.substr(prefix.size())] = parse_model_arg(flag.value);
  else if (const InertKey* inert = find_inert(path)) {
    if (inert->path() == kCompile) config.compile.enable = flag.value != "false";
    if (inert->path() == kComponents) {
      const StringList parts = split(flag.value, ',');
      config.compile.loss = std::ranges::find(parts, "loss") != parts.end();
    }
    add_note(config, check_inert_text(*inert, flag.value, flag.name));
  } else if (path != "config")
    assign_text(*find_field(path), config, flag.value, flag.name);
}

// As TOML and JSON spell it.
std::string literal(const ModelArg& arg) {
  const auto print = [](const auto& value) -> std::string {
    using T = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_same_v<T, bool>) return value ? "true" : "false";
    if constexpr (std::is_same_v<T, int64_t>) return std::to_string(value);
    if constexpr (std::is_same_v<T, double>) return shortest(value);
    if constexpr (std::is_same_v<T, std::string>) return json_quoted(value);
  };
  return std::visit(print, arg);
}

std::string value_name(const std::string& type) { return type == "BOOL" ? "" : type; }

// --- the whole ---

// Datasets other than libtorch_headers are somewhere.
void expect_path(const std::string& section, const std::string& dataset, const OptString& path,
                 std::vector<std::string>& errors) {
  if (dataset == "libtorch_headers" || dataset == "mix" || path) return;
  errors.push_back(concat(section, ".dataset_path: unset, but ", section, ".dataset = \"", dataset,
                          "\"\n  expected a file or a folder; try --", section, ".dataset_path tokens.bin"));
}

void check_checkpoint(const JobConfig& config, std::vector<std::string>& errors) {
  static const std::vector<std::string> kStates = {"model", "optimizer", "lr_scheduler", "dataloader", "train_state"};
  const Checkpoint& c = config.checkpoint;
  if (c.keep_latest_k == 1)
    errors.push_back(
        "checkpoint.keep_latest_k = 1\n  expected 2 or more, as the one before must outlive the next save; or 0, to "
        "keep all");
  for (const std::string& state : c.exclude_from_loading)
    if (std::ranges::find(kStates, state) == kStates.end())
      errors.push_back(concat("checkpoint.exclude_from_loading holds ", state, "\n  expected ", join(kStates, ", "),
                              did_you_mean(state, kStates)));
  if (c.last_save_in_hf && !(c.enable && c.last_save_model_only))
    errors.push_back(
        "checkpoint.last_save_in_hf = true\n  expected checkpoint.enable = true and last_save_model_only = true with "
        "it: "
        "Hugging Face's folders hold a model alone");
  if (c.folder.empty())
    errors.push_back("checkpoint.folder = \"\"\n  expected the name of a folder of its own, such as checkpoint");
  if (c.load_step >= 0 && !c.enable)
    errors.push_back(concat("checkpoint.load_step = ", c.load_step,
                            "\n  expected checkpoint.enable = true with it; and load_only = true to save nothing"));
  if (c.create_seed_checkpoint && c.frozen == "none")
    errors.emplace_back(
        "checkpoint.create_seed_checkpoint = true with checkpoint.frozen = none\n  expected checkpoint.frozen = all "
        "with"
        " it: a seed checkpoint is what others take their weights from");
  if (c.create_seed_checkpoint && !c.enable)
    errors.push_back("checkpoint.create_seed_checkpoint = true\n  expected checkpoint.enable = true with it");
}

void check_comm(const JobConfig& config, std::vector<std::string>& errors) {
  if (config.comm.mode == "local_tensor")
    errors.push_back(
        "comm.mode = \"local_tensor\": ranks are processes, not tensors of one\n  expected default, with sfsdp launch "
        "-n N"
        " for N ranks on this machine, or fake_backend");
  if (config.comm.mode == "fake_backend" && config.checkpoint.enable)
    errors.push_back(
        "comm.mode = \"fake_backend\" with checkpoint.enable = true: the other ranks' parts do not exist\n  expected"
        " checkpoint.enable = false with it");
}

void check_lora(const JobConfig& config, std::vector<std::string>& errors) {
  if (!config.lora.target.empty() && !config.lora.adapter.empty())
    errors.emplace_back(
        "lora.target with lora.adapter\n  expected one of the two: an adapter's tensors say which modules they are of");
  if (config.lora.target.empty() && config.lora.adapter.empty() && (config.lora.rank || config.lora.alpha))
    errors.push_back(
        concat(config.lora.rank ? "lora.rank" : "lora.alpha",
               " without lora.target: all of the model would be trained\n  expected --lora.target too, such"
               " as --lora.target \"*.q_proj|*.v_proj\", or lora.adapter"));
  if (!config.lora.adapter.empty() && config.checkpoint.initial_load_path && !config.checkpoint.initial_load_in_hf)
    errors.emplace_back(
        "lora.adapter with checkpoint.initial_load_path\n  expected one of the two: a checkpoint that adapters fit has "
        "its"
        " own");
  if (config.checkpoint.last_save_in_hf && !(config.lora.target.empty() && config.lora.adapter.empty()))
    errors.emplace_back(
        "checkpoint.last_save_in_hf = true with lora.target or lora.adapter: a folder of Hugging Face holds a model, "
        "not adapters\n "
        " expected false; sfsdp export --format peft writes the adapters of a checkpoint");
}

void check_model(const Model& model, std::vector<std::string>& errors) {
  const bool exported = model.name == "exported";
  if (exported && model.path.empty())
    errors.emplace_back(
        "model.path is empty, but model.name = exported\n  expected an archive that torch.export.save wrote, such as"
        " --model.path model.pt2");
  if (exported && (model.loss ? 1 : 0) + (model.logits ? 1 : 0) + (model.prediction ? 1 : 0) > 1)
    errors.emplace_back(
        "more than one of model.loss, logits and prediction is set\n  expected one: the loss itself, logits for our"
        " cross entropy, or what our mean squared error compares");
}

void check_together(const JobConfig& config, std::vector<std::string>& errors) {
  expect_path("training", config.training.dataset, config.training.dataset_path, errors);
  if (config.validation.enable)
    expect_path("validation", config.validation.dataset, config.validation.dataset_path, errors);
  if (config.training.dataset == "mix" && config.training.sources.empty())
    errors.push_back(
        "training.sources: empty, but training.dataset = \"mix\"\n"
        "  expected what to mix, such as sources = [\"0.7 tokens data/web\", \"0.3 tokens data/code\"]");
  check_model(config.model, errors);
  check_lora(config, errors);
  if (config.training.dataset == "tensors" && config.model.name != "exported")
    errors.push_back(concat("training.dataset = \"tensors\" with model.name = ", config.model.name,
                            "\n  expected --model.name exported: other models read tokens alone"));
  if (config.validation.enable && (config.training.dataset == "tensors") != (config.validation.dataset == "tensors"))
    errors.push_back(concat("validation.dataset = \"", config.validation.dataset, "\" with training.dataset = \"",
                            config.training.dataset, "\"\n  expected tensors for both, or for none"));
  if (config.training.dataset == "tensors" && (config.training.loss_mask || config.training.document_mask))
    errors.emplace_back(
        "training.loss_mask or document_mask = true with training.dataset = \"tensors\"\n  expected token data: "
        "tensors of a file are "
        "given"
        " to the model as they are, and a loss in its graph may read a mask among them");
  if (config.training.document_mask && config.training.document_tokens > config.training.seq_len)
    errors.push_back(concat("training.document_tokens = ", config.training.document_tokens, " with training.seq_len = ",
                            config.training.seq_len, "\n  expected at most seq_len: no document of a row is longer"));
  const Parallelism& axes = config.parallelism;
  if (axes.expert_tensor_parallel_degree && axes.expert_parallel_degree > 1 &&
      *axes.expert_tensor_parallel_degree != axes.tensor_parallel_degree)
    errors.push_back(concat("parallelism.expert_tensor_parallel_degree = ", *axes.expert_tensor_parallel_degree,
                            " with parallelism.expert_parallel_degree = ", axes.expert_parallel_degree,
                            " and parallelism.tensor_parallel_degree = ", axes.tensor_parallel_degree, "\n  expected ",
                            axes.tensor_parallel_degree,
                            ": ranks of tensor_parallel_degree have parts of the same experts; or leave it out"));
  check_checkpoint(config, errors);
  check_comm(config, errors);
  const Profiling& p = config.profiling;
  if (p.enable_profiling && p.profiler_active + p.profiler_warmup > p.profile_freq)
    errors.push_back(concat("profiling.profile_freq = ", p.profile_freq, ", with profiler_active = ", p.profiler_active,
                            " and profiler_warmup = ", p.profiler_warmup, "\n  expected at least their sum, ",
                            p.profiler_active + p.profiler_warmup));
}

// Keys that say how a model axis cuts, where the mesh has no such axis.
void note_axes(const Parallelism& p, std::vector<std::string>& notes) {
  const struct {
    const char* key;
    bool is_given;
    const char* degree;
    int64_t ranks;
  } keys[] = {
      {"tensor_parallel_plan", !p.tensor_parallel_plan.empty(), "tensor", p.tensor_parallel_degree},
      {"tensor_parallel_constraints", !p.tensor_parallel_constraints.empty(), "tensor", p.tensor_parallel_degree},
      {"disable_loss_parallel", p.disable_loss_parallel, "tensor", p.tensor_parallel_degree},
      {"context_parallel_load_balancer", p.context_parallel_load_balancer != "headtail", "context",
       p.context_parallel_degree},
      {"context_parallel_rotate_method", p.context_parallel_rotate_method != "allgather", "context",
       p.context_parallel_degree},
      {"expert_tensor_parallel_degree", p.expert_tensor_parallel_degree.value_or(1) != 1, "expert",
       p.expert_parallel_degree},
      {"expert_parallel_capacity", p.expert_parallel_capacity != 0, "expert", p.expert_parallel_degree},
      {"expert_parallel_dispatch", p.expert_parallel_dispatch != "auto", "expert", p.expert_parallel_degree},
  };
  for (const auto& [key, is_given, degree, ranks] : keys)
    if (is_given && ranks == 1)
      notes.push_back(concat("parallelism.", key, " changes nothing: parallelism.", degree, "_parallel_degree is 1"));
  if (p.async_tensor_parallel_sites != "faster" && !p.enable_async_tensor_parallel)
    notes.push_back(concat("parallelism.async_tensor_parallel_sites = ", p.async_tensor_parallel_sites,
                           " changes nothing: parallelism.enable_async_tensor_parallel is false"));
}

std::vector<std::string> notes_of(const JobConfig& config) {
  std::vector<std::string> notes;
  const int64_t schedule_steps = config.lr_scheduler.total_steps.value_or(config.training.steps);
  if (config.lr_scheduler.warmup_steps > schedule_steps)
    notes.push_back(concat("lr_scheduler.warmup_steps = ", config.lr_scheduler.warmup_steps, " is cut to the ",
                           schedule_steps, " steps of the schedule"));
  if (config.training.document_tokens > 0 && !config.training.document_mask)
    notes.push_back(concat("training.document_tokens = ", config.training.document_tokens,
                           " changes nothing: training.document_mask is false, so attention goes over documents"));
  for (const auto& [key, value] : {std::pair<const char*, const std::string&>{"products", config.exec.products},
                                   {"attention", config.exec.attention},
                                   {"rows", config.exec.rows},
                                   {"lanes", config.exec.lanes}})
    if (value != "auto" && value != "measured" && config.exec.executor != "planned")
      notes.push_back(concat("exec.", key, " = ", value, " changes nothing: exec.executor is ", config.exec.executor));
  if (!config.training.sources.empty() && config.training.dataset != "mix")
    notes.push_back(concat("training.sources changes nothing: training.dataset is ", config.training.dataset));
  const Model& m = config.model;
  if (m.name != "exported" &&
      (!m.path.empty() || !m.inputs.empty() || m.loss || m.logits || m.prediction || m.eval_path))
    notes.push_back(
        concat("model.path, inputs, loss, logits, prediction and eval_path change nothing: they belong to"
               " model.name = exported, not ",
               m.name));
  if (config.optimizer.momentum != 0 && config.optimizer.name != "SGD")
    notes.push_back("optimizer.momentum changes nothing: it belongs to SGD");
  const ActivationCheckpoint& remat = config.activation_checkpoint;
  if (!remat.save.empty() && !(remat.mode == "selective" && remat.selective_ac_option == "op"))
    notes.emplace_back(
        "activation_checkpoint.save changes nothing: it belongs to mode = selective with selective_ac_option = op");
  if (config.parallelism.zero_stage < 3 && config.parallelism.fsdp_reshard_after_forward != "default")
    notes.push_back(concat("parallelism.fsdp_reshard_after_forward changes nothing at zero_stage = ",
                           config.parallelism.zero_stage, ": parameters are whole"));
  note_axes(config.parallelism, notes);
  return notes;
}

JobConfig load(const std::optional<std::string>& file, std::span<const std::string> args) {
  Arguments flags;
  if (!args.empty()) flags = parse_arguments(args, {"sfsdp train", key_options(), "", ""});
  std::vector<std::string> errors = std::move(flags.errors);
  std::optional<std::string> config_file = file;
  for (const GivenOption& flag : flags.options)
    if (flag.name == "--config" || flag.name == "--job.config_file") config_file = flag.value;

  JobConfig config;
  if (config_file && !config_file->empty()) FileReader(config, errors).read(read_toml(*config_file));
  for (const GivenOption& flag : flags.options) collect(errors, [&] { apply_flag(flag, config); });
  if (config_file) config.job.config_file = *config_file;
  if (errors.empty()) check_together(config, errors);
  if (config.training.dataset == "tensors")
    config.training.seq_len = config.validation.seq_len = 1;  // metrics count samples
  if (!errors.empty()) throw UserError(join(errors, "\n"));
  for (const std::string& note : notes_of(config)) config.notes.push_back(note);
  return config;
}

}  // namespace

JobConfig load_config(std::span<const std::string> args) { return load(std::nullopt, args); }

JobConfig load_config_file(const std::string& path, std::span<const std::string> flags) { return load(path, flags); }

std::vector<Option> key_options() {
  std::vector<Option> options = {{"--config", "FILE", "short for --job.config_file"}};
  const auto add = [&](std::string_view path, const std::string& type, const std::string& help) {
    options.push_back({concat("--", path), value_name(type), help});
  };
  for (const Field& field : config_fields()) add(field.path(), field.type_name(), field.help);
  for (const InertKey& key : inert_keys()) add(key.path(), key.type, key.why);
  for (const auto& [old_path, new_path] : moved_keys()) {
    const Field* field = find_field(new_path);
    add(old_path, field ? field->type_name() : find_inert(new_path)->type, concat("now ", new_path));
  }
  add(concat(kModelArgs, '.'), "VALUE", "any argument of the model's flavor");
  return options;
}

std::string describe_flags() {
  std::vector<Option> options;
  const JobConfig defaults;
  for (Option& option : key_options()) {
    const Field* field = find_field(std::string_view(option.name).substr(2));
    if (field && option.name.substr(2) == field->path()) {
      const std::string value = literal(*field, defaults), rule = field->rule.text();
      option.help += concat(rule.empty() ? "" : "; " + rule, " [", value.empty() ? "unset" : value, "]");
    } else if (option.name != "--config" && !option.name.ends_with('.')) {
      continue;
    }
    options.push_back(std::move(option));
  }
  return describe(options);
}

std::string to_toml(const JobConfig& config) {
  std::string text;
  for (const SectionInfo& section : config_sections()) {
    text += concat(text.empty() ? "" : "\n", '[', section.path, "]\n");
    for (const Field& field : config_fields()) {
      if (field.section != section.path || field.path() == "job.config_file") continue;
      const std::string value = literal(field, config);
      text += value.empty() ? concat("# ", field.key, " is unset\n") : concat(field.key, " = ", value, '\n');
    }
  }
  if (!config.model_args.empty()) text += concat("\n[", kModelArgs, "]\n");
  for (const auto& [key, arg] : config.model_args) {
    text += concat(json_quoted(key), " = ", literal(arg), '\n');
  }
  return text;
}

std::string to_json(const JobConfig& config) {
  std::string text = "{";
  const auto add = [&](const std::string& name, const std::string& value, bool& first) {
    text += concat(first ? "" : ",", "\n    ", json_quoted(name), ": ", value.empty() ? "null" : value);
    first = false;
  };
  for (const SectionInfo& section : config_sections()) {
    text += concat(text == "{" ? "" : ",", "\n  ", json_quoted(section.path), ": {");
    bool first = true;
    for (const Field& field : config_fields())
      if (field.section == section.path) add(field.key, literal(field, config), first);
    text += "\n  }";
  }
  text += concat(",\n  ", json_quoted(kModelArgs), ": {");
  bool first = true;
  for (const auto& [key, arg] : config.model_args) add(key, literal(arg), first);
  return text + "\n  }\n}\n";
}

std::string printed(const JobConfig& config) {
  const std::string text = to_toml(config);
  return concat("# Configuration ", hex(hash_path(text)), " of sfsdp: it prints itself again.\n\n", text);
}

void save_config(const JobConfig& config) {
  if (!config.job.save_config_file) return;
  const auto path = std::filesystem::path(config.job.dump_folder) / *config.job.save_config_file;
  std::error_code ignored;  // what is wrong with the folder, the file tells
  std::filesystem::create_directories(path.parent_path(), ignored);
  write_atomically(path.string(), path.extension() == ".json" ? to_json(config) : printed(config));
}

}  // namespace sfsdp::train
