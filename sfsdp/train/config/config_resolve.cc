// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/config/config_resolve.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/type.h"
#include "sfsdp/models/tensor_parallel_plans.h"
#include "sfsdp/train/weights/hf_config.h"

namespace sfsdp::train {
namespace {

std::string nearest_degree(const char* key, int64_t degree, int64_t world_size) {
  if (degree == 1) return "";
  int64_t nearest = std::min(degree, world_size);
  while (world_size % nearest != 0) --nearest;
  return concat(" --parallelism.", key, "_parallel_degree ", nearest);
}
std::string degree_text(const char* key, int64_t degree) {
  return degree > 1 ? concat(", parallelism.", key, "_parallel_degree = ", degree) : "";
}

}  // namespace

DeviceMesh make_mesh(const Parallelism& parallelism, int64_t world_size) {
  SFSDP_CHECK(world_size >= 1, "world_size ", world_size);
  const int64_t replicate = parallelism.data_parallel_replicate_degree, tensor = parallelism.tensor_parallel_degree,
                context = parallelism.context_parallel_degree, expert = parallelism.expert_parallel_degree;
  int64_t shard = parallelism.data_parallel_shard_degree;
  const int64_t others = ir::saturating_product(replicate, ir::saturating_product(context, tensor));
  if (shard == -1 && world_size % others == 0) shard = world_size / others;
  if (shard == -1 || ir::saturating_product(others, shard) != world_size)
    throw UserError(concat("parallelism.data_parallel_replicate_degree = ", replicate,
                           ", parallelism.data_parallel_shard_degree = ", parallelism.data_parallel_shard_degree,
                           degree_text("context", context), degree_text("tensor", tensor), " on ", world_size,
                           " ranks\n  expected degrees that multiply to ", world_size,
                           "; try --parallelism.data_parallel_replicate_degree 1 "
                           "--parallelism.data_parallel_shard_degree -1",
                           nearest_degree("context", context, world_size),
                           nearest_degree("tensor", tensor, world_size / std::gcd(context, world_size))));
  std::vector<MeshAxis> axes;
  AxisList data_axes;
  if (replicate > 1) {
    axes.push_back({"dp_replicate", replicate});
    data_axes.push_back("dp_replicate");
  }
  if (shard % expert != 0) {
    int64_t nearest = std::min(expert, shard);
    while (shard % nearest != 0) --nearest;
    throw UserError(concat("parallelism.expert_parallel_degree = ", expert,
                           " with parallelism.data_parallel_shard_degree = ", shard,
                           "\n  expected a divisor of it; try --parallelism.expert_parallel_degree ", nearest));
  }
  axes.push_back({"dp_shard", shard / expert});
  data_axes.push_back("dp_shard");
  if (context > 1) axes.push_back({"cp", context});
  if (expert > 1) axes.push_back({"ep", expert});
  if (tensor > 1)
    axes.push_back({"tp", tensor});  // innermost: what it sends is the most, and in the way of each product
  DeviceMesh mesh(std::move(axes));
  mesh.add_view("dp", data_axes);
  return mesh;
}

MeshFlags mesh_flags(const std::string& text) {
  static const std::vector<std::string> kAxes = {"dp_replicate", "dp_shard", "ep", "cp", "tp"};
  const auto fail = [&](const std::string& what, const std::string& expected) {
    throw UserError(concat("--mesh ", text, ": ", what, "\n  expected ", expected));
  };
  MeshFlags mesh;
  std::vector<std::string> seen;
  std::vector<MeshAxis> axes;
  for (const std::string& part : split(text, ',')) {
    const size_t equals = part.find('=');
    const std::string axis(trim(part.substr(0, equals)));
    if (std::ranges::find(kAxes, axis) == kAxes.end())
      fail(concat("no axis ", axis), std::string("dp_replicate, dp_shard, ep, cp or tp") + did_you_mean(axis, kAxes));
    if (std::ranges::find(seen, axis) != seen.end()) fail(axis + " twice", "each axis once");
    seen.push_back(axis);
    const std::string size(equals == std::string::npos ? "" : trim(std::string_view(part).substr(equals + 1)));
    const auto ranks = parse_int(size);
    if (!ranks || *ranks < 1) fail(concat(axis, " = ", size), concat("a number of at least 1, as in ", axis, "=4"));
    axes.push_back({axis, *ranks});
  }
  const auto ranks_of = [&](const char* axis) {
    const auto found = std::ranges::find(axes, axis, &MeshAxis::name);
    return found == axes.end() ? int64_t{1} : found->size;
  };
  const auto add = [&](std::string_view key, int64_t degree) {
    mesh.flags.push_back(concat("--parallelism.", key, "_degree=", degree));
  };
  const int64_t shards = ir::saturating_product(ranks_of("dp_shard"), ranks_of("ep"));
  for (const MeshAxis& axis : axes) {
    if (axis.name == "dp_shard") add("data_parallel_shard", shards);
    if (axis.name == "dp_replicate") add("data_parallel_replicate", axis.size);
    if (axis.name == "ep") add("expert_parallel", axis.size);
    if (axis.name == "ep" && std::ranges::find(seen, "dp_shard") == seen.end()) add("data_parallel_shard", shards);
    if (axis.name == "cp") add("context_parallel", axis.size);
    if (axis.name == "tp") add("tensor_parallel", axis.size);
  }
  mesh.world = init_device_mesh(std::move(axes)).world_size();
  return mesh;
}

constexpr int64_t kMaxMicroBatches = int64_t{1} << 20;  // the verifier takes no more

int64_t given_rows(const Parallelism& parallelism, int64_t local_batch_size) {
  return local_batch_size * parallelism.expert_parallel_degree;
}

BatchShares share_batch(const Training& training, int64_t data_parallel_ranks) {
  const int64_t at_once = training.local_batch_size * data_parallel_ranks;
  const int64_t global = training.global_batch_size == -1 ? at_once : training.global_batch_size;
  if (global % at_once != 0)
    throw UserError(concat("training.global_batch_size = ", global,
                           "\n  expected a multiple of training.local_batch_size ", training.local_batch_size, " * ",
                           data_parallel_ranks, " data-parallel ranks; try ", (global / at_once + 1) * at_once));
  if (global / at_once > kMaxMicroBatches)
    throw UserError(concat("training.global_batch_size = ", global, ": ", global / at_once,
                           " micro-batches a step\n  expected at most ", at_once * kMaxMicroBatches, ": ",
                           kMaxMicroBatches, " micro-batches of ", at_once));
  return {training.local_batch_size, global, global / at_once};
}

namespace {

// The dtype that `text` names, unless parameters are kept in it.
std::optional<ir::DType> other_dtype(const std::string& text, const Training& training) {
  if (text == "parameters" || text == training.dtype) return {};
  if (text == "int8") return ir::DType::i8;
  return text == "bfloat16" ? ir::DType::bf16 : ir::DType::f32;
}

}  // namespace

std::optional<ir::DType> grad_dtype(const JobConfig& config) {
  return other_dtype(config.training.grad_dtype, config.training);
}

std::optional<ir::DType> state_dtype(const JobConfig& config) {
  return other_dtype(config.optimizer.state_dtype, config.training);
}

void check_trained(const JobConfig& config) {
  const auto refuse = [&](const char* key, const std::string& value) {
    throw UserError(
        concat(key, " = ", value, " with training.dtype = ", config.training.dtype,
               "\n  expected parameters: no kernel here updates by another dtype; sfsdp simulate and plan take it"));
  };
  if (grad_dtype(config)) refuse("training.grad_dtype", config.training.grad_dtype);
  if (state_dtype(config)) refuse("optimizer.state_dtype", config.optimizer.state_dtype);
}

std::string title_of(const Model& model) {
  if (model.name == "hf") return concat("hf ", model.hf_assets_path);
  if (model.name == "exported") return concat("exported ", std::filesystem::path(model.path).filename().string());
  return concat(model.name, ' ', model.flavor);
}

const std::string& compute_dtype(const Training& training) {
  return training.dtype == "bfloat16" ? training.dtype : training.mixed_precision_param;
}

passes::RematOptions remat_of(const ActivationCheckpoint& config) {
  using passes::RematMode;
  if (config.mode == "none" || config.mode == "auto" || config.mode == "as_exported") return {};
  if (config.mode == "full") return {.mode = RematMode::Full};
  if (config.mode == "memory_budget") return {.mode = RematMode::MemoryBudget, .memory_budget = config.memory_budget};
  if (config.selective_ac_option == "op")
    return {.mode = RematMode::Op,
            .mm_again = config.products_again,
            .mm_again_of = join(config.per_op_sac_force_recompute_mm_shapes_by_fqns, ","),
            .save = join(config.save, ",")};
  const auto every = parse_int(config.selective_ac_option);
  if (!every || *every < 1)
    throw UserError(concat("activation_checkpoint.selective_ac_option = ", config.selective_ac_option,
                           "\n  expected op, or a number k for every k-th block"));
  return {.mode = RematMode::Full, .every = *every};
}

std::optional<cost::Attention> attention_of(const Model& model) { return cost::find_attention(model.attention); }

tune::TuneOptions tune_of(const JobConfig& config) {
  const Parallelism& p = config.parallelism;
  tune::TuneOptions tune;
  tune.wrap = p.fsdp_wrap == "search" ? tune::Wrap::Search
              : p.fsdp_wrap == "auto" ? tune::Wrap::Auto
                                      : tune::Wrap::Manual;
  tune.choose_reshard = p.fsdp_reshard_after_forward == "auto";
  tune.choose_remat = config.activation_checkpoint.mode == "auto";
  tune.machine = p.fsdp_machine;
  tune.attention = attention_of(config.model);
  tune.memory_gib = p.fsdp_memory_gib;
  return tune;
}

namespace {

// no_decay and lr_factors, each in its order: a parameter takes its decay from one and its factor from another.
std::vector<ParamGroup> param_groups_of(const Optimizer& config) {
  std::vector<ParamGroup> groups;
  for (const std::string& pattern : config.no_decay) groups.push_back({pattern, 0.0, std::nullopt});
  for (const std::string& entry : config.lr_factors) {
    const size_t equals = entry.rfind('=');
    const double factor =
        equals == std::string::npos ? -1 : parse_double(trim(std::string_view(entry).substr(equals + 1))).value_or(-1);
    const std::string pattern(trim(std::string_view(entry).substr(0, equals)));
    if (factor < 0 || pattern.empty())
      throw UserError(concat("optimizer.lr_factors: ", entry,
                             "\n  expected a pattern, = and a factor of at least 0, such as tok_embeddings.*=0.1"));
    groups.push_back({pattern, std::nullopt, factor});
  }
  return groups;
}

}  // namespace

ContextParallelOptions context_parallel_of(const JobConfig& config) {
  const Parallelism& p = config.parallelism;
  const RotateMethod method = p.context_parallel_rotate_method == "alltoall" ? RotateMethod::AllToAll
                              : p.context_parallel_rotate_method == "ring"   ? RotateMethod::Ring
                              : p.context_parallel_rotate_method == "auto"   ? RotateMethod::Auto
                                                                             : RotateMethod::AllGather;
  return {.load_balance = p.context_parallel_load_balancer == "headtail", .rotate_method = method};
}

ExpertParallelOptions expert_parallel_of(const JobConfig& config) {
  const std::string& method = config.parallelism.expert_parallel_dispatch;
  return {.dispatch = method == "gather"     ? DispatchMethod::Gather
                      : method == "exchange" ? DispatchMethod::Exchange
                                             : DispatchMethod::Auto,
          .capacity = config.parallelism.expert_parallel_capacity};
}

namespace {

// What stands before the last =.
std::string pattern_of(const std::string& entry) {
  return std::string(trim(std::string_view(entry).substr(0, entry.rfind('='))));
}

// Of "*.c_attn=0:3" dimension 0, of each of 3 blocks.
Shard shard_of(const std::string& entry) {
  const size_t equals = entry.rfind('=');
  const std::string_view text = equals == std::string::npos ? "" : std::string_view(entry).substr(equals + 1);
  const size_t colon = text.find(':');
  const int64_t dim = parse_int(trim(text.substr(0, colon))).value_or(-1);
  const int64_t blocks = colon == std::string_view::npos ? 1 : parse_int(trim(text.substr(colon + 1))).value_or(0);
  if (dim < 0 || blocks < 1 || pattern_of(entry).empty())
    throw UserError(
        concat("parallelism.tensor_parallel_plan: ", entry,
               "\n  expected a pattern, = and a dimension, such as *.wq|wk|wv=0, or with blocks that are side "
               "by side there, as q, k and v in *.c_attn=0:3"));
  return Shard(dim, {.blocks = blocks});
}

}  // namespace

TensorParallel tensor_parallel_of(const JobConfig& config) {
  const Parallelism& p = config.parallelism;
  AsyncProducts async = AsyncProducts::Off;
  if (p.enable_async_tensor_parallel)
    async = p.async_tensor_parallel_sites == "all" ? AsyncProducts::Everywhere : AsyncProducts::WhereFaster;
  if (p.tensor_parallel_degree == 1) return {.options = {.async_products = async}};
  std::string model = config.model.name;
  const bool is_own = !p.tensor_parallel_plan.empty();
  if (model == "hf" && !is_own) model = read_hf_config(config.model.hf_assets_path).model;
  const std::vector<std::string> plan = is_own ? p.tensor_parallel_plan : models::tensor_parallel_plan(model);
  if (plan.empty())
    throw UserError(concat("parallelism.tensor_parallel_degree = ", p.tensor_parallel_degree, " with model ", model,
                           ": nothing says which weights are cut\n  expected parallelism.tensor_parallel_plan, such as "
                           "[\"*.q_proj|k_proj|v_proj=0\", \"*.o_proj=1\"]"));
  std::vector<TensorParallelRule> rules;
  for (const std::string& entry : plan) rules.push_back({pattern_of(entry), shard_of(entry), !is_own});
  std::vector<Constraint> constraints;
  for (const std::string& entry : p.tensor_parallel_constraints) {
    const size_t equals = entry.rfind('=');
    const std::string_view text(entry);
    const std::string_view place = equals == std::string::npos ? "" : trim(text.substr(equals + 1));
    const int64_t dim = parse_int(place).value_or(-1);
    const std::string pattern(trim(text.substr(0, equals)));
    if ((dim < 0 && place != "whole") || pattern.empty())
      throw UserError(concat("parallelism.tensor_parallel_constraints: ", entry,
                             "\n  expected a pattern of modules, = and a dimension or whole, such as norm=whole"));
    constraints.push_back(dim < 0 ? constrain(pattern, Replicate()) : constrain(pattern, Shard(dim)));
  }
  return tensor_parallel(std::move(rules), {.sequence_parallel = p.enable_sequence_parallel,
                                            .loss_parallel = !p.disable_loss_parallel,
                                            .constraints = std::move(constraints),
                                            .async_products = async});
}

sfsdp::Optimizer optimizer_of(const Optimizer& config) {
  const std::vector<ParamGroup> groups = param_groups_of(config);
  if (config.name == "SGD") return SGD{config.lr, config.momentum, config.weight_decay, groups};
  if (config.name == "Adam")
    return Adam{config.lr, config.beta1, config.beta2, config.eps, config.weight_decay, groups};
  return AdamW{config.lr, config.beta1, config.beta2, config.eps, config.weight_decay, groups};
}

LrScheduleOptions schedule_of(const JobConfig& config) {
  const LrScheduler& s = config.lr_scheduler;
  return {config.optimizer.lr,
          s.total_steps.value_or(config.training.steps),
          s.warmup_steps,
          s.decay_ratio,
          parse_decay_type(s.decay_type),
          s.min_lr_factor};
}

std::string with_keys(std::string message) {
  // Longer names before those that they begin with. scripts/check_words.sh looks for names without a row.
  constexpr std::pair<std::string_view, std::string_view> kKeys[] = {
      {"MixedPrecisionPolicy::reduce_dtype", "training.mixed_precision_reduce"},
      {"Adam::", "optimizer."},
      {"AdamW::", "optimizer."},
      {"SGD::", "optimizer."},
      {"CompileOptions::max_norm", "training.max_norm"},
      {"ContextParallelOptions::load_balance", "parallelism.context_parallel_load_balancer"},
      {"ContextParallelOptions::rotate_method", "parallelism.context_parallel_rotate_method"},
      {"ContextParallelOptions::sequence_dims", "the program's sequence_dims"},
      {"DataParallelOptions::batch_dims", "the program's batch_dims"},
      {"DataParallelOptions::layout", "parallelism.fsdp_layout"},
      {"ParameterLayout::Dim0", "dim0"},
      {"ParameterLayout::Flat", "flat"},
      {"DataParallelOptions::min_shard_numel", "parallelism.min_shard_numel"},
      {"DataParallelOptions::units", "parallelism.fsdp_units"},
      {"DataParallelOptions::zero_stage", "parallelism.zero_stage"},
      {"freeze: pattern", "model.frozen"},
      {"LoraOptions::targets", "lora.target"},
      {"LoraOptions::", "lora."},
      {"GptArgs::", "model.args."},
      {"Llama3Args::", "model.args."},
      {"DeepSeekV3Args::", "model.args."},
      {"Yarn::factor", "model.args.rope_factor"},
      {"Yarn::", "model.args."},
      {"RopeScaling::factor", "model.args.rope_scaling_factor"},
      {"RopeScaling::", "model.args.rope_"},
      {"ModelSpec::", "model."},
      {"ParamGroup::pattern", "optimizer.no_decay or optimizer.lr_factors"},
      {"ParamGroup::weight_decay", "optimizer.no_decay"},
      {"ParamGroup::lr_factor", "optimizer.lr_factors"},
      {"the sequence length", "training.seq_len"},
      {"PipelineOptions::loss_chunks", "training.loss_chunks"},
      {"context_parallel: ", "parallelism.context_parallel_degree: "},
      {"expert_parallel: ", "parallelism.expert_parallel_degree: "},
      {"DispatchMethod::Auto", "parallelism.expert_parallel_dispatch = auto"},
      {"DispatchMethod::Gather", "parallelism.expert_parallel_dispatch = gather"},
      {"DispatchMethod::Exchange", "parallelism.expert_parallel_dispatch = exchange"},
      {"ExpertParallelOptions::capacity", "parallelism.expert_parallel_capacity"},
      {"ExpertParallelOptions::experts", "the program's experts"},
      {"tensor_parallel: constrain(", "parallelism.tensor_parallel_constraints: constrain("},
      {"TensorParallelOptions::async_products", "parallelism.enable_async_tensor_parallel"},
      {"TensorParallelOptions::sequence_parallel", "parallelism.enable_sequence_parallel"},
      {"AsyncProducts::Off", "parallelism.enable_async_tensor_parallel = false"},
      {"mesh axis tp", "parallelism.tensor_parallel_degree"},
      {"tensor_parallel: ", "parallelism.tensor_parallel_plan: "},
      {"RematOptions::save", "activation_checkpoint.save"},
      {"RematOptions::blocks", "activation_checkpoint.mode = as_exported"},
      {"RematOptions::memory_budget", "activation_checkpoint.memory_budget"},
      {"TcpOptions::listen", "comm.listen"},
      {"TcpOptions::shared_memory", "comm.shared_memory"},
      {"TuneOptions::choose_remat", "activation_checkpoint.mode = auto"},
      {"TuneOptions::machine", "parallelism.fsdp_machine"},
      {"TuneOptions::wrap", "parallelism.fsdp_wrap"},
      {"Wrap::Auto", "auto"},
      {"Wrap::Manual", "manual"},
      {"Wrap::Search", "search"}};
  for (const auto& [name, key] : kKeys)
    for (size_t at = 0; (at = message.find(name, at)) != std::string::npos;) {
      const bool ends_a_word = at > 0 && message[at - 1] == '_';  // a key that is there already
      if (!ends_a_word) message.replace(at, name.size(), key);
      at += ends_a_word ? name.size() : key.size();
    }
  return message;
}

std::string initial_hf_folder(const JobConfig& config) {
  const Checkpoint& c = config.checkpoint;
  if (c.initial_load_in_hf) return c.initial_load_path.value_or(config.model.hf_assets_path);
  return "";
}

}  // namespace sfsdp::train
