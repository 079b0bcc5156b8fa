// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/commands.h"

#include <algorithm>
#include <limits>
#include <ostream>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/train/config/config_resolve.h"

namespace sfsdp::tools {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

const Option kWorld = {"--world", "N", "ranks; without it the axes of --mesh multiply to them, or 1"};
const Option kMesh = {"--mesh", "A=N,...",
                      "dp_replicate=2,dp_shard=4,cp=2,ep=2,tp=8: short for parallelism.*_degree of these axes"};
const Option kMachine = {"--machine", "M", "a machine by name, such as dgx_h100, or its file"};
const Option kThreads = {"--threads", "N", "that work on many configurations [one per core]"};
const Option kJson = {"--json", "", "one object instead of text"};

// Which system runs the step: of simulate and of plan --search.
const std::vector<Option> kSimulated = {
    {"--simulate.execution", "E",
     "fused: our plan; compile: PyTorch's FSDP2 with fusion inside a block; eager: FSDP2 with a "
     "kernel per op; reference: train --exec.executor reference on this machine's CPU"},
    {"--simulate.system", "S",
     "whose gathers, copies and memory: sfsdp, our plan; PyTorch's fsdp2 (of eager and compile) or fsdp1; deepspeed3, "
     "DeepSpeed's ZeRO stage 3; "
     "traced, "
     "a graph of forward and backward in PyTorch's allocator"},
    {"--simulate.prefetch_bucket", "N", "of deepspeed3: elements gathered ahead of their use [50000000]"},
    {"--simulate.reduce_bucket", "N", "of deepspeed3: elements reduced at once [500000000]"},
    {"--simulate.max_live_parameters", "N", "of deepspeed3: elements gathered at once [1000000000]"},
    {"--simulate.memory", "M", "of PyTorch's systems: reserved, what the allocator holds, or allocated to tensors"},
    {"--simulate.segments", "S", "of PyTorch's systems: expandable or fixed segments of the allocator"},
    {"--simulate.loss", "L",
     "of PyTorch's systems: separate ops on float32 logits, the same and the trainer has kept them, or one "
     "fused kernel; unset: fused where [compile] compiles the loss, as execution compile does, else separate"},
    {"--simulate.norm", "N",
     "of eager: composite, rms_norm as a model's Python writes it (PyTorch before 2.9), or PyTorch's fused one"},
    {"--simulate.rope", "R",
     "of compile: complex, which Inductor leaves to eager mode's kernels, or real; of both: fused, a kernel of its "
     "own"},
    {"--simulate.accumulation", "A",
     "of eager and compile, whole gradients over micro-batches: a kernel adds them up, or the product that makes them "
     "(Megatron-LM's gradient accumulation fusion)"},
    {"--simulate.update", "U", "of eager and compile: AdamW fused or foreach"},
    {"--simulate.checkpoint", "C",
     "of eager with full remat: early_stop, or whole blocks again, as reentrant checkpoints and TorchTitan "
     "since "
     "2025-09 do"},
    {"--simulate.loss_chunks", "N", "separate or kept: rows of the logits in N parts, one after the other [1]"},
    {"--simulate.step_gathers", "G",
     "ZeRO 1 and 2, when parameters are gathered: forward: under it; update: after the update, waited for "
     "(DeepSpeed); broadcast, broadcast_forward: as update and as forward, of trainers that deal whole parameters to "
     "owners, one broadcast each and gradients all-reduced (DDP with ZeroRedundancyOptimizer: broadcast)"},
    {"--simulate.reductions", "R",
     "overlap: under backward; block: backward waits for each (DeepSpeed's overlap_comm = false)"},
    {"--simulate.jitter", "X", "each rank's kernels take up to X longer, drawn once per rank"},
    {"--simulate.seed", "N", "of these draws"},
    {"--simulate.timelines", "T", "collapsed: ranks that are alike have one; per_rank: one each"}};

std::vector<Option> joined(std::vector<Option> options, const std::vector<Option>& more) {
  options.insert(options.end(), more.begin(), more.end());
  return options;
}

Command inspect_command() {
  return {
      .name = "inspect",
      .usage =
          "--config F --world N [--graph | --passes | --layout | --allocs | --json] | --model.path model.pt2 | "
          "--compare PREDICTED MEASURED",
      .summary = "what a config would run, without running it; what an archive of torch.export holds",
      .options = {kWorld,
                  kMesh,
                  {"--machine", "M", "with --passes or --json: what the step takes after each pass on this machine"},
                  {"--graph", "", "the graph of the step"},
                  {"--passes", "", "what each pass did"},
                  {"--layout", "", "where each parameter is stored"},
                  {"--allocs", "",
                   "runs steps of one rank alone: memory that kernels ask LibTorch for beside the plan"},
                  {"--compare", "PREDICTED",
                   "a trace of simulate --trace, and one that profiling.enable_profiling has left: where they part"},
                  {"--json", "", "the summary and all passes as one object"}},
      .takes_config = true,
      .operand = "MEASURED"};
}

Command plan_command() {
  return {.name = "plan",
          .usage =
              "--config F --world N [--out P] [--explain PATH] [--search] | --check FILE [--explain PATH] | --diff A B",
          .summary = "the plan of its step, verified; why it is so, and what two plans differ in",
          .options = joined(
              {kWorld,
               kMesh,
               {"--machine", "M", "the device that the plan is made for, and what --explain counts on; else this CPU"},
               {"--out", "FILE", "writes the plan: kernels, lanes, edges, addresses; a summary is printed too"},
               {"--explain", "PATH",
                "why ops under this module path are in kernels of their own and results have memory of their own; with "
                "--machine also why units are so, and what would change"},
               {"--check", "FILE", "reads a plan, verifies it, prints its hash"},
               {"--diff", "A", "what plan A and plan B differ in, in words; exit code 1 if they do"},
               {"--search", "",
                "the fastest ways to train the global batch: varies mesh, ZeRO stage, micro-batch, remat and "
                "reshard; needs --machine. With --simulate.* all are simulated so"},
               {"--top", "N", "of a search: so many are simulated and printed [10]"},
               kThreads,
               {"--html", "FILE", "the plan as a picture: lanes, kernels, edges, memory by region"},
               kJson},
              kSimulated),
          .takes_config = true,
          .operand = "B"};
}

Command simulate_command() {
  return {.name = "simulate",
          .usage = "--config F --machine M --world N [--sweep CASES] | --plan P --machine M",
          .summary = "what a step would take on that machine",
          .options = joined(
              {kMachine,
               {"--plan", "FILE", "the plan that sfsdp plan --out wrote, instead of that of a config"},
               kWorld,
               kMesh,
               {"--simulate.memory_depth", "N", "what is alive at the peak, by module path to this depth"},
               kJson,
               {"--sweep", "FILE",
                "a JSON object of options a line, as {\"mesh\": \"dp_shard=8\", \"training\": {\"seq_len\": [2048, "
                "4096]}}: "
                "a line of --json for each; lists are ranges"},
               kThreads,
               {"--trace", "FILE", "Chrome trace for Perfetto: lanes, arrows from start to wait, memory by kind"},
               {"--html", "FILE", "one page: timeline, memory by kind, buckets and why each was closed"}},
              kSimulated),
          .takes_config = true};
}

Command calibrate_command() {
  return {.name = "calibrate",
          .usage = "--config F --ranks N --out M",
          .summary = "measures this machine, writes such a file for simulate",
          .options = {{"--ranks", "N", "that measure at once, as in training [2]"},
                      {"--out", "FILE", "the machine file [outputs/cpu_local.toml]"},
                      {"--calibrate.seconds", "S", "to spend on the step's kernels, and as much on other sizes [20]"},
                      {"--calibrate.max_mib", "M", "largest collective and copy [256]"}},
          .takes_config = true};
}

Command opt_command() {
  return {
      .name = "opt",
      .usage = "FILE --pass a,b",
      .summary = "runs passes on a graph in text form",
      .options = {{"--pass", "LIST", "NAME[ OPTION=VALUE...][,NAME...]: in order; without any the graph is checked"},
                  {"--disable-pass", "LIST", "leaves these out of the passes above"},
                  {"--metrics", "", "what each pass did, to standard error"},
                  {"--verify", "",
                   "how many ops the verifier checked, and those whose types it does not know, to standard error"},
                  {"--machine", "M", "with --metrics: step time, exposed communication and peak there too"},
                  {"--print-ir-after-all", "FOLDER",
                   "the graph as given and after each pass, to standard error or NN-pass.txt in FOLDER", true},
                  {"--print-ir-diff", "FOLDER", "what each pass changed, to standard error or NN-pass.diff in FOLDER",
                   true},
                  {"--list", "", "the passes and their options"}},
      .operand = "FILE"};
}

Command launch_command() {
  return {.name = "launch",
          .usage = "-n N [--max-restarts K] -- train ...",
          .summary = "start N ranks on this host",
          .options = {{"-n", "N", "ranks"},
                      {"--log-rank", "LIST", "ranks whose output is shown, as 0,3; errors are shown of all"},
                      {"--master-port", "PORT", "where they meet; without it a free one"},
                      {"--max-restarts", "K", "when a rank fails, start all again from the newest checkpoint [0]"},
                      {"--grace", "S", "seconds from a signal to a kill, enough for a checkpoint [120]"},
                      {"--exec", "PROGRAM", "what they run; without it this sfsdp"}},
          .rest = "what the ranks run, as in: sfsdp launch -n 2 -- train"};
}

Command tokenize_command() {
  return {.name = "tokenize",
          .usage = "IN... --tokenizer F --out DIR",
          .summary = "text, JSON lines, gzip, zstd into token files",
          .options = {{"--tokenizer", "F", "tokenizer.json, or the folder that holds it"},
                      {"--out", "DIR", "written to; a run that was interrupted goes on from what is there"},
                      {"--format", "F", "auto: JSON lines by name, *.jsonl, *.ndjson, *.json; text; jsonl [auto]"},
                      {"--field", "NAME", "of a JSON line: holds the text [text]"},
                      {"--loss-mask", "",
                       "JSON lines may hold prompt and completion, or tokens and mask; kept with the ids"},
                      {"--split-on", "S", "where a text file is cut into documents: file, lines, blank-lines [file]"},
                      {"--threads", "N", "that encode [one per core]"},
                      {"--shard-tokens", "N", "a shard ends with the document that reaches so many [100000000]"}},
          .operand = "IN",
          .most_operands = std::numeric_limits<size_t>::max()};
}

Command tokenizer_command() {
  return {.name = "tokenizer",
          .usage = "encode | decode TOKENIZER.json",
          .summary = "text to token ids and back, a line of JSON each",
          .options =
              {{"--special", "",
                "encode: adds what the tokenizer's post-processor adds, such as a BOS; decode: keeps special tokens"}},
          .operand = "encode | decode TOKENIZER.json",
          .most_operands = 2};
}

Command report_command() {
  return {.name = "report",
          .usage = "RUN_DIR... [--out FILE]",
          .summary = "a page of what runs wrote: curves, time, memory, configurations",
          .options = {{"--out", "FILE", "the page [report.html in the first folder]"}},
          .operand = "RUN_DIR",
          .most_operands = 100};
}

Command checkpoint_command() {
  return {.name = "checkpoint",
          .usage = "ls FOLDER | verify PATH | diff A B | convert FROM TO",
          .summary = "what checkpoints hold, whether it is what was written, and other forms of it",
          .options = {{"--ranks", "N", "convert: as if N ranks had saved it; 1: one file [as many as there are]"},
                      {"--model-only", "", "convert: without the optimizer's state"},
                      {"--dtype", "D", "convert: parameters in float32, bfloat16 or float16"},
                      {"--hf-assets", "FOLDER",
                       "convert: TO becomes a Hugging Face folder with this folder's config.json and tokenizer"},
                      {"--merge", "", "convert with --hf-assets: adds the adapters of [lora] to the weights"}},
          .operand = "ls FOLDER | verify PATH | diff A B | convert FROM TO",
          .most_operands = 3};
}

std::string dashed(const std::string& name) { return (name.size() == 1 ? "-" : "--") + name; }

}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {
      {.name = "train",
       .usage = "--config F [--section.key value ...] [--print-config]",
       .summary = "train on this rank, of torchrun's environment",
       .options = {{"--print-config", "", "print a config file that reproduces the run, with all keys, and end"}},
       .takes_config = true},
      launch_command(),
      inspect_command(),
      plan_command(),
      simulate_command(),
      calibrate_command(),
      report_command(),
      opt_command(),
      tokenize_command(),
      tokenizer_command(),
      checkpoint_command(),
      {.name = "export",
       .usage = "CHECKPOINT OUT [--archive model.pt2] [--format pt2 | safetensors | peft] [--dtype D] [--merge]",
       .summary = "a trained model for Python: an archive that torch.export.load runs, a state dict, or adapters",
       .options =
           {{"--archive", "FILE", "of a run of model.name = exported, the archive that it trained (model.path)"},
            {"--format", "F",
             "pt2: an archive, of --archive a copy; safetensors: its parameters and buffers by name; peft: a folder "
             "with the adapters of [lora] [pt2]"},
            {"--dtype", "D", "pt2 of a llama3 or gpt model: float32, bfloat16 or float16 [as trained]"},
            {"--merge", "", "adds the adapters of [lora] to the weights"},
            {"--hf-assets", "FOLDER",
             "peft: of a llama3 or gpt model, a folder with its config.json, whose names the adapters get"}},
       .operand = "CHECKPOINT OUT",
       .most_operands = 2},
      {.name = "doctor",
       .usage = "[--flight DIR]",
       .summary = "what this machine has and lacks, or why a run hung",
       .options = {{"--flight", "DIR", "explains the flight records of a run that failed: who held up whom"}}}};
  return all;
}

