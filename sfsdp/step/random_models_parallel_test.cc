// SPDX-License-Identifier: BSD-3-Clause
// Models drawn at random, cut by rules drawn at random over their weights, on meshes with tp, cp, ep and data axes: each trains as one eager
// process does, or is refused by name.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing/parity_torch.h"
#include "sfsdp/testing/random_models_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace random_models_parallel_test {

using testing::Draw, testing::Kind, testing::Net, testing::NetArgs;

constexpr int64_t kMeshesOfModel = 3, kVocabulary = 29;
constexpr double kRounding = 0x1p-24;  // of a float32, at most, of itself

// Widths that 2, 3 or 4 ranks divide, most of them.
NetArgs draw_divisible(Draw& draw) {
  NetArgs args = testing::draw_net(draw, draw.once_in(3));
  args.dim = draw.one_of<int64_t>({8, 9, 12, 12, 12, 12});
  args.more = draw.one_of<int64_t>({0, 0, 0, 12, 1});
  return args;
}

// For half of all layers, which dimension of its weights is cut.
std::vector<TensorParallelRule> draw_rules(Draw& draw, const NetArgs& args) {
  std::map<std::string, int64_t> dims;  // of a module's weight, by its path
  for (const auto& p : Net(args)->named_parameters())
    if (const size_t dot = p.key().rfind('.'); dot != std::string::npos)
      dims[p.key().substr(0, dot)] = std::max(dims[p.key().substr(0, dot)], p.value().dim());
  std::vector<TensorParallelRule> rules;
  for (const auto& [path, count] : dims)
    if (draw.once_in(2)) rules.push_back({path, Shard(draw.below(count))});
  if (rules.empty()) rules.push_back({"head", Shard(0)});
  return rules;
}

testing::Case draw_case(Draw& draw, const NetArgs& args) {
  const auto axes = draw.one_of<std::vector<MeshAxis>>({{{"tp", 2}},
                                                        {{"tp", 3}},
                                                        {{"tp", 4}},
                                                        {{"cp", 2}},
                                                        {{"cp", 3}},
                                                        {{"cp", 4}},
                                                        {{"cp", 2}, {"tp", 2}},
                                                        {{"dp_shard", 2}, {"tp", 2}},
                                                        {{"dp_replicate", 2}, {"tp", 2}},
                                                        {{"dp_shard", 2}, {"cp", 2}},
                                                        {{"cp", 2}, {"tp", 4}},
                                                        {{"dp_shard", 2}, {"cp", 2}, {"tp", 2}}});
  testing::Case c;
  c.mesh = init_device_mesh(axes);
  if (c.mesh.has("tp"))
    c.rules = tensor_parallel(draw_rules(draw, args),
                              {.sequence_parallel = draw.once_in(2), .loss_parallel = !draw.once_in(4)});
  // Sequences are of 12 positions, which 8 chunks, heads and tails of 4 ranks, do not divide.
  c.context.load_balance = c.mesh.has("cp") && c.mesh.size("cp") < 4 && draw.once_in(2);
  // One head, so none to exchange.
  c.context.rotate_method = draw.once_in(2) ? RotateMethod::Ring : RotateMethod::AllGather;
  c.options.zero_stage = draw.once_in(2) || c.mesh.has("dp_replicate") ? 3 : draw.below(4);
  c.micro_batches = 1 + draw.below(2);
  c.compile.executor = draw.once_in(2) ? ExecutorKind::Planned : ExecutorKind::Reference;
  if (draw.once_in(3)) c.compile.pipeline.remat.mode = passes::RematMode::Full;
  c.compile.notify = [](const std::string&) {};
  return c;
}

// One to three layers, one of them at least a mixture.
NetArgs draw_mixture(Draw& draw) {
  NetArgs args;
  args.dim = draw.one_of<int64_t>({8, 12, 16});
  args.more = draw.one_of<int64_t>({0, 1});
  const int64_t blocks = 1 + draw.below(3), first = draw.below(blocks);
  for (int64_t i = 0; i < blocks; ++i)
    args.blocks.push_back(i == first ? Kind::Mixture
                                     : draw.one_of({Kind::Mlp, Kind::Gated, Kind::Attention, Kind::Mixer, Kind::Mixture,
                                                    Kind::Shared, Kind::GroupNorm, Kind::Pool, Kind::Scan}));
  args.tied = draw.once_in(4);
  args.experts = draw.one_of<int64_t>({4, 8, 12});
  args.chosen = 1 + draw.below(3);
  args.width = draw.one_of<int64_t>({8, 16});
  args.adds_rows = draw.once_in(2);
  return args;
}

