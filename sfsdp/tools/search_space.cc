// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/search_space.h"

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/type.h"
#include "sfsdp/train/config/config_fields.h"
#include "sfsdp/train/config/config_resolve.h"

namespace sfsdp::tools {
namespace {

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= n; ++d)
    if (n % d == 0) all.push_back(d);
  return all;
}

std::string mesh_of(const Candidate& c) {
  return concat("dp_replicate=", c.replicate, ",dp_shard=", c.shard / c.axes.expert,
                c.axes.expert > 1 ? concat(",ep=", c.axes.expert) : "",
                c.axes.context > 1 ? concat(",cp=", c.axes.context) : "",
                c.axes.tensor > 1 ? concat(",tp=", c.axes.tensor) : "");
}

// Stages and whether parameters are gathered again: those that differ on a mesh of so many shards.
std::vector<std::pair<int64_t, bool>> stages_of(int64_t shard) {
  if (shard == 1) return {{0, true}};
  return {{1, true}, {2, true}, {3, true}, {3, false}};
}

train::JobConfig with_axes(train::JobConfig config, const ModelAxes& axes) {
  config.parallelism.tensor_parallel_degree = axes.tensor;
  config.parallelism.enable_async_tensor_parallel &= axes.tensor > 1;
  config.parallelism.context_parallel_degree = axes.context;
  config.parallelism.expert_parallel_degree = axes.expert;
  return config;
}

}  // namespace

Choices choices_of(const Candidate& c) {
  return {{{"mesh", mesh_of(c)},
           {"ZeRO stage", std::to_string(c.stage)},
           {"micro-batch", concat(c.local, " × ", c.accumulation)},
           {"remat", c.remat},
           {"reshard", c.stage < 3 ? "-"
                       : c.reshard ? "default"
                                   : "never"}}};
}

ModelAxes model_axes_of(const train::JobConfig& config) {
  return {config.parallelism.tensor_parallel_degree, config.parallelism.context_parallel_degree,
          config.parallelism.expert_parallel_degree};
}

std::vector<Candidate> search_space(const train::JobConfig& config, int64_t world, const ModelAxes& axes) {
  const train::Training& t = config.training;
  const auto data_ranks = [&](const ModelAxes& of) {
    const int64_t model = ir::saturating_product(of.tensor, of.context);
    if (world % model != 0) train::make_mesh(with_axes(config, of).parallelism, world);  // says what fits
    return world / model;
  };
  const int64_t ranks = data_ranks(axes);  // that have samples of their own
  const int64_t global =
      t.global_batch_size == -1 ? t.local_batch_size * data_ranks(model_axes_of(config)) : t.global_batch_size;
  if (global % ranks != 0)
    throw UserError(concat("training.global_batch_size = ", global, " on ", ranks,
                           axes.ranks() > 1 ? " data-parallel" : "", " ranks\n  expected a multiple of the ranks; try ",
                           (global / ranks + 1) * ranks));
  if (ranks % axes.expert != 0) train::make_mesh(with_axes(config, axes).parallelism, world);  // says what fits
  std::vector<Candidate> all;
  for (const int64_t shard : divisors(ranks)) {
    if (shard % axes.expert != 0) continue;
    for (const int64_t local : divisors(global / ranks))
      for (const auto& [stage, reshard] : stages_of(shard))
        for (const char* remat : {"none", "op", "full"})
          all.push_back({ranks / shard, shard, axes, stage, local, global / ranks / local, remat, reshard});
  }
  return all;
}

std::vector<Candidate> first_look(const train::JobConfig& config, int64_t world, const ModelAxes& axes) {
  std::vector<Candidate> all = search_space(config, world, axes);
  std::erase_if(all, [](const Candidate& c) {
    return c.replicate > 1 || (c.shard > 1 && (c.stage != 3 || !c.reshard)) || c.remat == "op" ||
           (c.local > 1 && c.accumulation > 1);
  });
  return all;
}

std::vector<int64_t> degrees_beside(int64_t other, int64_t world, int64_t ranks_of_node) {
  std::vector<int64_t> all = divisors(ranks_of_node);
  std::erase_if(all, [&](int64_t d) { return ranks_of_node % (d * other) != 0 || world % (d * other) != 0; });
  return all;
}

std::vector<int64_t> expert_degrees(const ModelAxes& axes, int64_t world, int64_t most) {
  std::vector<int64_t> all = divisors(world / axes.ranks());
  std::erase_if(all, [&](int64_t d) { return d > most; });
  return all;
}

train::JobConfig config_of(const train::JobConfig& base, const Candidate& c) {
  train::JobConfig config = with_axes(base, c.axes);
  config.parallelism.data_parallel_replicate_degree = c.replicate;
  config.parallelism.data_parallel_shard_degree = c.shard;
  config.parallelism.zero_stage = c.stage;
  config.parallelism.fsdp_reshard_after_forward = c.reshard ? "default" : "never";
  config.parallelism.fsdp_wrap = "manual";
  config.training.local_batch_size = c.local;
  config.training.global_batch_size = c.local * c.accumulation * c.replicate * c.shard;
  config.activation_checkpoint.mode = c.remat == "op" ? "selective" : c.remat;
  if (c.remat == "op") config.activation_checkpoint.selective_ac_option = "op";
  return config;
}

std::string json_of(const train::JobConfig& base, const Candidate& c) {
  const train::JobConfig config = config_of(base, c);
  std::string text = concat("{\"mesh\": ", json_quoted(mesh_of(c)));
  for (const char* key :
       {"parallelism.tensor_parallel_degree", "parallelism.context_parallel_degree",
        "parallelism.expert_parallel_degree", "parallelism.zero_stage", "parallelism.fsdp_reshard_after_forward",
        "parallelism.fsdp_wrap", "training.local_batch_size", "training.global_batch_size",
        "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"})
    text += concat(", ", json_quoted(key), ": ", train::literal(*train::find_field(key), config));
  return text + "}";
}

std::string structure_of(const Candidate& c) {
  return concat(c.axes.tensor, ' ', c.axes.context, ' ', c.axes.expert, ' ', c.replicate > 1, c.shard > 1,
                c.shard > c.axes.expert, c.accumulation > 1, ' ', c.stage, ' ', c.reshard, ' ', c.local, ' ', c.remat);
}

}  // namespace sfsdp::tools
