// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/pytorch/memory.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/product_sums.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::sim {
namespace {

using ir::Op, ir::Section, ir::Value;
using plan::CachingAllocator;
using Handles = std::vector<CachingAllocator::Handle>;

// cuBLAS works in a buffer that PyTorch's allocator holds: 4096 × 8 KiB on H100 (ATen/cuda/CublasHandlePool.cpp).
constexpr int64_t kProductWorkspace = 32 << 20;
// Moments are there in the second step; in the third all has found its place, and steps after that repeat it.
constexpr int kSteps = 3;
// In a room that is full, addresses may differ from step to step: what is done is the mean of as many steps after these.
constexpr int kCountedSteps = 3;
constexpr int64_t kTurns = 3;  // micro-batches of a step: more of them repeat the third

int64_t bytes_as_f32(const Value& value) { return value.type().numel() * 4; }

// The bytes of each parameter of a unit, of which the whole unit, or a shard of it, has `whole_bytes`.
std::vector<int64_t> members_of(const Op& param, int64_t whole_bytes) {
  const auto* numels = param.find_attr<std::vector<int64_t>>("numels");
  if (!numels) return {whole_bytes};
  double all = 0;
  for (const int64_t n : *numels) all += static_cast<double>(n);
  std::vector<int64_t> bytes;
  for (const int64_t n : *numels)
    bytes.push_back(static_cast<int64_t>(static_cast<double>(whole_bytes) * static_cast<double>(n) / all));
  return bytes;
}

// Whether ranks have copies of all parameters and no shards: DDP.
bool is_replicated(const ir::Graph& graph) {
  const bool sharded = std::ranges::any_of(graph.ops(), [](const auto& op) {
    return op->is("param") &&
           std::ranges::any_of(op->result()->type().dims, [](const auto& d) { return !d.split.empty(); });
  });
  return !sharded && std::ranges::any_of(graph.mesh, [](const ir::MeshAxis& axis) { return axis.size > 1; });
}

// What is cast to be packed, to a wider dtype; nullptr: nothing is.
const Value* cast_source(const Value* packed) {
  const Op& made = *ir::storage_of(packed)->producer();
  if (!made.is("cast")) return nullptr;
  const Value* source = made.operands[0];
  return ir::size_in_bytes(source->type().dtype) < ir::size_in_bytes(packed->type().dtype) ? source : nullptr;
}

// A unit's gradients as backward makes them, side by side.
int64_t flat_gradient_bytes(const Op& pack) {
  int64_t bytes = 0;
  for (const Value* operand : pack.operands) {
    const Op& made = *operand->producer();
    bytes += made.is("cast") ? made.operands[0]->type().bytes() : operand->type().bytes();
  }
  return bytes;
}

class Run {
 public:
  // watched: the allocation at which to note what is alive; 0: none
  Run(const ir::Graph& graph, const PyTorchOptions& options, CachingAllocator allocator, int64_t watched)
      : graph_(graph),
        options_(options),
        lifetimes_(graph, options),
        allocator_(std::move(allocator)),
        watched_(watched) {
    dying_.resize(lifetimes_.order().size() + 1);
    keeps_whole_gradients_ = options.keeps_whole_gradients || is_replicated(graph);
    if (options.product_sums) product_sums_ = cost::product_sums(graph);
    find_roles();
  }

  PyTorchMemory run(int steps) {
    allocate(kProductWorkspace, PyTorchStream::Compute);
    for (const auto& op : graph_.ops())
      if (op->is("param") || (op->is("state") && read_by_model_.contains(op->result()))) allocate_state(*op);
    if (options_.reduce_bucket > 0) allocate_buckets();
    for (int step = 0; step < steps; ++step) {
      counted_ = step < kSteps ? 0 : 1.0 / kCountedSteps;
      run_step(step == 0);
    }
    out_.allocated_bytes = allocator_.peak_allocated();
    out_.held_bytes = allocator_.peak_held();
    out_.reserved_bytes = allocator_.reserved();
    for (size_t s = 0; s < kPyTorchStreams; ++s) out_.reserved_by_stream[s] = allocator_.reserved(static_cast<int>(s));
    return out_;
  }
  int64_t peak() const { return peak_; }  // the allocation at which most is alive

