// SPDX-License-Identifier: BSD-3-Clause
// compile(): module + loss + optimizer + example batch + strategy -> Step, the program of one training step.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "sfsdp/base/held.h"
#include "sfsdp/capture/capture_step.h"
#include "sfsdp/capture/meta_init.h"
#include "sfsdp/comm/communicator.h"
#include "sfsdp/device/device.h"
#include "sfsdp/exec/executor.h"
#include "sfsdp/mesh/chunk.h"
#include "sfsdp/optim/expert_loads.h"
#include "sfsdp/optim/optimizer.h"
#include "sfsdp/parallel/data_parallel.h"
#include "sfsdp/passes/pipeline.h"
#include "sfsdp/plan/bucket_layout.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/plan/storage_layout.h"
#include "sfsdp/step/stored_tensor.h"
#include "sfsdp/tune/remat_share.h"

namespace sfsdp {

using capture::Batch;
using capture::LossValue;

// A loss that is not a mean: a sum and how many targets it is over, one number each. The step divides both loss and
// gradients by the count of all ranks and micro-batches, added in i64, or in f64 if it is floating.
struct SumCount {
  at::Tensor sum, count;
};

template <class Value>
concept LossResult = std::convertible_to<Value, at::Tensor> || std::same_as<Value, SumCount>;

// What runs a step: op by op in the graph's order, each value a tensor of its own; or the plan, at its addresses.
enum class ExecutorKind : uint8_t { Reference, Planned };

struct CompileOptions {
  double max_norm = 0;        // clip gradients to this global norm; 0: off
  int64_t micro_batches = 1;  // gradient accumulation: batches per step and rank
  // A gradient norm that is not finite updates nothing. false: it is only reported, and with max_norm = 0 each update
  // follows its own reduction, without waiting for the others.
  bool skip_non_finite = true;
  ExpertBalance balance = {};       // of the experts of mixtures that have such buffers; rate 0: their biases stay
  std::vector<size_t> uncast = {};  // tensors of a batch that mixed precision does not cast, by place, such as targets
  uint64_t seed = 0;                // of initialisation and of random ops
  exec::Rng rng = exec::Rng::Counter;
  ExecutorKind executor = ExecutorKind::Planned;
  // Batch shapes, of training and evaluation together, whose programs are kept beside the first: the one used longest ago
  // makes place, and is compiled again when it comes back.
  int64_t max_variants = 32;
  passes::PipelineOptions pipeline = {};     // of passes; its storage options are those of the strategy
  tune::TuneOptions tune = {};               // what is chosen by cost
  cost::Target target = cost::cpu_target();  // the device that the plan is made for
  // What runs the plan's lanes, for each rank and plan; unset: the rank's own thread, one kernel or collective after the other.
  device::MakeDevice make_device = {};
  // The kernels for products of the first training graph's shapes; what pipeline.kernels.products says is for all others. The same on all
  // ranks, as exec::choose_products is. Called by the constructor of Program, where name_kernels is not disabled.
  std::function<passes::ProductTable(const std::vector<ir::ProductShape>&)> choose_products = {};
  // Takes what is to be said once, such as a batch shape that is compiled anew, on any rank's thread; unset: to stderr.
  std::function<void(const std::string&)> notify = {};
};

struct StepResult {
  double loss = 0;       // mean of the global batch, with the weights before the update
  double grad_norm = 0;  // before clipping
  bool skipped = false;  // the norm was not finite: nothing was updated, unless skip_non_finite is off
  double own_loss = 0;   // mean of this rank's samples; 0 where the loss counts none of their targets
  std::optional<step::ExpertLoads> experts =
      std::nullopt;               // of this rank's group of ep; none: the model has no mixture
  exec::RunSeconds seconds = {};  // of this rank; what ranks compare before the step counts as communication
};

// What is the same on all ranks: the module, its captured graphs, the layout of the state. Share one between the ranks
// of a process; each rank has a Step of its own. Real weights of the module are taken over: the Steps of all ranks that
// share the program copy their parts, and each tensor is freed as soon as they have; there is no second set of Steps then.
//   throws: UserError naming an option that is out of range, an op that cannot be captured, a tensor without a value
class Program {
 public:
  Program(std::shared_ptr<torch::nn::Module> module, capture::LossFunction loss, Optimizer optimizer,
          const Batch& example, Strategy strategy, CompileOptions options);

