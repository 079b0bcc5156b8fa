// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/pytorch/memory.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/sim/pytorch/step_facts.h"

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

// A unit's gradients as backward makes them, side by side.
int64_t flat_gradient_bytes(const Op& pack) {
  int64_t bytes = 0;
  for (const Value* operand : pack.operands) {
    const Op& made = *operand->producer();
    bytes += made.is("cast") ? made.operands[0]->type().bytes() : operand->type().bytes();
  }
  return bytes;
}

// PyTorch's allocator, when what it has given is dropped, and what is noted of both.
class Heap {
 public:
  // watched: the allocation at which to note what is alive; 0: none
  Heap(const StepFacts& facts, CachingAllocator allocator, int64_t watched = 0)
      : facts_(facts),
        allocator_(std::move(allocator)),
        watched_(watched),
        dying_(facts.lifetimes.order().size() + 1) {}

  CachingAllocator::Handle allocate(int64_t bytes, PyTorchStream stream = PyTorchStream::Compute) {
    if (facts_.options.system == cost::System::Traced) stream = PyTorchStream::Compute;
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
  void free(Handles& handles) {
    for (const auto handle : handles) free(handle);
    handles.clear();
  }
  // After the op in `slot`. What was made before all micro-batches is there for each.
  void dies(CachingAllocator::Handle handle, size_t slot) {
    const bool is_given = slot_ < facts_.begin && slot >= facts_.begin && slot < facts_.end;
    (is_given ? given_ : dying_.at(slot)).push_back(handle);
  }

  void add_state(int64_t bytes) { out_.state_bytes += bytes; }

  void begin_slot(size_t slot) {
    slot_ = slot;
    now_ = facts_.lifetimes.order()[slot];
  }
  void end_slot() { free(dying_[slot_]); }
  void end_turns() { free(given_); }
  void end_step() {
    free(dying_.back());
    now_ = nullptr;
  }
  // What the allocator has done since the last count.
  //   weight: how often the part of the step since then runs, times the part of a step in the mean
  void count_traffic(double weight) {
    const CachingAllocator::Traffic& now = allocator_.traffic();
    out_.retries += weight * static_cast<double>(now.retries - traffic_.retries);
    out_.moved_bytes +=
        weight * static_cast<double>(now.given_bytes + now.asked_bytes - traffic_.given_bytes - traffic_.asked_bytes);
    traffic_ = now;
  }

  int64_t peak() const { return peak_; }  // the allocation at which most is alive
  PyTorchMemory noted() const {
    PyTorchMemory out = out_;
    out.allocated_bytes = allocator_.peak_allocated();
    out.held_bytes = allocator_.peak_held();
    out.reserved_bytes = allocator_.reserved();
    for (size_t s = 0; s < kPyTorchStreams; ++s) out.reserved_by_stream[s] = allocator_.reserved(static_cast<int>(s));
    return out;
  }

 private:
  const StepFacts& facts_;
  CachingAllocator allocator_;
  const int64_t watched_;
  CachingAllocator::Traffic traffic_;  // up to the last count
  PyTorchMemory out_;
  size_t slot_ = 0;          // of the op that runs
  const Op* now_ = nullptr;  // the same; nullptr: before and after steps
  std::map<CachingAllocator::Handle, std::pair<const Op*, int64_t>> alive_;
  int64_t allocations_ = 0, peak_ = 0;
  std::vector<Handles> dying_;  // by slot after which they are dropped
  Handles given_;               // what micro-batches read and none makes
};

// What each op allocates and frees, in eager's order.
class Tensors {
 public:
  Tensors(const StepFacts& facts, Heap& heap) : facts_(facts), options_(facts.options), heap_(heap) {}

  // What is there before the first step; moments are not.
  void allocate_start() {
    heap_.allocate(kProductWorkspace);
    for (const auto& op : facts_.graph.ops())
      if (op->is("param") || (op->is("state") && facts_.read_by_model.contains(op->result()))) allocate_state(*op);
    if (options_.reduce_bucket > 0) allocate_buckets();
  }

