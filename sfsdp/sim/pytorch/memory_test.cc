// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/pytorch/memory.h"

#include <doctest/doctest.h>

#include <set>

#include "sfsdp/ir/parser.h"

namespace sfsdp::sim::memory_test {
namespace {

using Segments = plan::CachingAllocator::Segments;
constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kWorkspace = 32 * kMiB;

PyTorchMemory memory_of(const std::string& text, const PyTorchOptions& options = {}) {
  const ir::Graph graph = ir::parse_or_throw(text);
  return pytorch_memory(graph, options, Segments::Expandable);
}

// Whole MiB beyond the workspace; what is below 1 MiB are scalars.
int64_t mib(int64_t bytes) { return (bytes - kWorkspace) / kMiB; }

// Two units of 4 Mi elements in bf16: 8 MiB each, shards of 8 MiB in f32 on two ranks.
constexpr const char* kTwoUnits = R"(
graph mesh [dp_shard=2] view local
  %a.flat = param members=[a.w, a.v] name=a.flat numels=[3145728, 1048576] offsets=[0, 3145728] size=4194304 : f32[2097152/dp_shard] at a
  %b.flat = param members=[b.w] name=b.flat numels=[4194304] offsets=[0] size=4194304 : f32[2097152/dp_shard] at b
  %a.m = state name=a.m : f32[2097152/dp_shard] at a
  %b.m = state name=b.m : f32[2097152/dp_shard] at b
  %x = input name=x : bf16[1048576] own(dp_shard)
fwd:
  %a.cast = cast %a.flat : bf16[2097152/dp_shard] at a
  %a.start = all_gather.start %a.cast axis=dp_shard dim=0 : async bf16[4194304] at a
  %a.full = wait %a.start : bf16[4194304] at a
  %a.v = view %a.full offset=3145728 : bf16[1048576] at a
  %b.cast = cast %b.flat : bf16[2097152/dp_shard] at b
  %b.start = all_gather.start %b.cast axis=dp_shard dim=0 : async bf16[4194304] at b
  %h = aten.mul.Tensor %x, %a.v : bf16[1048576] at a
  %b.full = wait %b.start : bf16[4194304] at b
  %b.v = view %b.full offset=0 : bf16[1048576] at b
  %y = aten.mul.Tensor %h, %b.v : bf16[1048576] at b
)";

TEST_CASE("FSDP2's memory: shards, a buffer per gather, and parameters copied out of it") {
  const PyTorchMemory got = memory_of(std::string(kTwoUnits) + "  return %y\n");
  // Parameters 8 + 8; no update, so no moments. Gathers: 4 MiB of cast shards go into 8 MiB of buffer.
  // Fullest where b is copied out: x 2, h 2, copies of a 8 until h is made; then copies of b 8, both buffers.
  CHECK(got.state_bytes == 16 * kMiB);
  // When b's gather starts: shards 16, x 2, copies of a 8, a's buffer 8 (held until b is copied out), b's cast 4 and buffer 8.
  CHECK(mib(got.allocated_bytes) == 16 + 2 + 8 + 8 + 4 + 8);
  CHECK(got.peak_at == "all_gather.start at b");
  // The gathers' stream had 8 + 4 + 8 at once, or 12 before; the rest is the compute stream's.
  CHECK(got.reserved_by_stream[1] == 20 * kMiB);
  int64_t at_peak = 0;
  for (const auto& [op, bytes] : got.at_peak) at_peak += bytes;
  CHECK(at_peak / kMiB == got.allocated_bytes / kMiB);
}

TEST_CASE("FSDP1's memory: gathers are the parameters; a traced graph has one stream") {
  const std::string text = std::string(kTwoUnits) + "  return %y\n";
  const PyTorchMemory one = memory_of(text, {.system = cost::System::Fsdp1});
  // b's start: shards 16, x 2, a's flat parameter 8, b's cast 4 and flat parameter 8
  CHECK(mib(one.allocated_bytes) == 16 + 2 + 8 + 4 + 8);
  const PyTorchMemory traced = memory_of(text, {.system = cost::System::Traced});
  // a's buffer went when it was copied out
  CHECK(mib(traced.allocated_bytes) == 16 + 2 + 8 + 4 + 8);
  CHECK(traced.reserved_by_stream[1] == 0);
  CHECK(one.reserved_by_stream[1] == 20 * kMiB);
}

TEST_CASE("a full room: the allocator gives back and asks again in each step and micro-batch") {
  // Backward has 64 MiB when forward's gathers are over, and their stream keeps a segment of 20 MiB.
  ir::Graph graph = ir::parse_or_throw(std::string(kTwoUnits) +
                                       "bwd:\n  %big = full value=1.0 : bf16[33554432]\n  return %y, %big\n");
  const PyTorchMemory free = pytorch_memory(graph, {}, Segments::Fixed);
  CHECK(free.reserved_by_stream[1] == 20 * kMiB);
  CHECK(free.retries == 0);
  CHECK(free.moved_bytes == 0);
  CHECK(pytorch_memory(graph, {}, Segments::Fixed, free.reserved_bytes).retries == 0);
  const int64_t room = free.held_bytes;
  CHECK(room == free.reserved_bytes - 40 * kMiB);
  const PyTorchMemory full = pytorch_memory(graph, {}, Segments::Fixed, room);
  CHECK(full.reserved_bytes == free.reserved_bytes);  // what it would hold
  // The gathers, and 20 MiB of forward's own, take backward's 64, which takes theirs: each is given back and asked for once.
  CHECK(full.retries == 2);
  CHECK(full.moved_bytes == 2.0 * (64 + 20 + 20) * kMiB);
  // Micro-batches between the first and the last are alike.
  const auto with = [&](int64_t micro_batches) {
    graph.micro_batches = micro_batches;
    return pytorch_memory(graph, {}, Segments::Fixed, room);
  };
  const PyTorchMemory three = with(3), four = with(4), seven = with(7);
  CHECK(four.retries > three.retries);
  CHECK(four.moved_bytes > three.moved_bytes);
  CHECK(seven.retries - three.retries == doctest::Approx(4 * (four.retries - three.retries)));
  CHECK(seven.moved_bytes - three.moved_bytes == doctest::Approx(4 * (four.moved_bytes - three.moved_bytes)));
}

// A parameter of 4 Mi elements, gathered in bf16; its gradient is packed and reduced in bf16.
constexpr const char* kStageThree = R"(
graph mesh [dp_shard=2] view local
  %w = param name=w : f32[2097152/dp_shard] at a
  %x = input name=x : bf16[4194304] own(dp_shard)
fwd:
  %low = cast %w : bf16[2097152/dp_shard] at a
  %w.start = all_gather.start %low axis=dp_shard dim=0 : async bf16[4194304] at a
  %w.full = wait %w.start : bf16[4194304] at a
  %y = aten.mul.Tensor %x, %w.full : bf16[4194304] at a
bwd:
  %g = aten.mul.Tensor %y, %x bwd_of=%y : bf16[4194304] at a
  %p = pack [%g] offsets=[0] : bf16[4194304] at a
  %rs.start = reduce_scatter.start %p axis=dp_shard dim=0 : async bf16[2097152] at a
clip:
  %rs = wait %rs.start : bf16[2097152] at a
  %grad = gradient %rs param=w : bf16[2097152] at a
  return %grad
)";