  struct Variant {
    plan::StepPlan plan;  // what runs, and what ranks compare
    const ir::Graph& graph = plan.graph;
    std::vector<at::Tensor> constants;
    double capture_ms = 0;                     // running the model on meta tensors
    double complete_ms = 0;                    // data parallelism, optimizer, passes, verification
    std::vector<passes::PassReport> passes;    // what each did, in order
    tune::RematChoice remat;                   // as asked for, or what was chosen by cost, and the trials
    mutable std::atomic<bool> let_go = false;  // by the program, for another batch shape

   private:
    friend class Program;
    mutable std::optional<uint64_t> plan_hash;  // once it was asked for
  };
  // The graph for these batch shapes; captured when first asked for. It lives as long as what is returned, though the
  // program may let go of it (CompileOptions::max_variants). Thread-safe. Throws UserError for a batch of more or fewer
  // tensors than the example of the constructor, or of other dtypes or ranks.
  Held<const Variant> training(const Batch& example) { return variant(example, true); }
  Held<const Variant> evaluation(const Batch& example) { return variant(example, false); }
  // The one that all state was laid out for: of training, for the example of the constructor.
  Held<const Variant> first() const { return first_; }
  uint64_t hash_of(const Variant& variant) const;  // of its plan: ranks compare it before each run
  // Captures the training step again. Throws UserError naming the first op that differs, or what reads the first constant
  // with other values: a C++ number or a tensor from outside that changes from step to step is frozen in the graph, and
  // must become a tensor of the batch.
  void check_recapture(const Batch& example);

  const Strategy& strategy() const { return strategy_; }
  const CompileOptions& options() const { return options_; }
  const Optimizer& optimizer() const { return optimizer_; }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  // Where all state lies, for all graphs of this program; state that only a later graph reads is at its end. Thread-safe.
  plan::StorageLayout storage_layout() const;
  const std::vector<capture::StateTensor>& state() const { return state_; }
  int64_t num_parameters() const;  // elements, tied ones once
  // The passes that this program's graphs go through, with their options, a line each.
  std::string pass_list() const;

 private:
  friend class Step;
  struct Cache;
  // Elements of state()[source] as training starts, flat; let go of, if they are real, after `steps` calls. Thread-safe.
  at::Tensor take_start(size_t source, const plan::Box& box, int64_t steps);
  Held<const Variant> variant(const Batch& example, bool training);
  void keep(const std::string& key, const Held<const Variant>& made);
  std::unique_ptr<Variant> build(const Batch& example, bool training, const passes::PassObserver& observer);
  void say(const std::string& notice) const;
  passes::PipelineOptions pipeline() const;
  // By CompileOptions::choose_products, for this graph and those to come.
  void name_products(ir::Graph& graph, Variant& variant, const passes::PassObserver& observer);
  void lay_out(const ir::Graph& graph, const plan::GlobalShapes& shapes,
               const std::vector<step::OptimizerState>& optimizer_state);

  std::shared_ptr<torch::nn::Module> module_;
  capture::LossFunction loss_;
  Optimizer optimizer_;
  Strategy strategy_;
  CompileOptions options_;
  std::vector<ir::Type> example_;  // its tensors
  uint64_t id_;                    // random: ranks that have the same one share this program
  std::vector<capture::StateTensor> state_;
  std::optional<plan::BucketLayouts> buckets_;  // of layout Flat, once the first graph has decided it
  plan::StorageLayout layout_;                  // as the first graph has decided it, and what others appended
  std::vector<StoredTensor> tensors_;
  Held<const Variant> first_;
  std::shared_ptr<Cache> cache_;
};

// Throws UserError unless the mesh has as many ranks as the world; a null world has one.
void check_ranks(const Strategy& strategy, const comm::CommWorld* world);

// One rank's training step: owns this rank's shards.
class Step {
 public:
  // `world` may be null for a strategy of one rank, and must outlive the Step. A collective call: all ranks must have the
  // same passes, graph, seed and real weights, else UserError on all of them.
  Step(std::shared_ptr<Program> program, comm::CommWorld* world);
  ~Step();
  Step(Step&&) noexcept;

