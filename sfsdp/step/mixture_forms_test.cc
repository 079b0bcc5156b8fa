// SPDX-License-Identifier: BSD-3-Clause
// Mixtures of experts that are written otherwise than models/deepseek_v3, over ep, in rounds, train as one eager process does; what cannot be
// exchanged is refused by name.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <string>
#include <tuple>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/models/init.h"
#include "sfsdp/models/loss.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing/parity_torch.h"
#include "sfsdp/testing/random_models_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace mixture_forms_test {

constexpr int64_t kDim = 12, kExperts = 4, kChosen = 2;

// How rows come to the experts, and what they give back to the tokens.
enum class Pick { Select, Index, Gather, Scaled, Weighted, OfAllTokens, Sorted };
enum class Combine { Select, IndexAdd, ScatterAdd, Index };

class NetImpl : public torch::nn::Module {
 public:
  NetImpl(Pick pick, Combine combine) : pick_(pick), combine_(combine) {
    table_ = register_parameter("table", torch::empty({29, kDim}));
    gate_ = register_parameter("gate", torch::empty({kExperts, kDim}));
    models::init_linear(table_, 0.5);
    models::init_linear(gate_, 0.5);
    experts_ = register_module("experts", testing::Experts(kExperts, kDim, kDim));
  }

  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor x = at::embedding(table_, ids).flatten(0, 1);
    const at::Tensor y = x + mixture(pick_ == Pick::OfAllTokens ? x.cumsum(0) * 0.1 : x);
    return at::linear(y, table_).view({ids.size(0), ids.size(1), -1});
  }

 private:
  at::Tensor mixture(const at::Tensor& x) {
    const int64_t tokens = x.size(0);
    const at::Tensor scores = at::linear(x, gate_).softmax(-1);
    const at::Tensor chosen = std::get<1>(scores.detach().topk(kChosen, -1)), flat = chosen.flatten();
    const at::Tensor order = flat.argsort(true, 0, false), token = order.floor_divide(kChosen);
    const at::Tensor ends = at::one_hot(flat, kExperts).sum(0).cumsum(0).to(at::kInt);
    const at::Tensor by_row = scores.gather(1, chosen).flatten().index_select(0, order).unsqueeze(-1);
    at::Tensor rows = picked(x, token);
    if (pick_ == Pick::Scaled) rows = rows.cos() * 1.5;
    if (pick_ == Pick::Weighted) rows = rows * by_row;
    if (pick_ == Pick::Sorted) rows = std::get<0>(rows.sort(0));
    const at::Tensor out = experts_->forward(rows, ends) * by_row;
    const at::Tensor place = at::empty_like(order).scatter(0, order, at::arange(tokens * kChosen, at::kLong));
    const at::Tensor none = at::zeros({tokens, kDim});
    if (combine_ == Combine::IndexAdd) return none.index_add(0, token, out);
    if (combine_ == Combine::ScatterAdd) return none.scatter_add(0, token.unsqueeze(-1).expand({-1, kDim}), out);
    const at::Tensor back = combine_ == Combine::Index ? out.index({place}) : out.index_select(0, place);
    return back.view({tokens, kChosen, kDim}).sum(1);
  }
  at::Tensor picked(const at::Tensor& x, const at::Tensor& token) const {
    if (pick_ == Pick::Index) return x.index({token});
    if (pick_ == Pick::Gather) return x.gather(0, token.unsqueeze(-1).expand({-1, kDim}));
    return x.index_select(0, token);
  }

  const Pick pick_;
  const Combine combine_;
  at::Tensor table_, gate_;
  testing::Experts experts_{nullptr};
};
TORCH_MODULE(Net);

Batch rows(int64_t step, int64_t first, int64_t count) { return testing::tokens(step, first, count); }

testing::Case in_rounds(std::vector<MeshAxis> axes, int64_t micro_batches = 1) {
  testing::Case c{init_device_mesh(std::move(axes)), {}, {}, micro_batches};
  c.expert.capacity = 0.5;
  return c;
}

TEST_CASE("mixtures written in several ways, in rounds over ep, train as eager does") {
  for (const auto& [pick, combine] : std::vector<std::pair<Pick, Combine>>{{Pick::Select, Combine::IndexAdd},
                                                                           {Pick::Index, Combine::Index},
                                                                           {Pick::Gather, Combine::ScatterAdd},
                                                                           {Pick::Scaled, Combine::Select},
                                                                           {Pick::Weighted, Combine::IndexAdd},
                                                                           {Pick::OfAllTokens, Combine::Select}}) {
    CAPTURE(static_cast<int>(pick));
    CAPTURE(static_cast<int>(combine));
    const auto make = [pick = pick, combine = combine] { return Net(pick, combine); };
    const testing::Reference reference = testing::eager(
        make, testing::loss_of, [](int64_t k) { return rows(k, 0, testing::kGlobalBatch); }, 20,
        [](torch::nn::Module&) {});
    std::vector<testing::Case> cases = {in_rounds({{"ep", 2}})};
    if (pick != Pick::OfAllTokens)
      cases.push_back(in_rounds({{"dp_shard", 2}, {"ep", 4}}, 3));  // those of the whole batch
    for (const testing::Case& c : cases) {
      const auto program = testing::expect_parity(make, testing::loss_of, rows, testing::kGlobalBatch, c, reference);
      const auto variant = program->first();
      CHECK_FALSE(ir::loops_of(variant->graph).empty());
    }
  }
}

TEST_CASE("a mixture whose rows are not picked out of tokens cannot be computed in rounds, which is told") {
  const auto compiled = [](ExpertParallelOptions expert) {
    compile_program(meta_init([] { return Net(Pick::Sorted, Combine::Select); }), testing::loss_of,
                    testing::kParityOptimizer, rows(0, 0, 4),
                    data_parallel(init_device_mesh({{"ep", 2}}), {}, {}, {}, std::move(expert)), {});
  };
  compiled({});
  CHECK_THROWS_WITH_AS(compiled({.capacity = 1}), doctest::Contains("wants a rank's rows of aten.sort"), UserError);
  CHECK_THROWS_WITH_AS(compiled({.dispatch = DispatchMethod::Exchange}), doctest::Contains("expected index_select"),
                       UserError);
  CHECK_THROWS_WITH_AS(compiled({.dispatch = DispatchMethod::Gather, .capacity = 1}),
                       doctest::Contains("capacity = 1 with DispatchMethod::Gather"), UserError);
  CHECK_THROWS_WITH_AS(compiled({.capacity = -1}), doctest::Contains("expected even shares of rows"), UserError);
}

}  // namespace mixture_forms_test
}  // namespace sfsdp
