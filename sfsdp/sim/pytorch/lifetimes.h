// SPDX-License-Identifier: BSD-3-Clause
// When PyTorch's FSDP2 drops what a step's graph makes: the order in which autograd runs its ops, and after which of them
// nobody holds a value any more. docs/simulator.md has the rules in words, docs/constants.md their sources.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sfsdp/cost/op_cost.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::sim {

enum class PyTorchLoss : uint8_t {
  Separate,  // log_softmax and nll_loss on a float32 copy of the logits; these are dropped before backward
  Kept,      // the same, and the trainer holds the float32 logits through backward
  Fused,     // one kernel that reads the logits as they are, forward and backward
};

struct PyTorchOptions {
  cost::System system = cost::System::Fsdp2;  // not Own
  // Blocks by torch.compile: backward computes pointwise chains again. What one kernel makes and reads (cost/kernels.h) has
  // no memory in either case.
  bool compiled = false;
  // How blocks with remat choose: nothing is kept but what they are given, or what a list says, needed or not
  // (TorchTitan's "op": products and attention; every k-th product of a block is not on it, 0: all are).
  bool save_list = false;
  int64_t mm_again = 0;
  std::string mm_again_of = {}, save = {};  // as in passes::RematOptions
  // Whole gradients have buffers that are made once and stay, as DDP's, Megatron's and DeepSpeed's do (stages 0 and 1).
  bool keeps_whole_gradients = false;
  // Products add their gradients to the sums over micro-batches (cost/product_sums.h): those have no memory of their own.
  bool product_sums = false;
  // DeepSpeed's stage 3: elements of the buffer in which gradients lie until they are reduced; 0: PyTorch's own systems. Shards are kept
  // in the dtype of gathers too, and reduced gradients in buffers that stay.
  int64_t reduce_bucket = 0;
  PyTorchLoss loss = PyTorchLoss::Separate;
  int64_t loss_chunks = 1;  // Separate, Kept: of rows of the logits, one after the other
};

// The param op that `value` is, or is made of by casts, gathers, copies and views alone, the first of
// several; nullptr for all other values.
const ir::Op* param_behind(const ir::Value* value);

class Lifetimes {
 public:
  // The graph must outlive this and not change.
  Lifetimes(const ir::Graph& graph, const PyTorchOptions& options);

  // The ops as PyTorch runs them: what autograd's checkpoints compute again of a block is computed at once, before its
  // first gradient; a compiler computes each op again where it is needed.
  const std::vector<const ir::Op*>& order() const { return order_; }
  // The values whose memory `value` is: itself, what it is a view of, what it overwrites; of a value that has no memory,
  // what it is computed from.
  std::vector<const ir::Value*> memory_of(const ir::Value* value, bool in_backward = false) const;
  // Whether a value has memory of its own.
  bool is_stored(const ir::Value* value) const;
  // Whether gradients are added to the sum over micro-batches as they are copied: they have no memory besides the sum's.
  bool is_added_in_place(const ir::Value* value) const { return added_in_place_.contains(value); }
  // The place in order() after which a stored value is dropped.
  size_t last(const ir::Value* stored) const;

 private:
  bool has_checkpoints() const { return !options_.compiled && options_.system != cost::System::Traced; }
  void mark_recomputed();
  void set_order();
  void keep_listed();
  void mark_inductor();
  void set_last();
  const ir::Value* passed_through(const ir::Value* value) const;

  const ir::Graph& graph_;
  const PyTorchOptions& options_;
  std::vector<const ir::Op*> order_;
  std::vector<size_t> kernel_end_;                         // by place: of the last op of its kernel
  std::unordered_set<const ir::Op*> recomputed_;           // by remat
  std::unordered_map<std::string, size_t> recomputed_at_;  // by block: where its forward has run again
  std::unordered_set<const ir::Value*> added_in_place_;
  std::unordered_set<const ir::Value*> inside_;                 // of kernels
  std::unordered_set<const ir::Value*> casts_to_pack_, again_;  // again_: by Inductor, where backward reads them
  std::unordered_map<const ir::Value*, size_t> last_;
};

}  // namespace sfsdp::sim