 private:
  CachingAllocator::Handle allocate(int64_t bytes, PyTorchStream stream) {
    if (options_.system == cost::System::Traced) stream = PyTorchStream::Compute;
    const int64_t before = allocator_.peak_allocated();
    const auto handle = allocator_.allocate(bytes, static_cast<int>(stream));
    alive_.emplace(handle, std::pair(now_, bytes));
    ++allocations_;
    if (allocator_.peak_allocated() > before) {
      peak_ = allocations_;
      if (now_) out_.peak_at = ir::opcode_at(*now_);
    }
    if (allocations_ == watched_)
      for (const auto& [_, tensor] : alive_) out_.at_peak.push_back(tensor);
    return handle;
  }
  void free(CachingAllocator::Handle handle) {
    allocator_.free(handle);
    alive_.erase(handle);
  }

  // A shard of each parameter.
  void allocate_state(const Op& op) {
    const int64_t bytes = op.result()->type().bytes();
    out_.state_bytes += bytes;
    for (const int64_t member : members_of(op, bytes)) allocate(member, PyTorchStream::Compute);
  }

  // What DeepSpeed's stage 3 has from the start: shards as they are gathered, beside those that are updated; the bucket of gradients, and
  // the copy of it that is reduced.
  void allocate_buckets() {
    int64_t elements = 0;
    const Op* packs = nullptr;
    for (const Value* sent : sent_) {
      if (!sent->producer()->is("cast")) continue;
      out_.state_bytes += sent->type().bytes();
      allocate(sent->type().bytes(), PyTorchStream::Compute);
    }
    for (const auto& op : graph_.ops()) {
      if (!op->is("pack") || op->section != Section::Bwd) continue;
      packs = op.get();
      elements += op->result()->type().numel();
    }
    if (!packs) return;
    const auto width = static_cast<int64_t>(ir::size_in_bytes(packs->result()->type().dtype));
    const int64_t bytes = std::min(elements, options_.reduce_bucket) * width;
    allocate(bytes, PyTorchStream::Compute);
    allocate(bytes, PyTorchStream::Reduce);
  }

  // Gradients stay until the next step begins. A sum over micro-batches is what the first has made.
  void find_roles() {
    std::unordered_set<ir::DType> of_parameters;  // dtypes in which the model has its parameters, whole
    for (const Op* op : lifetimes_.order())
      if (op->is("param") || (ir::collective_kind(*op) == "all_gather" && !ir::is_repeated(op->section)))
        of_parameters.insert(op->result()->type().dtype);
    for (const Op* op : lifetimes_.order()) {
      for (const Value* operand : op->operands) {
        if (!operand) continue;
        if (ir::is_repeated(op->section)) read_by_model_.insert(ir::storage_of(operand));
        if (ir::collective_kind(*op) == "all_gather") sent_.insert(operand);
        if (op->is("unpack")) copied_by_graph_.insert(ir::storage_of(operand));
      }
      if (keeps_whole_gradients_ && op->is("pack") && op->section == Section::Bwd)
        for (const Value* operand : op->operands)
          if (const Value* narrow = cast_source(operand); narrow && of_parameters.contains(narrow->type().dtype))
            for (const Value* memory : lifetimes_.memory_of(narrow)) parameter_gradients_.insert(memory);
      if (op->is("gradient", "accumulate"))
        for (const Value* memory : lifetimes_.memory_of(op->operands[0]))
          (op->is("gradient") ? gradients_ : sums_).insert(memory);
    }
  }

  // What is before, in and after the part that each micro-batch runs.
  void run_step(bool first) {
    for (const auto handle : kept_gradients_) free(handle);
    kept_gradients_.clear();
    const auto& order = lifetimes_.order();
    const auto repeated = [](const Op* op) { return ir::is_repeated(op->section); };
    begin_ = static_cast<size_t>(std::ranges::find_if(order, repeated) - order.begin());
    end_ = begin_;
    for (size_t slot = begin_; slot < order.size(); ++slot)
      if (repeated(order[slot])) end_ = slot + 1;
    run_range(0, begin_, first);
    const int64_t turns = std::min<int64_t>(graph_.micro_batches, kTurns);
    count_traffic(1);
    for (int64_t turn = 0; turn < turns; ++turn) {
      first_turn_ = turn == 0;
      last_turn_ = turn + 1 == turns;
      if (last_turn_)
        for (const auto& [value, handle] : held_sums_) dies(handle, lifetimes_.last(value));
      if (last_turn_) held_sums_.clear();
      run_range(begin_, end_, first);
      const bool stands_for_more = turn == 1 && !last_turn_;
      count_traffic(stands_for_more ? graph_.micro_batches - 2 : 1);
    }
    for (const auto handle : given_) free(handle);
    given_.clear();
    run_range(end_, order.size(), first);
    for (const auto handle : dying_.back()) free(handle);
    dying_.back().clear();
    now_ = nullptr;
    count_traffic(1);
  }

