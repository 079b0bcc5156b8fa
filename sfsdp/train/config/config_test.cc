// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/config/config.h"
#include "sfsdp/testing/source_dir.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>

#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/testing/temporary_folder.h"
#include "sfsdp/train/config/config_fields.h"
#include "sfsdp/train/config/config_resolve.h"
#include "sfsdp/tune/remat_share.h"

namespace sfsdp::train::config_test {

namespace {

namespace fs = std::filesystem;

JobConfig from_flags(std::vector<std::string> flags) { return load_config(flags); }

// A job.toml in a folder of its own, gone with this object.
struct TomlFile {
  explicit TomlFile(const std::string& text) : path(folder.write("job.toml", text)) {}
  testing::TemporaryFolder folder;
  std::string path;
};

JobConfig from_toml(const std::string& text, std::vector<std::string> flags = {}) {
  return load_config_file(TomlFile(text).path, flags);
}

// What load_config says; the scratch folder's name is replaced by nothing.
std::string error_of(const std::string& text, std::vector<std::string> flags = {}) {
  const TomlFile file(text);
  try {
    load_config_file(file.path, flags);
  } catch (const UserError& error) {
    std::string message = error.what();
    const std::string folder = fs::path(file.path).parent_path().string() + "/";
    for (size_t at; (at = message.find(folder)) != std::string::npos;) message.erase(at, folder.size());
    return message;
  }
  return "";
}

std::string flag_error(std::vector<std::string> flags) { return error_of("", std::move(flags)); }

}  // namespace

TEST_CASE("without arguments every key has TorchTitan's default") {
  const JobConfig config = from_flags({});
  CHECK(config == JobConfig());
  CHECK(config.optimizer.lr == 8e-4);
  CHECK(config.optimizer.beta2 == 0.95);
  CHECK(config.lr_scheduler.warmup_steps == 200);
  CHECK_FALSE(config.lr_scheduler.decay_ratio);
  CHECK(config.training.steps == 10000);
  CHECK(config.training.mixed_precision_param == "bfloat16");
  CHECK(config.parallelism.data_parallel_shard_degree == -1);
  CHECK(config.comm.train_timeout_seconds == 100);
}

TEST_CASE("flags win over the file, the file over defaults") {
  const TomlFile file("[training]\nsteps = 20\nseq_len = 128\n[optimizer]\nlr = 1e-3\n");
  const JobConfig config = from_flags({"--training.steps", "30", "--job.config_file", file.path});
  CHECK(config.training.steps == 30);
  CHECK(config.training.seq_len == 128);
  CHECK(config.optimizer.lr == 1e-3);
  CHECK(config.training.local_batch_size == 8);
  CHECK(config.job.config_file == file.path);
  CHECK(from_flags({"--job.config-file=" + file.path}).training.steps == 20);
  CHECK(from_flags({"--config", file.path}).training.steps == 20);
  CHECK(from_flags({"--config", file.path}).job.config_file == file.path);
}

TEST_CASE("a flag's value stands after a blank or =, and may be negative") {
  CHECK(from_flags({"--training.steps=7"}).training.steps == 7);
  CHECK(from_flags({"--training.steps", "7"}).training.steps == 7);
  CHECK(from_flags({"--training.local-batch-size", "3"}).training.local_batch_size == 3);
  CHECK(from_flags({"--training.global_batch_size", "-1"}).training.global_batch_size == -1);
  CHECK(from_flags({"--optimizer.lr", "1"}).optimizer.lr == 1.0);
  CHECK(from_flags({"--training.dataset_path", ""}).training.dataset_path == "");
  CHECK(from_flags({"--training.steps", "7", "--training.steps", "8"}).training.steps == 8);
}

TEST_CASE("booleans are bare or take true or false, and no_ switches off") {
  CHECK(from_flags({"--job.print_config"}).job.print_config);
  CHECK(from_flags({"--job.print_config", "true"}).job.print_config);
  CHECK(from_flags({"--job.print_config=true"}).job.print_config);
  CHECK_FALSE(from_flags({"--metrics.enable_jsonl", "false"}).metrics.enable_jsonl);
  CHECK_FALSE(from_toml("[job]\nprint_config = true", {"--job.no_print_config"}).job.print_config);
  CHECK_FALSE(from_flags({"--metrics.no-enable-jsonl"}).metrics.enable_jsonl);
  CHECK(flag_error({"--job.print_config=yes"}) ==
        "--job.print_config = yes\n  expected true or false; bare it is true");
  CHECK(flag_error({"--training.no_steps"}).find("unknown flag") != std::string::npos);
}

TEST_CASE("lists are comma-separated in flags and arrays in files") {
  CHECK(from_flags({"--debug.disable_pass", "bucket,wrap"}).debug.disable_pass == StringList{"bucket", "wrap"});
  CHECK(from_flags({"--debug.disable_pass", ""}).debug.disable_pass.empty());
  CHECK(from_toml("[debug]\ndisable_pass = [\"bucket\"]").debug.disable_pass == StringList{"bucket"});
  CHECK(error_of("[debug]\ndisable_pass = [1]").find("holds something else than strings") != std::string::npos);
}

TEST_CASE("None unsets an optional and nothing else") {
  CHECK_FALSE(
      from_toml("[lr_scheduler]\ndecay_ratio = 0.5", {"--lr_scheduler.decay_ratio", "None"}).lr_scheduler.decay_ratio);
  CHECK(flag_error({"--training.steps", "None"}).find("expected an integer, 1 or more") != std::string::npos);
  CHECK(flag_error({"--debug.seed", "9223372036854775808"}) ==
        "--debug.seed = 9223372036854775808\n  expected an integer below 2^63, 0 or more");
}

TEST_CASE("[model.args] takes any key, with the type its value has") {
  const JobConfig config =
      from_toml("[model.args]\nvocab_size = 256\nrope_theta = 1e4\ntied = true\nname = \"x\"",
                {"--model.args.n-layers", "3", "--model.args.norm_eps=1e-6", "--model.args.tied", "false"});
  CHECK(config.model_args.at("vocab_size") == ModelArg(int64_t{256}));
  CHECK(config.model_args.at("rope_theta") == ModelArg(1e4));
  CHECK(config.model_args.at("name") == ModelArg(std::string("x")));
  CHECK(config.model_args.at("n_layers") == ModelArg(int64_t{3}));
  CHECK(config.model_args.at("norm_eps") == ModelArg(1e-6));
  CHECK(config.model_args.at("tied") == ModelArg(false));
  CHECK(error_of("[model.args]\nsizes = [\"a\"]").find("model.args.sizes is a table or a list") != std::string::npos);
}

TEST_CASE("an unknown key names its place and the nearest key") {
  CHECK(error_of("[training]\nsteps = 1\nstepz = 2") ==
        "job.toml:3:1: unknown key training.stepz\n  expected a key of a job; did you mean training.steps?");
  CHECK(error_of("[training]\nlog_freq = 2").find("did you mean metrics.log_freq?") != std::string::npos);
  CHECK(error_of("[trainig]\nsteps = 1") ==
        "job.toml:1:2: unknown section [trainig]\n  expected a section of a job; did you mean [training]?");
  CHECK(
      flag_error({"--training.stepz", "2"}) ==
      "unknown flag --training.stepz\n  expected a flag that sfsdp train --help lists; did you mean --training.steps?");
  CHECK(error_of("steps = 1").find("unknown key steps\n  expected a key of a job; did you mean training.steps") !=
        std::string::npos);
}

TEST_CASE("a value of the wrong type or out of range says what was expected") {
  CHECK(error_of("[training]\nsteps = 0") == "job.toml:2:1: training.steps = 0\n  expected 1 or more");
  CHECK(error_of("[training]\nsteps = 1.5") == "job.toml:2:1: training.steps = 1.5\n  expected an integer, 1 or more");
  CHECK(error_of("[training]\nsteps = \"1\"").find("training.steps = \"1\"\n  expected an integer") !=
        std::string::npos);
  CHECK(error_of("[optimizer]\nbeta1 = 1.0").find("expected from 0 to below 1") != std::string::npos);
  CHECK(error_of("[optimizer]\nlr = inf").find("expected 0 or more") != std::string::npos);
  CHECK(error_of("[optimizer]\nlr = nan").find("expected 0 or more") != std::string::npos);
  CHECK(error_of("[lr_scheduler]\ndecay_type = \"cosin\"") ==
        "job.toml:2:1: lr_scheduler.decay_type = \"cosin\"\n  expected one of linear, sqrt, cosine; did you "
        "mean cosine?");
  CHECK(error_of("[training]\nglobal_batch_size = 0").find("expected -1, or 1 or more") != std::string::npos);
  CHECK(error_of("[training]\ndataset_path = 1979-05-27").find("is a date or time") != std::string::npos);
  CHECK(flag_error({"--training.steps", "ten"}) == "--training.steps = ten\n  expected an integer, 1 or more");
  CHECK(flag_error({"--training.steps"}) == "--training.steps without a value\n  expected --training.steps INT");
  CHECK(flag_error({"--training.steps", "--job.print_config"}).find("--training.steps without a value") !=
        std::string::npos);
  CHECK(flag_error({"ten"}).find("argument ten\n  expected a flag") == 0);
}

TEST_CASE("what is not supported yet, or changes nothing, is refused unless it has its default") {
  CHECK(error_of("[parallelism]\npipeline_parallel_degree = 2") ==
        "job.toml:2:1: parallelism.pipeline_parallel_degree = 2 is not supported yet: stages of consecutive layers\n"
        "  expected the default, 1; leave it out");
  CHECK(flag_error({"--compile.backend=eager"}) ==
        "--compile.backend = eager changes nothing: there is one backend, sfsdp's own\n"
        "  expected the default, \"inductor\"; leave it out");
  for (const char* flag : {"--training.enable_cpu_offload", "--metrics.enable_wandb"})
    CHECK(flag_error({flag}).find("not supported yet") != std::string::npos);
  CHECK(from_toml("[parallelism]\nenable_async_tensor_parallel = false\n[training]\nenable_cpu_offload = false")
            .notes.empty());
}

TEST_CASE("compile.enable = true is what always holds; a config that asks for less is told so") {
  CHECK(from_toml("[compile]\nenable = true\ncomponents = [\"model\", \"loss\"]").notes.empty());
  CHECK(from_flags({"--compile.enable", "--compile.components", "model,loss"}).notes.empty());
  const JobConfig asked = from_toml("[compile]\nenable = false\ncomponents = [\"loss\"]");
  const auto& notes = asked.notes;
  CHECK((asked.compile == UpstreamCompile{.enable = false, .loss = true}));
  CHECK((from_flags({"--compile.enable", "--compile.components", "model"}).compile == UpstreamCompile{true, false}));
  CHECK((from_toml("[compile]\ncomponents = [\"model\"]").compile == UpstreamCompile{{}, false}));
  REQUIRE(notes.size() == 2);
  CHECK(notes[0].ends_with("job.toml:2:1: compile.enable = false changes nothing: the step is always compiled"));
  CHECK(notes[1].ends_with(
      "compile.components = [\"loss\"] changes nothing: model, loss, clip and optimizer are always one graph"));
  CHECK(from_flags({"--compile.no_enable"}).notes ==
        std::vector<std::string>{"--compile.enable = false changes nothing: the step is always compiled"});
  CHECK(error_of("[compile]\ncomponents = [\"optimizer\"]").find("job.toml:2:1: compile.components = ") == 0);
}

// TorchTitan's keys: of October 2025, and those that its last TOML version has beside them.
TEST_CASE("every key of TorchTitan's is known: it does something, holds by its default, or is refused with a reason") {
  const std::pair<const char*, const char*> sections[] = {
      {"job",
       "config_file dump_folder description print_config save_config_folder save_config_file custom_config_module"},
      {"profiling",
       "enable_profiling save_traces_folder profile_freq profiler_active profiler_warmup enable_memory_snapshot "
       "save_memory_snapshot_folder"},
      {"metrics", "log_freq enable_tensorboard disable_color_printing save_tb_folder save_for_all_ranks enable_wandb"},
      {"model", "name flavor hf_assets_path tokenizer_path converters print_after_conversion"},
      {"optimizer", "name lr beta1 beta2 eps weight_decay implementation early_step_in_backward"},
      {"lr_scheduler", "warmup_steps decay_ratio decay_type min_lr_factor total_steps"},
      {"training",
       "dataset dataset_path local_batch_size global_batch_size seq_len max_norm steps enable_cpu_offload dtype "
       "mixed_precision_param mixed_precision_reduce gc_freq gc_debug seed deterministic "
       "debug_moe_force_load_balance"},
      {"debug", "seed deterministic deterministic_warn_only moe_force_load_balance"},
      {"training.dataloader", "num_workers persistent_workers pin_memory prefetch_factor"},
      {"validation.dataloader", "num_workers persistent_workers pin_memory prefetch_factor"},
      {"parallelism",
       "data_parallel_replicate_degree data_parallel_shard_degree fsdp_reshard_after_forward "
       "enable_compiled_autograd tensor_parallel_degree disable_loss_parallel enable_async_tensor_parallel "
       "pipeline_parallel_degree module_fqns_per_model_part pipeline_parallel_first_stage_less_layers "
       "pipeline_parallel_last_stage_less_layers pipeline_parallel_layers_per_stage pipeline_parallel_schedule "
       "pipeline_parallel_schedule_csv pipeline_parallel_microbatch_size context_parallel_degree "
       "context_parallel_rotate_method expert_parallel_degree expert_tensor_parallel_degree "
       "pipeline_parallel_expert_parallel_overlap context_parallel_load_balancer expert_parallel_comm_backend"},
      {"checkpoint",
       "enable enable_ft_dataloader_checkpoints folder interval initial_load_path initial_load_model_only "
       "initial_load_in_hf initial_load_in_hf_quantized last_save_model_only last_save_in_hf export_dtype async_mode "
       "keep_latest_k load_step exclude_from_loading enable_first_step_checkpoint create_seed_checkpoint load_only"},
      {"activation_checkpoint",
       "mode selective_ac_option per_op_sac_force_recompute_mm_shapes_by_fqns early_stop memory_budget "
       "visualize_memory_budget_pareto preserve_rng_state determinism_check debug"},
      {"compile", "enable components backend model_backend_override graph_passes"},
      {"quantize.linear.float8",
       "enable_fsdp_float8_all_gather precompute_float8_dynamic_scale_for_fsdp recipe_name filter_fqns emulate"},
      {"quantize.grouped_mm.float8", "fqns"},
      {"quantize.linear.mx", "mxfp8_dim1_cast_kernel_choice recipe_name filter_fqns"},
      {"quantize.grouped_mm.mx", "recipe_name fqns"},
      {"comm",
       "init_timeout_seconds train_timeout_seconds trace_buf_size save_traces_folder save_traces_file_prefix mode"},
      {"memory_estimation", "enable disable_fake_mode"},
      {"experimental", "custom_import custom_args_module"},
      {"fault_tolerance",
       "enable process_group process_group_timeout_ms replica_id group_size min_replica_size semi_sync_method "
       "sync_steps should_quantize fragment_sync_delay fragment_update_alpha num_fragments "
       "module_fqns_per_model_fragment"},
      {"validation", "enable dataset dataset_path local_batch_size seq_len freq steps"}};
  for (const auto& [section, keys] : sections)
    for (const std::string& key : split(keys, ' ')) {
      const std::string path = section + ("." + key);
      CAPTURE(path);
      const InertKey* inert = find_inert(path);
      CHECK((find_field(path) || inert));
      if (inert) CHECK(inert->why.size() > 10);
      CHECK(flag_error({"--" + path + "=\x01"}).find("unknown") == std::string::npos);
    }
}

TEST_CASE("imagined ranks save nothing, and ranks of one process are refused with what to do") {
  CHECK(from_flags({"--comm.mode", "fake_backend"}).comm.mode == "fake_backend");
  CHECK(flag_error({"--comm.mode", "fake_backend", "--checkpoint.enable"})
            .find("comm.mode = \"fake_backend\" with checkpoint.enable = true") == 0);
  CHECK(flag_error({"--comm.mode", "local_tensor"}).find("sfsdp launch -n N") != std::string::npos);
}

// From a file as TOML spells it, from a flag as a user does; anything else is an error that names the key and says why.
TEST_CASE("every inert key is accepted at its default and at nothing else") {
  for (const InertKey& key : inert_keys()) {
    CAPTURE(key.path());
    CHECK_FALSE(find_field(key.path()));
    if (!key.always.empty()) continue;  // tested above
    const std::string other = key.type == "BOOL"   ? (key.default_value == "true" ? "false" : "true")
                              : key.type == "INT"  ? "987"
                              : key.type == "LIST" ? "[\"other\"]"
                                                   : "\"other\"";
    const std::string line = "[" + key.section + "]\n" + key.key + " = ";
    if (!key.default_value.empty()) CHECK(error_of(line + key.default_value) == "");
    const std::string refused = error_of(line + other);
    CHECK(refused.find("job.toml:2:1: " + key.path() + " = " + other) == 0);
    CHECK(refused.find(key.why) != std::string::npos);
    const std::string flag = "--" + key.path();
    std::string text = key.default_value;
    if (key.type == "TEXT" && !text.empty()) text = text.substr(1, text.size() - 2);
    if (key.type == "LIST") std::erase_if(text, [](char c) { return c == '[' || c == ']' || c == '"' || c == ' '; });
    CHECK(flag_error({flag + "=" + (key.default_value.empty() ? "None" : text)}) == "");
    const std::string word = key.type == "LIST" || key.type == "TEXT" ? "other" : other;
    CHECK(flag_error({flag + "=" + word}).find(flag + " = " + word) == 0);
  }
}

TEST_CASE("a batch that no tensor could hold is refused by its key") {
  for (const char* number : {"0", "16777217", "4611686018427387904"}) {
    CHECK(flag_error({"--training.seq_len", number}) ==
          std::string("--training.seq_len = ") + number + "\n  expected from 1 to 16777216");
    CHECK(error_of(std::string("[training]\nlocal_batch_size = ") + number).find("from 1 to 1048576") !=
          std::string::npos);
  }
  CHECK(from_flags({"--training.seq_len", "16777216"}).training.seq_len == 16777216);
}

TEST_CASE("what changes nothing beside another key is noted") {
  CHECK(from_flags({"--training.steps", "100"}).notes ==
        std::vector<std::string>{"lr_scheduler.warmup_steps = 200 is cut to the 100 steps of the schedule"});
  CHECK(from_flags({"--optimizer.momentum", "0.9"}).notes.size() == 1);
  CHECK(from_flags({"--optimizer.momentum", "0.9", "--optimizer.name", "SGD"}).notes.empty());
}

TEST_CASE("keys that upstream moved work by both names, but not by both at once") {
  CHECK(from_toml("[training]\nseed = 42\ndeterministic = true").debug.seed == 42);
  CHECK(from_flags({"--training.deterministic"}).debug.deterministic);
  CHECK_FALSE(from_toml("[debug]\ndeterministic = true", {"--training.no_deterministic"}).debug.deterministic);
  CHECK(error_of("[training]\nseed = 1\n[debug]\nseed = 2")
            .find("debug.seed sets debug.seed, set before at job.toml:2:1") != std::string::npos);
}

TEST_CASE("all mistakes of file and flags are reported at once, in order") {
  const std::string message = error_of("[training]\nsteps = 0\nx = 1\n[nope]\na = 1\nb = 2", {"--optimizer.lr", "-1"});
  const std::vector<std::string> parts = {"training.steps = 0", "unknown key training.x", "unknown section [nope]",
                                          "optimizer.lr = -1.0"};
  size_t at = 0;
  for (const std::string& part : parts) {
    at = message.find(part, at);
    CHECK_MESSAGE(at != std::string::npos, part, " in ", message);
  }
  CHECK(message.find("nope.a") == std::string::npos);
}

TEST_CASE("a file that is missing or no TOML says where") {
  CHECK_THROWS_WITH_AS(load_config_file("/nowhere/job.toml"), doctest::Contains("/nowhere/job.toml: cannot read"),
                       UserError);
  CHECK_THROWS_WITH_AS(load_config_file("/tmp"), doctest::Contains("/tmp: cannot read"), UserError);
  CHECK(error_of("[training]\nsteps =").find("job.toml:2:") == 0);
  CHECK(error_of("[training]\nsteps = 1\nsteps = 2").find("job.toml:3:") == 0);
}

TEST_CASE("dataset tokens needs a file") {
  CHECK(flag_error({"--training.dataset", "tokens"}).find("training.dataset_path: unset") == 0);
  CHECK(flag_error({"--validation.enable"}).find("validation.dataset_path: unset") == 0);
  CHECK(from_flags({"--training.dataset", "tokens", "--training.dataset_path", "t.bin"}).training.dataset_path ==
        "t.bin");
}

TEST_CASE("to_toml loads back to an equal configuration") {
  JobConfig config = from_flags({"--optimizer.lr", "0.00012345678901234567", "--debug.seed", "42", "--model.args.a",
                                 "1", "--model.args.b", "x\"\\\ny", "--model.args.c", "1.0", "--model.args.d", "true",
                                 "--training.dataset_path", "C:\\\"tokens\"", "--debug.disable_pass", "wrap"});
  const JobConfig again = from_toml(to_toml(config));
  config.job.config_file = again.job.config_file;  // a scratch file
  CHECK(again == config);
  CHECK(again.model_args.at("c") == ModelArg(1.0));
}

TEST_CASE("every key can be set from a file and from a flag, and is described") {
  const std::string help = describe_flags();
  std::set<std::string> paths;
  for (const Field& field : config_fields()) {
    CAPTURE(field.path());
    CHECK(paths.insert(field.path()).second);
    CHECK(help.find("  --" + field.path()) != std::string::npos);
    CHECK_FALSE(field.help.empty());
    CHECK(find_field(field.path()) == &field);
    // A default obeys its own rule, so a file may spell it out.
    const std::string value = literal(field, JobConfig());
    if (!value.empty()) CHECK(error_of("[" + field.section + "]\n" + field.key + " = " + value) == "");
    if (field.is_bool())
      CHECK_NOTHROW(from_flags({"--" + field.section + (value == "true" ? "." : ".no_") + field.key}));
  }
  CHECK(paths.size() + inert_keys().size() > 150);
  CHECK(help.find("--training.steps INT      optimizer steps; 1 or more [10000]") != std::string::npos);
  CHECK(help.find("pipeline_parallel_degree") == std::string::npos);
}

TEST_CASE("zero_stage is 0 to 3; below 3 resharding has nothing to do, which is said") {
  CHECK(from_flags({}).parallelism.zero_stage == 3);
  CHECK(error_of("[parallelism]\nzero_stage = 4").find("zero_stage") != std::string::npos);
  const std::vector<std::string> always = {"--parallelism.fsdp_reshard_after_forward", "always",
                                           "--parallelism.zero_stage"};
  const auto notes = [&](const std::string& stage) {
    std::vector<std::string> flags = always;
    flags.push_back(stage);
    return from_flags(flags).notes;
  };
  CHECK(notes("3").empty());
  CHECK(notes("2") == std::vector<std::string>{"parallelism.fsdp_reshard_after_forward changes nothing at zero_stage = "
                                               "2: parameters are whole"});
}

TEST_CASE("dataset = mix needs sources, and sources need dataset = mix") {
  const std::string sources = "sources = [\"0.7 tokens a\", \"0.3 tokens b\"]\n";
  CHECK(from_toml("[training]\ndataset = \"mix\"\n" + sources).training.sources.size() == 2);
  CHECK(error_of("[training]\ndataset = \"mix\"").find("training.sources: empty") != std::string::npos);
  CHECK(from_toml("[training]\n" + sources).notes ==
        std::vector<std::string>{"training.sources changes nothing: training.dataset is libtorch_headers"});
}

TEST_CASE("load_step needs checkpoint.enable, as nothing is loaded without; a checkpoint's folder has a name") {
  CHECK(error_of("[checkpoint]\nload_step = 6").find("checkpoint.enable = true with it") != std::string::npos);
  CHECK(error_of("[checkpoint]\nload_step = 6\nenable = true") == "");
  CHECK(error_of("[checkpoint]\nfolder = \"\"").find("the name of a folder") != std::string::npos);
}

TEST_CASE("every key that is used changes the configuration") {
  for (const Field& field : config_fields()) {
    if (field.path() == "job.config_file") continue;
    CAPTURE(field.path());
    std::string value = field.type_name() == "INT"     ? (literal(field, JobConfig()) == "3" ? "2" : "3")
                        : field.type_name() == "FLOAT" ? "0.625"
                                                       : "other";
    if (const auto& all = field.rule.choices; !all.empty())
      value = json_quoted(all.front()) == literal(field, JobConfig()) ? all.back() : all.front();
    std::vector<std::string> flags{"--" + field.path()};
    if (field.is_bool() && literal(field, JobConfig()) == "true") flags[0] = "--" + field.section + ".no_" + field.key;
    if (!field.is_bool()) flags.push_back(value);
    if (field.key == "exclude_from_loading") flags[1] = "optimizer";
    if (field.key == "create_seed_checkpoint" || field.key == "last_save_in_hf" || field.key == "load_step")
      flags.push_back("--checkpoint.enable");
    if (field.path() == "model.name") flags.insert(flags.end(), {"--model.path", "m.pt2"});
    if (field.key == "dataset") flags.insert(flags.end(), {"--training.dataset_path", "t.bin"});
    if (field.path() == "validation.enable") flags.insert(flags.end(), {"--validation.dataset_path", "t.bin"});
    std::vector<std::string> before;
    if (field.path() == "lora.rank" || field.path() == "lora.alpha") before = {"--lora.target", "wq"};
    flags.insert(flags.end(), before.begin(), before.end());
    CHECK_FALSE(from_flags(flags) == from_flags(before));
  }
}

TEST_CASE("every file in configs/ loads and sets nothing without effect") {
  const fs::path folder = fs::path(testing::source_dir()) / "configs";
  std::vector<std::string> names;
  for (const auto& file : fs::directory_iterator(folder)) {
    if (file.path().extension() != ".toml") continue;
    CAPTURE(file.path().string());
    const JobConfig config = load_config_file(file.path().string());
    CHECK(config.notes.empty());
    CHECK(config.job.description != JobConfig().job.description);
    CHECK(file.path().filename().string().starts_with(config.model.name));
    names.push_back(file.path().stem().string());
  }
  for (const char* name :
       {"llama3_debug", "llama3_8b", "llama3_70b", "llama3_405b", "llama3_moe_debug", "gpt2_124m", "deepseek_v3_debug"})
    CHECK(std::count(names.begin(), names.end(), name) == 1);
}

// conventions.md: "B is a multiple of the number of data-parallel ranks", "each gets as many".
TEST_CASE("a step's batch is shared evenly over ranks and micro-batches") {
  Training training;
  training.local_batch_size = 2;
  CHECK(share_batch(training, 4) == BatchShares{2, 8, 1});
  training.global_batch_size = 32;
  CHECK(share_batch(training, 4) == BatchShares{2, 32, 4});
  training.global_batch_size = 12;
  CHECK_THROWS_WITH_AS(share_batch(training, 4),
                       doctest::Contains("expected a multiple of training.local_batch_size 2 * 4"), UserError);
  training.global_batch_size = 4;
  CHECK_THROWS_WITH_AS(share_batch(training, 4), doctest::Contains("try 8"), UserError);
}

TEST_CASE("activation_checkpoint says what backward computes again") {
  const auto of = [](const char* mode, const char* option) {
    ActivationCheckpoint config;
    config.mode = mode;
    config.selective_ac_option = option;
    return remat_of(config);
  };
  CHECK(of("none", "2").mode == passes::RematMode::None);
  CHECK(of("full", "2").every == 1);
  CHECK(of("selective", "2").mode == passes::RematMode::Full);
  CHECK(of("selective", "2").every == 2);
  CHECK(of("selective", "op").mode == passes::RematMode::Op);
  CHECK(of("selective", "op").mm_again == 2);
  CHECK(remat_of({.mode = "selective", .selective_ac_option = "op", .products_again = 0}).mm_again == 0);
  CHECK_THROWS_WITH_AS(of("selective", "0"), doctest::Contains("expected op, or a number"), UserError);
  CHECK(of("memory_budget", "2").mode == passes::RematMode::MemoryBudget);
  CHECK(of("memory_budget", "2").memory_budget == 0.5);
}

TEST_CASE("what is chosen by cost, and where") {
  JobConfig config;
  CHECK(tune_of(config).wrap == tune::Wrap::Manual);
  config.parallelism.fsdp_wrap = "search";
  config.activation_checkpoint.mode = "auto";
  config.parallelism.fsdp_machine = "machines/dgx_h100.toml";
  CHECK(tune_of(config).wrap == tune::Wrap::Search);
  CHECK(tune_of(config).choose_remat);
  CHECK(tune_of(config).machine == "machines/dgx_h100.toml");
}

// A message begins with the key as it was typed, the prefix "error:" is the front end's.
void expect_named(const std::string& message, const std::string& key, const std::string& got) {
  CAPTURE(message);
  CHECK(message.find(key) == 0);
  CHECK(message.find("\n  expected ") != std::string::npos);
  CHECK(message.find(got) != std::string::npos);
  CHECK(message.find("error") == std::string::npos);
}

TEST_CASE("every mistake in a file or flag is told with the key as typed, what was expected and got") {
  const struct {
    const char *toml, *key, *got;
  } files[] = {
      {"[training]\nsteps = 0", "job.toml:2:1: training.steps = 0", "1 or more"},
      {"[training]\nsteps = \"x\"", "job.toml:2:1: training.steps = \"x\"", "an integer"},
      {"[training]\nstepz = 1", "job.toml:2:1: unknown key training.stepz", "training.steps?"},
      {"[trainin]\nx = 1", "job.toml:1:2: unknown section [trainin]", "[training]?"},
      {"[fault_tolerence]\nx = 1", "job.toml:1:2: unknown section [fault_tolerence]", "[fault_tolerance]?"},
      {"[training]\nseed = 1\n[debug]\nseed = 2", "job.toml:4:1: debug.seed sets debug.seed", "job.toml:2:1"},
      {"[training]\ndataset_path = 1979-05-27", "job.toml:2:1: training.dataset_path is a date", "quotes"},
      {"[debug]\ndisable_pass = [1]", "job.toml:2:1: debug.disable_pass holds", "list of strings"},
      {"[model.args]\nx = [\"a\"]", "job.toml:2:1: model.args.x is a table or a list", "an integer"},
      {"[metrics]\nenable_wandb = true", "job.toml:2:1: metrics.enable_wandb = true", "the default, false"},
      {"[checkpoint]\nkeep_latest_k = 1", "checkpoint.keep_latest_k = 1", "2 or more"},
      {"[checkpoint]\nexclude_from_loading = [\"optimiser\"]", "checkpoint.exclude_from_loading holds optimiser",
       "did you mean optimizer"},
      {"[checkpoint]\ncreate_seed_checkpoint = true", "checkpoint.create_seed_checkpoint = true", "checkpoint.enable"},
      {"[checkpoint]\nlast_save_in_hf = true", "checkpoint.last_save_in_hf = true", "checkpoint.enable"},
      {"[checkpoint]\nenable = true\nlast_save_in_hf = true\nlast_save_model_only = false",
       "checkpoint.last_save_in_hf = true", "last_save_model_only = true"},
      {"[training", "job.toml:1:10: ", "TOML"},
      {"[training]\ndataset = \"tokens\"", "training.dataset_path: unset", "--training.dataset_path"}};
  for (const auto& file : files) expect_named(error_of(file.toml), file.key, file.got);
  const struct {
    std::vector<std::string> flags;
    const char *key, *got;
  } flags[] = {{{"--training.steps", "0"}, "--training.steps = 0", "1 or more"},
               {{"--training.steps"}, "--training.steps without a value", "--training.steps INT"},
               {{"--optimizer.lr", "fast"}, "--optimizer.lr = fast", "a number"},
               {{"--optimizer.name", "Adan"}, "--optimizer.name = \"Adan\"", "Adam, AdamW, SGD; did you mean Adam?"},
               {{"--job.print_config=1"}, "--job.print_config = 1", "true or false"},
               {{"--trainin.steps", "1"}, "unknown flag --trainin.steps", "--training.steps?"},
               {{"--training.seed", "x"}, "--training.seed = x", "an integer"},
               {{"--metrics.enable_wandb"}, "--metrics.enable_wandb = true", "the default, false"},
               {{"--config", "/nowhere/job.toml"}, "/nowhere/job.toml: cannot read", "--job.config_file"}};
  for (const auto& line : flags) expect_named(flag_error(line.flags), line.key, line.got);
}

std::string message(const std::function<void()>& body) {
  try {
    body();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("what the C++ API refuses is told in keys") {
  ir::Graph graph;
  std::optional<plan::BucketLayouts> layout;
  const auto run = [&](const passes::PipelineOptions& options, const tune::TuneOptions& tune) {
    return with_keys(message([&] { tune::run_pipeline(graph, options, tune, layout); }));
  };
  expect_named(run({}, {.wrap = tune::Wrap::Search}), "parallelism.fsdp_wrap = search has no machine",
               "in parallelism.fsdp_machine");
  expect_named(run({.flat = false}, {.wrap = tune::Wrap::Auto}),
               "parallelism.fsdp_wrap = auto with parallelism.fsdp_layout = dim0\n", "set manual, or flat");
  expect_named(run({.gather_once = true}, {.wrap = tune::Wrap::Auto}),
               "parallelism.fsdp_wrap = auto at parallelism.zero_stage 1 or 2\n", "or parallelism.zero_stage = 3");
  expect_named(with_keys(message([&] { tune::choose_remat(graph, {}, {.choose_remat = true}, layout); })),
               "activation_checkpoint.mode = auto has no machine", "in parallelism.fsdp_machine");
  expect_named(with_keys(message([] { passes::wrap_rules({"norm.weight"}, {.units = "nor"}); })),
               "pass wrap: parallelism.fsdp_units = \"nor\": nor matches no parameter", "did you mean norm?");
  CHECK(with_keys("RopeScaling::factor, RopeScaling::low_freq_factor of Llama3Args::dim") ==
        "model.args.rope_scaling_factor, model.args.rope_low_freq_factor of model.args.dim");
}

TEST_CASE("every mistake in what keys are together is told with the keys, what was expected and got") {
  JobConfig config;
  config.parallelism.data_parallel_shard_degree = 3;
  expect_named(message([&] { make_mesh(config.parallelism, 8); }), "parallelism.data_parallel_replicate_degree = 1",
               "parallelism.data_parallel_shard_degree = 3 on 8 ranks");
  config.training.global_batch_size = 12;
  expect_named(message([&] { share_batch(config.training, 8); }), "training.global_batch_size = 12", "try 64");
  config.activation_checkpoint.mode = "selective";
  config.activation_checkpoint.selective_ac_option = "ops";
  expect_named(message([&] { remat_of(config.activation_checkpoint); }),
               "activation_checkpoint.selective_ac_option = ops", "a number k");
  config.checkpoint.initial_load_path = "weights";
  CHECK(initial_hf_folder(config).empty());  // a checkpoint of sfsdp's
  config.checkpoint.initial_load_in_hf = true;
  CHECK(initial_hf_folder(config) == "weights");
  expect_named(message([&] { mesh_flags("dp_shart=2"); }), "--mesh dp_shart=2: no axis dp_shart",
               "did you mean dp_shard?");
  CHECK(message([&] {
          mesh_flags("dp_replicate=1000000000000,dp_shard=1000000000000");
        }).find("more than 1048576 ranks") != std::string::npos);
  expect_named(message([&] { mesh_flags("dp_shard=0"); }), "--mesh dp_shard=0: dp_shard = 0", "at least 1");
}

}  // namespace sfsdp::train::config_test