TEST_CASE("DeepSpeed's stage 3: a second shard in bf16, a bucket of gradients and its copy, from the start") {
  const PyTorchMemory fsdp = memory_of(kStageThree);
  CHECK(fsdp.state_bytes == 8 * kMiB);
  const auto peak = [&](int64_t bucket) {
    const PyTorchMemory got = memory_of(kStageThree, {.reduce_bucket = bucket});
    CHECK(got.state_bytes == (8 + 4) * kMiB);
    return mib(got.allocated_bytes);
  };
  // Shards 8 and 4, the reduced gradient 4 of the step before, x 8; the gather's buffer, the parameter and y 8 each. The bucket and its
  // copy: 8 each.
  CHECK(peak(1 << 30) == 8 + 4 + 4 + 8 + 3 * 8 + 2 * 8);
  CHECK(peak(1 << 20) == 8 + 4 + 4 + 8 + 3 * 8 + 2 * 2);
}

// A parameter of 2 Mi elements; its gradient is summed over two micro-batches and reduced in the last.
constexpr const char* kWhole = R"(
graph mesh [dp_shard=2] view local
  %w = param name=w : f32[1048576/dp_shard] at a
  %w.m = state name=w.m : f32[1048576/dp_shard] at a
  %step = state name=step : f32[]
  %nf = input name=nf : f32[]
  %x = input name=x : bf16[2097152] own(dp_shard)
  %low = cast %w : bf16[1048576/dp_shard] at a
  %w.start = all_gather.start %low axis=dp_shard dim=0 : async bf16[2097152] at a