  // What the allocator has done since the last count, as often as the part of the step since then runs.
  void count_traffic(int64_t times) {
    const CachingAllocator::Traffic& now = allocator_.traffic();
    const double weight = counted_ * static_cast<double>(times);
    out_.retries += weight * static_cast<double>(now.retries - traffic_.retries);
    out_.moved_bytes +=
        weight * static_cast<double>(now.given_bytes + now.asked_bytes - traffic_.given_bytes - traffic_.asked_bytes);
    traffic_ = now;
  }

  // Optimizers make their moments in the first update.
  void run_range(size_t begin, size_t end, bool first) {
    for (size_t slot = begin; slot < end; ++slot) {
      const Op& op = *lifetimes_.order()[slot];
      now_ = &op;
      slot_ = slot;
      if (first && !has_moments_ && op.section == Section::Opt) {
        has_moments_ = true;
        for (const auto& state : graph_.ops())
          if (state->is("state") && !read_by_model_.contains(state->result())) allocate_state(*state);
      }
      if (held_ && op.section != Section::Fwd) {
        free(*held_);
        held_.reset();
      }
      if (!ir::is_once(op) || last_turn_) run_op(op);
      for (const auto handle : dying_[slot]) free(handle);
      dying_[slot].clear();
    }
  }

  void run_op(const Op& op) {
    if (op.is("param", "state", "constant", "scalar")) return;
    if (op.is("all_gather")) {
      gather(op);
      copy_out(op);
    } else if (op.is("all_gather.start")) {
      gather(op);
    } else if (ir::is_wait(op) && op.operands[0]->producer()->is("all_gather.start")) {
      copy_out(op);
    } else if (op.is("cross_entropy") && options_.loss != PyTorchLoss::Fused) {
      log_softmax(op);
    } else if (op.is("cross_entropy_backward") && options_.loss != PyTorchLoss::Fused) {
      log_softmax_backward(op);
    } else if (op.is("accumulate")) {
      for (const auto handle : parts_) free(handle);
      parts_.clear();
    } else {
      compute(op);
    }
  }

  // What was made before all micro-batches is there for each.
  void dies(CachingAllocator::Handle handle, size_t slot) {
    (slot_ < begin_ && slot >= begin_ && slot < end_ ? given_ : dying_.at(slot)).push_back(handle);
  }

  // The copy in casts the shard into a buffer, and copies that into the gather's.
  void gather(const Op& op) {
    const Value* result = op.result();
    if (ir::is_repeated(op.section)) {
      gathered_[result] = allocate(result->type().bytes(), PyTorchStream::AllGather);
    } else if (whole_.insert(result).second) {  // once per step, into the parameters that stay (ZeRO 1 and 2)
      out_.state_bytes += result->type().bytes();
      allocate(result->type().bytes(), PyTorchStream::Compute);
    }
    if (const auto input = shards_.find(op.operands[0]); input != shards_.end()) {
      free(input->second);
      shards_.erase(input);
    }
  }

