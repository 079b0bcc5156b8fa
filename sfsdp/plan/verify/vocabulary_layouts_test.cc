// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/vocabulary_layouts.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/layout_mutants.h"

namespace sfsdp::plan::vocabulary_layouts_test {
namespace {

// A table and a head that tp cuts in their rows, and the loss of logits of which each rank has some columns.
const std::string kStep = testing::dedent(R"(
  graph mesh [dp_shard=2, tp=2] view local
    %w = param name=w : f32[4/tp, 6]
    %o = param name=o : f32[4/tp, 6]
    %ids = input name=ids : i64[5] own(dp_shard)
    %t = input name=t : i64[5] own(dp_shard)
  fwd:
    %e = embedding %w, %ids axis=tp : f32[5, 6] sum(tp)
    %e.sum = all_reduce %e axis=tp : f32[5, 6]
    %x = linear %e.sum, %o : f32[5, 4/tp]
  loss:
    %parts = cross_entropy_parts %x, %t axis=tp : f32[3/tp, 5]
    %all = all_gather %parts axis=tp dim=0 : f32[6, 5]
    %loss, %n, %lse = cross_entropy_of_parts %all, %t : f32[], f32[], f32[5]
  bwd:
    %one = full value=1.0 : f32[]
    %dx = cross_entropy_backward %one, %x, %t, %n, %lse axis=tp : f32[5, 4/tp]
    %do = linear_dw %dx, %e.sum : f32[4/tp, 6]
    %de = linear_dx %dx, %o : f32[5, 6] sum(tp)
    %de.sum = all_reduce %de axis=tp : f32[5, 6]
    %dw = embedding_backward %de.sum, %ids axis=tp num_weights=8 : f32[4/tp, 6]
    %w.grad = gradient %dw param=w : f32[4/tp, 6]
    %o.grad = gradient %do param=o : f32[4/tp, 6]
    return %loss
    carry %w = %w.grad
    carry %o = %o.grad
)");

TEST_CASE("verify_layouts: a vocabulary that tp cuts is sound, and each change that breaks it is found, with the op") {
  testing::expect_refused(
      kStep,
      {
          {"a cut table is looked up as if it were whole", "%e = embedding %w, %ids axis=tp", "%e = embedding %w, %ids",
           "operand 0 is a part where the op reads the whole dimension"},
          {"a table that is whole", "%w = param name=w : f32[4/tp, 6]", "%w = param name=w : f32[4, 6]",
           "operand 0 has to be cut in dimension 0, and is whole"},
          {"a table that is cut in its columns", "%w = param name=w : f32[4/tp, 6]", "%w = param name=w : f32[4, 6/tp]",
           "operand 0 has to be cut in dimension 0, and is cut in dimension 1"},
          {"part of the ids", "%ids = input name=ids : i64[5] own(dp_shard)", "%ids = input name=ids : i64[5/tp]",
           "operand 1 has to be whole, and is cut in dimension 0"},
          {"what is looked up is not added up", "%x = linear %e.sum, %o : f32[5, 4/tp]",
           "%r = aten.relu %e : f32[5, 6]\n  %x = linear %r, %o : f32[5, 4/tp]", "a summand is taken for the sum"},
          {"its sum is over another axis", "%e.sum = all_reduce %e axis=tp", "%e.sum = all_reduce %e axis=dp_shard",
           "%e.sum is a summand, its type says whole"},
          {"what is looked up is said to be whole", "%e = embedding %w, %ids axis=tp : f32[5, 6] sum(tp)",
           "%e = embedding %w, %ids axis=tp : f32[5, 6]", "%e is a summand, its type says whole"},
          {"a loss of some classes", "%loss, %n, %lse = cross_entropy_of_parts %all, %t",
           "%loss, %n, %lse = cross_entropy_of_parts %parts, %t",
           "operand 0 is a part where the op reads the whole dimension"},
          {"the classes of another axis", "%parts = cross_entropy_parts %x, %t axis=tp",
           "%parts = cross_entropy_parts %x, %t axis=dp_shard", "is a part where the op reads the whole dimension"},
          {"the loss of cut logits in one", "%loss, %n, %lse = cross_entropy_of_parts %all, %t",
           "%loss, %n, %lse = cross_entropy %x, %t", "is a part where the op reads the whole dimension"},
          {"a gradient of all classes", "%dx = cross_entropy_backward %one, %x, %t, %n, %lse axis=tp",
           "%dx = cross_entropy_backward %one, %x, %t, %n, %lse",
           "operand 1 is a part where the op reads the whole dimension"},
          {"a gradient of all of the table", "axis=tp num_weights=8 : f32[4/tp, 6]", "num_weights=8 : f32[8, 6]",
           "%w.grad is whole, its type says cut in dimension 0"},
          {"the gradient of some rows, said to be whole", "axis=tp num_weights=8 : f32[4/tp, 6]",
           "axis=tp num_weights=8 : f32[4, 6]", "%dw is cut in dimension 0, its type says whole"},
          {"a gradient that is not added up", "%dw = embedding_backward %de.sum", "%dw = embedding_backward %de",
           "operand 0 has to be whole, and is a summand"},
          {"what else depends on the coordinate", "%x = linear %e.sum, %o",
           "%some = narrow %e.sum dim=1 length=3 start=\"0 + 3*tp\" : f32[5, 3]\n  %x = linear %e.sum, %o",
           "what it does depends on the rank's coordinate"},
      });
}

}  // namespace
}  // namespace sfsdp::plan::vocabulary_layouts_test