fwd:
  %w.whole = wait %w.start : bf16[2097152] at a
  %y = aten.mul.Tensor %x, %w.whole : bf16[2097152]
bwd:
  %g = aten.mul.Tensor %y, %x bwd_of=%y : bf16[2097152]
  %c = cast %g kernel=0 : f32[2097152]
  %p = pack [%c] kernel=0 offsets=[0] : f32[2097152]
  %sum = accumulate %p kernel=0 : f32[2097152]
  %rs.start = reduce_scatter.start %sum axis=dp_shard dim=0 once=true : async f32[1048576]
clip:
  %rs = wait %rs.start : f32[1048576]
  %grad = gradient %rs param=w : f32[1048576]
opt:
  %w.new, %w.m.new = sgd %w, %w.m, %grad, %nf donates=[0, 1] momentum=0.9 weight_decay=0.0 : f32[1048576/dp_shard], f32[1048576/dp_shard]
  carry %w = %w.new
  carry %w.m = %w.m.new
)";

TEST_CASE("whole parameters: gathered into their own memory; gradients are added where they lie") {
  ir::Graph graph = ir::parse_or_throw(kWhole);
  const auto peak = [&](int64_t micro_batches, bool keeps) {
    graph.micro_batches = micro_batches;
    const PyTorchMemory got = pytorch_memory(graph, {.keeps_whole_gradients = keeps}, Segments::Expandable);
    CHECK(got.state_bytes / kMiB == 4 + 4 + 4);  // shard, whole in bf16, moment
    return mib(got.allocated_bytes);
  };
  // State 12, x 4; the gradient 4 with the sum 8. y is gone by then, the last step's shard too.
  CHECK(peak(1, false) == 12 + 4 + 4 + 8);
  // The sum is there from the first micro-batch on, so with y 4 too; the second gradient is added to it as it is.
  CHECK(peak(2, false) == 12 + 4 + 4 + 4 + 8);
  // The same with one where its buffer stays. The parameter is whole in bf16 and holds its gradient until the next step, as
  // y is gone by then.
  CHECK(peak(1, true) == 12 + 4 + 4 + 4 + 8);
  // From the second micro-batch on it is there beside y, and beside the gradient that is added to it.
  CHECK(peak(2, true) == 12 + 4 + 4 + 4 + 4 + 8);
}