  void begin_step() { heap_.free(kept_gradients_); }

  void begin_turn(bool first, bool last) {
    first_turn_ = first;
    last_turn_ = last;
    if (!last) return;
    for (const auto& [value, handle] : held_sums_) heap_.dies(handle, facts_.lifetimes.last(value));
    held_sums_.clear();
  }

  // Optimizers make their moments in the first update.
  void run(const Op& op) {
    if (!has_moments_ && op.section == Section::Opt) {
      has_moments_ = true;
      for (const auto& state : facts_.graph.ops())
        if (state->is("state") && !facts_.read_by_model.contains(state->result())) allocate_state(*state);
    }
    if (op.section != Section::Fwd) heap_.free(held_);
    if (!ir::is_once(op) || last_turn_) run_op(op);
  }

 private:
  // A shard of each parameter.
  void allocate_state(const Op& op) {
    const int64_t bytes = op.result()->type().bytes();
    heap_.add_state(bytes);
    for (const int64_t member : members_of(op, bytes)) heap_.allocate(member);
  }

  // What DeepSpeed's stage 3 has from the start: shards as they are gathered, beside those that are updated; the bucket of gradients, and
  // the copy of it that is reduced.
  void allocate_buckets() {
    int64_t elements = 0;
    const Op* packs = nullptr;
    for (const auto& op : facts_.graph.ops()) {
      if (!op->is("cast") || !facts_.sent.contains(op->result())) continue;
      heap_.add_state(op->result()->type().bytes());
      heap_.allocate(op->result()->type().bytes());
    }
    for (const auto& op : facts_.graph.ops()) {
      if (!op->is("pack") || op->section != Section::Bwd) continue;
      packs = op.get();
      elements += op->result()->type().numel();
    }
    if (!packs) return;
    const auto width = static_cast<int64_t>(ir::size_in_bytes(packs->result()->type().dtype));
    const int64_t bytes = std::min(elements, options_.reduce_bucket) * width;
    heap_.allocate(bytes);
    heap_.allocate(bytes, PyTorchStream::Reduce);
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
    } else if (op.is("cross_entropy", "cross_entropy_parts") && options_.loss != PyTorchLoss::Fused) {
      log_softmax(op);
    } else if (op.is("cross_entropy_backward") && options_.loss != PyTorchLoss::Fused) {
      log_softmax_backward(op);
    } else if (op.is("accumulate")) {
      heap_.free(parts_);
    } else {
      compute(op);
    }
  }

  // The copy in casts the shard into a buffer, and copies that into the gather's.
  void gather(const Op& op) {
    const Value* result = op.result();
    if (ir::is_repeated(op.section)) {
      gathered_[result] = heap_.allocate(result->type().bytes(), PyTorchStream::AllGather);
    } else if (whole_.insert(result).second) {  // once per step, into the parameters that stay (ZeRO 1 and 2)
      heap_.add_state(result->type().bytes());
      heap_.allocate(result->type().bytes());
    }
    if (const auto input = shards_.extract(op.operands[0])) heap_.free(input.mapped());
  }

  // Each parameter is copied out. In forward the buffer is held until the next unit is copied out, in backward not.
  void copy_out(const Op& op) {
    const Value* gathered = ir::storage_of(op.result());
    const auto buffer = gathered_.extract(gathered);
    if (!buffer) return;
    heap_.free(held_);
    // FSDP1 gathers into the flat parameter itself.
    if (options_.system == cost::System::Fsdp1 || facts_.unpacked.contains(gathered))
      return heap_.dies(buffer.mapped(), facts_.lifetimes.last(gathered));
    const Op* param = param_behind(gathered);
    const int64_t bytes = gathered->type().bytes();
    for (const int64_t member : param ? members_of(*param, bytes) : std::vector{bytes})
      heap_.dies(heap_.allocate(member), facts_.lifetimes.last(gathered));
    if (op.section == Section::Fwd && options_.system == cost::System::Fsdp2)
      held_ = {buffer.mapped()};
    else
      heap_.free(buffer.mapped());
  }