  // One step over options.micro_batches batches of the same shapes (this rank's share of the global batch). A collective
  // call, as eval is: UserError on all ranks if one cannot take the step, or if their graphs, lr or step differ, such as
  // by the rows of a batch. What one rank finds out while it runs (an id that is no row) ends the world: the others get a
  // CommError with its text, and no Step on it can go on.
  StepResult operator()(const std::vector<Batch>& micro_batches);
  StepResult operator()(const Batch& batch) { return (*this)(std::vector<Batch>{batch}); }
  // Mean loss of the global batch without dropout, gradients or update; a graph of its own over the same weights.
  double eval(const Batch& batch);

  double lr = 0;     // used by the next step; starts as the optimizer's
  int64_t step = 0;  // steps done

  // The whole tensor of a parameter, buffer or optimizer tensor ("<param>.exp_avg"); a collective call.
  at::Tensor gather(const std::string& name);
  // This rank's part of each tensor, by name, aliasing the step's storage: the whole or a box, rows of dimension 0 (layout Dim0), or
  // a flat range of elements (layout Flat); see box_of. At ZeRO stages 1 and 2 it is the shard that the update writes: change it
  // by load_state_dict, which has the whole copies gathered anew.
  std::map<std::string, at::Tensor> state_dict() const;
  // Values by name, each either whole or as state_dict has it; to be called on every rank. Throws UserError
  // for unknown names, wrong shapes, and integers for floating point or the other way round.
  void load_state_dict(const std::map<std::string, at::Tensor>& values);
  // Which elements of the whole tensor state_dict() holds, row-major: a range of a box; range_of: UserError unless that is all of it.
  plan::Box box_of(const std::string& name) const;
  Chunk range_of(const std::string& name) const;

  const Program& program() const { return *program_; }
  // The training graph's, for tests and debugging; the step uses it until CompileOptions::max_variants others took its place.
  std::shared_ptr<exec::Executor> executor(const Batch& example);

 private:
  struct Impl;
  void make_state(int64_t sharing);
  std::shared_ptr<Program> program_;
  std::unique_ptr<Impl> impl_;
};

// Loss: (model, batch) -> Tensor (a mean, of which every rank and micro-batch has an equal share) or SumCount.
template <class Model, class Loss>
std::shared_ptr<Program> compile_program(Model model, Loss loss, Optimizer optimizer, const Batch& example,
                                         Strategy strategy, CompileOptions options = {}) {
  std::shared_ptr<torch::nn::Module> module;
  if constexpr (requires { model.ptr(); })
    module = model.ptr();
  else
    module = model;
  using Value = std::invoke_result_t<Loss&, Model&, const Batch&>;
  static_assert(LossResult<Value>, "a loss returns one tensor, a mean, or sfsdp::SumCount; add up several losses");
  capture::LossFunction function = [model, loss](const Batch& batch) mutable -> LossValue {
    auto value = loss(model, batch);
    if constexpr (std::same_as<Value, SumCount>)
      return {value.sum, value.count};
    else
      return {value, std::nullopt};
  };
  return std::make_shared<Program>(module, std::move(function), optimizer, example, std::move(strategy), options);
}

template <class Model, class Loss>
Step compile(Model model, Loss loss, Optimizer optimizer, const Batch& example, Strategy strategy,
             comm::CommWorld* world = nullptr, CompileOptions options = {}) {
  check_ranks(strategy, world);
  return Step(compile_program(model, loss, optimizer, example, std::move(strategy), options), world);
}

}  // namespace sfsdp