TEST_CASE("whole parameters: a product that adds to the sum itself has no gradient of its own") {
  std::string text = kWhole;
  const std::string gradient = "%g = aten.mul.Tensor %y, %x bwd_of=%y : bf16[2097152]";
  text.replace(text.find(gradient), gradient.size(),
               "%x2 = view %x : bf16[1, 2097152]\n  %y2 = full value=1.0 : bf16[1, 1]\n"
               "  %g2 = linear_dw %y2, %x2 bwd_of=%y : bf16[1, 2097152]\n  %g = view %g2 : bf16[2097152]");
  ir::Graph graph = ir::parse_or_throw(text);
  graph.micro_batches = 3;
  const auto peak = [&](bool in_products) {
    return mib(pytorch_memory(graph, {.keeps_whole_gradients = true, .product_sums = in_products}, Segments::Expandable)
                   .allocated_bytes);
  };
  // State 12, x 4, the sum 8; in forward y 4, in backward a later micro-batch's gradient 4; the parameter holds its own, 4.
  CHECK(peak(false) == 12 + 4 + 8 + 4 + 4);
  CHECK(peak(true) == 12 + 4 + 8 + 4);
}

// Two parameters of 2 Mi elements, whole in bf16; backward makes one gradient after the other.
constexpr const char* kTwoWhole = R"(
graph mesh [dp_shard=2] view local
  %v = param name=v : f32[1048576/dp_shard] at a
  %w = param name=w : f32[1048576/dp_shard] at b
  %x = input name=x : bf16[2097152] own(dp_shard)
  %v.low = cast %v : bf16[1048576/dp_shard] at a
  %v.start = all_gather.start %v.low axis=dp_shard dim=0 : async bf16[2097152] at a
  %w.low = cast %w : bf16[1048576/dp_shard] at b
  %w.start = all_gather.start %w.low axis=dp_shard dim=0 : async bf16[2097152] at b
fwd:
  %v.whole = wait %v.start : bf16[2097152] at a
  %w.whole = wait %w.start : bf16[2097152] at b
  %y = aten.mul.Tensor %v.whole, %w.whole : bf16[2097152]
bwd:
  %gw = aten.mul.Tensor %y, %x bwd_of=%y : bf16[2097152]
  %cw = cast %gw kernel=0 : f32[2097152]
  %pw = pack [%cw] kernel=0 offsets=[0] : f32[2097152]
  %rw.start = reduce_scatter.start %pw axis=dp_shard dim=0 once=true : async f32[1048576]
  %gv = aten.mul.Tensor %y, %x bwd_of=%y : bf16[2097152]
  %cv = cast %gv kernel=1 : f32[2097152]
  %pv = pack [%cv] kernel=1 offsets=[0] : f32[2097152]
  %rv.start = reduce_scatter.start %pv axis=dp_shard dim=0 once=true : async f32[1048576]
clip:
  %rw = wait %rw.start : f32[1048576]
  %rv = wait %rv.start : f32[1048576]
  %v.grad = gradient %rv param=v : f32[1048576]
  %w.grad = gradient %rw param=w : f32[1048576]
  return %v.grad, %w.grad
)";

TEST_CASE("whole bf16 parameters hold their gradients beside the float32 sums until the next step") {
  const auto peak = [](std::string text) {
    const ir::Graph graph = ir::parse_or_throw(text);
    return mib(pytorch_memory(graph, {.keeps_whole_gradients = true}, Segments::Expandable).allocated_bytes);
  };
  // Shards 8, whole parameters 8, x 4, y 4, both sums 16, both gradients 8; and the shard that the first reduction makes 4.
  CHECK(peak(kTwoWhole) == 8 + 8 + 4 + 4 + 16 + 8 + 4);
  // Parameters of float32 that forward casts: the gradients of the casts go as they are added up.
  std::string wide = kTwoWhole;
  for (const std::string& name : std::vector<std::string>{"v", "w"}) {
    const auto replace = [&](const std::string& from, const std::string& to) {
      REQUIRE(wide.find(from) != std::string::npos);
      wide.replace(wide.find(from), from.size(), to);
    };
    replace("  %" + name + ".low = cast %" + name + " : bf16[1048576/dp_shard] at " + (name == "v" ? "a" : "b") + "\n",
            "");
    replace("%" + name + ".low axis=dp_shard dim=0 : async bf16", "%" + name + " axis=dp_shard dim=0 : async f32");
    replace("%" + name + ".whole = wait %" + name + ".start : bf16[2097152]",
            "%" + name + ".wide = wait %" + name + ".start : f32[2097152]");
    replace("  %y = ", "  %" + name + ".whole = cast %" + name + ".wide : bf16[2097152]\n  %y = ");
  }
  // Whole parameters 16; one gradient.
  CHECK(peak(wide) == 8 + 16 + 4 + 4 + 16 + 4 + 4);
}