testing::Case draw_mixture_case(Draw& draw, const NetArgs& args) {
  testing::Case c;
  c.mesh = init_device_mesh(draw.one_of<std::vector<MeshAxis>>({{{"ep", 2}},
                                                                {{"ep", 4}},
                                                                {{"dp_shard", 2}, {"ep", 2}},
                                                                {{"dp_replicate", 2}, {"ep", 2}},
                                                                {{"cp", 2}, {"ep", 2}},
                                                                {{"ep", 2}, {"tp", 2}},
                                                                {{"dp_shard", 2}, {"ep", 4}},
                                                                {{"cp", 2}, {"ep", 2}, {"tp", 2}}}));
  if (c.mesh.has("tp")) {
    c.rules = tensor_parallel(draw_rules(draw, args),
                              {.sequence_parallel = draw.once_in(2), .loss_parallel = !draw.once_in(4)});
    if (!draw.once_in(4)) {  // each expert's width
      auto& rules = c.rules.rules;
      rules.insert(rules.begin(), {"*.experts.up", Shard(2)});
      rules.insert(rules.begin(), {"*.experts.down", Shard(1)});
    }
  }
  c.context.load_balance = draw.once_in(2);
  c.expert.dispatch = draw.one_of({DispatchMethod::Auto, DispatchMethod::Gather, DispatchMethod::Exchange});
  if (c.expert.dispatch == DispatchMethod::Exchange) c.expert.capacity = draw.one_of<double>({0, 0.5, 1.25});
  c.options.zero_stage = c.mesh.has("dp_replicate") ? 3 : 1 + draw.below(3);
  c.micro_batches = 1 + draw.below(2);
  c.compile.executor = draw.once_in(2) ? ExecutorKind::Planned : ExecutorKind::Reference;
  if (draw.once_in(3)) c.compile.pipeline.remat.mode = passes::RematMode::Full;
  c.compile.notify = [](const std::string&) {};
  return c;
}

// What a refusal must say: over which axis, and what to do.
bool names_its_cause(const std::string& message) {
  const auto says = [&](const char* words) { return message.find(words) != std::string::npos; };
  const bool axis = says("over tp") || says("over cp") || says("tp = ") || says("cp = ") || says(" ep = ");
  return axis && message.find("\n  expected ") != std::string::npos;
}

using Tensors = std::map<std::string, at::Tensor>;

// The gradients of these weights in float64, and the terms whose sum is that of `scale`, [rows, positions, dim]: one scale per element.
struct Exact {
  Tensors gradients;
  at::Tensor terms;
};
//   rounded: of the parameters that train
Exact exact_gradients(const NetArgs& args, const Tensors& weights, const Tensors& rounded, const Batch& batch) {
  Net net(args);
  net->to(at::kDouble);
  {
    const at::NoGradGuard no_grad;
    for (auto& p : net->named_parameters()) p.value().copy_(weights.at(p.key()));
  }
  net->scale =
      net->scale.detach().expand({batch[0].size(0), batch[0].size(1), args.dim}).clone().set_requires_grad(true);
  // models::cross_entropy would make float32 of the logits.
  at::cross_entropy_loss(net->forward(batch[0]).flatten(0, 1), batch[1].flatten()).backward();
  Exact exact;
  exact.terms = net->scale.grad();
  for (const auto& [name, gradient] : rounded)
    exact.gradients[name] = name == "scale" ? exact.terms.sum() : net->named_parameters()[name].grad().clone();
  return exact;
}

// By how many roundings a sum of the terms is off. The longest path of a term is forward and back through each block's norm and its two
// products, then the head and the loss: n roundings, of which independent ones add up to the root of n (Higham and Mary, 2019).
double growth(const NetArgs& args) {
  constexpr int64_t kOps = 8;  // that are no sum: of a norm, an activation, a residual
  const int64_t inner = 2 * args.dim + args.more, block = 2 * args.dim + inner + kOps;
  return std::sqrt(2.0 * static_cast<double>(std::ssize(args.blocks) * block + args.dim + kVocabulary + kOps));
}

// Moments of `scale` in float64, and how far rounding of its gradients may move them. First and second: of the optimizer.
struct Moments {
  double first = 0, second = 0, first_error = 0, second_error = 0;

  //   error: of the gradient, in absolute numbers
  //   clip: what clipping multiplies the gradient by
  void add(double gradient, double error, double clip) {
    const auto& [b1, b2] = std::pair(testing::kParityOptimizer.beta1, testing::kParityOptimizer.beta2);
    const double g = clip * gradient, e = clip * error;
    first = b1 * first + (1 - b1) * g;
    first_error = b1 * first_error + (1 - b1) * e;
    second = b2 * second + (1 - b2) * g * g;
    second_error = b2 * second_error + (1 - b2) * (2 * std::abs(g) + e) * e;
  }
};

