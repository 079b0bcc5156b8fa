// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/compile/choose_attention.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/mesh/model_axis.h"
#include "sfsdp/parallel/model_parallel.h"
#include "sfsdp/parallel/partition.h"
#include "sfsdp/parallel/ring_attention.h"
#include "sfsdp/parallel/sequence_cuts.h"
#include "sfsdp/passes/memory/remat_list.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/sim/simulate.h"

namespace sfsdp::step {
namespace {

using ir::Graph, ir::Op, ir::Section, ir::Type, ir::Value;

constexpr const char* kPath = "layers.0";  // of all ops of an excerpt: one block, so that remat takes it for one

// Forward and its backward, which reads its second result; nullptr: it has none.
struct Attention {
  const Op* forward;
  const Op* backward;
};

std::vector<Attention> find_attention(const Graph& graph) {
  std::vector<Attention> found;
  for (const auto& op : graph.ops()) {
    if (op->is("sdpa")) found.push_back({op.get(), nullptr});
    if (!op->is("sdpa_backward")) continue;
    const auto of = std::ranges::find(found, op->operands[5]->producer(), &Attention::forward);
    if (of != found.end() && !of->backward) of->backward = op.get();
  }
  return found;
}

using Shape = std::vector<int64_t>;

// Its dimensions, the outermost in memory first.
Shape memory_order(const Type& type) {
  Shape order(type.dims.size());
  std::iota(order.begin(), order.end(), 0);
  if (!type.strides.empty())
    std::ranges::stable_sort(order, std::ranges::greater(),
                             [&](int64_t dim) { return type.strides[static_cast<size_t>(dim)]; });
  return order;
}

Shape permuted(const Shape& shape, const Shape& order) {
  Shape out;
  for (const int64_t dim : order) out.push_back(shape[static_cast<size_t>(dim)]);
  return out;
}

Shape inverse(const Shape& order) {
  Shape places(order.size());
  for (size_t i = 0; i < order.size(); ++i) places[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  return places;
}

// In memory in the order of `whole`, without gaps.
Type lying_like(const Type& whole, const Shape& shape) {
  Type type = Type::tensor(whole.dtype, shape);
  const Shape order = memory_order(whole);
  if (std::ranges::is_sorted(order)) return type;
  type.strides.resize(shape.size());
  int64_t stride = 1;
  for (size_t i = order.size(); i > 0; --i) {
    const auto dim = static_cast<size_t>(order[i - 1]);
    type.strides[dim] = stride;
    stride *= shape[dim];
  }
  return type;
}

// One attention as a graph by itself, of the heads and samples that a rank has and the whole sequence. A product of what is given makes each
// value that it reads, as nothing of an input's whole would have to be sent. A sum reads what it gives; gradients of keys and values pass an
// op in which they are not linear, so that they are reduced before it.
class Excerpt {
 public:
  //   probe: the step with keys and values gathered, of a rank's sizes
  Excerpt(const Attention& whole, const Graph& probe, const std::vector<ir::MeshAxis>& mesh) {
    graph_.mesh = mesh;
    graph_.view = Graph::View::Local;
    begin_block();
    for (const Op* op : {whole.forward, whole.backward})
      if (op) give_operands(*op, whole.forward, *probe.find_value(op->result()->name())->producer());
    const Op* forward = add(*whole.forward, probe, nullptr);
    sum(forward->result(), Section::Fwd);
    if (!whole.backward) return;
    const Op* backward = add(*whole.backward, probe, forward);
    for (const auto& result : backward->results()) sum(result.get(), Section::Bwd);
  }
  const Graph& graph() const { return graph_; }
  const std::vector<int64_t>& sequence_dims() const { return sequence_dims_; }

 private:
  // Samples and heads as a rank has them, and all positions.
  static Type of_rank(const Value& whole, const Value& part) {
    Shape shape = whole.type().shape();
    const Shape own = part.type().shape();
    if (shape.size() == own.size())
      for (size_t d = 0; d < std::min<size_t>(2, shape.size()); ++d)
        if (d == 0 || shape.size() > 2) shape[d] = own[d];
    return lying_like(whole.type(), shape);
  }
  // A block begins where a parameter of it is read.
  void begin_block() {
    Op* param = graph_.add("param", {}, {{"w", Type::tensor(ir::DType::f32, {1})}});
    param->attrs["name"] = concat(kPath, ".w");
    first_ = graph_.add("aten.neg", {param->result()}, {{"begin", param->result()->type()}});
    first_->module_path = kPath;
    graph_.outputs.push_back(first_->result());
  }
  void give_operands(const Op& op, const Op* forward, const Op& of_rank_op) {
    const size_t documents = op.is("sdpa") ? 3 : 6;
    for (size_t k = 0; k < op.operands.size(); ++k) {
      const Value* operand = op.operands[k];
      if (!operand || operand->producer() == forward || made_.contains(operand)) continue;
      const Type type = of_rank(*operand, *of_rank_op.operands[k]);
      made_[operand] = k == documents ? give(type, -1) : make(type);
    }
  }
  Value* give(const Type& type, int64_t sequence_dim) {
    const std::string name = concat("x", sequence_dims_.size());
    Op* given = graph_.add("input", {}, {{name, type}}, first_);
    given->attrs["name"] = name;
    sequence_dims_.push_back(sequence_dim);
    return given->result();
  }
  // A product, in the order of memory, and a view of it.
  Value* make(const Type& type) {
    const Shape order = memory_order(type), shape = permuted(type.shape(), order);
    Shape one = shape;
    one.back() = 1;
    Value* x = give(Type::tensor(type.dtype, one), std::ranges::find(order, 2) - order.begin());
    Value* weight = give(Type::tensor(type.dtype, {shape.back(), 1}), -1);
    Op* product = graph_.add("linear", {x, weight}, {{concat(x->name(), ".made"), Type::tensor(type.dtype, shape)}});
    product->module_path = kPath;
    if (type.strides.empty()) return product->result();
    Op* view = graph_.add("aten.permute", {product->result()}, {{concat(x->name(), ".view"), type}});
    view->attrs["dims"] = inverse(order);
    view->module_path = kPath;
    return view->result();
  }
  Op* add(const Op& like, const Graph& probe, const Op* bwd_of) {
    std::vector<Value*> operands;
    for (const Value* operand : like.operands) operands.push_back(operand ? made_.at(operand) : nullptr);
    const Op& part = *probe.find_value(like.result()->name())->producer();
    std::vector<Graph::NewResult> results;
    for (size_t r = 0; r < like.results().size(); ++r)
      results.push_back({concat(like.is("sdpa") ? "y" : "z", r), of_rank(*like.results()[r], *part.results()[r])});
    Op* op = graph_.add(like.opcode, operands, results);
    op->attrs = like.attrs;
    op->section = like.section;
    op->module_path = kPath;
    op->bwd_of = bwd_of;
    for (size_t r = 0; r < results.size(); ++r) made_[like.results()[r].get()] = op->results()[r].get();
    return op;
  }
  void sum(Value* value, Section section) {
    Op* bent = graph_.add("aten.relu", {value}, {{value->name() + ".bent", value->type()}});
    Op* sum =
        graph_.add("aten.sum", {bent->result()}, {{value->name() + ".sum", Type::tensor(value->type().dtype, {})}});
    for (Op* op : {bent, sum}) {
      op->section = section;
      op->module_path = kPath;
    }
    graph_.outputs.push_back(sum->result());
  }

  Graph graph_;
  std::vector<int64_t> sequence_dims_;  // of the inputs, in order
  Op* first_ = nullptr;                 // that is no input
  std::map<const Value*, Value*> made_;
};

// What products make on a rank is given, and sums of a rank are returned: the step has both beside attention.
void without_ends(Graph& graph) {
  std::vector<Op*> ends;
  for (const auto& op : graph.ops())
    if (op->is("linear")) ends.push_back(op.get());
  Op* const first = graph.ops()[0].get();
  for (Op* product : ends) {
    const std::string name = product->result()->name() + ".given";
    Op* given = graph.add("input", {}, {{name, product->result()->type()}}, first);
    given->attrs["name"] = name;
    graph.replace_uses(product->result(), given->result());
  }
  for (Value*& output : graph.outputs) {
    if (!output->producer()->is("all_reduce")) continue;
    ends.push_back(output->producer());
    output = output->producer()->operands[0];
  }
  graph.erase(ends);
}

// Lists of the step's names tell of attention whether it is kept.
passes::RematOptions remat_of(const passes::RematOptions& of_step, const std::string& path) {
  passes::RematOptions remat = {
      .mode = of_step.mode, .memory_budget = of_step.memory_budget, .flops_per_byte = of_step.flops_per_byte};
  const std::vector<std::string> saved = passes::listed_names(of_step.save);
  const std::string_view block = ir::block_of(path);
  const auto is_saved = [&](const std::string& name) {
    const std::string within = concat(path.substr(std::min(path.size(), block.size() + 1)), '.');
    return name == "sdpa" || within.starts_with(name + '.');
  };
  if (remat.mode == passes::RematMode::Op && !saved.empty() && std::ranges::none_of(saved, is_saved))
    remat.mode = passes::RematMode::Full;
  return remat;
}

std::vector<passes::PassCall> passes_of(const passes::PipelineOptions& options, const std::string& path) {
  using passes::make_call, passes::RematMode;
  std::vector<passes::PassCall> calls;
  for (const char* name : {"dead_code", "fold_views", "merge_duplicates"}) calls.push_back(make_call(name));
  if (options.remat.mode != RematMode::None) {
    calls.push_back(make_call("remat", remat_of(options.remat, path)));
    calls.push_back(make_call("dead_code"));
  }
  for (const char* name : {"split_collectives", "cover_permutes"}) calls.push_back(make_call(name));
  calls.push_back(make_call("fuse", options.fuse));
  return calls;
}

//   calls: of the step's passes, those that attention meets
double seconds_of(const Excerpt& excerpt, const MeshAxis& axis, ContextParallelOptions context,
                  const std::vector<passes::PassCall>& calls, const cost::Machine& machine) {
  Graph graph = excerpt.graph().clone();
  context.sequence_dims = excerpt.sequence_dims();
  parallel::partition(graph, axis, {}, {}, &context);
  without_ends(graph);
  passes::run_passes(graph, calls, {.checks = passes::Checks::RegisteredPasses});
  return sim::simulate(graph, machine).step_seconds;
}

// The step with all positions of keys and values on each rank, which says what else of them a rank has; and the step as it is before.
struct Probe {
  Graph canonical, parts;
};
Probe probe_of(const Graph& graph, Strategy strategy, const passes::CanonicaliseOptions& canonical) {
  Probe probe{graph.clone(), {}};
  parallel::name_ops(probe.canonical, canonical);
  probe.parts = probe.canonical.clone();
  strategy.context.rotate_method = RotateMethod::AllGather;
  strategy.context.methods.clear();
  parallel::cut_named(probe.parts, strategy);
  return probe;
}

bool is_cut_over(const MeshAxis& axis, const Op& whole, const Graph& parts) {
  const Op& part = *parts.find_value(whole.result()->name())->producer();
  return part.operands[0]->type().dims[2].size * axis.size == whole.operands[0]->type().dims[2].size;
}

// cp and the axes within it.
std::vector<ir::MeshAxis> inner_axes(const Strategy& strategy) {
  const std::vector<MeshAxis>& all = strategy.mesh.axes();
  const auto first = std::ranges::find_if(all, [](const MeshAxis& axis) { return is_sequence_axis(axis.name); });
  return {first, all.end()};
}

std::string why_no_heads(const Attention& attention, const MeshAxis& axis, int64_t tensor_ranks) {
  const auto tokens = [&](size_t k) { return attention.forward->operands[k]->type().dims[2].size; };
  if (tokens(0) != tokens(1)) return concat("has ", tokens(0), " queries and ", tokens(1), " keys");
  std::string why = parallel::why_no_heads(*attention.forward, axis, tensor_ranks);
  if (why.empty() && attention.backward) why = parallel::why_no_heads(*attention.backward, axis, tensor_ranks);
  return why;
}

std::vector<AttentionForm> forms_of(const Attention& attention, const MeshAxis& axis, int64_t tensor_ranks) {
  return {{RotateMethod::AllGather, ""},
          {RotateMethod::AllToAll, why_no_heads(attention, axis, tensor_ranks)},
          {RotateMethod::Ring, parallel::why_no_ring(*attention.forward)}};
}

// Times are those of the text and of which forms are legal.
std::string key_of(const Excerpt& excerpt, const std::vector<AttentionForm>& forms) {
  std::string key = ir::print(excerpt.graph());
  for (const AttentionForm& form : forms) key += form.refused.empty() ? '1' : '0';
  return key;
}

// Each attention of the probe is an excerpt; those of one text and the same legal forms share their times.
std::vector<AttentionChoice> choose(const Probe& probe, const Strategy& strategy,
                                    const passes::PipelineOptions& options, const cost::Machine& machine) {
  const MeshAxis axis = {"cp", strategy.axis_size("cp")};
  std::map<std::string, std::vector<double>> known;
  std::vector<AttentionChoice> choices;
  for (const Attention& attention : find_attention(probe.canonical)) {
    if (!is_cut_over(axis, *attention.forward, probe.parts)) continue;
    AttentionChoice choice{.path = attention.forward->module_path,
                           .results = {attention.forward->result()->name()},
                           .forms = forms_of(attention, axis, strategy.axis_size("tp"))};
    if (attention.backward) choice.results.push_back(attention.backward->result()->name());
    const Excerpt excerpt(attention, probe.parts, inner_axes(strategy));
    const auto [seconds, is_new] = known.try_emplace(key_of(excerpt, choice.forms));
    double least = 0;
    for (size_t f = 0; f < choice.forms.size(); ++f) {
      AttentionForm& form = choice.forms[f];
      if (is_new) {
        ContextParallelOptions context = strategy.context;
        context.methods.clear();
        context.rotate_method = form.method;
        seconds->second.push_back(
            form.refused.empty() ? seconds_of(excerpt, axis, context, passes_of(options, choice.path), machine) : 0);
      }
      if (!form.refused.empty()) continue;
      form.seconds = seconds->second[f];
      if (f > 0 && form.seconds >= least) continue;
      least = form.seconds;
      choice.chosen = form.method;
    }
    choices.push_back(std::move(choice));
  }
  return choices;
}

// Whether each attention has a choice, so that none takes what the strategy asks for, and all choices are AllGather.
bool all_gather(const Graph& graph, const std::vector<AttentionChoice>& choices) {
  size_t left = 0;
  for (const auto& op : graph.ops()) left += op->is("sdpa", "sdpa_backward") ? 1 : 0;
  for (const AttentionChoice& choice : choices) {
    if (choice.chosen != RotateMethod::AllGather) return false;
    left -= choice.results.size();
  }
  return left == 0;
}

}  // namespace

std::vector<AttentionChoice> choose_attention(const Graph& graph, const Strategy& strategy,
                                              const passes::PipelineOptions& options, const cost::Machine& machine) {
  return choose(probe_of(graph, strategy, options.canonical), strategy, options, machine);
}

void apply_chosen(Graph& graph, const Strategy& strategy, const passes::PipelineOptions& options,
                  const cost::Machine& machine) {
  Probe probe = probe_of(graph, strategy, options.canonical);
  const std::vector<AttentionChoice> choices = choose(probe, strategy, options, machine);
  if (all_gather(probe.canonical, choices)) {
    graph = std::move(probe.parts);
    return;
  }
  graph = std::move(probe.canonical);
  parallel::cut_named(graph, with_methods(strategy, choices));
}

Strategy with_methods(Strategy strategy, const std::vector<AttentionChoice>& choices) {
  for (const AttentionChoice& choice : choices)
    for (const std::string& name : choice.results) strategy.context.methods[name] = choice.chosen;
  return strategy;
}

}  // namespace sfsdp::step