const Command& find_command(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : commands()) {
    if (command.name == name) return command;
    names.push_back(command.name);
  }
  throw UserError(concat("no command ", name, "\n  expected ", join(names, ", "), did_you_mean(name, names)));
}

std::string help_of(const Command& command) {
  std::string text = concat("usage: sfsdp ", command.name, " ", command.usage, "\n", command.summary, "\n\n");
  if (command.name == "train") return text + describe(command.options) + train::describe_flags();
  if (command.takes_config) text += describe(std::vector<Option>{train::key_options().front()});
  text += describe(command.options);
  if (command.takes_config) text += "\nAnd each key of train, --section.key value; sfsdp train --help lists them.\n";
  return text;
}

std::string help_of_all() {
  std::string text = "usage: sfsdp <command> ...\n";
  for (const Command& command : commands())
    text += concat("  ", command.name, std::string(12 - command.name.size(), ' '), command.summary, "\n");
  return text + "sfsdp <command> --help says what it takes; sfsdp --version\n";
}

bool Request::has(const std::string& name) const { return own.has(dashed(name)); }
std::string Request::get(const std::string& name, const std::string& fallback) const {
  return own.get(dashed(name), fallback);
}
std::vector<std::string> Request::all(const std::string& name) const { return own.all(dashed(name)); }