// Logits of 1 Mi elements: 2 MiB in bf16, 4 MiB in f32.
constexpr const char* kLoss = R"(
graph mesh [dp_shard=2] view local
  %h = input name=h : bf16[1024, 512] own(dp_shard)
  %w = input name=w : bf16[1024, 512] own(dp_shard)
  %t = input name=t : i64[1024] own(dp_shard)
fwd:
  %logits = linear %h, %w : bf16[1024, 1024]
loss:
  %loss, %count = cross_entropy %logits, %t ignore_index=-100 reduction=1 : f32[], f32[]
bwd:
  %seed = full value=1.0 : f32[]
  %dlogits = cross_entropy_backward %seed, %logits, %t, %count ignore_index=-100 reduction=1 bwd_of=%loss : bf16[1024, 1024]
  %dh = linear_dx %dlogits, %w bwd_of=%logits : bf16[1024, 512]
  return %dh
)";

TEST_CASE("the loss: float32 copies of the logits where its ops are apart") {
  const int64_t given = 2;  // h and w
  const auto peak = [&](PyTorchLoss loss, int64_t chunks) {
    return mib(memory_of(kLoss, {.loss = loss, .loss_chunks = chunks}).allocated_bytes) - given;
  };
  // Backward: log-probabilities, the picked gradient, the whole one; the logits are gone.
  CHECK(peak(PyTorchLoss::Separate, 1) == 4 + 4 + 4);
  // The float32 logits too.
  CHECK(peak(PyTorchLoss::Kept, 1) == 4 + 4 + 4 + 4);
  // Forward: logits, log-probabilities of four chunks, a copy of one. Backward has no more: 4 + 1 + 1.
  CHECK(peak(PyTorchLoss::Separate, 4) == 2 + 4 + 1);
  // Logits and their gradient.
  CHECK(peak(PyTorchLoss::Fused, 1) == 2 + 2);
}

// Classes of two ranks, 1 Mi logits of each.
constexpr const char* kLossOfParts = R"(
graph mesh [tp=2] view local
  %h = input name=h : bf16[1024, 512]
  %w = param name=w : bf16[1024/tp, 512]
  %t = input name=t : i64[1024]
fwd:
  %logits = linear %h, %w : bf16[1024, 1024/tp]
loss:
  %parts = cross_entropy_parts %logits, %t axis=tp ignore_index=-100 : f32[3/tp, 1024]
  %all = all_gather %parts axis=tp dim=0 : f32[6, 1024]
  %loss, %count, %lse = cross_entropy_of_parts %all, %t ignore_index=-100 reduction=1 : f32[], f32[], f32[1024]
bwd:
  %seed = full value=1.0 : f32[]
  %dlogits = cross_entropy_backward %seed, %logits, %t, %count, %lse axis=tp ignore_index=-100 reduction=1 bwd_of=%loss : bf16[1024, 1024/tp]
  %dh = linear_dx %dlogits, %w bwd_of=%logits : bf16[1024, 512] sum(tp)
  %dh.sum = all_reduce %dh axis=tp : bf16[1024, 512]
  return %dh.sum
)";

