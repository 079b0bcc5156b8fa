// SPDX-License-Identifier: BSD-3-Clause
// own_part with shift=, join_parts and add_parts on ranks that are threads.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <mutex>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/comm/thread/run_ranks.h"
#include "sfsdp/exec/op_call.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/verifier.h"

namespace sfsdp::exec {
namespace parts_of_ranks_test {

using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr int64_t kRanks = 3;

Tensor computed(const ir::Graph& graph, const char* name, const Groups& groups, const Tensors& operands) {
  return OpCall(*graph.find_value(name)->producer(), graph, groups, Rng::Counter).run(operands, {}, {})[0];
}

TEST_CASE("parts of ranks: one is taken, sent home and joined in the order of the ranks, in any dimension") {
  for (const int64_t dim : {0, 1}) {
    const auto shape = [&](int64_t size) { return dim == 0 ? concat("[", size, ", 6]") : concat("[6, ", size, "]"); };
    std::string text =
        concat("graph mesh [tp=3] view local\n  %x = input name=x : f32[6, 6]\n  %p = input name=p : f32", shape(2),
               "\nfwd:\n");
    for (int64_t shift = 0; shift < kRanks; ++shift)
      text += concat("  %own", shift, " = own_part %x axis=tp dim=", dim, " shift=", shift, " : f32", shape(2), "\n");
    text += concat("  %all = join_parts [%own0, %own1, %own2] axis=tp dim=", dim, " : f32[6, 6]\n");
    const ir::Graph graph = ir::parse_or_throw(text);
    ir::verify_or_throw(graph);
    const Tensor x = at::arange(36, at::kFloat).view({6, 6});
    std::mutex mutex;
    testing::run_ranks(kRanks, [&](comm::CommWorld& world) {
      const Groups groups = {{"tp", world.all_ranks("tp")}};
      Tensors parts;
      for (int64_t shift = 0; shift < kRanks; ++shift)
        parts.push_back(computed(graph, concat("own", shift).c_str(), groups, {x}));
      const Tensor all = computed(graph, "all", groups, parts);
      std::lock_guard lock(mutex);
      for (int64_t shift = 0; shift < kRanks; ++shift)
        CHECK(at::equal(parts[static_cast<size_t>(shift)],
                        x.narrow(dim, (world.rank() + kRanks - shift) % kRanks * 2, 2)));
      CHECK(at::equal(all, x));
    });
  }
}

// In bfloat16 256 + 1 is 256, and 256 + 1 + 1 is 258.
TEST_CASE("parts of ranks: a sum is rounded once, and its terms are left as they are") {
  for (const char* dtype : {"bf16", "f32"}) {
    const at::ScalarType type = dtype == std::string("f32") ? at::kFloat : at::kBFloat16;
    const std::string text = concat(dtype, "[2]\n");
    const ir::Graph graph = ir::parse_or_throw(concat("graph mesh [tp=3] view local\n  %a = input name=a : ", text,
                                                      "  %b = input name=b : ", text,
                                                      "fwd:\n  %s = add_parts [%a, %b, %b] axis=tp : ", text));
    std::mutex mutex;
    testing::run_ranks(kRanks, [&](comm::CommWorld& world) {
      const Tensor a = at::tensor({256.0F, -3.0F}).to(type), b = at::tensor({1.0F, 1.0F}).to(type);
      const Tensor first = a.clone(), sum = computed(graph, "s", {{"tp", world.all_ranks("tp")}}, {a, b, b});
      std::lock_guard lock(mutex);
      CHECK(at::equal(sum.to(at::kFloat), at::tensor({258.0F, -1.0F})));
      CHECK(at::equal(a, first));
    });
  }
}

}  // namespace parts_of_ranks_test
}  // namespace sfsdp::exec