  // Each parameter is copied out. In forward the buffer is held until the next unit is copied out, in backward not.
  void copy_out(const Op& op) {
    const Value* gathered = ir::storage_of(op.result());
    const auto buffer = gathered_.find(gathered);
    if (buffer == gathered_.end()) return;
    if (held_) free(*held_);
    held_.reset();
    // FSDP1 gathers into the flat parameter itself.
    if (options_.system == cost::System::Fsdp1 || copied_by_graph_.contains(gathered)) {
      dies(buffer->second, lifetimes_.last(gathered));
      gathered_.erase(buffer);
      return;
    }
    const Op* param = param_behind(gathered);
    const int64_t bytes = gathered->type().bytes();
    for (const int64_t member : param ? members_of(*param, bytes) : std::vector{bytes})
      dies(allocate(member, PyTorchStream::Compute), lifetimes_.last(gathered));
    if (op.section == Section::Fwd && options_.system == cost::System::Fsdp2)
      held_ = buffer->second;
    else
      free(buffer->second);
    gathered_.erase(buffer);
  }

  // Each chunk has a float32 copy of the logits, and log-probabilities that are kept for backward.
  void log_softmax(const Op& op) {
    const Value& logits = *op.operands[0];
    const int64_t bytes = bytes_as_f32(logits) / options_.loss_chunks;
    const bool copies = logits.type().dtype != ir::DType::f32;
    for (int64_t chunk = 0; chunk < options_.loss_chunks; ++chunk) {
      std::optional<CachingAllocator::Handle> copy;
      if (copies) copy = allocate(bytes, PyTorchStream::Compute);
      probabilities_[ir::storage_of(&logits)].push_back(allocate(bytes, PyTorchStream::Compute));
      if (copy && options_.loss == PyTorchLoss::Kept)
        dies(*copy, end_ - 1);
      else if (copy)
        free(*copy);
    }
    compute(op);
  }

  // Each chunk has the gradient of the picked ones, zeros around it; that of the float32 copy; its cast. Casts of chunks are
  // put together in the end.
  void log_softmax_backward(const Op& op) {
    Handles& kept = probabilities_[ir::storage_of(op.operands[1])];
    SFSDP_CHECK(!kept.empty(), "no loss of %", op.result()->name());
    const int64_t bytes = bytes_as_f32(*op.result()) / options_.loss_chunks;
    Handles casts;
    for (; !kept.empty(); kept.pop_back()) {
      const auto picked = allocate(bytes, PyTorchStream::Compute);
      const auto whole = allocate(bytes, PyTorchStream::Compute);
      free(picked);
      free(kept.back());
      if (options_.loss_chunks > 1)
        casts.push_back(allocate(op.result()->type().bytes() / options_.loss_chunks, PyTorchStream::Compute));
      else
        compute(op);
      free(whole);
    }
    if (options_.loss_chunks > 1) compute(op);
    for (const auto cast : casts) free(cast);
  }

  // What is kept for backward in the place of a result that only a kernel of sfsdp's own leaves: dropout's mask of a byte per
  // element; with the logarithms of all probabilities, no sum of theirs.
  int64_t eager_bytes(const Value& value) const {
    const Op& op = *value.producer();
    if (op.is("dropout") && value.result_index() == 1) return op.result()->type().numel();
    if (op.is("cross_entropy") && value.result_index() == 2 && options_.loss != PyTorchLoss::Fused) return 0;
    return value.type().bytes();
  }

