// SPDX-License-Identifier: BSD-3-Clause
// Every shape function against the real CPU kernel, on random sizes, strides, dtypes and options.
#include "sfsdp/capture/meta_kernels.h"

#include <ATen/ATen.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <sstream>

#include "sfsdp/base/check.h"
#include "sfsdp/capture/meta_rules.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/capture/tracer.h"
#include "sfsdp/testing/layer_arguments_torch.h"

namespace sfsdp::capture {
namespace meta_kernels_test {

using at::Tensor;
using c10::IValue;
using testing::call, testing::find_op, testing::mask3, testing::stack_of, testing::image, testing::attention;
using testing::MakeArguments, testing::Random, testing::Sizes;
using torch::jit::Stack;

constexpr int kRounds = 600;
// The CPU kernel may refuse a round (a dtype, an empty size); that many must remain.
constexpr int kMinCompared = 150;

// --- ops with rules -------------------------------------------------------------------------------------------------

// Arguments from the schema alone; nullopt where an argument's kind needs a fuzzer of its own.
std::optional<Stack> arguments_by_rule(const std::string& name, MetaRule rule, Random& random) {
  const c10::FunctionSchema& schema = find_op(name).schema();
  const bool reduces = rule == MetaRule::Reduce || rule == MetaRule::Sum || rule == MetaRule::Count;
  const bool vector = name == "aten::dot", matrix = name == "aten::trace";
  Sizes sizes = random.sizes(vector ? 1 : matrix ? 2 : 0, vector ? 1 : matrix ? 2 : 4);
  const bool loss = schema.argumentIndexWithName("reduction").has_value();
  const bool mixes = rule == MetaRule::Pointwise || rule == MetaRule::Predicate;  // dtypes and broadcasting
  const auto dtype = random.floating();
  const int64_t reduction = random.in(0, 2);
  Stack stack;
  for (const c10::Argument& argument : schema.arguments()) {
    const std::string& key = argument.name();
    const auto kind = argument.real_type()->kind();
    const bool optional = kind == c10::TypeKind::OptionalType;
    if (kind == c10::TypeKind::TensorType) {
      const bool condition = key == "condition";
      if (loss && key == "grad_output" && reduction != at::Reduction::None)
        stack.emplace_back(random.tensor({}, dtype));
      else if (mixes)
        stack.emplace_back(random.broadcastable(sizes, condition           ? at::kBool
                                                       : random.chance(70) ? dtype
                                                                           : random.floating()));
      else
        stack.emplace_back(random.tensor(
            sizes, (rule == MetaRule::Sum || rule == MetaRule::Count) && random.chance(30) ? at::kInt : dtype));
    } else if (key == "reduction") {
      stack.emplace_back(reduction);
    } else if (key == "weight") {
      stack.emplace_back(random.chance(50) ? IValue(random.tensor(sizes, dtype)) : IValue());
    } else if (key == "dim" && (reduces || name == "aten::logcumsumexp")) {
      const auto dims = static_cast<int64_t>(std::max<size_t>(sizes.size(), 1));
      const int64_t dim = random.in(-dims, dims - 1);
      if (kind == c10::TypeKind::IntType)
        stack.emplace_back(dim);
      else
        stack.emplace_back(optional && random.chance(30) ? IValue() : IValue(Sizes{dim}));
    } else if (key == "keepdim") {
      stack.emplace_back(random.chance(50));
    } else if (key == "dtype") {
      stack.emplace_back(random.chance(20) ? IValue(at::kDouble) : IValue());
    } else if (key == "dims") {  // of flip
      stack.emplace_back(sizes.empty() ? Sizes{} : Sizes{static_cast<int64_t>(sizes.size()) - 1});
    } else if (key == "k") {
      stack.emplace_back(int64_t{1});
    } else if (argument.default_value()) {
      stack.emplace_back(*argument.default_value());
    } else if (kind == c10::TypeKind::NumberType || kind == c10::TypeKind::FloatType) {
      stack.emplace_back(0.5);
    } else if (optional) {
      stack.emplace_back();
    } else {
      return std::nullopt;
    }
  }
  return stack;
}

// --- ops with a function of their own ------------------------------------------------------------------------------

Stack rsub(Random& r) {
  const Sizes sizes = r.sizes(0, 4);
  return stack_of(r.broadcastable(sizes, r.floating()), r.broadcastable(sizes, r.floating()), 2);
}
Stack roll(Random& r) {
  const Sizes sizes = r.sizes(1, 4);
  const auto dims = static_cast<int64_t>(sizes.size());
  if (r.chance(20)) return stack_of(r.tensor(sizes, r.floating()), Sizes{r.in(-3, 3)}, Sizes{});
  Sizes shifts, rolled;
  for (int64_t d = 0; d < dims; ++d)
    if (d == 0 || r.chance(30)) shifts.push_back(r.in(-3, 7)), rolled.push_back(r.chance(50) ? d : d - dims);
  return stack_of(r.tensor(sizes, r.floating()), shifts, rolled);
}
Stack take(Random& r) { return stack_of(r.tensor({3, 4}, r.floating()), r.indices(r.sizes(0, 3), 12)); }
Stack bucketize(Random& r) {
  const auto dtype = r.floating();
  return stack_of(r.tensor(r.sizes(0, 3), dtype), at::arange(5).to(dtype), r.chance(50), r.chance(50));
}
Stack searchsorted(Random& r) {
  const auto dtype = r.floating();
  return stack_of(at::arange(5).to(dtype), r.tensor(r.sizes(0, 3), dtype), r.chance(50), r.chance(50), IValue(),
                  IValue());
}
Stack addbmm(Random& r) {
  const auto dtype = r.floating();
  const int64_t n = r.in(1, 4), m = r.in(1, 4), k = r.in(1, 4), b = r.in(1, 3);
  return stack_of(r.tensor(r.chance(50) ? Sizes{n, m} : Sizes{m}, dtype), r.tensor({b, n, k}, dtype),
                  r.tensor({b, k, m}, dtype), 1, 1);
}
// Inner sizes are multiples of 16 bytes, as the kernel asks; b may be stored column by column, which allows any of its own.
Stack grouped_mm(Random& r) {
  const auto dtype = r.pick({at::kFloat, at::kBFloat16, at::kHalf});
  const int64_t groups = r.in(1, 3), m = 8 * r.in(1, 2), k = 8 * r.in(1, 2), n = 8 * r.in(1, 2);
  const auto ends = [&](int64_t last) {
    Tensor offsets = at::randint(last + 1, {groups}, at::kInt);
    offsets[groups - 1] = last;
    return std::get<0>(at::sort(offsets)).to(at::kInt);
  };
  const auto stack = [](const Tensor& a, const Tensor& b, const IValue& offsets) {
    return stack_of(a, b, offsets, IValue(), IValue());
  };
  switch (r.in(0, 4)) {
    case 0: return stack(at::randn({m, k}, dtype), at::randn({groups, k, n}, dtype), ends(m));
    case 1: return stack(at::randn({m, k}, dtype), at::randn({groups, n - 3, k}, dtype).transpose(1, 2), ends(m));
    case 2: return stack(at::randn({k, m}, dtype).t(), at::randn({k, n}, dtype), ends(k));
    case 3: return stack(at::randn({groups, m, k}, dtype), at::randn({k, n}, dtype), ends(n));
    default: return stack(at::randn({groups, m, k}, dtype), at::randn({groups, k, n}, dtype), IValue());
  }
}
Stack histc(Random& r) {
  return stack_of(r.tensor(r.sizes(0, 3), r.pick({at::kFloat, at::kDouble})), r.in(1, 5), 0, r.in(0, 2));
}
Stack polar(Random& r) {
  const auto dtype = r.pick({at::kFloat, at::kDouble});
  const Sizes sizes = r.sizes(0, 3);
  return stack_of(r.tensor(sizes, dtype), r.broadcastable(sizes, dtype));
}
Stack cumulative(Random& r) {
  const Sizes sizes = r.sizes(1, 4);
  return stack_of(r.tensor(sizes, r.floating()), r.in(0, static_cast<int64_t>(sizes.size()) - 1));
}
Stack log_sigmoid(Random& r) { return stack_of(r.tensor(r.sizes(0, 4), r.floating())); }
Stack log_sigmoid_backward(Random& r) {
  Tensor x = r.tensor(r.sizes(0, 4), r.floating());
  const auto f = call("log_sigmoid_forward", x);
  return stack_of(r.tensor(x.sizes().vec(), x.scalar_type()), x, f[1]);
}
Stack glu_backward(Random& r) {
  Sizes sizes = r.sizes(1, 4);
  const auto dim = static_cast<size_t>(r.in(0, static_cast<int64_t>(sizes.size()) - 1));
  const auto dtype = r.floating();
  Tensor grad = r.tensor(sizes, dtype);
  sizes[dim] *= 2;
  return stack_of(grad, r.tensor(sizes, dtype), static_cast<int64_t>(dim));
}
Stack prelu(Random& r) {
  const Sizes sizes = r.sizes(2, 4);
  Sizes weight(sizes.size(), 1);
  weight[1] = sizes[1];
  const auto dtype = r.floating();
  return stack_of(r.tensor(sizes, dtype), at::rand(weight).to(dtype));
}
Stack prelu_backward(Random& r) {
  Stack stack = prelu(r);
  Tensor x = stack[0].toTensor();
  stack.insert(stack.begin(), IValue(r.tensor(x.sizes().vec(), x.scalar_type())));
  return stack;
}
Stack nll_loss2d(Random& r) {
  const int64_t n = r.in(1, 3), c = r.in(1, 4), h = r.in(1, 4), w = r.in(1, 4);
  const auto dtype = r.floating();
  return stack_of(r.tensor({n, c, h, w}, dtype), r.indices({n, h, w}, c), r.maybe(at::rand({c}).to(dtype)), r.in(0, 2),
                  int64_t{-100});
}
Stack nll_loss2d_backward(Random& r) {
  const Stack s = nll_loss2d(r);
  Stack forward = s;
  find_op("aten::nll_loss2d_forward").callBoxed(forward);
  const Tensor out = forward[0].toTensor();
  return stack_of(r.tensor(out.sizes().vec(), out.scalar_type()), s[0], s[1], s[2], s[3], s[4], forward[1]);
}
Stack cdist(Random& r) {
  const auto dtype = r.pick({at::kFloat, at::kDouble});
  const int64_t width = r.in(1, 5);
  const Sizes batch = r.chance(50) ? Sizes{} : Sizes{r.in(1, 3)};
  const auto points = [&](Sizes sizes) {
    sizes.push_back(r.in(1, 5));
    sizes.push_back(width);
    return r.tensor(sizes, dtype);
  };
  return stack_of(points(batch), points(r.chance(70) ? batch : Sizes{}), r.pick({1.0, 2.0, 3.0}),
                  r.chance(50) ? IValue() : IValue(int64_t{2}));
}
Stack cdist_backward(Random& r) {
  const Stack s = cdist(r);
  Stack forward = s;
  find_op("aten::_cdist_forward").callBoxed(forward);
  const Tensor out = forward[0].toTensor();
  // torch::cdist's formula hands on contiguous points.
  return stack_of(r.tensor(out.sizes().vec(), out.scalar_type()), s[0].toTensor().contiguous(),
                  s[1].toTensor().contiguous(), s[2], out);
}
Stack weight_norm(Random& r) {
  const Sizes sizes = {r.in(1, 5), r.in(1, 5)};
  const auto dtype = r.floating();
  const int64_t dim = r.in(0, 1);
  Sizes g = {1, 1};
  g[static_cast<size_t>(dim)] = sizes[static_cast<size_t>(dim)];
  return stack_of(r.tensor(sizes, dtype).contiguous(), at::rand(g).to(dtype),
                  dim);  // torch::_weight_norm makes it dense
}
Stack weight_norm_backward(Random& r) {
  const Stack s = weight_norm(r);
  Stack forward = s;
  find_op("aten::_weight_norm_interface").callBoxed(forward);
  return stack_of(at::rand_like(forward[0].toTensor()), s[0], s[1], forward[1], s[2]);
}
Stack grid_sampler(Random& r) {
  const auto dtype = r.pick({at::kFloat, at::kDouble});
  const int64_t n = r.in(1, 3);
  return stack_of(r.tensor({n, r.in(1, 3), r.in(2, 5), r.in(2, 5)}, dtype),
                  r.tensor({n, r.in(1, 4), r.in(1, 4), 2}, dtype), r.in(0, 2), r.in(0, 2), r.chance(50));
}
Stack grid_sampler_backward(Random& r) {
  Stack s = grid_sampler(r);
  const Tensor x = s[0].toTensor(), grid = s[1].toTensor();
  s.insert(s.begin(), IValue(r.tensor({x.size(0), x.size(1), grid.size(1), grid.size(2)}, x.scalar_type())));
  c10::List<bool> mask;
  mask.push_back(r.chance(70));
  mask.push_back(r.chance(70));
  s.emplace_back(mask);
  return s;
}
Stack safe_softmax(Random& r) {
  const Sizes sizes = r.sizes(1, 4);
  return stack_of(r.tensor(sizes, r.floating()), r.in(-1, static_cast<int64_t>(sizes.size()) - 1),
                  r.chance(30) ? IValue(at::kFloat) : IValue());
}
Stack triangle_indices(Random& r) {
  return stack_of(r.in(0, 5), r.in(0, 5), r.in(-3, 3), IValue(at::kLong), IValue(), IValue(at::Device(at::kCPU)),
                  IValue());
}

// Rows of classes with a target each; one row may have no batch dimension.
struct RowLoss {
  Tensor x, target;
  std::optional<Tensor> weight;
  int64_t reduction = 0;
};
RowLoss row_loss(Random& r, bool many_targets) {
  const int64_t classes = r.in(2, 5);
  Sizes sizes = r.chance(70) ? Sizes{r.in(1, 4), classes} : Sizes{classes}, targets = sizes;
  if (!many_targets) targets.pop_back();
  if (!many_targets && sizes.size() == 1 && r.chance(50)) targets = {1};
  RowLoss l;
  l.x = r.tensor(sizes, r.pick({at::kFloat, at::kDouble}));
  l.target = r.indices(targets, classes);
  l.weight = r.maybe(at::rand({classes}).to(l.x.scalar_type()));
  l.reduction = r.in(0, 2);
  return l;
}
Stack multi_margin(Random& r) {
  const RowLoss l = row_loss(r, false);
  return stack_of(l.x, l.target, 1, 1.0, l.weight, l.reduction);
}
Stack multi_margin_backward(Random& r) {
  const RowLoss l = row_loss(r, false);
  const Tensor out = call("multi_margin_loss", l.x, l.target, 1, 1.0, l.weight, l.reduction)[0].toTensor();
  return stack_of(at::rand_like(out), l.x, l.target, 1, 1.0, l.weight, l.reduction);
}
Stack multilabel_margin(Random& r) {
  const RowLoss l = row_loss(r, true);
  return stack_of(l.x, l.target, l.reduction);
}
Stack multilabel_margin_backward(Random& r) {
  const RowLoss l = row_loss(r, true);
  const auto f = call("multilabel_margin_loss_forward", l.x, l.target, l.reduction);
  return stack_of(at::rand_like(f[0].toTensor()), l.x, l.target, l.reduction, f[1]);
}

struct EmbeddingBag {
  Tensor weight, indices, offsets;
  int64_t mode = 0, padding = -1;
  std::optional<Tensor> scales;
  bool last_is_end = false;
};
EmbeddingBag embedding_bag(Random& r) {
  EmbeddingBag b;
  const int64_t rows = r.in(2, 6), count = r.in(1, 8), bags = r.in(1, 4);
  b.weight = r.tensor({rows, r.in(1, 5)}, r.floating());
  b.indices = r.indices({count}, rows);
  b.offsets = std::get<0>(at::sort(r.indices({bags}, count + 1)));
  b.offsets[0].zero_();
  b.mode = r.in(0, 2);
  b.last_is_end = r.chance(30);
  if (b.last_is_end) b.offsets = at::cat({b.offsets, at::full({1}, count, at::kLong)});
  if (b.mode == 0) b.scales = r.maybe(r.tensor({count}, b.weight.scalar_type()), 40);
  if (r.chance(30)) b.padding = r.in(0, rows - 1);
  return b;
}
Stack embedding_bag_forward(Random& r) {
  const EmbeddingBag b = embedding_bag(r);
  return stack_of(b.weight, b.indices, b.offsets, false, b.mode, false, b.scales, b.last_is_end, b.padding);
}
MakeArguments embedding_bag_backward(bool of_scales) {
  return [=](Random& r) {
    const EmbeddingBag b = embedding_bag(r);
    const auto f = call("_embedding_bag", b.weight, b.indices, b.offsets, false, b.mode, false, b.scales, b.last_is_end,
                        b.padding);
    const Tensor grad = r.tensor(f[0].toTensor().sizes().vec(), b.weight.scalar_type());
    Tensor bag_of = f[1].toTensor();
    if (bag_of.numel() == 0) bag_of = at::zeros_like(b.indices);
    if (of_scales) return stack_of(grad, b.weight, b.indices, b.offsets, bag_of, b.mode, b.padding);
    return stack_of(grad, b.indices, b.offsets, bag_of, f[2], f[3], b.weight.size(0), false, b.mode, false, b.scales,
                    b.padding);
  };
}

Stack ctc(Random& r) {
  const int64_t steps = r.in(6, 8), batch = r.in(1, 3), classes = r.in(3, 5);
  Sizes lengths, targets;
  for (int64_t i = 0; i < batch; ++i) {
    lengths.push_back(r.in(6, steps));
    targets.push_back(r.in(1, 3));
  }
  const auto dtype = r.pick({at::kFloat, at::kDouble});
  return stack_of(r.tensor({steps, batch, classes}, dtype), r.indices({batch, 3}, classes - 1) + 1, lengths, targets,
                  int64_t{0}, r.chance(50));
}
Stack ctc_backward(Random& r) {
  Stack forward = ctc(r);
  const auto f = call("_ctc_loss", forward[0], forward[1], forward[2], forward[3], forward[4], forward[5]);
  return stack_of(at::rand_like(f[0].toTensor()), forward[0], forward[1], forward[2], forward[3], f[0], f[1],
                  forward[4], forward[5]);
}

std::map<std::string, MakeArguments> make_own_fuzzers() {
  std::map<std::string, MakeArguments> fuzzers = {
      {"rsub.Tensor", rsub},
      {"roll", roll},
      {"take", take},
      {"bucketize.Tensor", bucketize},
      {"searchsorted.Tensor", searchsorted},
      {"addbmm", addbmm},
      {"_grouped_mm", grouped_mm},
      {"histc", histc},
      {"polar", polar},
      {"cummax", cumulative},
      {"cummin", cumulative},
      {"log_sigmoid_forward", log_sigmoid},
      {"log_sigmoid_backward", log_sigmoid_backward},
      {"glu_backward", glu_backward},
      {"_prelu_kernel", prelu},
      {"_prelu_kernel_backward", prelu_backward},
      {"nll_loss2d_forward", nll_loss2d},
      {"nll_loss2d_backward", nll_loss2d_backward},
      {"_cdist_forward", cdist},
      {"_cdist_backward", cdist_backward},
      {"_weight_norm_interface", weight_norm},
      {"_weight_norm_interface_backward", weight_norm_backward},
      {"grid_sampler_2d", grid_sampler},
      {"grid_sampler_2d_backward", grid_sampler_backward},
      {"_safe_softmax", safe_softmax},
      {"multi_margin_loss", multi_margin},
      {"multi_margin_loss_backward", multi_margin_backward},
      {"multilabel_margin_loss_forward", multilabel_margin},
      {"multilabel_margin_loss_backward", multilabel_margin_backward},
      {"_embedding_bag", embedding_bag_forward},
      {"_embedding_bag_backward", embedding_bag_backward(false)},
      {"_embedding_bag_per_sample_weights_backward", embedding_bag_backward(true)},
      {"_ctc_loss", ctc},
      {"_ctc_loss_backward", ctc_backward},
      {"tril_indices", triangle_indices},
      {"triu_indices", triangle_indices},
  };
  fuzzers.merge(testing::layer_arguments());
  return fuzzers;
}

const std::map<std::string, MakeArguments>& own_fuzzers() {
  static const std::map<std::string, MakeArguments> fuzzers = make_own_fuzzers();
  return fuzzers;
}

std::optional<Stack> arguments_of(const std::string& name, Random& random) {
  const std::string short_name = name.substr(std::string("aten::").size());
  if (auto own = own_fuzzers().find(short_name); own != own_fuzzers().end()) return own->second(random);
  for (const MetaRuleRow& row : meta_rules())
    if (row.name == short_name) return arguments_by_rule(name, row.rule, random);
  return std::nullopt;
}

// --- comparison -----------------------------------------------------------------------------------------------------

// The same call on meta tensors: sizes, strides and offsets kept, and which arguments share memory.
Stack on_meta(const Stack& stack) {
  std::map<c10::StorageImpl*, Tensor> bases;
  Stack result;
  for (const IValue& value : stack) {
    if (value.isDevice()) {
      result.emplace_back(at::Device(at::kMeta));
    } else if (value.isTensor() && value.toTensor().defined()) {
      const Tensor& t = value.toTensor();
      auto [base, fresh] = bases.try_emplace(t.storage().unsafeGetStorageImpl());
      if (fresh)
        base->second =
            at::empty({static_cast<int64_t>(t.storage().nbytes() / t.itemsize())}, t.options().device(at::kMeta));
      result.emplace_back(base->second.as_strided(t.sizes(), t.strides(), t.storage_offset()));
    } else {
      result.push_back(value);
    }
  }
  return result;
}

std::string describe(const IValue& output, const Stack& inputs) {
  if (!output.isTensor()) return concat(output);
  const Tensor& t = output.toTensor();
  if (!t.defined()) return "undefined";
  std::ostringstream text;
  text << t.scalar_type() << t.sizes() << " strides";
  for (int64_t d = 0; d < t.dim(); ++d)  // of one element, or none, a stride addresses nothing
    text << ' ' << (t.size(d) > 1 && t.numel() > 0 ? t.stride(d) : 0);
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].isTensor() && inputs[i].toTensor().defined() && inputs[i].toTensor().is_alias_of(t)) {
      text << " shares memory with argument " << i;
      break;
    }
  return text.str();
}