TEST_CASE("the loss over ranks of tp: DTensor's ops on a rank's classes, float32 each") {
  const int64_t given = 2;  // h and w
  const auto peak = [&](PyTorchLoss loss) {
    return mib(memory_of(kLossOfParts, {.loss = loss}).allocated_bytes) - given;
  };
  // Backward: log-probabilities, the picked gradient, both with exponentials added, and that times what is owed.
  CHECK(peak(PyTorchLoss::Separate) == 4 + 4 + 4 + 4);
  // The float32 logits too.
  CHECK(peak(PyTorchLoss::Kept) == 4 + 4 + 4 + 4 + 4);
  CHECK(peak(PyTorchLoss::Fused) == 2 + 2);
}

// A block of one product, a silu and a product with the gradient of both; each value has 2 MiB, weights 2.
constexpr const char* kBlock = R"(
graph mesh [dp_shard=2] view local
  %x = input name=x : bf16[1024, 1024] own(dp_shard)
  %w = input name=w : bf16[1024, 1024] own(dp_shard)
  %g = input name=g : bf16[1024, 1024] own(dp_shard)
fwd:
  %u = linear %x, %w : bf16[1024, 1024] at layers.0
  %s = aten.silu %u : bf16[1024, 1024] at layers.0
  %q = aten.mul.Tensor %s, %u : bf16[1024, 1024] at layers.0
  %y = linear %q, %w : bf16[1024, 1024] at layers.0
  %z = aten.add.Tensor %x, %y : bf16[1024, 1024] at layers.0
)";
constexpr const char* kGradients = R"(
bwd:
  %dw = linear_dw %g, %q bwd_of=%y : bf16[1024, 1024] at layers.0
  %dq = linear_dx %g, %w bwd_of=%y : bf16[1024, 1024] at layers.0
  %ds = aten.mul.Tensor %dq, %u bwd_of=%q : bf16[1024, 1024] at layers.0
  %dv = aten.mul.Tensor %dq, %s bwd_of=%q : bf16[1024, 1024] at layers.0
  %du = aten.silu_backward %ds, %u bwd_of=%s : bf16[1024, 1024] at layers.0
  %d = aten.add.Tensor %du, %dv : bf16[1024, 1024] at layers.0
  return %d, %dw, %z
)";

TEST_CASE("autograd keeps what backward reads; Inductor computes pointwise results again from what is kept") {
  const std::string text = std::string(kBlock) + kGradients;
  // x, w, g 6. Fullest at ds, dv: u, s, z, dw, dq, ds, dv are 2 each.
  CHECK(mib(memory_of(text).allocated_bytes) == 6 + 7 * 2);
  // s is computed again in the kernels that read it; q is kept, as a product reads it. Fullest where s, u, q and y are
  // there in forward: u, s, q, or in backward: u, z, dw, dq, ds, dv.
  CHECK(mib(memory_of(text, {.compiled = true}).allocated_bytes) == 6 + 6 * 2);
}

// The same block, of which backward computes all again but the first product.
constexpr const char* kAgain = R"(
bwd:
  %s.again = aten.silu %u : bf16[1024, 1024] at layers.0
  %q.again = aten.mul.Tensor %s.again, %u : bf16[1024, 1024] at layers.0
  %dw = linear_dw %g, %q.again bwd_of=%y : bf16[1024, 1024] at layers.0
  return %dw, %z
)";

TEST_CASE("a list of what checkpoints keep holds products that backward never reads") {
  const std::string text = std::string(kBlock) + kAgain;
  // x, w, g 6; u, z; s, q; dw: s is dropped before.
  CHECK(mib(memory_of(text).allocated_bytes) == 6 + 2 * 2 + 2 * 2);
  // y is kept until the block runs again: fullest before its end, with u, s, q; not every second product: as before.
  CHECK(mib(memory_of(text, {.save_list = true}).allocated_bytes) == 6 + 2 * 2 + 2 * 2 + 2);
  CHECK(mib(memory_of(text, {.save_list = true, .mm_again = 2}).allocated_bytes) == 6 + 2 * 2 + 2 * 2);
}

}  // namespace
}  // namespace sfsdp::sim::memory_test