  // Results, and what the op's kernels use meanwhile.
  void compute(const Op& op) {
    Handles temporaries;
    if (!options_.compiled && op.is("rope", "rope_inverse"))  // a float32 copy and the product of complex pairs
      for (int i = 0; i < 2; ++i)
        temporaries.push_back(allocate(bytes_as_f32(*op.operands[0]), PyTorchStream::Compute));
    if (op.is("pack") &&
        options_.system == cost::System::Fsdp1)  // autograd puts the flat parameter's gradient together
      temporaries.push_back(allocate(flat_gradient_bytes(op), PyTorchStream::Compute));
    if (op.is("sdpa_backward"))  // the gradient of q is summed in float32
      temporaries.push_back(allocate(bytes_as_f32(*op.operands[1]), PyTorchStream::Compute));
    for (const auto& result : op.results()) {
      const Value* value = result.get();
      if (!lifetimes_.is_stored(value)) continue;
      if (!first_turn_ && lifetimes_.is_added_in_place(value)) continue;
      if (product_sums_.contains(&op)) continue;
      if (options_.reduce_bucket > 0) {
        const bool in_bucket = op.is("pack") && op.section == Section::Bwd;
        if (in_bucket || sent_.contains(value)) continue;
        if (gradients_.contains(value)) {
          if (whole_gradients_.insert(value).second) allocate(value->type().bytes(), PyTorchStream::Reduce);
          continue;
        }
      }
      if (keeps_whole_gradients_ && op.is("pack") && op.section == Section::Bwd) {
        if (whole_gradients_.insert(value).second) allocate(value->type().bytes(), PyTorchStream::Compute);
        continue;
      }
      const bool reduced = ir::is_collective(op) || gradients_.contains(value) ||
                           (op.is("pack") && options_.system == cost::System::Fsdp1);
      const bool is_input = sent_.contains(value);
      const PyTorchStream stream = is_input  ? PyTorchStream::AllGather
                                   : reduced ? PyTorchStream::Reduce
                                             : PyTorchStream::Compute;
      const auto bytes = eager_bytes(*value);
      if (bytes == 0) continue;
      const auto handle = allocate(bytes, stream);
      if (is_input)
        shards_[value] = handle;
      else if (sums_.contains(value) && !first_turn_)
        parts_.push_back(handle);
      else if (gradients_.contains(value) || (first_turn_ && parameter_gradients_.contains(value)))
        kept_gradients_.push_back(handle);
      else if (sums_.contains(value) && !last_turn_)
        held_sums_.emplace(value, handle);
      else
        dies(handle, lifetimes_.last(value));
    }
    for (const auto handle : temporaries) free(handle);
  }

  const ir::Graph& graph_;
  const PyTorchOptions& options_;
  const Lifetimes lifetimes_;
  cost::ProductSums product_sums_;
  CachingAllocator allocator_;
  CachingAllocator::Traffic traffic_;  // up to the last count
  double counted_ = 0;                 // the part of a step in the mean
  PyTorchMemory out_;
  const Op* now_ = nullptr;
  std::map<CachingAllocator::Handle, std::pair<const Op*, int64_t>> alive_;
  const int64_t watched_;
  int64_t allocations_ = 0, peak_ = 0;
  std::vector<Handles> dying_;  // by slot after which they are dropped
  bool keeps_whole_gradients_ = false;
  std::unordered_set<const Value*> whole_;            // parameters that are gathered into what stays
  std::unordered_set<const Value*> whole_gradients_;  // gradients with buffers that stay, whole or not
  Handles given_;                                     // what micro-batches read and none makes
  Handles kept_gradients_, parts_;                    // of this step; of this micro-batch
  std::unordered_set<const Value*> read_by_model_, sent_, copied_by_graph_;  // not by the update; by gathers; by unpack
  std::unordered_set<const Value*> gradients_, sums_;     // what the optimizer reads; what is added up
  std::unordered_set<const Value*> parameter_gradients_;  // of narrow parameters, which hold them beside the wider sums
  std::unordered_map<const Value*, CachingAllocator::Handle> held_sums_;  // sums that the step drops itself
  size_t begin_ = 0, end_ = 0, slot_ = 0;                                 // of micro-batches; of what runs
  bool first_turn_ = true, last_turn_ = true, has_moments_ = false;
  std::unordered_map<const Value*, CachingAllocator::Handle> gathered_,
      shards_;                                               // buffers in flight; casts to be gathered
  std::unordered_map<const Value*, Handles> probabilities_;  // by logits
  std::optional<CachingAllocator::Handle> held_;             // the buffer of the unit copied out last
};

}  // namespace

std::string_view to_string(PyTorchStream stream) {
  constexpr std::array<std::string_view, kPyTorchStreams> kNames = {"compute", "all_gather", "reduce"};
  return kNames.at(static_cast<size_t>(stream));
}

PyTorchMemory pytorch_memory(const ir::Graph& graph, const PyTorchOptions& options, CachingAllocator::Segments segments,
                             int64_t room) {
  Run first(graph, options, CachingAllocator(segments), 0);
  first.run(kSteps);
  PyTorchMemory out = Run(graph, options, CachingAllocator(segments), first.peak()).run(kSteps);
  if (out.reserved_bytes > room) {
    const PyTorchMemory full = Run(graph, options, CachingAllocator(segments, room), 0).run(kSteps + kCountedSteps);
    out.retries = full.retries;
    out.moved_bytes = full.moved_bytes;
  }
  return out;
}

}  // namespace sfsdp::sim
