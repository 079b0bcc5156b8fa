// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/config/config_resolve.h"

#include <doctest/doctest.h>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/train/config/step_setup.h"

namespace sfsdp::train::config_resolve_test {
namespace {

TEST_CASE("gradients and moments of another dtype than the parameters are refused by train, by name") {
  JobConfig config;
  CHECK_FALSE(grad_dtype(config));
  CHECK_FALSE(state_dtype(config));
  config.optimizer.state_dtype = "float32";  // as the parameters
  CHECK_FALSE(state_dtype(config));
  check_trained(config);
  config.optimizer.state_dtype = "int8";
  CHECK(state_dtype(config) == ir::DType::i8);
  CHECK_THROWS_WITH_AS(check_trained(config),
                       doctest::Contains("optimizer.state_dtype = int8 with training.dtype = float32"), UserError);
  config.optimizer.state_dtype = "parameters";
  config.training.grad_dtype = "float32";
  config.training.dtype = "bfloat16";
  CHECK(grad_dtype(config) == ir::DType::f32);
  CHECK_THROWS_WITH_AS(check_trained(config), doctest::Contains("training.grad_dtype = float32"), UserError);
}

}  // namespace
TEST_CASE(
    "config_resolve: the mesh has the data axes, dp_replicate outside dp_shard, a view of both, and tp innermost") {
  const auto mesh = [](int64_t replicate, int64_t shard, int64_t world) {
    Parallelism parallelism;
    parallelism.data_parallel_replicate_degree = replicate;
    parallelism.data_parallel_shard_degree = shard;
    return make_mesh(parallelism, world);
  };
  CHECK(to_string(mesh(1, -1, 8)) == "[dp_shard=8]");
  CHECK(to_string(mesh(2, -1, 8)) == "[dp_replicate=2, dp_shard=4]");
  CHECK(to_string(mesh(4, 1, 4)) == "[dp_replicate=4, dp_shard=1]");
  CHECK(to_string(mesh(1, -1, 1)) == "[dp_shard=1]");
  CHECK(mesh(2, 4, 8).size("dp") == 8);
  Parallelism tensor;
  tensor.tensor_parallel_degree = 2;
  CHECK(to_string(make_mesh(tensor, 8)) == "[dp_shard=4, tp=2]");
  CHECK(to_string(make_mesh(tensor, 2)) == "[dp_shard=1, tp=2]");
  tensor.tensor_parallel_degree = 3;
  CHECK_THROWS_WITH_AS(make_mesh(tensor, 8), doctest::Contains("--parallelism.tensor_parallel_degree 2"), UserError);
  CHECK_THROWS_WITH_AS(mesh(1, 4, 8), doctest::Contains("expected degrees that multiply to 8"), UserError);
  CHECK_THROWS_AS(mesh(3, -1, 8), UserError);
}

TEST_CASE("config_resolve: what tensor_parallel_degree cuts is the model's plan, or tensor_parallel_plan") {
  JobConfig config;
  CHECK(tensor_parallel_of(config).rules.empty());
  config.parallelism.tensor_parallel_degree = 2;
  const TensorParallel llama = tensor_parallel_of(config);
  REQUIRE(!llama.rules.empty());
  CHECK(llama.rules[0].pattern == "*.experts.w1|w3");
  CHECK(llama.rules[2].pattern == "*.wq|wk|wv|w1|w3");
  for (const TensorParallelRule& rule : llama.rules) CHECK(rule.may_name_nothing);  // such as experts, in a dense model
  CHECK(llama.options.sequence_parallel);
  CHECK(llama.options.async_products == AsyncProducts::Off);
  config.parallelism.enable_async_tensor_parallel = true;
  CHECK(tensor_parallel_of(config).options.async_products == AsyncProducts::WhereFaster);
  config.parallelism.async_tensor_parallel_sites = "all";
  CHECK(tensor_parallel_of(config).options.async_products == AsyncProducts::Everywhere);
  config.parallelism.tensor_parallel_degree = 1;  // compile says that there is nothing to send
  CHECK(tensor_parallel_of(config).options.async_products == AsyncProducts::Everywhere);
  config.parallelism.tensor_parallel_degree = 2;
  config.parallelism.tensor_parallel_plan = {"*.q_proj|k_proj = 0", "*.o_proj=1", "*.c_attn=0 : 3"};
  config.parallelism.enable_sequence_parallel = false;
  const TensorParallel own = tensor_parallel_of(config);
  REQUIRE(own.rules.size() == 3);
  CHECK(own.rules[0].pattern == "*.q_proj|k_proj");
  CHECK(own.rules[0].cut.dim == 0);
  CHECK(own.rules[1].cut == Shard(1));
  CHECK(own.rules[2].cut == Shard(0, {.blocks = 3}));
  CHECK_FALSE(own.rules[1].may_name_nothing);
  CHECK_FALSE(own.options.sequence_parallel);
  config.parallelism.tensor_parallel_constraints = {"norm = whole", "layers.*.attention=1"};
  const std::vector<Constraint> constraints = tensor_parallel_of(config).options.constraints;
  REQUIRE(constraints.size() == 2);
  CHECK(to_string(constraints[0]) == "constrain(\"norm\", Replicate())");
  CHECK(to_string(constraints[1]) == "constrain(\"layers.*.attention\", Shard(1))");
  for (const char* wrong : {"norm", "norm=-1", "=whole", "norm=none"}) {
    config.parallelism.tensor_parallel_constraints = {wrong};
    CHECK_THROWS_WITH_AS(tensor_parallel_of(config), doctest::Contains("= and a dimension or whole"), UserError);
  }
  config.parallelism.tensor_parallel_constraints = {};
  CHECK(with_keys("TensorParallelOptions::async_products: no product") ==
        "parallelism.enable_async_tensor_parallel: no product");
  CHECK(with_keys("tensor_parallel: constrain(\"n\", Replicate()) names no module") ==
        "parallelism.tensor_parallel_constraints: constrain(\"n\", Replicate()) names no module");
  for (const char* wrong :
       {"*.q_proj", "*.q_proj=-1", "=0", "*.q_proj=x", "*.c_attn=0:0", "*.c_attn=0:", "*.c_attn=:3"}) {
    config.parallelism.tensor_parallel_plan = {wrong};
    CHECK_THROWS_WITH_AS(tensor_parallel_of(config), doctest::Contains("expected a pattern, = and a dimension"),
                         UserError);
  }
  config.parallelism.tensor_parallel_plan = {};
  config.model.name = "exported";
  CHECK_THROWS_WITH_AS(tensor_parallel_of(config), doctest::Contains("with model exported: nothing says which"),
                       UserError);
}

TEST_CASE("config_resolve: checkpoint.initial_load_in_hf_quantized = true is what always holds, and false is told so") {
  const auto notes = [](const char* flag) { return load_config(std::vector<std::string>{flag}).notes; };
  CHECK(notes("--checkpoint.initial_load_in_hf_quantized").empty());
  CHECK(
      notes("--checkpoint.initial_load_in_hf_quantized=false") ==
      std::vector<std::string>{"--checkpoint.initial_load_in_hf_quantized = false changes nothing: float8 in blocks is "
                               "read as the numbers that it stands for wherever config.json has quantization_config"});
}

TEST_CASE("config_resolve: expert_tensor_parallel_degree beside ep is tensor_parallel_degree, and nothing else") {
  const auto load = [](const char* degree, const char* ep, const char* tp) {
    return load_config(std::vector<std::string>{"--parallelism.expert_tensor_parallel_degree", degree,
                                                "--parallelism.expert_parallel_degree", ep,
                                                "--parallelism.tensor_parallel_degree", tp});
  };
  CHECK(load("2", "2", "2").notes.empty());
  CHECK(load("1", "2", "1").notes.empty());
  CHECK(load("None", "2", "2").notes.empty());
  for (const char* degree : {"1", "4"}) {
    const std::string expected =
        concat("parallelism.expert_tensor_parallel_degree = ", degree,
               " with parallelism.expert_parallel_degree = 2 and parallelism.tensor_parallel_degree = 2\n  expected 2: "
               "ranks of tensor_parallel_degree have parts of the same experts; or leave it out");
    CHECK_THROWS_WITH_AS(load(degree, "2", "2"), expected.c_str(), UserError);
  }
  CHECK_THROWS_WITH_AS(load("2", "2", "1"), doctest::Contains("expected 1: ranks"), UserError);
  // Without ep experts are cut as all else is, which TorchTitan's default of 1 does not deny.
  CHECK(load("1", "1", "2").notes.empty());
  CHECK(load("4", "1", "2").notes ==
        std::vector<std::string>{"parallelism.expert_tensor_parallel_degree changes nothing: "
                                 "parallelism.expert_parallel_degree is 1"});
}

TEST_CASE(
    "config_resolve: a list of what is kept is the pass's, and a list without its mode is said to change nothing") {
  JobConfig config = load_config(std::vector<std::string>{
      "--activation_checkpoint.mode=selective", "--activation_checkpoint.selective_ac_option=op",
      "--activation_checkpoint.save=linear,attention.wq",
      "--activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns=feed_forward.w1"});
  const passes::RematOptions remat = remat_of(config.activation_checkpoint);
  CHECK(remat.save == "linear,attention.wq");
  CHECK(remat.mm_again_of == "feed_forward.w1");
  CHECK(config.notes.empty());
  config = load_config(std::vector<std::string>{"--activation_checkpoint.save=linear"});
  REQUIRE(config.notes.size() == 1);
  CHECK(config.notes[0].starts_with("activation_checkpoint.save changes nothing"));
}

TEST_CASE(
    "config_resolve: tokens of a document go to the pass that names attention, and need documents that are apart") {
  JobConfig config =
      load_config(std::vector<std::string>{"--training.document_mask", "--training.document_tokens=512"});
  CHECK(config.notes.empty());
  CHECK(step_setup(config, 1).options.pipeline.canonical.document_tokens == 512);
  config = load_config(std::vector<std::string>{"--training.document_tokens=512"});
  REQUIRE(config.notes.size() == 1);
  CHECK(config.notes[0].starts_with("training.document_tokens = 512 changes nothing"));
  const std::vector<std::string> longer = {"--training.document_mask", "--training.document_tokens=513",
                                           "--training.seq_len=512"};
  CHECK_THROWS_WITH_AS(load_config(longer), doctest::Contains("document_tokens = 513 with training.seq_len = 512"),
                       UserError);
}

TEST_CASE("config_resolve: a key of a model axis that the mesh does not have is said to change nothing") {
  const auto notes = [](std::vector<std::string> flags) { return load_config(flags).notes; };
  for (const auto& [flag, degree] : {std::pair{"tensor_parallel_plan=*.wq=0", "tensor_parallel_degree"},
                                     {"tensor_parallel_constraints=norm=whole", "tensor_parallel_degree"},
                                     {"disable_loss_parallel", "tensor_parallel_degree"},
                                     {"context_parallel_load_balancer=none", "context_parallel_degree"},
                                     {"context_parallel_rotate_method=ring", "context_parallel_degree"},
                                     {"expert_parallel_capacity=1.25", "expert_parallel_degree"},
                                     {"expert_parallel_dispatch=gather", "expert_parallel_degree"}}) {
    const std::string given = concat("--parallelism.", flag);
    const std::string_view key = std::string_view(flag).substr(0, std::string_view(flag).find('='));
    CHECK(notes({given}) ==
          std::vector{concat("parallelism.", key, " changes nothing: parallelism.", degree, " is 1")});
    CHECK(notes({given, concat("--parallelism.", degree, "=2")}).empty());
  }
  const std::string sites = "--parallelism.async_tensor_parallel_sites=all";
  CHECK(notes({sites}) == std::vector<std::string>{"parallelism.async_tensor_parallel_sites = all changes nothing: "
                                                   "parallelism.enable_async_tensor_parallel is false"});
  CHECK(notes({sites, "--parallelism.enable_async_tensor_parallel"}).empty());
}

TEST_CASE("config_resolve: a rank or an alpha of adapters without modules that take some is refused") {
  for (const char* key : {"lora.rank", "lora.alpha"}) {
    const std::vector<std::string> flags = {concat("--", key, "=4")};
    CHECK_THROWS_WITH_AS(load_config(flags), doctest::Contains(concat(key, " without lora.target").c_str()), UserError);
    CHECK(load_config(std::vector<std::string>{flags[0], "--lora.target=*.wq"}).notes.empty());
  }
}

TEST_CASE(
    "config_resolve: an archive is read by model.name = exported, which needs one, and its tensors by nothing else") {
  const auto load = [](std::vector<std::string> flags) { return load_config(flags); };
  const auto refused = [&](std::vector<std::string> flags, const char* with) {
    CHECK_THROWS_WITH_AS(load(std::move(flags)), doctest::Contains(with), UserError);
  };
  refused({"--model.name=exported"}, "model.path is empty");
  refused({"--model.name=exported", "--model.path=m.pt2", "--model.loss=a", "--model.logits=b"}, "expected one");
  refused({"--model.name=exported", "--model.path=m.pt2", "--model.prediction=a", "--model.logits=b"}, "expected one");
  CHECK(load({"--model.path=m.pt2"}).notes ==
        std::vector<std::string>{
            "model.path, inputs, loss, logits, prediction and eval_path change nothing: they belong to"
            " model.name = exported, not llama3"});
  refused({"--training.dataset=tensors", "--training.dataset_path=b"}, "expected --model.name exported");
  const std::vector<std::string> tensors = {"--model.name=exported", "--model.path=m.pt2", "--training.dataset=tensors",
                                            "--training.dataset_path=b"};
  CHECK(load(tensors).training.seq_len == 1);
  std::vector<std::string> mixed = tensors;
  for (const char* flag : {"--validation.enable", "--validation.dataset=tokens", "--validation.dataset_path=v"})
    mixed.emplace_back(flag);
  refused(mixed, "expected tensors for both");
}

}  // namespace sfsdp::train::config_resolve_test