  // Each chunk has a float32 copy of the logits, and log-probabilities that are kept for backward. DTensor makes those of a rank's classes
  // of what the largest logit is taken from, and of its exponentials (torch/distributed/tensor/parallel/loss.py).
  void log_softmax(const Op& op) {
    const Value& logits = *op.operands[0];
    const int64_t bytes = bytes_as_f32(logits) / options_.loss_chunks;
    const bool copies = logits.type().dtype != ir::DType::f32;
    for (int64_t chunk = 0; chunk < options_.loss_chunks; ++chunk) {
      Handles copy;
      if (copies) copy = {heap_.allocate(bytes)};
      Handles shifted;
      if (op.is("cross_entropy_parts")) {
        shifted = {heap_.allocate(bytes)};
        heap_.free(heap_.allocate(bytes));
      }
      probabilities_[ir::storage_of(&logits)].push_back(heap_.allocate(bytes));
      if (copies && options_.loss == PyTorchLoss::Kept)
        heap_.dies(copy[0], facts_.end - 1);
      else
        heap_.free(copy);
      heap_.free(shifted);
    }
    compute(op);
  }

  // Each chunk has the gradient of the picked ones, zeros around it; that of the float32 copy; its cast. Casts of chunks are
  // put together in the end. That of a rank's classes is (picked + exponentials) · what is owed, op by op.
  void log_softmax_backward(const Op& op) {
    Handles& kept = probabilities_[ir::storage_of(op.operands[1])];
    SFSDP_CHECK(!kept.empty(), "no loss of %", op.result()->name());
    const int64_t bytes = bytes_as_f32(*op.result()) / options_.loss_chunks;
    Handles casts;
    for (; !kept.empty(); kept.pop_back()) {
      const auto picked = heap_.allocate(bytes);
      auto whole = heap_.allocate(bytes);
      if (op.has_attr("axis")) {
        const auto added = heap_.allocate(bytes);
        heap_.free(whole);
        whole = heap_.allocate(bytes);
        heap_.free(added);
      }
      heap_.free(picked);
      heap_.free(kept.back());
      if (options_.loss_chunks > 1)
        casts.push_back(heap_.allocate(op.result()->type().bytes() / options_.loss_chunks));
      else
        compute(op);
      heap_.free(whole);
    }
    if (options_.loss_chunks > 1) compute(op);
    heap_.free(casts);
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
      for (int i = 0; i < 2; ++i) temporaries.push_back(heap_.allocate(bytes_as_f32(*op.operands[0])));
    if (op.is("pack") &&
        options_.system == cost::System::Fsdp1)  // autograd puts the flat parameter's gradient together
      temporaries.push_back(heap_.allocate(flat_gradient_bytes(op)));
    if (op.is("sdpa_backward"))  // the gradient of q is summed in float32
      temporaries.push_back(heap_.allocate(bytes_as_f32(*op.operands[1])));
    for (const auto& result : op.results()) {
      const Value* value = result.get();
      if (!facts_.lifetimes.is_stored(value)) continue;
      if (!first_turn_ && facts_.lifetimes.is_added_in_place(value)) continue;
      if (facts_.product_sums.contains(&op)) continue;
      if (options_.reduce_bucket > 0) {
        const bool in_bucket = op.is("pack") && op.section == Section::Bwd;
        if (in_bucket || facts_.sent.contains(value)) continue;
        if (facts_.gradients.contains(value)) {
          if (whole_gradients_.insert(value).second) heap_.allocate(value->type().bytes(), PyTorchStream::Reduce);
          continue;
        }
      }
      if (facts_.keeps_whole_gradients && op.is("pack") && op.section == Section::Bwd) {
        if (whole_gradients_.insert(value).second) heap_.allocate(value->type().bytes());
        continue;
      }
      const bool reduced = ir::is_collective(op) || facts_.gradients.contains(value) ||
                           (op.is("pack") && options_.system == cost::System::Fsdp1);
      const bool is_input = facts_.sent.contains(value);
      const PyTorchStream stream = is_input  ? PyTorchStream::AllGather
                                   : reduced ? PyTorchStream::Reduce
                                             : PyTorchStream::Compute;
      const auto bytes = eager_bytes(*value);
      if (bytes == 0) continue;
      const auto handle = heap_.allocate(bytes, stream);
      if (is_input)
        shards_[value] = handle;
      else if (facts_.sums.contains(value) && !first_turn_)
        parts_.push_back(handle);
      else if (facts_.gradients.contains(value) || (first_turn_ && facts_.parameter_gradients.contains(value)))
        kept_gradients_.push_back(handle);
      else if (facts_.sums.contains(value) && !last_turn_)
        held_sums_.emplace_back(value, handle);
      else
        heap_.dies(handle, facts_.lifetimes.last(value));
    }
    heap_.free(temporaries);
  }

