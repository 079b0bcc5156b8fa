// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/random_ops.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/parallel/batch_order.h"

namespace sfsdp::exec {
namespace {

// In (0, 1): 53 bits, never 0, so that a logarithm can follow.
double unit(uint32_t high, uint32_t low) {
  const uint64_t bits = (uint64_t{high} << 21) ^ (low >> 11);
  return (static_cast<double>(bits) + 0.5) * 0x1.0p-53;
}

// Calls draw(u0, u1) for each element; both uniforms come from the element's own counter.
template <class Draw>
void fill(const at::Tensor& tensor, const RandomStream& stream, Draw draw) {
  SFSDP_CHECK(tensor.is_contiguous(), "random fill of a strided tensor ", tensor.sizes());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, tensor.scalar_type(), "counter_rng", [&] {
    scalar_t* out = tensor.mutable_data_ptr<scalar_t>();
    const int64_t rest = tensor.numel() / stream.outer;
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      const int64_t number = (stream.first_element + i % rest) * stream.outer + i / rest;
      const auto words = philox4x32(stream.key, stream.stream, static_cast<uint64_t>(number));
      out[i] = static_cast<scalar_t>(draw(unit(words[0], words[1]), unit(words[2], words[3])));
    }
  });
}

}  // namespace

void fill_uniform(const at::Tensor& tensor, double low, double high, const RandomStream& stream) {
  fill(tensor, stream, [&](double u, double) { return low + (high - low) * u; });
}

void fill_normal(const at::Tensor& tensor, double mean, double std, const RandomStream& stream) {
  fill(tensor, stream, [&](double u, double v) {  // Box–Muller
    return mean + std * std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
  });
}

void fill_bernoulli(const at::Tensor& tensor, double p, const RandomStream& stream) {
  fill(tensor, stream, [&](double u, double) { return u < p ? 1.0 : 0.0; });
}

namespace {

using Fill = void (*)(const ir::Op&, const at::Tensor& out, const std::vector<at::Tensor>& operands,
                      const RandomStream& stream);

void uniform(const ir::Op& op, const at::Tensor& out, const std::vector<at::Tensor>&, const RandomStream& stream) {
  fill_uniform(out, ir::number_of(op, "from", 0), ir::number_of(op, "to", 1), stream);
}
void normal(const ir::Op& op, const at::Tensor& out, const std::vector<at::Tensor>&, const RandomStream& stream) {
  fill_normal(out, ir::number_of(op, "mean", 0), ir::number_of(op, "std", 1), stream);
}
void bernoulli(const ir::Op& op, const at::Tensor& out, const std::vector<at::Tensor>&, const RandomStream& stream) {
  fill_bernoulli(out, ir::number_of(op, "p", 0.5), stream);
}
void bernoulli_of(const ir::Op&, const at::Tensor& out, const std::vector<at::Tensor>& operands,
                  const RandomStream& stream) {
  fill_uniform(out, 0, 1, stream);
  out.copy_(out.lt(operands[0]));
}

const std::map<std::string, Fill>& fills() {
  static const std::map<std::string, Fill> fills = {
      {"aten.rand", uniform},           {"aten.rand_like", uniform},    {"aten.randn", normal},
      {"aten.randn_like", normal},      {"aten.uniform", uniform},      {"aten.normal_functional", normal},
      {"aten.bernoulli", bernoulli_of}, {"aten.bernoulli.p", bernoulli}};
  return fills;
}

}  // namespace

bool draws_random(const ir::Op& op) { return fills().contains(op.opcode); }

void check_drawable(const ir::Op& op) {
  if (!ir::is_aten(op.opcode) || !ir::is_random(op) || draws_random(op)) return;
  throw UserError(concat(ir::opcode_at(op),
                         " draws random numbers in the order of calls, which differ from mesh to mesh",
                         "\n  expected rand, randn, uniform_, normal_, bernoulli or dropout; write it with one of them"
                         " (RReLU: torch::where(x < 0, x * torch::empty_like(x).uniform_(lower, upper), x)), or pass"
                         " the numbers in the batch"));
}

void number_random_ops(ir::Graph& graph) {
  std::map<std::string, int64_t> next;
  for (const auto& op : graph.ops()) {
    check_drawable(*op);
    if (draws_random(*op)) op->attrs["stream"] = next[op->module_path]++;
  }
}

std::string number_random_ops(ir::Graph& graph, const std::function<ir::Graph(int64_t factor)>& grow) {
  number_random_ops(graph);
  if (std::ranges::none_of(graph.ops(), [](const auto& op) { return draws_random(*op); })) return "";
  const int64_t factor = parallel::growth_factor(graph);
  std::string wrong;
  try {
    ir::Graph grown = grow(factor);
    number_random_ops(grown);
    wrong = parallel::order_draws(graph, grown, factor);
  } catch (const std::exception& error) {
    wrong = concat("the step draws random numbers, and with ", factor,
                   " times the rows it cannot be captured: ", split(error.what(), '\n')[0]);
  }
  if (wrong.empty()) return "";
  return wrong +
         "\n  expected sizes taken from the batch (x.size(0), or -1), not numbers; dimension 0 of each of its"
         " tensors as the batch, unless DataParallelOptions::batch_dims says otherwise; draws in a shape of which"
         " one dimension is the batch. Or pass the random numbers in the batch";
}

at::Tensor draw(const ir::Op& op, const std::vector<at::Tensor>& operands, at::IntArrayRef shape,
                const RandomStream& stream) {
  at::Tensor out = at::empty(shape, at::TensorOptions(capture::scalar_type_of(op.result()->type().dtype)));
  fills().at(op.opcode)(op, out, operands, stream);
  return out;
}

}  // namespace sfsdp::exec
