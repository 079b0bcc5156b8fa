// SPDX-License-Identifier: BSD-3-Clause
// The op all_to_all, on ranks that are threads, against parts that LibTorch takes of the whole.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/comm/thread/run_ranks.h"
#include "sfsdp/exec/op_call.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::exec {
namespace all_to_all_test {

using at::Tensor;

std::string text_of(at::IntArrayRef sizes) {
  std::string text;
  for (const int64_t size : sizes) text += concat(text.empty() ? "[" : ", ", size);
  return text + ']';
}

// Dimensions that lead and that others stand before, on each side.
TEST_CASE("an all_to_all gives each rank its part of one dimension, of which it had a part of another") {
  for (const int64_t ranks : {2, 3})
    for (const int64_t split : {0, 1, 2})
      for (const int64_t join : {0, 1, 2}) {
        if (split == join) continue;
        CAPTURE(ranks);
        CAPTURE(split);
        CAPTURE(join);
        const Tensor whole = at::arange(12 * 6 * 18, at::kFloat).view({12, 6, 18});
        const Tensor before = whole.chunk(ranks, join)[0], after = whole.chunk(ranks, split)[0];
        const ir::Graph graph =
            ir::parse_or_throw(concat("graph mesh [cp=", ranks, "] view local\n  %x = input name=x : f32",
                                      text_of(before.sizes()), "\nfwd:\n  %y = all_to_all %x axis=cp join=", join,
                                      " split=", split, " : f32", text_of(after.sizes()), "\n  return %y\n"));
        std::vector<Tensor> got(static_cast<size_t>(ranks));
        testing::run_ranks(static_cast<int>(ranks), [&](comm::CommWorld& world) {
          const Groups groups = {{"cp", world.all_ranks("cp")}};
          const Tensor own = whole.chunk(ranks, join)[static_cast<size_t>(world.rank())];
          OpCall call(*graph.find_value("y")->producer(), graph, groups, Rng::Counter);
          got[static_cast<size_t>(world.rank())] = call.run(std::vector<Tensor>{own}, {}, {})[0];
        });
        for (size_t rank = 0; rank < got.size(); ++rank) {
          CHECK(got[rank].is_contiguous());
          CHECK(got[rank].equal(whole.chunk(ranks, split)[rank]));
        }
      }
}

}  // namespace all_to_all_test
}  // namespace sfsdp::exec