// Gradients of step 1 become the exact ones, and so do the moments of `scale`: its gradient is a sum of thousands of terms that nearly
// cancel, and is off by a part of what they add up to, not of itself.
//   weights: of the eager process, after each step
void hold_scale_to_exact(const NetArgs& args, const std::vector<Tensors>& weights,
                         const std::function<Batch(int64_t step)>& batch, testing::Reference& reference) {
  Moments moments;
  for (int64_t k = 0; k < std::ssize(weights); ++k) {
    const Exact exact =
        exact_gradients(args, k == 0 ? reference.start : weights.at(k - 1), reference.gradients, batch(k));
    const double scale = exact.gradients.at("scale").item<double>();
    const double error = growth(args) * kRounding * exact.terms.abs().sum().item<double>();
    moments.add(scale, error, std::min(1.0, 1.0 / reference.results.at(k).grad_norm));
    if (k > 0) continue;
    // Eager's own float32 is held too: what it does not keep is no bound of rounding.
    CHECK(std::abs(reference.gradients.at("scale").item<double>() - scale) <= error);
    reference.gradients = exact.gradients;
    reference.bars["scale"] = error / std::abs(scale);
  }
  const auto hold = [&](const char* name, double value, double error) {
    CHECK(std::abs(reference.state.at(name).item<double>() - value) <= error);
    reference.state.at(name) = at::scalar_tensor(value, at::kDouble);
    reference.bars[name] = error / std::abs(value);
  };
  hold("scale.exp_avg", moments.first, moments.first_error);
  hold("scale.exp_avg_sq", moments.second, moments.second_error);
}

// How many programs trained, and how many were refused, by what was said.
struct Tried {
  size_t trained = 0, refused = 0;
};

// Trains the model on some meshes as one eager process does.
//   draw_case: of a mesh
void try_model(const NetArgs& args, int64_t steps, const std::function<testing::Case()>& draw_case, Tried& tried) {
  const auto make = [&] { return Net(args); };
  const auto batch = [](int64_t step, int64_t first, int64_t rows) { return testing::tokens(step, first, rows); };
  const auto whole = [&](int64_t step) { return batch(step, 0, testing::kGlobalBatch); };
  std::vector<Tensors> weights;  // after each step
  auto reference = testing::eager(make, testing::loss_of, whole, steps, [&](torch::nn::Module& module) {
    Tensors& now = weights.emplace_back();
    for (const auto& p : module.named_parameters()) now[p.key()] = p.value().detach().clone();
  });
  hold_scale_to_exact(args, weights, whole, reference);
  for (int64_t k = 0; k < kMeshesOfModel; ++k) {
    const testing::Case c = draw_case();
    CAPTURE(k);
    CAPTURE(c.rules.options.sequence_parallel);
    CAPTURE(c.context.load_balance);
    CAPTURE(c.options.zero_stage);
    std::string rules;
    for (const TensorParallelRule& rule : c.rules.rules) rules += rule.pattern + " " + to_string(rule.cut) + ", ";
    CAPTURE(rules);
    try {
      const auto program = testing::expect_parity(make, testing::loss_of, batch, testing::kGlobalBatch, c, reference);
      const auto variant = program->first();
      CHECK(plan::verify_layouts(variant->graph) == "");
      ++tried.trained;
    } catch (const UserError& error) {
      const std::string message = error.what();
      CAPTURE(message);
      CHECK(names_its_cause(message));
      ++tried.refused;
    } catch (const std::exception& error) {
      const std::string message = error.what();
      CAPTURE(message);
      CHECK_MESSAGE(false, "neither trained nor refused by name");
    }
  }
}

// Most models train for a few steps, each fifth for 20; with SFSDP_RANDOM_STEPS all for as many.
int64_t steps_of(uint64_t seed) {
  if (const char* steps = std::getenv("SFSDP_RANDOM_STEPS")) return std::stoll(steps);
  return seed % 5 == 0 ? 20 : 3;
}

//   seeds: from the first one on, a model each
//   refused: as many programs at most; more would be models that were cut before, and are not now
void try_models(uint64_t first, uint64_t seeds, NetArgs (*draw_model)(Draw&),
                testing::Case (*draw_case_of)(Draw&, const NetArgs&), size_t refused) {
  Tried tried;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    CAPTURE(seed);
    Draw draw(first + seed);
    const NetArgs args = draw_model(draw);
    try_model(
        args, steps_of(seed), [&] { return draw_case_of(draw, args); }, tried);
  }
  MESSAGE(tried.trained, " trained as eager, ", tried.refused, " refused");
  CHECK(tried.refused <= refused);
}

TEST_CASE("random models cut at random over tp and cp train as one eager process does, or are refused by name") {
  try_models(1000, 100, draw_divisible, draw_case, 56);
}

TEST_CASE("random mixtures over ep, beside tp and cp, train as one eager process does, or are refused by name") {
  try_models(3000, 30, draw_mixture, draw_mixture_case, 11);
}

}  // namespace random_models_parallel_test
}  // namespace sfsdp
