// SPDX-License-Identifier: BSD-3-Clause
// State that tensor parallelism cuts into boxes, out of and into every file: checkpoints, Hugging Face folders, archives, adapters.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/lora.h"
#include "sfsdp/models/deepseek_v3/deepseek_v3.h"
#include "sfsdp/step/write_pt2.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/eager_torch.h"
#include "sfsdp/testing/memory_folder.h"
#include "sfsdp/testing/tiny_models_torch.h"
#include "sfsdp/train/checkpoint/load.h"
#include "sfsdp/train/checkpoint/saver.h"
#include "sfsdp/train/exported_job.h"
#include "sfsdp/train/job.h"
#include "sfsdp/train/trained_parameters_torch.h"
#include "sfsdp/train/weights/hf_config_json.h"
#include "sfsdp/train/weights/hf_weights.h"
#include "sfsdp/train/weights/safetensors_header.h"

namespace sfsdp::train {
namespace boxes_torch_test {

using testing::kAdamW, testing::kGlobalBatch, testing::loss_of, testing::MemoryFolder;

DeviceMesh mesh_of(int64_t replicas, int64_t shards, int64_t tp) {
  return init_device_mesh({{"dp_replicate", replicas}, {"dp_shard", shards}, {"tp", tp}});
}
DeviceMesh mesh_with_cp(int64_t replicas, int64_t shards, int64_t cp, int64_t tp) {
  return init_device_mesh({{"dp_replicate", replicas}, {"dp_shard", shards}, {"cp", cp}, {"tp", tp}});
}
std::vector<DeviceMesh> fourteen_meshes() {
  return {mesh_of(1, 1, 1),         mesh_of(2, 1, 1),        mesh_of(1, 2, 1),         mesh_of(1, 1, 2),
          mesh_of(1, 1, 4),         mesh_of(1, 2, 2),        mesh_of(2, 1, 2),         mesh_of(1, 4, 1),
          mesh_of(2, 2, 2),         mesh_of(1, 2, 4),        mesh_with_cp(1, 1, 2, 1), mesh_with_cp(1, 1, 2, 2),
          mesh_with_cp(1, 2, 2, 1), mesh_with_cp(2, 1, 2, 2)};
}

const TensorParallel kGptRules =
    tensor_parallel({{"*.c_attn", Shard(0, {.blocks = 3})}, {"*.c_fc", Shard(0)}, {"*.c_proj", Shard(1)}});
const std::map<std::string, HfConfig::Value> kGptArgs = {{"dim", int64_t{20}},
                                                         {"n_layers", int64_t{2}},
                                                         {"n_heads", int64_t{4}},
                                                         {"vocab_size", int64_t{29}},
                                                         {"max_positions", int64_t{16}}};

const TensorParallel kLlamaRules = tensor_parallel({{"*.wq|wk|wv|w1|w3", Shard(0)}, {"*.wo|w2", Shard(1)}});

models::Llama3 make_wide_llama() {  // whose FFN four ranks divide
  models::Llama3Args args = testing::tiny_llama();
  args.hidden_dim = 36;
  return models::Llama3(args);
}

template <class Make>
std::shared_ptr<Program> program_of(Make make, const DeviceMesh& mesh, const TensorParallel& rules, uint64_t seed = 7) {
  Strategy strategy = data_parallel(mesh, {}, rules);
  CompileOptions options;
  options.max_norm = 0.5;
  options.seed = seed;
  const Batch batch = testing::tokens(0, 0, kGlobalBatch / strategy.data_ranks());
  return compile_program(meta_init(make), loss_of, kAdamW, batch, std::move(strategy), options);
}

using State = std::map<std::string, at::Tensor>;

void expect_same(const State& got, const State& expected) {
  CHECK(got.size() == expected.size());
  for (const auto& [name, value] : expected) {
    CAPTURE(name);
    REQUIRE(got.contains(name));
    CHECK(at::equal(got.at(name), value));
  }
}

// What rank 0 gathers after `body` on all ranks of the program's mesh.
State on_ranks(const std::shared_ptr<Program>& program, const std::function<void(Step&, comm::CommWorld&)>& body) {
  State state;
  testing::run_ranks(static_cast<int>(program->strategy().mesh.world_size()), [&](comm::CommWorld& world) {
    Step step(program, &world);
    body(step, world);
    State mine = testing::gather_all(step);
    if (world.rank() == 0) state = std::move(mine);
  });
  return state;
}

void save(Step& step, comm::CommWorld& world, const std::string& folder) {
  checkpoint::Store store(folder);
  if (world.rank() == 0) store.lock();
  const Strategy& strategy = step.program().strategy();
  checkpoint::Saver saver(store, world.world_size() == 1 ? nullptr : world.all_ranks("checkpoint"), 0);
  checkpoint::SaveRequest request;
  request.pieces = checkpoint_pieces(step, world.rank());
  request.about.run.step = step.step;
  request.about.world_size = world.world_size();
  request.about.data_ranks = strategy.data_ranks();
  saver.start(std::move(request));
  SFSDP_CHECK(saver.wait()->failure.empty(), "a save failed");
}

void load(Step& step, comm::CommWorld& world, const std::string& path) {
  checkpoint::load(checkpoint::open_checkpoint(path), path, checkpoint_pieces(step, world.rank()));
  step.load_state_dict({});
}

std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files[entry.path().filename()] = read_text_file(entry.path(), 1 << 24);
  return files;
}

// Two steps by each program; each other one loads them with the same bits, and exports the same files.
void expect_any_to_any(const std::vector<std::shared_ptr<Program>>& programs, const HfConfig& config,
                       const std::function<void(const checkpoint::Manifest&, const DeviceMesh&)>& check) {
  for (const auto& from : programs) {
    const DeviceMesh& mesh = from->strategy().mesh;
    CAPTURE(to_string(mesh));
    const MemoryFolder folder;
    const std::string path = folder / "c/step-2";
    const State trained = on_ranks(from, [&](Step& step, comm::CommWorld& world) {
      const Strategy& strategy = step.program().strategy();
      const int64_t place = strategy.mesh.group_rank(world.rank(), strategy.data_axes());
      for (int64_t k = 0; k < 2; ++k) step(testing::micro_batches_of(k, place, strategy.data_ranks(), 1));
      save(step, world, folder / "c");
    });
    const checkpoint::Manifest manifest = checkpoint::open_checkpoint(path);
    CHECK(checkpoint::verify(manifest, path).empty());
    check(manifest, mesh);
    std::map<std::string, std::string> exported;
    for (size_t to = 0; to < programs.size(); ++to) {
      CAPTURE(to_string(programs[to]->strategy().mesh));
      const std::string hf = folder / concat("hf-", to);
      expect_same(on_ranks(programs[to],
                           [&](Step& step, comm::CommWorld& world) {
                             load(step, world, path);
                             export_hf_folder(step, world.world_size() == 1 ? nullptr : &world, config, hf);
                           }),
                  trained);
      if (to == 0) exported = files_of(hf);
      CHECK(files_of(hf) == exported);
    }
  }
}

HfConfig hf_config_of(const std::string& model, const std::map<std::string, HfConfig::Value>& args,
                      const Program& program) {
  const auto built = models::make_language_model({model, "", {args.begin(), args.end()}});
  return hf_config_of_model(model, built.args, hf_sources(program));
}

TEST_CASE("a Llama trained on any of fourteen meshes goes on on any other with the same bits, and is exported alike") {
  std::vector<std::shared_ptr<Program>> programs;
  for (const DeviceMesh& mesh : fourteen_meshes()) programs.push_back(program_of(make_wide_llama, mesh, kLlamaRules));
  const HfConfig config = hf_config_of("llama3",
                                       {{"dim", int64_t{24}},
                                        {"n_layers", int64_t{2}},
                                        {"n_heads", int64_t{4}},
                                        {"n_kv_heads", int64_t{2}},
                                        {"head_dim", int64_t{6}},
                                        {"vocab_size", int64_t{29}},
                                        {"hidden_dim", int64_t{36}}},
                                       *programs[0]);
  expect_any_to_any(programs, config, [](const checkpoint::Manifest& manifest, const DeviceMesh& mesh) {
    const auto tp = static_cast<size_t>(mesh.size("tp"));
    CHECK(manifest.find("layers.1.feed_forward.w2.weight.exp_avg")->boxes.size() == (tp == 1 ? 0 : tp));
    CHECK(manifest.find("norm.weight")->boxes.empty());
  });
}

// Three blocks, each cut: a box of [3, D, D], whose checkpoint says the shape [3 D, D] all the same.
TEST_CASE("a GPT whose fused weights are cut, in blocks or not, goes on on any other mesh with the same bits") {
  const TensorParallel in_one_range = tensor_parallel({{"*.c_attn|c_fc", Shard(0)}, {"*.c_proj", Shard(1)}});
  std::vector<std::shared_ptr<Program>> programs;
  for (const DeviceMesh& mesh :
       {mesh_of(1, 1, 1), mesh_of(1, 1, 2), mesh_of(1, 1, 4), mesh_of(1, 2, 2), mesh_of(2, 1, 2)})
    programs.push_back(program_of(testing::make_gpt, mesh, kGptRules));
  programs.push_back(program_of(testing::make_gpt, mesh_of(1, 1, 2), in_one_range));
  programs.push_back(program_of(testing::make_gpt, mesh_of(1, 2, 4), in_one_range));
  expect_any_to_any(programs, hf_config_of("gpt", kGptArgs, *programs[0]),
                    [](const checkpoint::Manifest& manifest, const DeviceMesh& mesh) {
                      const auto tp = static_cast<size_t>(mesh.size("tp"));
                      for (const char* name : {"h.1.attn.c_attn.weight", "h.1.attn.c_attn.bias.exp_avg"}) {
                        const checkpoint::StoredTensor& stored = *manifest.find(name);
                        CHECK(stored.boxes.size() == (tp == 1 ? 0 : tp));
                        CHECK(stored.shape[0] == 60);
                      }
                    });
}

// A rank has some experts over ep, and a part of each over tp.
TEST_CASE(
    "a mixture trained over ep, tp, cp or several goes on on any other mesh with the same bits, and is exported "
    "alike") {
  models::DeepSeekV3Args args;
  args.dim = 16;
  args.inter_dim = 24;
  args.moe_inter_dim = 8;
  args.n_layers = 2;
  args.n_heads = 2;
  args.vocab_size = 29;
  args.kv_lora_rank = 8;
  args.qk_nope_head_dim = args.qk_rope_head_dim = args.v_head_dim = 4;
  args.num_experts = 4;
  args.num_shared_experts = 1;
  args.top_k = 2;
  args.score_func = models::RouterScore::Sigmoid;
  args.latent_norm_eps = 1e-6;
  args.final_norm_eps = args.norm_eps;
  const TensorParallel rules = tensor_parallel({{"*.wq|wkv_b", Shard(0)},
                                                {"*.wo", Shard(1)},
                                                {"*.experts.w1|w3", Shard(1)},
                                                {"*.experts.w2", Shard(2)},
                                                {"*.w1|w3", Shard(0)},
                                                {"*.w2", Shard(1)}});
  std::vector<std::shared_ptr<Program>> programs;
  const auto on = [&](std::vector<MeshAxis> axes) {
    programs.push_back(program_of([&] { return models::DeepSeekV3(args); }, init_device_mesh(std::move(axes)), rules));
  };
  on({{"dp_shard", 1}});
  on({{"dp_shard", 2}});
  on({{"ep", 2}});
  on({{"ep", 4}});
  on({{"cp", 2}});
  on({{"dp_shard", 2}, {"tp", 2}});
  on({{"ep", 2}, {"tp", 2}});
  on({{"dp_shard", 2}, {"ep", 2}, {"tp", 2}});
  on({{"cp", 2}, {"tp", 2}});
  on({{"cp", 2}, {"ep", 2}, {"tp", 2}});
  const HfConfig config = hf_config_of("deepseek_v3",
                                       {{"dim", int64_t{16}},
                                        {"inter_dim", int64_t{24}},
                                        {"moe_inter_dim", int64_t{8}},
                                        {"n_layers", int64_t{2}},
                                        {"n_heads", int64_t{2}},
                                        {"vocab_size", int64_t{29}},
                                        {"kv_lora_rank", int64_t{8}},
                                        {"qk_nope_head_dim", int64_t{4}},
                                        {"qk_rope_head_dim", int64_t{4}},
                                        {"v_head_dim", int64_t{4}},
                                        {"num_experts", int64_t{4}},
                                        {"num_shared_experts", int64_t{1}},
                                        {"top_k", int64_t{2}},
                                        {"score_func", std::string("sigmoid")},
                                        {"latent_norm_eps", 1e-6},
                                        {"final_norm_eps", args.norm_eps}},
                                       *programs[0]);
  expect_any_to_any(programs, config, [](const checkpoint::Manifest& manifest, const DeviceMesh& mesh) {
    const auto size = [&](const char* axis) { return mesh.has(axis) ? static_cast<size_t>(mesh.size(axis)) : 1; };
    const size_t boxes = size("ep") * size("tp");
    CHECK(manifest.find("layers.1.moe.experts.w2.exp_avg")->boxes.size() == (boxes == 1 ? 0 : boxes));
    CHECK(manifest.find("norm.weight")->boxes.empty());
  });
}

TEST_CASE("a run over tp, cp or both that is stopped goes on with the bits of one that is not") {
  for (const DeviceMesh& mesh :
       {mesh_of(2, 2, 2), mesh_of(1, 1, 4), mesh_with_cp(1, 2, 2, 1), mesh_with_cp(1, 1, 2, 2)}) {
    CAPTURE(to_string(mesh));
    const MemoryFolder folder;
    const auto program = program_of(make_wide_llama, mesh, kLlamaRules);
    const auto train = [&](Step& step, comm::CommWorld& world, int64_t from, int64_t to) {
      const Strategy& strategy = step.program().strategy();
      const int64_t place = strategy.mesh.group_rank(world.rank(), strategy.data_axes());
      for (int64_t k = from; k < to; ++k) step(testing::micro_batches_of(k, place, strategy.data_ranks(), 1));
    };
    const State whole = on_ranks(program, [&](Step& step, comm::CommWorld& world) { train(step, world, 0, 4); });
    on_ranks(program, [&](Step& step, comm::CommWorld& world) {
      train(step, world, 0, 2);
      save(step, world, folder / "c");
    });
    expect_same(on_ranks(program,
                         [&](Step& step, comm::CommWorld& world) {
                           load(step, world, folder / "c/step-2");
                           step.step = 2;
                           train(step, world, 2, 4);
                         }),
                whole);
  }
}

TEST_CASE("a Hugging Face folder fills any mesh with the same bits: heads in another order, and a transposed GPT") {
  const TensorParallel gpt_rules = tensor_parallel({{"*.c_attn|c_fc", Shard(0)}, {"*.c_proj", Shard(1)}});
  const auto expect = [](auto make, const TensorParallel& rules, const std::string& name,
                         const std::map<std::string, HfConfig::Value>& args) {
    const MemoryFolder folder;
    const auto one = program_of(make, mesh_of(1, 1, 1), rules);
    const auto built = models::make_language_model({name, "", {args.begin(), args.end()}});
    const HfConfig config = hf_config_of_model(name, built.args, hf_sources(*one));
    const State expected = on_ranks(one, [&](Step& step, comm::CommWorld&) {
      export_hf_folder(step, nullptr, config, folder / "hf");
      export_hf_folder(step, nullptr, config, folder / "bf16", {.dtype = ir::DType::bf16});
    });
    for (const DeviceMesh& mesh : {mesh_of(1, 1, 2), mesh_of(1, 2, 2), mesh_of(2, 1, 4), mesh_of(1, 3, 2)}) {
      CAPTURE(to_string(mesh));
      const auto program = program_of(make, mesh, rules, 8);  // begins with other values
      const State got = on_ranks(program, [&](Step& step, comm::CommWorld& world) {
        load_hf_weights(step, SafetensorsCheckpoint::open(folder / "hf"), config);
        export_hf_folder(step, &world, config, folder / "again", {.staging_bytes = 64});
        export_hf_folder(step, &world, config, folder / "again-bf16", {.dtype = ir::DType::bf16});
      });
      expect_same(got, expected);
      CHECK(files_of(folder / "again") == files_of(folder / "hf"));
      CHECK(files_of(folder / "again-bf16") == files_of(folder / "bf16"));
      for (const char* written : {"again", "again-bf16"}) std::filesystem::remove_all(folder / written);
    }
  };
  expect(make_wide_llama, kLlamaRules, "llama3",
         {{"dim", int64_t{24}},
          {"n_layers", int64_t{2}},
          {"n_heads", int64_t{4}},
          {"n_kv_heads", int64_t{2}},
          {"head_dim", int64_t{6}},
          {"vocab_size", int64_t{29}},
          {"hidden_dim", int64_t{36}}});
  expect(testing::make_gpt, gpt_rules, "gpt", kGptArgs);
  expect(testing::make_gpt, kGptRules, "gpt", kGptArgs);
}

TEST_CASE("a Hugging Face folder with a number that is none: the element is named as one of the whole tensor") {
  const MemoryFolder folder;
  const auto one = program_of(make_wide_llama, mesh_of(1, 1, 1), kLlamaRules);
  const std::map<std::string, HfConfig::Value> args = {
      {"dim", int64_t{24}},     {"n_layers", int64_t{2}},    {"n_heads", int64_t{4}},    {"n_kv_heads", int64_t{2}},
      {"head_dim", int64_t{6}}, {"vocab_size", int64_t{29}}, {"hidden_dim", int64_t{36}}};
  const auto built = models::make_language_model({"llama3", "", {args.begin(), args.end()}});
  const HfConfig config = hf_config_of_model("llama3", built.args, hf_sources(*one));
  constexpr int64_t kPlace = 5 * 36 + 30;  // row 5 of w2, column 30: of the second box of two
  on_ranks(one, [&](Step& step, comm::CommWorld&) {
    at::Tensor w2 = step.state_dict().at("layers.1.feed_forward.w2.weight");
    w2.view({-1})[kPlace].fill_(std::numeric_limits<float>::quiet_NaN());
    export_hf_folder(step, nullptr, config, folder / "hf");
  });
  const auto load = [&] {
    on_ranks(program_of(make_wide_llama, mesh_of(1, 1, 2), kLlamaRules), [&](Step& step, comm::CommWorld&) {
      load_hf_weights(step, SafetensorsCheckpoint::open(folder / "hf"), config);
    });
  };
  CHECK_THROWS_WITH_AS(load(), doctest::Contains(concat("the first of them element ", kPlace, " of layers.1").c_str()),
                       UserError);
}

TEST_CASE("an archive fills any mesh with the same bits") {
  const MemoryFolder folder;
  const auto one = program_of(make_wide_llama, mesh_of(1, 1, 1), kLlamaRules);
  const std::string path = folder / "model.pt2";
  State expected;
  on_ranks(one, [&](Step& step, comm::CommWorld&) {
    expected = testing::gather_all(step);
    Pt2Options options{.sizes = {{"batch", "length"}}, .inputs = {"tokens"}};
    options.values = [&](const std::string& name) { return expected.at(name); };
    write_pt2(
        meta_init(make_wide_llama), [](auto& model, const Batch& b) { return model->forward(b[0]); },
        {at::zeros({2, 6}, at::kLong)}, path, options);
  });
  const exported::Program archive = exported::read_program(path);
  for (const DeviceMesh& mesh : {mesh_of(1, 1, 1), mesh_of(1, 1, 4), mesh_of(1, 2, 2), mesh_of(2, 1, 2)}) {
    CAPTURE(to_string(mesh));
    const auto program = program_of(make_wide_llama, mesh, kLlamaRules, 8);
    expect_same(on_ranks(program, [&](Step& step, comm::CommWorld&) { load_exported_weights(archive, step, false); }),
                expected);
  }
}

models::Llama3 make_adapted_llama() {
  auto model = make_wide_llama();
  add_lora(*model, {.targets = {"*.wq", "*.w2"}, .rank = 4, .alpha = 8});
  return model;
}

// An adapter of PEFT for these, of which element i of tensor t is 1000 t + i.
State write_adapter(const std::string& folder) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/adapter_config.json")
      << R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["wq", "w2"], "bias": "none"})";
  State values;
  SafetensorsHeader header;
  std::string data;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    const at::Tensor t = at::arange(shape[0] * shape[1], at::kFloat).add(1000.0 * static_cast<double>(values.size()));
    header.add("base_model.model." + name, ir::DType::f32, shape, t.nbytes());
    data.append(static_cast<const char*>(t.const_data_ptr()), t.nbytes());
    values[name] = t.view(shape);
  };
  for (const char* layer : {"layers.0.", "layers.1."}) {
    add(concat(layer, "attention.wq.lora_A.weight"), {4, 24});
    add(concat(layer, "attention.wq.lora_B.weight"), {24, 4});
    add(concat(layer, "feed_forward.w2.lora_A.weight"), {4, 36});
    add(concat(layer, "feed_forward.w2.lora_B.weight"), {24, 4});
  }
  std::ofstream(folder + "/adapter_model.safetensors", std::ios::binary) << header.bytes() << data;
  return values;
}