std::string describe_call(const std::string& name, const Stack& stack) {
  std::ostringstream text;
  text << name;
  for (const IValue& value : stack) {
    if (value.isTensor() && value.toTensor().defined())
      text << "\n    " << value.toTensor().scalar_type() << value.toTensor().sizes() << value.toTensor().strides();
    else
      text << "\n    " << value;
  }
  return text.str();
}

// Whether the CPU kernel took the arguments.
bool compare(const std::string& name, const Stack& arguments) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::OperatorHandle op = find_op(name);
  const Stack meta_arguments = on_meta(arguments);
  const std::string call_text = describe_call(name, arguments);
  Stack real = arguments, meta = meta_arguments;
  try {
    op.callBoxed(real);
  } catch (const c10::Error&) {
    return false;
  }
  INFO(call_text);
  try {
    op.callBoxed(meta);
  } catch (const c10::Error& error) {
    FAIL_CHECK(error.what_without_backtrace());
    return true;
  }
  REQUIRE(meta.size() == real.size());
  for (size_t i = 0; i < real.size(); ++i) {
    CAPTURE(i);
    CHECK(describe(meta[i], meta_arguments) == describe(real[i], arguments));
  }
  return true;
}

// LibTorch warns of a variance of one number, and of slow strides.
struct Quiet : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