  const StepFacts& facts_;
  const PyTorchOptions& options_;
  Heap& heap_;
  bool first_turn_ = true, last_turn_ = true, has_moments_ = false;
  Values whole_;                    // parameters that are gathered into what stays
  Values whole_gradients_;          // gradients with buffers that stay, whole or not
  Handles kept_gradients_, parts_;  // of this step; of this micro-batch
  std::vector<std::pair<const Value*, CachingAllocator::Handle>> held_sums_;      // that the step drops itself, as made
  std::unordered_map<const Value*, CachingAllocator::Handle> gathered_, shards_;  // in flight; casts to be gathered
  std::unordered_map<const Value*, Handles> probabilities_;                       // by logits
  Handles held_;  // the buffer of the unit copied out last
};

// What is before, in and after the part that each micro-batch runs.
//   weight: the part of the step in the mean of what the allocator does
void run_step(const StepFacts& facts, Tensors& tensors, Heap& heap, double weight) {
  const auto run = [&](size_t begin, size_t end) {
    for (size_t slot = begin; slot < end; ++slot) {
      heap.begin_slot(slot);
      tensors.run(*facts.lifetimes.order()[slot]);
      heap.end_slot();
    }
  };
  tensors.begin_step();
  run(0, facts.begin);
  heap.count_traffic(weight);
  const int64_t turns = std::min<int64_t>(facts.graph.micro_batches, kTurns);
  for (int64_t turn = 0; turn < turns; ++turn) {
    const bool last = turn + 1 == turns;
    tensors.begin_turn(turn == 0, last);
    run(facts.begin, facts.end);
    const int64_t stands_for = turn == 1 && !last ? facts.graph.micro_batches - 2 : 1;
    heap.count_traffic(weight * static_cast<double>(stands_for));
  }
  heap.end_turns();
  run(facts.end, facts.lifetimes.order().size());
  heap.end_step();
  heap.count_traffic(weight);
}

PyTorchMemory run_steps(const StepFacts& facts, int steps, Heap& heap) {
  Tensors tensors(facts, heap);
  tensors.allocate_start();
  for (int step = 0; step < steps; ++step) run_step(facts, tensors, heap, step < kSteps ? 0 : 1.0 / kCountedSteps);
  return heap.noted();
}

}  // namespace

std::string_view to_string(PyTorchStream stream) {
  constexpr std::array<std::string_view, kPyTorchStreams> kNames = {"compute", "all_gather", "reduce"};
  return kNames.at(static_cast<size_t>(stream));
}

PyTorchMemory pytorch_memory(const ir::Graph& graph, const PyTorchOptions& options, CachingAllocator::Segments segments,
                             int64_t room) {
  const StepFacts facts(graph, options);
  Heap first(facts, CachingAllocator(segments));
  run_steps(facts, kSteps, first);
  Heap again(facts, CachingAllocator(segments), first.peak());
  PyTorchMemory out = run_steps(facts, kSteps, again);
  if (out.reserved_bytes > room) {
    Heap full(facts, CachingAllocator(segments, room));
    const PyTorchMemory kept = run_steps(facts, kSteps + kCountedSteps, full);
    out.retries = kept.retries;
    out.moved_bytes = kept.moved_bytes;
  }
  return out;
}

}  // namespace sfsdp::sim
