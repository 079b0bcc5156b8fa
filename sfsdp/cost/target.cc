// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/target.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <unordered_set>

#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/access.h"
#include "sfsdp/mesh/chunk.h"

namespace sfsdp::cost {
namespace {

using ir::Op;

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB, kPage = 4096;

// By a word of the device's name. PyTorch gives cuBLAS 32 MiB from Hopper on and 8,320 KiB before
// (aten/src/ATen/cuda/CublasHandlePool.cpp).
struct Row {
  std::string_view device;
  int64_t product_bytes;
};
constexpr std::array<Row, 3> kDevices = {{{"H100", 32 * kMiB}, {"H200", 32 * kMiB}, {"B200", 32 * kMiB}}};
constexpr int64_t kOlderDevice = 8320 * kKiB;

// What adds_in_products says. On: every GPU, as cuBLAS takes beta = 1 with operands of bf16 and a sum of f32 (cublasGemmEx, which
// apex's fused_weight_gradient_dense_cuda.cu calls for Megatron-LM). Off: processors, where LibTorch has no product of bf16 into f32.

// NCCL's rings have a buffer of 4 MiB (NCCL_BUFFSIZE) per channel, and 16 channels and more within a node of NVSwitch; a few MiB more are for
// the protocols of short messages. Estimated: 5 MiB a channel.
constexpr int64_t kCommunicator = 80 * kMiB;

// The largest tiles of LibTorch's attention on a CPU (cpu_flash_attention: 256 queries × 512 keys, and their sums, per
// thread, in f32), which is more than a product packs. The number of threads is not the machine's, as the plans of all
// ranks are one text.
constexpr int64_t kCpuTile = kKiB * (512 + 2 + 128), kCpuThreads = 16;

// The mask of documents, or of the positions of a part's queries: where two tokens are in one document, where the key is no later,
// and what is added to the scores. sfsdp's own kernel makes none.
int64_t mask_bytes(const Op& op, const Target& target) {
  const bool documents = op.attr_or("documents", false), part = op.has_attr("axis");
  if (!target.masks_documents || (!documents && !part)) return 0;
  if (op.attr_or<std::string>("attention_kernel", "") == "sfsdp.flash") return 0;
  const size_t query = op.is("sdpa_backward") ? 1 : 0;
  const auto queries = op.operands[query]->type().shape(), keys = op.operands[query + 1]->type().shape();
  const auto width = static_cast<int64_t>(ir::size_in_bytes(op.result()->type().dtype));
  return (documents ? keys[0] : 1) * queries[2] * keys[2] * (width + 2);
}

// FlashAttention's backward (csrc/flash_attn/flash_api.cpp, mha_bwd): dq in f32 with lengths rounded up to 128 and widths to 32, a
// number per query, and keys' and values' gradients per query head where heads share them.
int64_t attention_bytes(const Op& op, const Target& target) {
  const AttentionShape shape = attention_shape(op);
  if (!shape.backward || !target.accumulates_in_memory) return target.product_bytes + mask_bytes(op, target);
  const auto& query = op.result()->type();  // [batch, heads, positions, width]
  const auto dims = query.shape();
  if (dims.size() != 4) return target.product_bytes;
  const int64_t rows = dims[0] * dims[1] * round_up(dims[2], 128);
  const auto& key = op.results().size() > 1 ? op.results()[1]->type() : query;
  const int64_t shared = key.shape()[1] < dims[1] ? 2 * dims[0] * dims[1] * key.shape()[2] * dims[3] : 0;
  return 4 * rows * (round_up(dims[3], 32) + 1) + shared * static_cast<int64_t>(ir::size_in_bytes(query.dtype));
}

// Partial sums, of each block of rows one, in f32.
int64_t reduction_bytes(const Op& op, const Target& target) {
  const ir::OpAccess access(op);
  bool columns = false;
  for (size_t r = 0; r < op.results().size(); ++r) columns |= access.is_by_place() && access.is_after_all_rows(r);
  int64_t outputs = 0;
  for (size_t r = 0; r < op.results().size(); ++r)
    if (!columns || access.is_after_all_rows(r)) outputs += op.results()[r]->type().numel();
  return 4 * target.blocks * std::min<int64_t>(outputs, columns ? outputs : 65536);
}

}  // namespace

Target cpu_target() {
  return {.name = "cpu",
          .product_bytes = kCpuThreads * kCpuTile,
          .communicator_bytes = kMiB,
          .blocks = kCpuThreads,
          .masks_documents = true,
          .is_cpu = true};
}

Target target_of(const Machine& machine) {
  std::string name = machine.name.empty() ? "unnamed" : machine.name;  // one word
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isspace(c) != 0; }, '_');
  if (machine.multiprocessors <= 1) {
    Target target = cpu_target();
    target.name = name;
    return target;
  }
  const auto row =
      std::ranges::find_if(kDevices, [&](const Row& r) { return machine.device.find(r.device) != std::string::npos; });
  return {.name = name,
          .product_bytes = row == kDevices.end() ? kOlderDevice : row->product_bytes,
          .communicator_bytes = kCommunicator,
          .blocks = machine.multiprocessors,
          .joins_products = true,
          .adds_in_products = true,
          .accumulates_in_memory = true};
}

int64_t workspace_bytes(std::span<const Op* const> kernel, const Target& target) {
  int64_t bytes = kPage;
  for (const Op* op : kernel) {
    switch (class_of(*op)) {
      case Class::Product: bytes = std::max(bytes, target.product_bytes); break;
      case Class::Attention: bytes = std::max(bytes, attention_bytes(*op, target)); break;
      case Class::Reduction: bytes = std::max(bytes, reduction_bytes(*op, target)); break;
      default: break;
    }
  }
  return round_up(bytes, kPage);
}

int64_t workspace_bytes(const ir::Graph& graph, const Kernels& kernels, const Target& target) {
  const auto inside = target.is_cpu ? values_inside(graph, kernels) : std::unordered_set<const ir::Value*>{};
  int64_t largest = 0;
  for (const auto& kernel : kernels.ops) {
    int64_t bytes = workspace_bytes(kernel, target);
    for (const Op* op : kernel)
      for (const auto& result : op->results())
        if (target.is_cpu && inside.contains(result.get()) && result->type().kind == ir::Type::Kind::Tensor)
          bytes += round_up(result->type().span_bytes(), target.alignment);
    largest = std::max(largest, bytes);
  }
  return kernels.ops.empty() ? 0 : round_up(largest, kPage);
}

}  // namespace sfsdp::cost
