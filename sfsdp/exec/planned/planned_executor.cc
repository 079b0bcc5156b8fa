// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/planned_executor.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/device/cpu/inline_device.h"
#include "sfsdp/device/plan_commands.h"
#include "sfsdp/exec/memory_counter.h"
#include "sfsdp/exec/op_call.h"
#include "sfsdp/exec/pack_into.h"
#include "sfsdp/exec/planned/bound_call.h"
#include "sfsdp/exec/planned/pointwise_call.h"
#include "sfsdp/exec/planned/tensor_place.h"
#include "sfsdp/ir/canonical/decompose.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/part.h"
#include "sfsdp/kernels/of_op.h"
#include "sfsdp/plan/places.h"

namespace sfsdp::exec {
namespace {

using device::Spent, device::Touched, device::Turn;

}  // namespace

std::map<std::string, at::Tensor, std::less<>> state_in_place(const plan::StepPlan& plan, int64_t rank,
                                                              const std::shared_ptr<RankMemory>& memory) {
  std::map<std::string, at::Tensor, std::less<>> state;
  const plan::Places places(plan, rank);
  for (const auto& op : plan.graph.ops()) {
    if (!op->is("param", "state")) continue;
    const plan::Place& place = *places.of(op->result());
    std::byte* begin = memory->grow(place.region, plan.memory.region_bytes[static_cast<size_t>(place.region)]);
    state[op->attr<std::string>("name")] = tensor_at(begin + place.offset, op->result()->type(), memory);
  }
  return state;
}

struct PlannedExecutor::Impl {
  // A kernel, or a collective.
  struct Task final : device::Kernel {
    explicit Task(Impl& of) : impl(of) {}
    void run(const Turn& turn) override { impl.run(*this, turn); }
    std::string name() const override { return ir::name_of(*calls[0].op); }
    Touched touched(const Turn& turn) const override { return impl.touched(*this, turn); }
    Spent spent() const override { return kind; }

    Impl& impl;
    std::vector<BoundCall> calls;
    bool collective = false;
    std::vector<const ir::Value*> written;  // what must lie in memory once it is over
    std::vector<const ir::Value*> made;     // all that it makes
    std::vector<size_t> returned;           // of Impl::returned, what it makes
    std::vector<const ir::Op*> views;       // that move nothing, of what it makes
    Spent kind = Spent::ForwardBackward;
  };
  struct Input {
    const ir::Value* value;
    size_t index;  // in the micro-batch
  };

  const plan::StepPlan& plan;
  const ir::Graph& graph;
  const std::vector<at::Tensor> constants;
  const Groups groups;
  const DataPosition position;
  const Rng rng;
  const ir::Index readers;
  std::shared_ptr<RankMemory> shared;
  RankMemory own;                      // what the host writes
  std::vector<device::Memory> memory;  // all of the plan's
  Workspace& workspace;
  std::vector<at::Tensor> placed;  // by value, at its address; undefined: it has none
  std::vector<at::Tensor> made;    // by value, while its kernel runs
  std::deque<Task> tasks;
  device::PlanCommands commands;
  std::unique_ptr<device::Device> device;                // after what its kernels use
  std::array<std::vector<size_t>, ir::kParts> captured;  // by part of the step, its stretches
  std::vector<Input> inputs;
  std::map<std::string, const ir::Value*, std::less<>> state_values;
  std::vector<const ir::Value*> returned;
  std::vector<at::Tensor> results;  // by `returned`
  StepScalars scalars;              // of the step that runs
  const OnOp* on_op = nullptr;      // in it; null: nobody asks
  RunSeconds seconds;
  plan::CopiedBytes copied;  // in it