TEST_CASE("every shape function gives what the CPU kernel gives") {
  Quiet quiet;
  c10::WarningUtils::WarningHandlerGuard silence(&quiet);
  { Tracer registers_the_shape_functions; }
  REQUIRE(!meta_kernel_names().empty());
  for (const std::string& name : meta_kernel_names()) {
    CAPTURE(name);
    Random random(std::hash<std::string>{}(name));
    at::manual_seed(1);
    int compared = 0;
    for (int round = 0; round < kRounds; ++round) {
      std::optional<Stack> arguments;
      try {
        arguments = arguments_of(name, random);
      } catch (const c10::Error&) {  // the forward of a backward refused the arguments
        continue;
      }
      REQUIRE_MESSAGE(arguments.has_value(), "no fuzzer for " << name << ": add one to own_fuzzers()");
      compared += compare(name, *arguments) ? 1 : 0;
    }
    CHECK_MESSAGE(compared >= kMinCompared, name << ": the CPU kernel took only " << compared << " of " << kRounds);
  }
}

struct AttentionCall {
  Tensor q, k, v;
  std::optional<Tensor> mask;
  double dropout = 0;
  bool causal = false, gqa = false;
  Tensor run() const { return at::scaled_dot_product_attention(q, k, v, mask, dropout, causal, std::nullopt, gqa); }
};

