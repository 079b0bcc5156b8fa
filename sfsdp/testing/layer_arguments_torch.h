// SPDX-License-Identifier: BSD-3-Clause
// Arguments for aten ops, drawn at random: sizes, layouts, dtypes and options that the CPU kernels of layers take.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace sfsdp::testing {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;
using Sizes = std::vector<int64_t>;

// Seeded choices, and tensors of random layout.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t in(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return in(1, 100) <= percent; }
  template <class T>
  T pick(std::initializer_list<T> options) {
    return *(options.begin() + in(0, static_cast<int64_t>(options.size()) - 1));
  }
  at::ScalarType floating() { return pick({at::kFloat, at::kFloat, at::kBFloat16, at::kDouble}); }
  int64_t size() { return chance(6) ? 0 : chance(20) ? 1 : in(2, 5); }
  Sizes sizes(int64_t min_dims, int64_t max_dims) {
    Sizes result(static_cast<size_t>(in(min_dims, max_dims)));
    for (int64_t& s : result) s = size();
    return result;
  }

  Tensor tensor(const Sizes& sizes, at::ScalarType dtype) {
    Tensor t = layout(sizes, dtype);
    if (t.is_floating_point())
      t.uniform_(0.05, 0.95);  // a probability, as some losses need; not zero, which some backwards divide by
    else
      t.random_(0, 2);
    return t;
  }
  // The same storage order for all: channels_last, permuted, a slice of something larger, …
  Tensor layout(const Sizes& sizes, at::ScalarType dtype) {
    const auto dims = static_cast<int64_t>(sizes.size());
    const int64_t kind = in(0, 4);
    if (kind == 0 && dims == 4)
      return at::empty(sizes, at::TensorOptions(dtype).memory_format(at::MemoryFormat::ChannelsLast));
    if (kind == 1 && dims > 1) {
      Sizes order(sizes.size()), back(sizes.size()), permuted;
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), engine_);
      for (size_t i = 0; i < order.size(); ++i) {
        permuted.push_back(sizes[static_cast<size_t>(order[i])]);
        back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
      }
      return at::empty(permuted, dtype).permute(back);
    }
    if (kind == 2 && dims > 0) {
      const int64_t dim = in(0, dims - 1);
      Sizes larger = sizes;
      larger[static_cast<size_t>(dim)] = 2 * sizes[static_cast<size_t>(dim)] + 1;
      return at::empty(larger, dtype)
          .slice(dim, 1, larger[static_cast<size_t>(dim)], chance(50) ? 2 : 1)
          .narrow(dim, 0, sizes[static_cast<size_t>(dim)]);
    }
    return at::empty(sizes, dtype);
  }
  Tensor broadcastable(const Sizes& sizes, at::ScalarType dtype) {
    Sizes smaller = sizes;
    for (int64_t& s : smaller)
      if (chance(20)) s = 1;
    if (!smaller.empty() && chance(20)) smaller.erase(smaller.begin());
    return tensor(smaller, dtype);
  }
  Tensor indices(const Sizes& sizes, int64_t end) {
    return at::empty(sizes, at::kLong).random_(0, std::max<int64_t>(end, 1));
  }
  std::optional<Tensor> maybe(const Tensor& t, int percent = 60) {
    return chance(percent) ? std::optional<Tensor>(t) : std::nullopt;
  }

 private:
  std::mt19937_64 engine_;
};

using MakeArguments = std::function<Stack(Random&)>;

template <class... Values>
Stack stack_of(Values&&... values) {
  Stack stack;
  (stack.emplace_back(IValue(std::forward<Values>(values))), ...);
  return stack;
}

inline c10::OperatorHandle find_op(const std::string& name) {
  const size_t dot = name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.substr(0, dot).c_str(),
                                                        dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
}

template <class... Values>
std::vector<IValue> call(const char* name, Values&&... values) {
  Stack stack = stack_of(std::forward<Values>(values)...);
  find_op(std::string("aten::") + name).callBoxed(stack);
  return stack;
}

// Which gradients a backward is asked for.
inline c10::List<bool> mask3(Random& random) {
  c10::List<bool> mask;
  for (int i = 0; i < 3; ++i) mask.push_back(random.chance(70));
  return mask;
}

struct Attention {
  Tensor q, k, v;
  std::optional<Tensor> mask;
  bool causal = false;
};
// Operands that the flash kernel takes, whose last dimension is dense.
Attention attention(Random& r);

// Sizes of one image, or of a batch of them: channels, then `spatial` dimensions.
Sizes image(Random& r, int64_t spatial = 2);

// By name without "aten::": what makes the arguments of one call of it. Ops of layers and their backwards.
std::map<std::string, MakeArguments> layer_arguments();

}  // namespace sfsdp::testing