  Impl(const plan::StepPlan& p, const std::vector<at::Tensor>& c, const Groups& g, DataPosition at, int64_t rank, Rng r,
       std::shared_ptr<RankMemory> of_rank, const std::vector<const ir::Value*>& more,
       const device::MakeDevice& make_device)
      : plan(p),
        graph(p.graph),
        constants(c),
        groups(g),
        position(at),
        rng(r),
        readers(p.graph),
        shared(std::move(of_rank)),
        workspace(shared->grow_workspace(p.memory.workspaces.empty() ? 0 : p.memory.workspaces[0])),
        placed(graph.id_bound()),
        made(graph.id_bound()),
        returned(graph.outputs.begin(), graph.outputs.end()) {
    for (const ir::Value* value : more) returned.push_back(graph.find_value(value->name()));
    results.resize(returned.size());
    place_values(rank);
    make_tasks();
    device = make_device ? make_device(commands.lanes, commands.events) : device::make_inline_device();
    device->set_memory(memory);
    for (size_t part = 0; part < ir::kParts; ++part)
      for (const device::Stretch& stretch : commands.parts[part])
        captured[part].push_back(device->capture(stretch.commands));
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const at::Tensor& at_place(const ir::Value* value) const { return placed[value->id()]; }

  // LibTorch negates and conjugates lazily: a bit of the tensor says so, for all views of it.
  void keep_lazy_bits(const ir::Op& op) const {
    const int aliased = ir::aliased_operand(op);
    if (aliased < 0 || !op.operands[static_cast<size_t>(aliased)]) return;
    const at::Tensor& from = at_place(op.operands[static_cast<size_t>(aliased)]);
    for (const auto& result : op.results()) {
      const at::Tensor& view = at_place(result.get());
      if (!from.defined() || !view.defined()) continue;
      if (view.is_complex()) view._set_conj(from.is_conj() != op.is("aten._conj"));
      view._set_neg(from.is_neg() != op.is("aten._neg_view"));
    }
  }

  // ---- built once

  void place_values(int64_t rank) {
    std::array<std::byte*, plan::kRegions> begin = {};
    for (const plan::Region region : {plan::Region::State, plan::Region::Window, plan::Region::Io}) {
      const int64_t bytes = plan.memory.region_bytes[static_cast<size_t>(region)];
      RankMemory& of = region == plan::Region::Io ? own : *shared;
      begin[static_cast<size_t>(region)] = of.grow(region, bytes);
      memory.push_back({std::string(plan::to_string(region)), begin[static_cast<size_t>(region)], bytes});
    }
    const plan::Places places(plan, rank);
    for (const auto& op : graph.ops()) {
      for (const auto& result : op->results()) {
        const auto& place = places.of(result.get());
        if (!place || place->region == plan::Region::Constant || result->type().kind == ir::Type::Kind::Token) continue;
        placed[result->id()] =
            tensor_at(begin[static_cast<size_t>(place->region)] + place->offset, result->type(), shared);
      }
      keep_lazy_bits(*op);
      if (op->is("constant")) placed[op->result()->id()] = constants[static_cast<size_t>(op->attr<int64_t>("index"))];
      if (op->is("scalar")) placed[op->result()->id()] = OpCall(*op, graph, groups, rng).run({}, {}, position)[0];
      if (op->is("input")) inputs.push_back({op->result(), inputs.size()});
      if (op->is("param", "state")) state_values[op->attr<std::string>("name")] = op->result();
    }
    for (const ir::Carry& carry : graph.carries)
      SFSDP_CHECK(at_place(carry.next).defined() && same_place(at_place(carry.current), at_place(carry.next)), "%",
                  carry.next->name(), " does not lie where %", carry.current->name(), " does");
  }

  void make_tasks() {
    const cost::Kernels kernels = cost::kernels_of(graph);
    std::map<const ir::Op*, Task*> collectives;
    std::vector<Task*> kernel_tasks(kernels.ops.size(), nullptr);
    for (size_t i = 0; i < graph.ops().size(); ++i) {
      const ir::Op& op = *graph.ops()[i];
      if (ir::is_collective(op)) {
        Task& task = tasks.emplace_back(*this);
        task.collective = true;
        task.calls.emplace_back(op, results_of(op), OpCall(op, graph, groups, rng));
        task.calls.back().reads.assign(op.operands.begin(), op.operands.end());
        complete(task);
        collectives[&op] = &task;
      } else if (kernels.of[i] >= 0 && !kernel_tasks[static_cast<size_t>(kernels.of[i])]) {
        Task& task = tasks.emplace_back(*this);
        add_calls(task, kernels.ops[static_cast<size_t>(kernels.of[i])]);
        complete(task);
        kernel_tasks[static_cast<size_t>(kernels.of[i])] = &task;
      }
    }
    find_views();
    commands = device::commands_of(plan, [&](const plan::Task& task) -> device::Kernel* {
      if (task.lane == 0) return kernel_tasks[task.number];
      return collectives.at(plan.lanes[task.lane - 1].collectives[task.number]);
    });
  }

  void add_calls(Task& task, const std::vector<const ir::Op*>& ops) {
    std::vector<bool> is_made(graph.id_bound(), false);
    // A view of what this kernel makes: of what it has computed, not of what lies in memory yet.
    const std::function<void(const ir::Value*)> view = [&](const ir::Value* value) {
      if (!value || is_made[value->id()]) return;
      const ir::Op& producer = *value->producer();
      if (ir::aliased_operand(producer) < 0 || !is_made[ir::storage_of(value)->id()]) return;
      for (const ir::Value* operand : producer.operands) view(operand);
      task.calls.emplace_back(producer, results_of(producer), OpCall(producer, graph, groups, rng));
      task.calls.back().reads = operands_of_call(producer, nullptr);
      is_made[value->id()] = true;
    };
    std::map<const ir::Op*, const ir::Op*> within;  // what is computed with the op
    std::vector<const ir::Op*> left_out;            // by itself
    for (const ir::Op* op : ops)
      if (const ir::Op* other = computed_within(*op, ops)) {
        within[op] = other;
        left_out.push_back(other);
      }
    for (size_t i = 0; i < ops.size(); ++i) {
      const ir::Op* op = ops[i];
      if (std::ranges::find(left_out, op) != left_out.end()) continue;
      if (const size_t count = count_pointwise(std::span(ops).subspan(i)); count > 0) {
        BoundCall call = pointwise(ops, i, count);
        for (const ir::Value* operand : call.reads) view(operand);
        for (const ir::Value* result : call.results) is_made[result->id()] = true;
        task.calls.push_back(std::move(call));
        i += count - 1;
        continue;
      }
      const auto found = within.find(op);
      const ir::Op* other = found == within.end() ? nullptr : found->second;
      BoundCall call(*op, results_of(*op));
      call.reads = operands_of_call(*op, other);
      for (const ir::Value* operand : call.reads) view(operand);
      call.own = make_own_call(*op, other, groups);
      if (!call.own && ir::is_canonical(*op))
        call.canonical.emplace(*op, groups, rng);
      else if (!call.own && !op->is("accumulate"))
        call.call.emplace(*op, graph, groups, rng);
      task.calls.push_back(std::move(call));
      for (const auto& result : op->results()) is_made[result->id()] = true;
    }
    for (size_t i = 0; i < task.calls.size(); ++i) write_in_place(task, i);
    bind(task);
  }

  // Fills in what does not change from step to step: operands at addresses, views of them.
  void bind(Task& task) const {
    std::vector<bool> moves(graph.id_bound(), false);
    for (BoundCall& call : task.calls) {
      call.bind(placed, moves);
      for (size_t r = 0; r < call.results.size(); ++r)
        moves[call.results[r]->id()] = !call.is_done && !call.in_place[r];
    }
  }

  static std::vector<const ir::Value*> results_of(const ir::Op& op) {
    std::vector<const ir::Value*> made_by;
    for (const auto& result : op.results()) made_by.push_back(result.get());
    return made_by;
  }

  // ops[begin] to ops[begin + count - 1] as one: what others read of them is given, the rest lies nowhere.
  BoundCall pointwise(const std::vector<const ir::Op*>& ops, size_t begin, size_t count) const {
    const auto group = std::span(ops).subspan(begin, count);
    std::vector<const ir::Value*> given;
    for (const ir::Op* op : group) {
      const ir::Value* result = op->result();
      const auto is_read_by = [&](const ir::Op* other) {
        return std::ranges::any_of(
            other->operands, [&](const ir::Value* operand) { return operand && ir::storage_of(operand) == result; });
      };
      if (at_place(result).defined() || std::ranges::find(returned, result) != returned.end() ||
          std::any_of(ops.begin() + static_cast<std::ptrdiff_t>(begin + count), ops.end(), is_read_by))
        given.push_back(result);
    }
    BoundCall call(*group[0], given);
    call.reads = operands_of_pointwise(group);
    call.own = std::make_unique<PointwiseCall>(group, given);
    return call;
  }

  // The op of this kernel that one of sfsdp's kernels computes along with `op`: what it makes lies nowhere, and nobody else asks.
  const ir::Op* computed_within(const ir::Op& op, const std::vector<const ir::Op*>& ops) const {
    if (!op.has_attr("row_kernel")) return nullptr;
    const ir::Op* other = kernels::computed_with(op);
    if (!other || std::ranges::find(ops, other) == ops.end() || readers.only_reader(other->result()) != &op)
      return nullptr;
    return at_place(other->result()).defined() || std::ranges::find(returned, other->result()) != returned.end()
               ? nullptr
               : other;
  }

  // Gives an op the addresses of its results, where nothing that lies there is read from then on.
  void write_in_place(Task& task, size_t index) {
    BoundCall& call = task.calls[index];
    if (ir::aliased_operand(*call.op) >= 0) return;
    if (call.op->is("accumulate")) {  // a sum is read where it lies
      call.out = at_place(call.op->result());
      call.in_place[0] = true;
      return;
    }
    for (size_t r = 0; r < call.results.size(); ++r) {
      const ir::Value* result = call.results[r];
      const at::Tensor& place = at_place(result);
      if (!place.defined() || result->type().kind != ir::Type::Kind::Tensor) continue;
      const auto reads = [&](const BoundCall& reader) {
        return std::ranges::any_of(reader.reads, [&](const ir::Value* operand) {
          return operand && ir::storage_of(operand) != result && meet(at_place(operand), place);
        });
      };
      bool later = false;
      for (size_t j = index + 1; j < task.calls.size(); ++j) later |= reads(task.calls[j]);
      if (later) continue;
      if (call.canonical && !reads(call)) call.in_place[r] = call.canonical->write_to(r, place);
      if (call.own && (!reads(call) || (call.own->reads_before_it_writes(r) && same_places(call, place))))
        call.in_place[r] = call.own->write_to(r, place);
      call.packs = call.op->is("pack") && packs_in_place(*call.op, place);
      if (call.call && call.call->can_write() && call.results.size() == 1 && (!reads(call) || elementwise(call, place)))
        call.out = place;
      if (call.packs) call.out = place;
      if (call.out.defined()) call.in_place[r] = true;
    }
  }

  // Whether what lies in the bucket's memory is each operand's own part of it, already.
  bool packs_in_place(const ir::Op& op, const at::Tensor& bucket) const {
    std::vector<at::Tensor> operands;
    for (const ir::Value* operand : op.operands) operands.push_back(at_place(operand));
    if (!std::ranges::all_of(operands, [](const at::Tensor& t) { return t.defined(); })) return false;
    const std::vector<at::Tensor> parts = parts_of_pack(op, operands, bucket);
    for (size_t i = 0; i < operands.size(); ++i)
      if (meet(operands[i], bucket) && !(same_place(operands[i], parts[i]) && operands[i].is_contiguous()))
        return false;
    return true;
  }

  // Whether each operand that meets `place` is read there element by element as the op writes.
  bool elementwise(const BoundCall& call, const at::Tensor& place) const {
    const ir::OpRow* row = ir::find_row(call.op->opcode);
    return row && row->cost == ir::CostClass::Pointwise && same_places(call, place);
  }

  // Whether each operand that meets `place` lies just there, element by element.
  bool same_places(const BoundCall& call, const at::Tensor& place) const {
    return std::ranges::all_of(call.reads, [&](const ir::Value* operand) {
      const at::Tensor& read = operand ? at_place(operand) : at::Tensor();
      return !operand || !meet(read, place) ||
             (same_place(read, place) && read.sizes() == place.sizes() && read.strides() == place.strides() &&
              read.scalar_type() == place.scalar_type());
    });
  }

  // What moves nothing: views, and buckets whose parts all lie in them.
  void find_views() {
    std::map<const ir::Value*, size_t> maker;
    for (size_t t = 0; t < tasks.size(); ++t)
      for (const ir::Value* value : tasks[t].made) maker[value] = t;
    for (const auto& op : graph.ops()) {
      if (ir::is_root(*op) || maker.contains(op->result())) continue;
      std::optional<size_t> last;
      for (const ir::Value* operand : op->operands)
        if (const auto found = maker.find(operand); found != maker.end())
          last = std::max(last.value_or(0), found->second);
      if (!last) continue;
      tasks[*last].views.push_back(op.get());
      for (const auto& result : op->results()) maker[result.get()] = *last;
    }
  }

  static bool makes(const Task& task, const ir::Value* value) {
    return std::ranges::find(task.made, value) != task.made.end();
  }

  // What follows from its calls.
  void complete(Task& task) {
    for (const BoundCall& call : task.calls)
      for (const ir::Value* result : call.results) {
        task.made.push_back(result);
        if (ir::aliased_operand(*call.op) < 0 && at_place(result).defined()) task.written.push_back(result);
      }
    const ir::Op& first = *task.calls[0].op;
    const bool updates = first.section == ir::Section::Clip || first.section == ir::Section::Opt;
    if (updates) task.kind = Spent::Update;
    if (task.collective && task.calls[0].call->group()) task.kind = Spent::Communication;
    for (size_t i = 0; i < returned.size(); ++i)
      if (makes(task, ir::storage_of(returned[i]))) task.returned.push_back(i);
  }

  // What it takes from memory and leaves there.
  Touched touched(const Task& task, const Turn& turn) const {
    Touched bytes;
    for (const BoundCall& call : task.calls) {
      for (const ir::Value* operand : call.reads)
        if (operand && !makes(task, ir::storage_of(operand)) && at_place(operand).defined())
          add_bytes(at_place(operand), bytes.reads);
      if (call.op->is("accumulate") && ir::beta_in(turn.part) == 1) add_bytes(at_place(call.op->result()), bytes.reads);
    }
    for (const ir::Value* value : task.written) add_bytes(at_place(value), bytes.writes);
    return bytes;
  }

  // ---- each step

  at::Tensor get(const ir::Value* value) const {
    if (!value) return {};
    return made[value->id()].defined() ? made[value->id()] : placed[value->id()];
  }

  // On a lane of its own: it asks memory alone.
  void collective(const ir::Op& op, const OpCall& call) const {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    std::vector<at::Tensor> in;
    for (const ir::Value* operand : op.operands)
      in.push_back(at_place(operand).resolve_conj().resolve_neg().contiguous());
    const at::Tensor& out = at_place(op.result());
    if (call.group())
      collective_into(op, *call.group(), in, out);
    else if (!same_place(in[0], out))
      out.copy_(in[0].view(out.sizes()));
  }

  void compute(Task& task, const Turn& turn) {
    const UseWorkspace in_workspace(&workspace);
    StepScalars now = scalars;
    now.micro_batch = turn.micro_batch;
    for (BoundCall& call : task.calls) {
      if (call.is_done) continue;
      for (const size_t i : call.late) {
        at::Tensor& operand = call.operands[i] = get(call.reads[i]);
        if (call.reads_memory() && operand.defined()) operand = operand.resolve_conj().resolve_neg();
      }
      const std::span<at::Tensor> out = call.run(now, position, turn.part, graph.micro_batches, copied);
      for (size_t i = 0; i < out.size(); ++i)
        if (!call.in_place[i]) made[call.results[i]->id()] = std::move(out[i]);
      for (const size_t i : call.late) call.operands[i] = at::Tensor();
    }
    write(task);
  }

  void run(Task& task, const Turn& turn) {
    if (task.collective)
      collective(*task.calls[0].op, *task.calls[0].call);
    else
      compute(task, turn);
    for (const size_t i : task.returned) results[i] = get(returned[i]).clone();
    if (on_op) show(task, *on_op);
    if (task.collective) return;
    for (const ir::Value* value : task.made) made[value->id()] = at::Tensor();
  }

  void show(const Task& task, const OnOp& to) const {
    const auto one = [&](const ir::Op& op) {
      std::vector<at::Tensor> values;
      for (const auto& result : op.results()) values.push_back(get(result.get()));
      to(op, values);
    };
    for (const BoundCall& call : task.calls) {
      one(*call.op);
      for (const ir::Value* result : call.results)
        if (result->producer() != call.op) one(*result->producer());
    }
    for (const ir::Op* op : task.views) one(*op);
  }

  // What the kernel has made goes to its addresses, once all of its ops have read what lies there.
  void write(const Task& task) {
    for (const ir::Value* value : task.written) {
      at::Tensor& result = made[value->id()];
      if (result.defined() && !same_place(result, at_place(value)) && in_memory(result))
        result = result.clone();  // a result that is an operand: the place of another one may be over it
    }
    for (const ir::Value* value : task.written) {
      const at::Tensor& result = made[value->id()];
      if (result.defined() && !same_place(result, at_place(value))) at_place(value).copy_(result);
    }
  }

  bool in_memory(const at::Tensor& tensor) const {
    const auto* begin = static_cast<const std::byte*>(tensor.const_data_ptr());
    return std::ranges::any_of(std::array{plan::Region::State, plan::Region::Window}, [&](plan::Region region) {
      const std::byte* from = shared->begin(region);
      return begin >= from && begin < from + shared->bytes(region);
    });
  }

  void load(const std::vector<at::Tensor>& batch) {
    SFSDP_CHECK(batch.size() >= inputs.size(), "batch has ", batch.size(), " tensors");
    for (const uint32_t event : commands.before_load) device->wait(event);
    for (const Input& input : inputs) {
      const at::Tensor& place = at_place(input.value);
      if (!place.defined()) continue;
      at::Tensor from = batch[input.index];
      if (from.scalar_type() != place.scalar_type() || from.strides() != place.strides())
        from = at::empty_strided(place.sizes(), place.strides(), place.options()).copy_(from);
      device->upload(static_cast<std::byte*>(place.mutable_data_ptr()),
                     static_cast<const std::byte*>(from.const_data_ptr()), input.value->type().span_bytes());
    }
  }

  void run_part(const Turn& turn) {
    const auto part = static_cast<size_t>(turn.part);
    for (size_t i = 0; i < captured[part].size(); ++i) {
      const device::Stretch& stretch = commands.parts[part][i];
      const int64_t trips = stretch.loop ? read_trips(stretch) : 1;
      for (int64_t trip = 0; trip < trips; ++trip) {
        if (on_op)
          show_stretch(stretch, turn);
        else
          device->replay(captured[part][i], turn);
      }
    }
  }

  int64_t read_trips(const device::Stretch& stretch) const {
    device->wait(stretch.begun);
    return trips_of(*stretch.loop, at_place(stretch.loop->operands[0]));
  }

  // Who asks sees one op after the other, as the program has them.
  void show_stretch(const device::Stretch& stretch, const Turn& turn) const {
    for (const device::Command& command : stretch.commands) {
      device->issue(command, turn);
      device->synchronize();
    }
  }
};

PlannedExecutor::PlannedExecutor(const plan::StepPlan& plan, const std::vector<at::Tensor>& constants,
                                 const Groups& groups, DataPosition position, int64_t rank, Rng rng,
                                 std::shared_ptr<RankMemory> memory, const std::vector<const ir::Value*>& more,
                                 const device::MakeDevice& make_device)
    : impl_(
          std::make_unique<Impl>(plan, constants, groups, position, rank, rng, std::move(memory), more, make_device)) {}
PlannedExecutor::~PlannedExecutor() = default;

std::vector<at::Tensor> PlannedExecutor::run(const std::vector<std::vector<at::Tensor>>& micro_batches,
                                             const StepScalars& scalars) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  Impl& m = *impl_;
  m.scalars = scalars;
  m.on_op = on_op ? &on_op : nullptr;
  m.device->restart_clock();
  m.copied = {};
  for (const auto& [name, value] : m.state_values) {
    const auto found = state.find(name);
    SFSDP_CHECK(found != state.end(), "no state for ", name);
    const at::Tensor& here = m.at_place(value);
    if (same_place(found->second, here)) continue;
    here.copy_(found->second);
    found->second = here;
  }
  const std::vector<ir::Part> parts = ir::parts_of_step(std::ssize(micro_batches));
  for (size_t p = 0; p < parts.size(); ++p) {
    Turn turn = {parts[p]};
    if (parts[p] != ir::Part::Head && parts[p] != ir::Part::Tail) {
      turn.micro_batch = static_cast<int64_t>(p) - 1;
      m.load(micro_batches[p - 1]);
    }
    m.run_part(turn);
  }
  m.device->synchronize();
  for (size_t i = 0; i < m.returned.size(); ++i)
    if (!m.results[i].defined()) m.results[i] = m.get(m.returned[i]).clone();
  const auto spent = m.device->seconds();
  const auto of = [&](Spent kind) { return spent[static_cast<size_t>(kind)]; };
  m.seconds = {of(Spent::ForwardBackward), of(Spent::Update), of(Spent::Communication)};
  return std::exchange(m.results, std::vector<at::Tensor>(m.returned.size()));
}

const RunSeconds& PlannedExecutor::seconds() const { return impl_->seconds; }
const plan::CopiedBytes& PlannedExecutor::copied_bytes() const { return impl_->copied; }
const ir::Graph& PlannedExecutor::graph() const { return impl_->graph; }

}  // namespace sfsdp::exec
