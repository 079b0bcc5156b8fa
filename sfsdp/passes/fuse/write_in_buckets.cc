// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/fuse/write_in_buckets.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <vector>

#include "sfsdp/cost/kernels.h"
#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/moves.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/plan/memory_plan.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Value;

// A bucket is somewhat larger than the gradient that is made first: what all buckets of a step may add to its peak, 1 / kGrowth of it, saves
// copies of a hundred times as much.
constexpr int64_t kGrowth = 1000;

// An operand that may be written in the bucket.
struct Candidate {
  int64_t operand = 0;
  const plan::Buffer* own = nullptr;  // of today; a pack does without it
  const Op* maker = nullptr;          // of what the buffer holds
  std::vector<Op*> moved = {};        // the cast, after the views that it reads: they go to the maker's kernel
};

class Writer {
 public:
  explicit Writer(Graph& graph)
      : graph_(graph),
        index_(graph),
        kernels_(cost::kernels_of(graph)),
        buffers_(plan::find_buffers(graph).buffers),
        live_(graph.ops().size() + 2) {
    for (const plan::Buffer& buffer : buffers_) {
      buffer_of_[buffer.value] = &buffer;
      live_[static_cast<size_t>(buffer.first)] += buffer.bytes;
      live_[static_cast<size_t>(buffer.last) + 1] -= buffer.bytes;
    }
    std::partial_sum(live_.begin(), live_.end(), live_.begin());
    most_ = *std::ranges::max_element(live_);
    most_ += most_ / kGrowth;
  }

  // Bytes that need not be copied any more.
  int64_t run() {
    ir::Moves moves(graph_);
    int64_t bytes = 0;
    for (const auto& op : graph_.ops()) {
      if (!op->is("pack") || op->has_attr("ranks") || op->has_attr("inside") || is_added(*op)) continue;
      for (const Candidate& c : fitting(*op)) {
        inside_.push_back(c.operand);
        bytes += op->operands[static_cast<size_t>(c.operand)]->type().bytes();
        if (!c.moved.empty()) join(c, moves);
      }
      if (inside_.empty()) continue;
      std::ranges::sort(inside_);
      op->attrs["inside"] = std::move(inside_);
      inside_.clear();
      if (cost::class_of(*op) == cost::Class::Free) op->attrs.erase("kernel");
    }
    moves.apply();
    return bytes;
  }

 private:
  void add(int64_t first, int64_t last, int64_t bytes) {
    for (int64_t at = first; at <= last; ++at) live_[static_cast<size_t>(at)] += bytes;
  }

  // A sum over micro-batches packs while it adds.
  bool is_added(const Op& pack) const {
    const Op* reader = index_.only_reader(pack.result());
    return reader && reader->is("accumulate");
  }

  // Those that the peak has room for, the last ones first.
  std::vector<Candidate> fitting(const Op& pack) {
    std::vector<Candidate> candidates;
    for (size_t k = 0; k < pack.operands.size(); ++k)
      if (const auto candidate = candidate_of(pack, k)) candidates.push_back(*candidate);
    std::ranges::stable_sort(candidates, {}, [](const Candidate& c) { return c.own->first; });
    const plan::Buffer& bucket = *buffer_of_.at(pack.result());
    while (!candidates.empty()) {
      const int64_t first = candidates.front().own->first;
      add(first, bucket.first - 1, bucket.bytes);
      for (const Candidate& c : candidates) add(c.own->first, c.own->last, -c.own->bytes);
      const auto begin = live_.begin() + static_cast<std::ptrdiff_t>(first);
      if (*std::max_element(begin, live_.begin() + static_cast<std::ptrdiff_t>(bucket.last) + 1) <= most_) break;
      add(first, bucket.first - 1, -bucket.bytes);
      for (const Candidate& c : candidates) add(c.own->first, c.own->last, c.own->bytes);
      candidates.erase(candidates.begin());
    }
    return candidates;
  }

  std::optional<Candidate> candidate_of(const Op& pack, size_t k) const {
    const Value* operand = pack.operands[k];
    if (std::ranges::count(pack.operands, operand) > 1) return std::nullopt;  // one gradient of two parameters
    std::vector<Op*> views;
    const Value* made = made_for(*operand, pack, views);
    if (!made) return std::nullopt;
    Candidate candidate{.operand = static_cast<int64_t>(k), .maker = made->producer()};
    if (made->producer()->is("cast") && kernel_of(*made->producer()) == kernel_of(pack)) {
      Op* cast = made->producer();
      views.clear();
      made = made_for(*cast->operands[0], *cast, views);
      if (!made) return std::nullopt;
      candidate.moved = {views.rbegin(), views.rend()};
      candidate.moved.push_back(cast);
      candidate.maker = made->producer();
    }
    const Op& maker = *candidate.maker;
    const auto own = buffer_of_.find(made);
    if (own == buffer_of_.end() || kernel_of(maker) < 0 || kernel_of(maker) == kernel_of(pack)) return std::nullopt;
    if (maker.section != pack.section || ir::is_once(maker) != ir::is_once(pack)) return std::nullopt;
    if (maker.is("pack", "accumulate") || !ir::donated_operands(maker).empty()) return std::nullopt;
    candidate.own = own->second;
    return candidate;
  }

  // The memory that `value` shows whole, in order, and to `reader` alone; `views` between, the last one first.
  const Value* made_for(const Value& value, const Op& reader, std::vector<Op*>& views) const {
    const Op* next = &reader;
    const Value* seen = &value;
    for (;;) {
      if (!seen->type().strides.empty() || index_.only_reader(seen) != next) return nullptr;
      if (ir::aliased_operand(*seen->producer()) < 0) return seen;
      const Value* below = ir::reshaped_operand(*seen);
      if (!below) return nullptr;
      next = seen->producer();
      views.push_back(seen->producer());
      seen = below;
    }
  }

  int kernel_of(const Op& op) const { return kernels_.of[index_.position(&op)]; }

  // The maker's kernel writes what the cast makes.
  void join(const Candidate& c, ir::Moves& moves) {
    const auto& ops = kernels_.ops[static_cast<size_t>(kernel_of(*c.maker))];
    moves.after(ops.back(), c.moved);
    c.moved.back()->attrs["kernel"] = c.maker->attrs.at("kernel");
  }

  Graph& graph_;
  const ir::Index index_;
  const cost::Kernels kernels_;
  const std::vector<plan::Buffer> buffers_;
  std::unordered_map<const Value*, const plan::Buffer*> buffer_of_;
  std::vector<int64_t> live_;  // bytes, by position
  int64_t most_ = 0;           // of them at once, as all is copied
  std::vector<int64_t> inside_;
};

}  // namespace

bool write_in_buckets(Graph& graph, PassContext& ctx) {
  const bool has_kernels =
      std::ranges::any_of(graph.ops(), [](const auto& op) { return op->is("pack") && op->has_attr("kernel"); });
  if (!has_kernels) return false;
  const int64_t bytes = Writer(graph).run();
  ctx.metrics.add("bytes_not_copied", bytes);
  return bytes > 0;
}

}  // namespace sfsdp::passes