namespace {

// A degree that --mesh gives has no other value beside it.
void check_once(const std::string& mesh, const std::vector<std::string>& degrees,
                const std::vector<GivenOption>& options) {
  for (const GivenOption& option : options) {
    const auto same =
        std::ranges::find_if(degrees, [&](const std::string& degree) { return degree.starts_with(option.name + "="); });
    if (same != degrees.end() && *same != concat(option.name, "=", option.value))
      throw UserError(concat("--mesh ", mesh, " beside ", option.name, " ", option.value,
                             "\n  expected the same, or one of them; --mesh stands for ", *same));
  }
}

}  // namespace

Request parse_request(const Command& command, std::span<const std::string> args) {
  Syntax syntax = {"sfsdp " + command.name, command.options, command.operand, command.rest, command.most_operands};
  if (command.takes_config) {
    const auto keys = train::key_options();
    syntax.options.insert(syntax.options.end(), keys.begin(), keys.end());
  }
  Arguments arguments = parse_arguments(args, syntax);
  if (!arguments.errors.empty()) throw UserError(join(arguments.errors, "\n"));
  Request request;
  request.args.assign(args.begin(), args.end());
  for (const GivenOption& option : arguments.options) {
    if (option.name == "--mesh") {
      const train::MeshFlags mesh = train::mesh_flags(option.value);
      check_once(option.value, mesh.flags, arguments.options);
      request.config_args.insert(request.config_args.end(), mesh.flags.begin(), mesh.flags.end());
      request.world = mesh.world;
    } else if (std::ranges::find(command.options, option.name, &Option::name) == command.options.end()) {
      request.config_args.push_back(concat(option.name, "=", option.value));
    }
  }
  request.own = std::move(arguments);
  if (request.has("world")) request.world = number_of("--world", request.get("world"), 1, kMost);
  return request;
}

