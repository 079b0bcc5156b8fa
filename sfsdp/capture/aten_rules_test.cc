// SPDX-License-Identifier: BSD-3-Clause
// Every rule of ir/atenset.def against LibTorch's own shape functions: random calls are traced on meta tensors, and the
// verifier must agree with the types that LibTorch gave, and with no others.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/capture/tracer.h"
#include "sfsdp/ir/canonical/term.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/shape_rules.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/ir/view_geometry.h"
#include "sfsdp/testing/aten_calls_torch.h"

namespace sfsdp::capture {
namespace aten_rules_test {

using at::Tensor;
using testing::Caller;
using Sizes = std::vector<int64_t>;

// The types with one thing changed, none of which the verifier may take for right.
void expect_wrong(ir::Graph& graph, ir::Value* value, Caller& c) {
  const ir::Type right = value->type();
  ir::Type wrong = right;
  wrong.strides.clear();
  if (right.dims.empty() || c.chance(30))
    wrong.dims.push_back({.size = 3, .split = {}, .padded = false});
  else
    ++wrong.dims[static_cast<size_t>(c.in(0, static_cast<int64_t>(right.dims.size()) - 1))].size;
  value->set_type(wrong);
  CHECK_MESSAGE(!ir::verify(graph).empty(), "not refused: ", ir::print(*value->producer()));
  value->set_type(right);
}

bool has_rule(const ir::Op& op) {
  const ir::OpRow* row = op.opcode.row();
  return row && ir::is_aten(op.opcode) && row->rule != ir::no_rule;
}

void compare(const std::vector<testing::Call>& calls, std::map<const ir::OpRow*, int>& compared) {
  for (size_t i = 0; i < calls.size(); ++i) {
    for (uint64_t round = 0; round < 40; ++round) {
      Tracer tracer;
      Caller caller(1000 * i + round, tracer);
      try {
        tracer.run([&] { calls[i](caller); });
      } catch (const c10::Error&) {  // LibTorch refuses the dtype; what was traced before is compared
      } catch (const UserError&) {
      }
      const auto diagnostics = ir::verify(tracer.graph);
      CHECK_MESSAGE(diagnostics.empty(), ir::to_string(diagnostics), "\n", ir::print(tracer.graph));
      if (!diagnostics.empty()) break;
      for (const auto& op : tracer.graph.ops()) {
        if (!has_rule(*op)) continue;
        if (++compared[op->opcode.row()] % 8 == 0 && op->result()->type().kind == ir::Type::Kind::Tensor)
          expect_wrong(tracer.graph, op->result(), caller);
      }
    }
  }
}

TEST_CASE("aten rules: the verifier takes the types that LibTorch gives, and no others") {
  std::map<const ir::OpRow*, int> compared;
  compare(testing::aten_calls(), compared);
  // Recorded in other forms, or only drawn by initialisers.
  const std::set<std::string> apart = {"aten.native_dropout", "aten.random.*",        "aten.cauchy",
                                       "aten.exponential",    "aten.geometric",       "aten.log_normal",
                                       "aten.poisson",        "aten._standard_gamma", "aten._sample_dirichlet",
                                       "aten.dropout",        "aten.reshape",         "aten.lift_fresh",
                                       "aten.alias",          "aten.detach"};
  for (const ir::OpRow& row : ir::opset())
    if (ir::is_aten(row.name) && row.rule != ir::no_rule && !apart.contains(std::string(row.name)))
      CHECK_MESSAGE(compared[&row] >= 8, row.name, " was compared ", compared[&row], " times");
}

// The dispatcher's own marks, of every op that a trace can record.
TEST_CASE("aten rows say of each op that draws or gives a view that it does") {
  // Ops of tensors that no trace holds: sparse, nested, forward-mode; and what the trace itself resolves.
  const std::set<std::string> foreign = {"_fw_primal",
                                         "_make_dual",
                                         "_indices",
                                         "_values",
                                         "indices",
                                         "values",
                                         "crow_indices",
                                         "col_indices",
                                         "ccol_indices",
                                         "row_indices",
                                         "_nested_get_values",
                                         "_nested_view_from_buffer",
                                         "_nested_view_from_jagged",
                                         "_sparse_broadcast_to",
                                         "_test_autograd_multiple_dispatch_view",
                                         "slice_inverse",
                                         "_fused_sdp_choice"};
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
    const std::string base = name.name.substr(6);
    if (base.ends_with('_') || name.overload_name == "out" || name.overload_name.ends_with("_out")) continue;
    ir::Op recorded;
    recorded.opcode = concat("aten.", base, name.overload_name.empty() ? "" : ".", name.overload_name);
    CAPTURE(recorded.opcode);
    const auto& schema = op->schema();
    const auto* in = schema.arguments().empty() ? nullptr : schema.arguments()[0].alias_info();
    const auto* out = schema.returns().empty() ? nullptr : schema.returns()[0].alias_info();
    const bool view = in && out && !in->isWrite() && !out->isWrite();
    const ir::OpRow* row = ir::find_row(recorded.opcode);
    if (view && !foreign.contains(base)) CHECK((row && row->alias == ir::Alias::ViewOfFirst));
    const bool on_cpu = op->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
                        op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
    const bool draws = op->hasTag(at::Tag::nondeterministic_seeded) && on_cpu;
    if (draws && !base.starts_with("_scaled_dot_product") && !foreign.contains(base)) CHECK(ir::is_random(recorded));
    if (row && row->alias == ir::Alias::ViewOfFirst && base != "_unsafe_view") CHECK(view);
  }
}

// Decompositions of canonical ops go by it, and nothing is taken for one whose layout it tells wrong.
TEST_CASE("ir::pointwise_type is laid out as LibTorch lays results out") {
  std::mt19937_64 engine(1);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(engine() % static_cast<uint64_t>(n)); };
  int strided = 0;
  for (int k = 0; k < 3000; ++k) {
    Sizes shape(static_cast<size_t>(below(5)));
    for (int64_t& size : shape) size = below(10) == 0 ? 0 : below(4) + 1;
    const auto operand = [&] {  // dimensions in any order, some of size 1, some expanded, some sliced
      Sizes own(shape.begin() + below(static_cast<int64_t>(shape.size()) + 1), shape.end()), order(own.size());
      for (size_t d = 0; d < own.size(); ++d) {
        order[d] = static_cast<int64_t>(d);
        if (below(4) == 0) own[d] = 1;
      }
      std::shuffle(order.begin(), order.end(), engine);
      Sizes memory(own.size()), back(own.size());
      for (size_t d = 0; d < own.size(); ++d) {
        memory[d] = own[static_cast<size_t>(order[d])];
        back[static_cast<size_t>(order[d])] = static_cast<int64_t>(d);
      }
      if (!memory.empty() && below(3) == 0) memory.back() *= 2;
      Tensor t = at::randn(memory);
      if (!memory.empty()) t = t.narrow(-1, 0, own[static_cast<size_t>(order.back())]);
      t = t.permute(back);
      return below(4) == 0 ? t.expand(Sizes(shape.end() - t.dim(), shape.end())) : t;
    };
    const Tensor a = operand(), b = operand();
    // A type does not say where a dimension of size 1 would go on, which LibTorch compares too.
    const auto is_told = [](const Tensor& t) { return t.strides() == at::IntArrayRef(ir::strides_of(type_of(t))); };
    if (!is_told(a) || !is_told(b)) continue;
    const auto term = [](const Tensor& t) { return ir::Term{nullptr, 0, type_of(t)}; };
    const auto same = [&](const Tensor& got, const ir::Type& type) {
      strided += type.strides.empty() ? 0 : 1;
      CHECK_MESSAGE(ir::same_layout(type_of(got), type), type_of(a), " and ", type_of(b), " give ", type_of(got),
                    ", not ", type);
    };
    same(a * b, ir::pointwise_type(ir::DType::f32, {term(a), term(b)}));
    same(a.neg(), ir::pointwise_type(ir::DType::f32, {term(a)}));
    same(a.to(at::kBFloat16), ir::pointwise_type(ir::DType::bf16, {term(a)}));
    same(at::empty_like(a), ir::pointwise_type(ir::DType::f32, {term(a)}));
  }
  CHECK(strided > 500);
}

}  // namespace aten_rules_test
}  // namespace sfsdp::capture