TEST_CASE("adapters of PEFT fill any mesh with the same bits, whichever dimension of them is cut") {
  const MemoryFolder folder;
  const State expected = write_adapter(folder / "peft");
  const TensorParallel rules = tensor_parallel({{"*.wq.lora_B", Shard(0)}, {"*.w2.lora_A", Shard(1)}});
  PeftAdapter adapter(folder / "peft");
  adapter.match(
      {"layers.0.attention.wq", "layers.0.feed_forward.w2", "layers.1.attention.wq", "layers.1.feed_forward.w2"},
      nullptr);
  for (const DeviceMesh& mesh : {mesh_of(1, 1, 1), mesh_of(1, 1, 2), mesh_of(1, 2, 2)}) {
    CAPTURE(to_string(mesh));
    const auto program = program_of(make_adapted_llama, mesh, rules);
    const State got = on_ranks(program, [&](Step& step, comm::CommWorld&) { load_adapter(adapter, step); });
    for (const auto& [name, value] : expected) {
      CAPTURE(name);
      CHECK(at::equal(got.at(name), value));
    }
  }
}

struct NormalisedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return norm(in(x)); }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(3, 6));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(6));
};
TORCH_MODULE(Normalised);

TEST_CASE("running statistics are each data rank's own, and all ranks along tp have them alike: one writes them") {
  const MemoryFolder folder;
  const auto batch = [](int64_t place) -> Batch {
    return {at::arange(12.0F).view({4, 3}).mul(0.1 * (place + 1)).sin()};
  };
  const auto run = [&](int64_t shards, int64_t tp, bool saves) {
    const auto program =
        compile_program(meta_init([] { return Normalised(); }),
                        [](Normalised& m, const Batch& b) { return m->forward(b[0]).square().mean(); }, kAdamW,
                        batch(0), data_parallel(mesh_of(1, shards, tp), {}, tensor_parallel({{"in", Shard(0)}})), {});
    std::vector<at::Tensor> means(static_cast<size_t>(shards * tp));
    testing::run_ranks(static_cast<int>(shards * tp), [&](comm::CommWorld& world) {
      Step step(program, &world);
      const int64_t place = world.rank() / tp;
      if (!saves) load(step, world, folder / "c/step-2");
      for (int k = 0; saves && k < 2; ++k) step({batch(place)});
      if (saves) save(step, world, folder / "c");
      means[static_cast<size_t>(world.rank())] = step.state_dict().at("norm.running_mean").clone();
    });
    return means;
  };
  const auto saved = run(2, 2, true);
  CHECK(at::equal(saved[0], saved[1]));
  CHECK_FALSE(at::equal(saved[0], saved[2]));
  const checkpoint::Manifest manifest = checkpoint::open_checkpoint(folder / "c/step-2");
  CHECK(manifest.find("norm.running_mean", 0));
  CHECK(manifest.find("norm.running_mean", 1));
  CHECK(manifest.find("in.weight")->boxes.size() == 2);
  for (const int64_t tp : {1, 2, 3}) {
    const auto loaded = run(2, tp, false);
    for (int64_t rank = 0; rank < 2 * tp; ++rank)
      CHECK(at::equal(loaded[static_cast<size_t>(rank)], saved[static_cast<size_t>(rank / tp * 2)]));
  }
}

}  // namespace boxes_torch_test
}  // namespace sfsdp::train
