// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/layer_arguments_torch.h"

#include <algorithm>

namespace sfsdp::testing {

// The flash kernel wants the last dimension dense.
Attention attention(Random& r) {
  Attention a;
  const int64_t batch = r.in(1, 3), kv_heads = r.in(1, 2), heads = kv_heads * r.in(1, 3),
                size = r.pick<int64_t>({4, 8, 16});
  const int64_t queries = r.in(1, 6);
  a.causal = r.chance(40);
  const int64_t keys = a.causal ? queries : r.in(1, 6);
  const auto dtype = r.floating();
  const auto make = [&](int64_t h, int64_t s) {
    return (r.chance(50) ? at::rand({batch, s, h, size}).transpose(1, 2) : at::rand({batch, h, s, size})).to(dtype);
  };
  a.q = make(heads, queries);
  a.k = make(kv_heads, keys);
  a.v = make(kv_heads, keys);
  if (!a.causal && r.chance(40))
    a.mask = at::rand(r.chance(50) ? Sizes{queries, keys} : Sizes{batch, heads, queries, keys}).to(dtype);
  return a;
}

Sizes image(Random& r, int64_t spatial) {
  Sizes sizes;
  if (r.chance(80)) sizes.push_back(r.in(1, 3));
  sizes.push_back(r.in(1, 4));
  for (int64_t d = 0; d < spatial; ++d) sizes.push_back(r.in(4, 7));
  return sizes;
}

namespace {

Stack index_select(Random& r) {
  const Sizes sizes = r.sizes(1, 4);
  const int64_t dim = r.in(0, static_cast<int64_t>(sizes.size()) - 1);
  return stack_of(r.tensor(sizes, r.floating()), r.chance(50) ? dim : dim - static_cast<int64_t>(sizes.size()),
                  r.indices({r.size()}, sizes[static_cast<size_t>(dim)]));
}

Stack embedding_dense_backward(Random& r) {
  Sizes sizes = r.sizes(1, 3);
  const int64_t rows = r.in(1, 6);
  Tensor ids = r.indices(sizes, rows);
  sizes.push_back(r.in(1, 5));
  return stack_of(r.tensor(sizes, r.floating()), ids, rows, int64_t{-1}, r.chance(30));
}

struct LayerNorm {
  Tensor x;
  Sizes normalized;
  std::optional<Tensor> weight, bias;
};
LayerNorm layer_norm(Random& r) {
  LayerNorm n;
  Sizes sizes = r.sizes(1, 4);
  const auto dtype = r.floating();
  const int64_t inner = r.in(1, static_cast<int64_t>(sizes.size()));
  n.normalized = Sizes(sizes.end() - inner, sizes.end());
  for (size_t i = sizes.size() - n.normalized.size(); i < sizes.size(); ++i) sizes[i] = std::max<int64_t>(sizes[i], 1);
  for (int64_t& s : n.normalized) s = std::max<int64_t>(s, 1);
  n.x = r.tensor(sizes, dtype);
  const auto affine = dtype == at::kBFloat16 && r.chance(50) ? at::kFloat : dtype;
  n.weight = r.maybe(r.tensor(n.normalized, affine));
  n.bias = n.weight ? r.maybe(r.tensor(n.normalized, affine)) : std::nullopt;
  return n;
}
Stack native_layer_norm(Random& r) {
  const LayerNorm n = layer_norm(r);
  return stack_of(n.x, n.normalized, n.weight, n.bias, 1e-5);
}
Stack native_layer_norm_backward(Random& r) {
  const LayerNorm n = layer_norm(r);
  const auto forward = call("native_layer_norm", n.x, n.normalized, n.weight, n.bias, 1e-5);
  return stack_of(r.tensor(n.x.sizes().vec(), n.x.scalar_type()), n.x, n.normalized, forward[1], forward[2], n.weight,
                  n.bias, mask3(r));
}

struct BatchNorm {
  Tensor x;
  std::optional<Tensor> weight, bias, mean, var;
  bool training = true;
};
BatchNorm batch_norm(Random& r) {
  BatchNorm n;
  Sizes sizes = r.sizes(2, 5);
  const auto dtype = r.floating();
  for (int64_t& s : sizes) s = std::max<int64_t>(s, 1);
  sizes[0] = std::max<int64_t>(sizes[0], 2);  // training needs more than one value per channel
  n.x = r.tensor(sizes, dtype);
  const auto affine = dtype == at::kBFloat16 && r.chance(50) ? at::kFloat : dtype;
  const Sizes channels = {sizes[1]};
  if (r.chance(60)) {
    n.weight = at::rand(channels).to(affine);
    n.bias = at::rand(channels).to(affine);
  }
  n.training = r.chance(60);
  if (!n.training || r.chance(60)) {
    n.mean = at::rand(channels).to(affine);
    n.var = at::rand(channels).to(affine);
  }
  return n;
}
Stack native_batch_norm(Random& r) {
  const BatchNorm n = batch_norm(r);
  return stack_of(n.x, n.weight, n.bias, n.mean, n.var, n.training, 0.1, 1e-5);
}
Stack native_batch_norm_legit(Random& r) {
  const BatchNorm n = batch_norm(r);
  if (!n.mean) return native_batch_norm_legit(r);
  return stack_of(n.x, n.weight, n.bias, *n.mean, *n.var, n.training, 0.1, 1e-5);
}
Stack native_batch_norm_no_stats(Random& r) {
  const BatchNorm n = batch_norm(r);
  return stack_of(n.x, n.weight, n.bias, true, 0.1, 1e-5);
}
Stack native_batch_norm_backward(Random& r) {
  const BatchNorm n = batch_norm(r);
  const auto f = call("native_batch_norm", n.x, n.weight, n.bias, n.mean, n.var, n.training, 0.1, 1e-5);
  return stack_of(r.tensor(n.x.sizes().vec(), n.x.scalar_type()), n.x, n.weight, n.mean, n.var, f[1], f[2], n.training,
                  1e-5, mask3(r));
}

struct GroupNorm {
  Tensor x;
  std::optional<Tensor> weight, bias;
  int64_t samples = 0, channels = 0, pixels = 1, groups = 0;
};
GroupNorm group_norm(Random& r) {
  GroupNorm n;
  n.groups = r.in(1, 3);
  Sizes sizes = r.sizes(2, 4);
  for (int64_t& s : sizes) s = std::max<int64_t>(s, 1);
  sizes[1] = n.channels = n.groups * r.in(1, 3);
  n.samples = sizes[0];
  for (size_t i = 2; i < sizes.size(); ++i) n.pixels *= sizes[i];
  const auto dtype = r.floating();
  // torch::group_norm hands on a dense tensor: contiguous, or channels_last.
  n.x = r.tensor(sizes, dtype);
  n.x = n.x.contiguous(n.x.suggest_memory_format());
  const auto affine = dtype == at::kBFloat16 && r.chance(50) ? at::kFloat : dtype;
  n.weight = r.maybe(at::rand({n.channels}).to(affine));
  if (n.weight) n.bias = at::rand({n.channels}).to(affine);
  return n;
}
Stack native_group_norm(Random& r) {
  const GroupNorm n = group_norm(r);
  return stack_of(n.x, n.weight, n.bias, n.samples, n.channels, n.pixels, n.groups, 1e-5);
}
Stack native_group_norm_backward(Random& r) {
  const GroupNorm n = group_norm(r);
  const auto f = call("native_group_norm", n.x, n.weight, n.bias, n.samples, n.channels, n.pixels, n.groups, 1e-5);
  Tensor grad = r.tensor(n.x.sizes().vec(), n.x.scalar_type());
  auto mask = mask3(r);
  if (n.x.suggest_memory_format() != at::MemoryFormat::Contiguous)
    mask.set(0, true);  // LibTorch 2.13 crashes on channels_last without the input's gradient
  return stack_of(grad.contiguous(n.x.suggest_memory_format()), n.x, f[1], f[2], n.weight, n.samples, n.channels,
                  n.pixels, n.groups, mask);
}

struct Convolution {
  Tensor x, weight;
  std::optional<Tensor> bias;
  Sizes stride, padding, dilation, output_padding;
  bool transposed = false;
  int64_t groups = 1;
};
Convolution convolution(Random& r) {
  Convolution c;
  const auto spatial = static_cast<size_t>(r.pick({1, 1, 2, 2, 2, 3}));
  const auto dtype = r.floating();
  c.groups = r.pick<int64_t>({1, 1, 2, 3});
  c.transposed = r.chance(30);
  const int64_t in = c.groups * r.in(1, 3), out_per_group = r.in(1, 3);
  Sizes x = {r.in(1, 3), in};
  Sizes weight = c.transposed ? Sizes{in, out_per_group} : Sizes{out_per_group * c.groups, in / c.groups};
  for (size_t d = 0; d < spatial; ++d) {
    x.push_back(r.in(5, 8));
    weight.push_back(r.in(1, 3));
    c.stride.push_back(r.in(1, 2));
    c.padding.push_back(r.in(0, 1));
    c.dilation.push_back(r.chance(25) ? 2 : 1);
    c.output_padding.push_back(c.transposed && c.stride.back() == 2 ? r.in(0, 1) : 0);
  }
  if (r.chance(5)) x[0] = 0;
  c.x = r.tensor(x, dtype);
  c.weight = r.tensor(weight, dtype);
  if (spatial == 3) {  // whether volumes stay channels_last depends on which of two kernels LibTorch thinks faster
    c.x = c.x.clone(at::MemoryFormat::Contiguous);
    c.weight = c.weight.clone(at::MemoryFormat::Contiguous);
  }
  c.bias = r.maybe(r.tensor({out_per_group * c.groups}, dtype));
  return c;
}
Stack convolution_forward(Random& r) {
  const Convolution c = convolution(r);
  return stack_of(c.x, c.weight, c.bias, c.stride, c.padding, c.dilation, c.transposed, c.output_padding, c.groups);
}
Stack convolution_backward(Random& r) {
  const Convolution c = convolution(r);
  const Tensor out = call("convolution", c.x, c.weight, c.bias, c.stride, c.padding, c.dilation, c.transposed,
                          c.output_padding, c.groups)[0]
                         .toTensor();
  const IValue bias_sizes = c.bias ? IValue(c.bias->sizes().vec()) : IValue();
  auto mask = mask3(r);
  // Asked for the bias's gradient alone, oneDNN gives the weight's as well, which nobody reads.
  if (!c.bias || !mask.get(1)) mask.set(2, false);
  return stack_of(r.tensor(out.sizes().vec(), out.scalar_type()), c.x, c.weight, bias_sizes, c.stride, c.padding,
                  c.dilation, c.transposed, c.output_padding, c.groups, mask);
}

Stack flash(Random& r) {
  const Attention a = attention(r);
  return stack_of(a.q, a.k, a.v, 0.0, a.causal, a.mask, r.chance(50) ? IValue(0.3) : IValue());
}
Stack flash_backward(Random& r) {
  const Attention a = attention(r);
  const auto f = call("_scaled_dot_product_flash_attention_for_cpu", a.q, a.k, a.v, 0.0, a.causal, a.mask, IValue());
  Tensor grad = at::rand_like(f[0].toTensor());
  return stack_of(grad, a.q, a.k, a.v, f[0], f[1], 0.0, a.causal, a.mask, IValue());
}

MakeArguments adaptive_pool(int64_t spatial, bool backward) {
  return [=](Random& r) {
    const Sizes sizes = image(r, spatial);
    Sizes out;
    for (int64_t d = 0; d < spatial; ++d) out.push_back(r.in(1, 4));
    Tensor x = r.tensor(sizes, r.floating());
    if (!backward) return stack_of(x, out);
    Sizes pooled = sizes;
    std::copy(out.begin(), out.end(), pooled.end() - spatial);
    return stack_of(r.tensor(pooled, x.scalar_type()), x);
  };
}
MakeArguments image_pad(int64_t spatial, bool backward) {
  return [=](Random& r) {
    const Sizes sizes = image(r, spatial);
    Sizes padding, padded = sizes;
    for (int64_t d = 0; d < spatial; ++d) {
      padding.push_back(r.in(0, 2));
      padding.push_back(r.in(0, 2));
      padded[padded.size() - 1 - static_cast<size_t>(d)] += padding[padding.size() - 2] + padding.back();
    }
    Tensor x = r.tensor(sizes, r.floating());
    if (!backward) return stack_of(x, padding);
    return stack_of(r.tensor(padded, x.scalar_type()), x, padding);
  };
}
Stack im2col(Random& r) {
  return stack_of(r.tensor(image(r), r.floating()), Sizes{r.in(1, 3), r.in(1, 3)}, Sizes{1, 1}, Sizes{r.in(0, 1), 0},
                  Sizes{r.in(1, 2), r.in(1, 2)});
}
Stack col2im(Random& r) {
  const Sizes kernel = {r.in(1, 2), r.in(1, 3)}, output = {r.in(4, 6), r.in(4, 6)}, stride = {r.in(1, 2), 1};
  const int64_t columns = ((output[0] - kernel[0]) / stride[0] + 1) * (output[1] - kernel[1] + 1);
  Sizes sizes = {r.in(1, 3) * kernel[0] * kernel[1], columns};
  if (r.chance(70)) sizes.insert(sizes.begin(), r.in(1, 3));
  return stack_of(r.tensor(sizes, r.floating()), output, kernel, Sizes{1, 1}, Sizes{0, 0}, stride);
}
Stack unfold_backward(Random& r) {
  Sizes sizes = r.sizes(1, 3);
  const int64_t dim = r.in(0, static_cast<int64_t>(sizes.size()) - 1), step = r.in(1, 2), size = r.in(1, 3);
  sizes[static_cast<size_t>(dim)] = r.in(3, 6);
  Sizes windows = sizes;
  windows[static_cast<size_t>(dim)] = (sizes[static_cast<size_t>(dim)] - size) / step + 1;
  windows.push_back(size);
  return stack_of(r.tensor(windows, r.floating()), sizes, dim, size, step);
}
Stack channel_shuffle(Random& r) {
  Sizes sizes = image(r);
  if (sizes.size() == 3) sizes.insert(sizes.begin(), 2);
  const int64_t groups = r.in(1, 3);
  sizes[1] = groups * r.in(1, 3);
  return stack_of(r.tensor(sizes, r.floating()), groups);
}

struct Volume {
  Tensor x;
  Sizes kernel, stride, padding, dilation;
  bool ceil_mode = false;
};
Volume volume(Random& r) {
  Volume v{r.tensor(image(r, 3), r.floating()), {}, {}, {}, {}, r.chance(30)};
  const size_t numbers = r.chance(30) ? 1 : 3;
  for (size_t d = 0; d < numbers; ++d) {
    v.kernel.push_back(r.in(2, 3));
    v.stride.push_back(r.in(1, 3));
    v.padding.push_back(r.in(0, 1));
    v.dilation.push_back(1);
  }
  if (r.chance(30)) v.stride.clear();
  return v;
}
Stack max_pool3d(Random& r) {
  const Volume v = volume(r);
  return stack_of(v.x, v.kernel, v.stride, v.padding, v.dilation, v.ceil_mode);
}
Stack max_pool3d_backward(Random& r) {
  const Volume v = volume(r);
  const auto f = call("max_pool3d_with_indices", v.x, v.kernel, v.stride, v.padding, v.dilation, v.ceil_mode);
  const Tensor out = f[0].toTensor();
  return stack_of(r.tensor(out.sizes().vec(), out.scalar_type()), v.x, v.kernel, v.stride, v.padding, v.dilation,
                  v.ceil_mode, f[1]);
}
MakeArguments max_unpool(int64_t spatial) {
  return [=](Random& r) {
    const Sizes sizes = image(r, spatial);
    Sizes out(sizes.end() - spatial, sizes.end());
    for (int64_t& s : out) s *= 2;
    Stack stack = stack_of(r.tensor(sizes, r.floating()), r.indices(sizes, 4), out);
    if (spatial == 3) {
      stack.emplace_back(Sizes{2, 2, 2});
      stack.emplace_back(Sizes{0, 0, 0});
    }
    return stack;
  };
}

}  // namespace

std::map<std::string, MakeArguments> layer_arguments() {
  return {
      {"index_select", index_select},
      {"embedding_dense_backward", embedding_dense_backward},
      {"native_layer_norm", native_layer_norm},
      {"native_layer_norm_backward", native_layer_norm_backward},
      {"native_batch_norm", native_batch_norm},
      {"_native_batch_norm_legit", native_batch_norm_legit},
      {"_native_batch_norm_legit.no_stats", native_batch_norm_no_stats},
      {"native_batch_norm_backward", native_batch_norm_backward},
      {"native_group_norm", native_group_norm},
      {"native_group_norm_backward", native_group_norm_backward},
      {"convolution", convolution_forward},
      {"convolution_backward", convolution_backward},
      {"_scaled_dot_product_flash_attention_for_cpu", flash},
      {"_scaled_dot_product_flash_attention_for_cpu_backward", flash_backward},
      {"_adaptive_avg_pool2d", adaptive_pool(2, false)},
      {"_adaptive_avg_pool2d_backward", adaptive_pool(2, true)},
      {"_adaptive_avg_pool3d", adaptive_pool(3, false)},
      {"_adaptive_avg_pool3d_backward", adaptive_pool(3, true)},
      {"reflection_pad2d", image_pad(2, false)},
      {"reflection_pad2d_backward", image_pad(2, true)},
      {"replication_pad2d_backward", image_pad(2, true)},
      {"replication_pad3d_backward", image_pad(3, true)},
      {"im2col", im2col},
      {"col2im", col2im},
      {"unfold_backward", unfold_backward},
      {"channel_shuffle", channel_shuffle},
      {"max_pool3d_with_indices", max_pool3d},
      {"max_pool3d_with_indices_backward", max_pool3d_backward},
      {"max_unpool2d", max_unpool(2)},
      {"max_unpool3d", max_unpool(3)},
  };
}

}  // namespace sfsdp::testing