// Also what the flash kernel cannot do: 3-d tensors, dropout, another value size, strided features, uneven heads.
AttentionCall any_attention(Random& r) {
  const testing::Attention a = attention(r);
  AttentionCall c{a.q, a.k, a.v, a.mask, r.chance(15) ? 0.5 : 0.0, a.causal, a.q.size(1) != a.k.size(1)};
  if (r.chance(10)) c.v = at::rand({a.v.size(0), a.v.size(1), a.v.size(2), 6}).to(a.v.scalar_type());
  if (r.chance(10)) c.q = at::rand({a.q.size(0), a.q.size(1), a.q.size(3), a.q.size(2)}).to(a.q.scalar_type()).mT();
  if (c.mask && r.chance(50)) c.mask = at::lt(*c.mask, 0.7);
  if (c.mask && c.mask->is_floating_point() && r.chance(40)) c.mask->set_requires_grad(true);
  if (!c.gqa && !c.mask && r.chance(20)) c.q = c.q[0], c.k = c.k[0], c.v = c.v[0];
  if (r.chance(50)) c.q.set_requires_grad(true);
  return c;
}

TEST_CASE("attention is traced as the kernel that LibTorch chooses for CPU tensors") {
  Random random(11);
  std::map<bool, int> taken;
  for (int round = 0; round < 150; ++round) {
    const AttentionCall real = any_attention(random);
    const auto choice =
        at::_fused_sdp_choice(real.q, real.k, real.v, real.mask, real.dropout, real.causal, std::nullopt, real.gqa);
    const bool flash = choice == static_cast<int64_t>(at::SDPBackend::flash_attention);
    ++taken[flash];
    AttentionCall traced = real;
    Tracer tracer;
    const auto declare = [&](Tensor& t) {
      const bool requires_grad = t.requires_grad();
      t = on_meta({t})[0].toTensor().set_requires_grad(requires_grad);
      tracer.declare(t, tracer.graph.add("input", {}, {{"", type_of(t)}})->result());
    };
    declare(traced.q), declare(traced.k), declare(traced.v);
    if (traced.mask) declare(*traced.mask);
    Tensor result;
    tracer.run([&] { result = traced.run(); });
    const auto& ops = tracer.graph.ops();
    CHECK(flash == std::ranges::any_of(
                       ops, [](const auto& op) { return op->is("aten._scaled_dot_product_flash_attention_for_cpu"); }));
    INFO(describe_call("scaled_dot_product_attention", stack_of(real.q, real.k, real.v, real.mask, real.dropout)));
    CHECK(describe(result, {}) == describe(real.run(), {}));
  }
  CHECK(taken[true] > 20);
  CHECK(taken[false] > 20);
}

}  // namespace meta_kernels_test
}  // namespace sfsdp::capture