std::string choice_of(const Request& request, const std::string& name, const std::vector<std::string>& choices) {
  const std::string got = request.get(name, choices.front());
  if (std::ranges::find(choices, got) == choices.end())
    throw UserError(concat("--", name, " = ", got, "\n  expected ", join(choices, " or "), did_you_mean(got, choices)));
  return got;
}

int64_t number_of(const std::string& name, const std::string& text, int64_t low, int64_t high) {
  const auto value = parse_int(text);
  if (value && *value >= low && *value <= high) return *value;
  throw UserError(concat(name, " = ", text, "\n  expected a number ",
                         high == kMost ? concat("of at least ", low) : concat("from ", low, " to ", high)));
}

train::JobConfig config_of(const Request& request) {
  train::JobConfig config = train::load_config(request.config_args);
  if (config.parallelism.fsdp_machine.empty()) config.parallelism.fsdp_machine = request.get("machine");
  return config;
}

int run_command(const Command& command, std::span<const std::string> args, const Run& run, std::ostream& out,
                std::ostream& err) {
  const auto own = args.first(static_cast<size_t>(std::ranges::find(args, "--") - args.begin()));
  if (std::ranges::find(own, "--help") != own.end() || std::ranges::find(own, "-h") != own.end()) {
    out << help_of(command);
    return 0;
  }
  try {
    return run(parse_request(command, args), out, err);
  } catch (const std::exception& error) {
    err << "error: " << (command.takes_config ? train::with_keys(error.what()) : error.what()) << '\n';
    return dynamic_cast<const UserError*>(&error) ? 2 : 1;
  }
}

}  // namespace sfsdp::tools
