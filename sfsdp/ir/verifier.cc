// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/verifier.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/attribute_kinds.h"
#include "sfsdp/ir/by_rank.h"
#include "sfsdp/ir/canonical/decompose.h"
#include "sfsdp/ir/draws.h"
#include "sfsdp/ir/lexer.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/product_kernels.h"
#include "sfsdp/ir/shape_rules.h"
#include "sfsdp/ir/side_table.h"

namespace sfsdp::ir {
namespace {

// More than any machine has; what is kept per rank stays small.
constexpr int64_t kMaxRanks = int64_t{1} << 20;
constexpr int64_t kMaxMicroBatches = int64_t{1} << 20;

std::string plural(size_t count, std::string_view noun) { return concat(count, ' ', noun, count == 1 ? "" : "s"); }

// Runs once, after the region that micro-batches repeat.
bool after_region(Section section) { return section == Section::Clip || section == Section::Opt; }

}  // namespace

std::vector<Diagnostic> check_rule_of(const Graph& graph, const Op& op) {
  std::vector<Diagnostic> found = check_attribute_kinds(op);  // which the rule reads
  const OpRow* row = op.opcode.row();
  if (!row || !found.empty()) return found;
  RuleContext context(graph, op, found);
  try {
    row->rule(context);
  } catch (const RuleContext::Stop&) {  // it has reported
  }
  return found;
}

namespace {

class Verifier {
 public:
  Verifier(const Graph& graph, const SourceMap* locations) : graph_(graph), locations_(locations), storage_(graph) {
    positions_.reserve(graph.ops().size());
    values_.reserve(graph.id_bound());
  }

  std::vector<Diagnostic> verify() {
    index_values();
    check_mesh();
    check_sizes();
    // The rules calculate with sizes, so nothing more is looked into where these do not fit.
    if (!diagnostics_.empty()) return std::move(diagnostics_);
    for (const auto& op : graph_.ops()) {
      op_ = op.get();
      // What follows reads through operands and results, so a broken op is not looked into.
      const bool sound = check_operands(*op) && check_arity(*op);
      if (sound) {
        check_attributes(*op);
        check_flight(*op);
        check_sections(*op);
        check_rule(*op);
        check_donations_read(*op);
        check_donations_made(*op);
      }
      check_types(*op);
      check_bwd_of(*op);
      check_root(*op);
      define(*op, sound);
    }
    op_ = nullptr;
    check_outputs();
    check_carries();
    check_all_waited();
    if (!diagnostics_.empty()) return std::move(diagnostics_);  // what follows goes through operands
    check_gradients();
    for (const auto check : {check_draws, check_loops, check_counted})
      for (auto& [op, wrong] : check(graph_))
        diagnostics_.push_back({location(op), std::move(wrong.message), std::move(wrong.detail)});
    return std::move(diagnostics_);
  }

 private:
  void report(std::string message, std::string detail) {
    diagnostics_.push_back({location(op_), std::move(message), std::move(detail)});
  }

  Location location(const Op* op) const {
    if (!locations_ || !op) return {};
    const auto found = locations_->find(op);
    return found == locations_->end() ? Location() : found->second;
  }

  void index_values() {
    for (size_t i = 0; i < graph_.ops().size(); ++i) {
      const Op* op = graph_.ops()[i].get();
      positions_.emplace(op, i);
      for (const auto& result : op->results()) {
        values_.insert(result.get());
        // Names are the graph's own work, so this is a broken graph and not a mistake in a text.
        if (graph_.find_value(result->name()) != result.get())
          report(concat("%", result->name(), " is the name of two values"), "expected unique names");
      }
    }
    for (const Carry& carry : graph_.carries)
      if (values_.contains(carry.current)) carried_.insert(carry.current);
  }

  void check_mesh() {
    if (graph_.micro_batches < 1 || graph_.micro_batches > kMaxMicroBatches)
      report(concat("the step has ", graph_.micro_batches, " micro-batches"),
             concat("expected 1 to ", kMaxMicroBatches));
    std::set<std::string> names;
    int64_t ranks = 1;
    for (const MeshAxis& axis : graph_.mesh) {
      if (!is_word(axis.name) || !names.insert(axis.name).second)
        report(concat("mesh axis ", quote(axis.name), " is no name, or named twice"), "expected unique names");
      if (axis.size < 1) report(concat("mesh axis ", axis.name, " has size ", axis.size), "expected at least 1");
      ranks = saturating_product(ranks, std::max<int64_t>(axis.size, 1));
    }
    if (ranks > kMaxRanks)
      report("the mesh has too many ranks", concat("expected sizes with a product of at most ", kMaxRanks));
  }

  void check_sizes() {
    int64_t rest = kMaxBytes;
    for (const auto& op : graph_.ops()) {
      op_ = op.get();
      for (const auto& result : op->results()) {
        const Type& type = result->type();
        const bool fits = type.fits();
        const int64_t bytes = fits ? type.bytes() : 0;
        if (std::ranges::any_of(type.dims, [](const Dim& dim) { return dim.size < 0; }))
          report(concat('%', result->name(), " has a negative dimension"), concat("got ", type));
        else if (std::ranges::any_of(type.strides, [](int64_t stride) { return stride < 0; }))
          report(concat('%', result->name(), " has a negative stride"), concat("got ", type));
        else if (!fits || bytes > rest)
          return report(concat('%', result->name(), " is too large: ", type),
                        concat("expected at most ", kMaxBytes, " bytes in all values of the graph together"));
        rest -= bytes;
      }
    }
    op_ = nullptr;
  }

  // ---- one op -------------------------------------------------------------------------------------------------------

  bool check_operands(const Op& op) {
    bool sound = true;
    for (const Value* operand : op.operands) {
      if (!operand) continue;
      if (!values_.contains(operand)) {
        report(concat(name_of(op), " reads a value of another graph, or an erased one"),
               "expected a result of an op of this graph");
        sound = false;
      } else if (!storage_[operand]) {
        report(concat(name_of(op), " reads %", operand->name(), " before it is defined"),
               concat("expected an op above; move ", name_of(*operand->producer()), " up"));
        sound = false;
      }
    }
    int end = 0;
    for (const Op::OperandList& list : op.operand_lists) {
      if (list.first < end || list.count < 0 || list.first + list.count > static_cast<int>(op.operands.size())) {
        report(concat(name_of(op), " has a broken operand list at ", list.first, ", count ", list.count),
               "expected sorted, disjoint ranges of the operands");
        return false;
      }
      end = list.first + list.count;
    }
    return sound;
  }

  bool check_arity(const Op& op) {
    const OpRow* row = op.opcode.row();
    if (!row && is_aten(op.opcode)) return true;
    if (!row) {
      report_unknown(op);
      return false;
    }
    const int operands = static_cast<int>(op.operands.size()) - (is_counted_in_memory(op) ? 1 : 0);
    const bool few = operands < row->min_operands;
    if (few || (row->max_operands != kAny && operands > row->max_operands)) {
      report(concat(name_of(op), " has ", plural(op.operands.size(), "operand")),
             concat("expected ", few ? "at least " : "at most ", few ? row->min_operands : row->max_operands));
      return false;
    }
    const int results = static_cast<int>(op.results().size());
    if (row->results == kAny ? results < 1 : results != row->results) {
      report(concat(name_of(op), " has ", plural(op.results().size(), "result")),
             row->results == kAny ? "expected at least 1" : concat("expected ", row->results));
      return false;
    }
    for (size_t i = 0; i < op.operands.size(); ++i) {
      if (op.operands[i] || ((row->flags & kOptional) != 0 && i > 0)) continue;
      report(concat(name_of(op), " lacks operand ", i), "expected a value, got none");
      return false;
    }
    return true;
  }

  void report_unknown(const Op& op) {
    std::vector<std::string> names;
    for (const OpRow& row : opset()) names.emplace_back(row.name);
    const std::string near = nearest(op.opcode, names);
    report(concat("unknown opcode ", op.opcode.empty() ? "\"\"" : op.opcode),
           near.empty() ? "expected a row of sfsdp/ir/opset.def, or aten.<name>[.<overload>]"
                        : concat("did you mean ", near, '?'));
  }

  void check_attributes(const Op& op) {
    for (const auto& [key, value] : op.attrs)
      if (!is_word(key) || key == "bwd_of" || key == "at")
        report(concat(name_of(op), " has an attribute ", quote(key)), "expected a word the text form can hold");
    const auto* kernel = op.find_attr<std::string>("product_kernel");
    if (!kernel) return;
    const OpRow* row = op.opcode.row();
    if (!row || row->cost != CostClass::Product)
      report(concat(name_of(op), " has product_kernel=", *kernel),
             "expected it on a product: linear, matmul, aten.mm, …");
    if (std::ranges::find(kProductKernels, *kernel) == kProductKernels.end())
      report(concat(name_of(op), " has product_kernel=", quote_if_needed(*kernel)),
             concat("expected one of ", join({kProductKernels.begin(), kProductKernels.end()}, ", ")));
  }

  void check_rule(const Op& op) {
    std::vector<Diagnostic> kinds;  // which the forms by rank read
    if (is_by_rank(op)) kinds = check_attribute_kinds(op);
    for (const Diagnostic& diagnostic : kinds) report(diagnostic.message, diagnostic.detail);
    if (!kinds.empty()) return;
    for (Diagnostic& diagnostic : is_by_rank(op) ? check_by_rank(graph_, op) : check_rule_of(graph_, op))
      report(std::move(diagnostic.message), std::move(diagnostic.detail));
  }

  void check_types(const Op& op) {
    for (const auto& result : op.results()) {
      const Type& type = result->type();
      std::set<std::string> axes;
      for (const Dim& dim : type.dims) {
        for (const std::string& axis : dim.split) check_axis(*result, axis, axes);
      }
      for (const AxisPlacement& placement : type.placements)
        for (const std::string& axis : placement.axes) check_axis(*result, axis, axes);
      if (!type.strides.empty() && is_made_contiguous(op))
        report(concat('%', result->name(), " has strides"),
               concat("expected a contiguous tensor, as ", op.opcode, " makes it, got ", type));
      if (!type.strides.empty() && type.strides.size() != type.dims.size())
        report(concat('%', result->name(), " has ", plural(type.strides.size(), "stride")),
               concat("expected one per dimension, got ", type));
    }
  }

  // What sfsdp's own ops make, whose kernels are its own too; canonical ops are laid out as LibTorch does it.
  static bool is_made_contiguous(const Op& op) {
    const OpRow* row = op.opcode.row();
    return row && !is_aten(op.opcode) && row->alias == Alias::Fresh && !op.is("constant") && !is_canonical(op.opcode);
  }

  // On every axis a value is in one state only.
  void check_axis(const Value& value, const std::string& axis, std::set<std::string>& seen) {
    if (std::ranges::find(graph_.mesh, axis, &MeshAxis::name) == graph_.mesh.end())
      report(concat("the type of %", value.name(), " names axis ", axis, ", which the mesh lacks"),
             concat("expected an axis of the line `graph mesh [...]`, got ", value.type()));
    if (!seen.insert(axis).second)
      report(concat("the type of %", value.name(), " names axis ", axis, " twice"),
             concat("expected one state per axis, got ", value.type()));
  }

  void check_bwd_of(const Op& op) {
    if (!op.bwd_of) return;
    const auto found = positions_.find(op.bwd_of);
    if (found == positions_.end())
      return report(concat(name_of(op), " is bwd_of an op that is not in the graph"), "expected an op above");
    if (op.bwd_of->results().empty())
      return report(concat(name_of(op), " is bwd_of ", op.bwd_of->opcode), "expected an op with a result to name it");
    const auto computes = [](const Op& o) { return !is_collective(o) && !is_wait(o); };
    if (!computes(op) ||
        !computes(*op.bwd_of))  // collectives are moved by themselves, away from what they stand beside
      return report(
          concat(name_of(op), " is bwd_of ", name_of(*op.bwd_of)),
          "expected both to compute: bwd_of= on an op of backward, naming the op of forward that it is the gradient"
          " of");
    const Section section = op.bwd_of->section;
    if (found->second >= positions_.at(&op) || (section != Section::Fwd && section != Section::Loss))
      report(concat(name_of(op), " is bwd_of ", name_of(*op.bwd_of), " in section ", to_string(section)),
             "expected an op above, in section fwd or loss");
  }

  void check_root(const Op& op) {
    if (!is_root(op)) return;
    if (op.section != Section::Init)
      report(concat(name_of(op), " stands in section ", to_string(op.section)), "expected it above all sections");
    const auto* name = op.find_attr<std::string>("name");
    if (name && !root_names_.insert(*name).second)
      report(concat(name_of(op), " is the second with name=", quote_if_needed(*name)),
             "expected unique names among inputs, params and states");
  }

  void check_sections(const Op& op) {
    if (op.has_attr("once") && (!is_once(op) || !is_repeated(op.section)))
      report(concat(name_of(op), " has once= in section ", to_string(op.section)),
             "expected once=true, in a section that micro-batches repeat");
    if (op.is("accumulate") && !is_repeated(op))
      report(concat(name_of(op), " adds up in section ", to_string(op.section)),
             "expected it in forward, loss or backward, in every micro-batch");
    if (op.section == Section::Init) check_init(op);
    if (is_wait(op)) check_wait_section(op, *op.operands[0]->producer());
    if (!is_repeated(op.section)) return;
    for (const Value* operand : op.operands) {
      if (!operand) continue;
      if (is_once(*operand->producer()) && !is_once(op))
        report(concat(name_of(op), " reads %", operand->name(), ", which only the last micro-batch has"),
               "expected once=true here too, or a reader after backward");
      if (after_region(operand->producer()->section))
        report(concat(name_of(op), " in section ", to_string(op.section), " reads %", operand->name(), " of section ",
                      to_string(operand->producer()->section)),
               "expected a value of this step's forward or backward; what the optimizer leaves reaches the next step "
               "by a carry");
    }
  }

  // What stands above all sections runs before the first micro-batch is there.
  void check_init(const Op& op) {
    for (const Value* operand : op.operands)
      if (operand && (operand->producer()->section != Section::Init || operand->producer()->is("input")))
        report(concat(name_of(op), " in section init reads %", operand->name()),
               "expected a param, a state or a constant; move the op into section fwd");
  }

  void check_wait_section(const Op& op, const Op& start) {
    // What starts before the first micro-batch is over for those after it.
    if (!is_start(start) || !is_repeated(op) || is_repeated(start) || start.section == Section::Init) return;
    report(concat(name_of(op), " waits in every micro-batch for ", name_of(start), ", which starts once"),
           "expected the start in forward, loss or backward, without once=true, or above all sections");
  }

  // ---- start and wait -----------------------------------------------------------------------------------------------

  void check_flight(const Op& op) {
    for (const Value* operand : op.operands)
      if (operand) is_wait(op) ? check_waits(op, *operand) : check_reads(op, *operand);
    for (const auto& result : op.results()) {
      const bool async = result->type().kind == Type::Kind::Async;
      if (is_start(op) && !async)
        report(concat(name_of(op), " starts what is not async"),
               concat("expected async ", result->type(), ", got ", result->type()));
      if (async && !is_start(op))
        report(concat(name_of(op), " has an async result"),
               concat("expected a tensor, got ", result->type(), "; only *.start ops are async"));
      if (async && is_start(op)) in_flight_.push_back(result.get());
    }
  }

  void check_reads(const Op& op, const Value& operand) {
    if (operand.type().kind != Type::Kind::Async) return;
    report(concat(op.opcode, " reads %", operand.name(), " before its wait"),
           concat("expected a tensor, got ", operand.type(), "; insert %", operand.name(), ".full = wait %",
                  operand.name()));
  }

  void check_waits(const Op& op, const Value& operand) {
    if (operand.type().kind != Type::Kind::Async)
      report(concat(name_of(op), " waits for %", operand.name(), ", which is not in flight"),
             concat("expected async, got ", operand.type(), "; read %", operand.name(), " itself"));
    else if (std::erase(in_flight_, &operand) == 0)
      report(concat(name_of(op), " waits for %", operand.name(), " a second time"), "expected one wait per start");
  }

  void check_all_waited() {
    for (const Value* value : in_flight_) {
      op_ = value->producer();
      report(concat(name_of(*op_), " is started, but nothing waits for it"),
             concat("expected a wait; insert %", value->name(), ".full = wait %", value->name()));
    }
  }

  // ---- donated buffers ----------------------------------------------------------------------------------------------

  void check_donations_read(const Op& op) {
    for (const Value* operand : op.operands)
      if (operand) check_not_donated(*operand, [&] { return name_of(op); });
  }

  void check_not_donated(const Value& value, const std::function<std::string()>& reader) {
    if (donated_.empty()) return;
    const auto found = donated_.find(storage_[&value]);
    if (found == donated_.end()) return;
    report(concat(reader(), " reads %", value.name(), ", whose buffer was given to ", name_of(*found->second)),
           "expected no read after the op that donates; read its result, or take the operand out of donates=");
  }

  void check_donations_made(const Op& op) {
    if (!op.has_attr("donates")) return;
    const std::vector<int64_t> indexes = donated_operands(op);
    if (indexes.empty() || indexes.size() > op.results().size())
      return report(concat(name_of(op), " has donates=", op.attrs.at("donates")),
                    concat("expected a list of operand indexes, at most one per result (", op.results().size(), ')'));
    for (size_t i = 0; i < indexes.size(); ++i) {
      const int64_t index = indexes[i];
      const Value* operand = index >= 0 && index < static_cast<int64_t>(op.operands.size())
                                 ? op.operands[static_cast<size_t>(index)]
                                 : nullptr;
      if (!operand) {
        report(concat(name_of(op), " donates operand ", index), concat("expected an index below ", op.operands.size()));
        continue;
      }
      check_donation(op, *operand, op.result(static_cast<int>(i))->type());
    }
  }

  void check_donation(const Op& op, const Value& operand, const Type& result) {
    if (operand.type().bytes() != result.bytes())
      report(concat(name_of(op), " donates %", operand.name(), " of ", operand.type().bytes(), " bytes"),
             concat("expected the ", result.bytes(), " bytes of ", result));
    const Value* storage = storage_[&operand];
    const Op& owner = *storage->producer();
    if ((is_root(owner) || owner.is("constant")) && !carried_.contains(storage))
      report(concat(name_of(op), " donates the buffer of %", storage->name(), ", which the next step reads"),
             concat("expected a carried value; add: carry %", storage->name(), " = %", op.result()->name()));
    for (const Value* flight : in_flight_)
      if (is_start(*flight->producer()) && storage_[flight->producer()->operands[0]] == storage)
        report(concat(name_of(op), " donates %", operand.name(), " while ", name_of(*flight->producer()), " reads it"),
               "expected the wait above");
    if (!donated_.emplace(storage, &op).second)
      report(concat(name_of(op), " donates the buffer of %", storage->name(), " again"), "expected one new owner");
  }

  // ---- the ends -----------------------------------------------------------------------------------------------------

  // Storages are followed from the top down: storage_of() could run in circles in a graph that is broken.
  void define(const Op& op, bool sound) {
    const int aliased = sound ? aliased_operand(op) : -1;
    for (const auto& result : op.results())
      storage_[result.get()] = aliased < 0 ? result.get() : storage_[op.operands[static_cast<size_t>(aliased)]];
  }

  void check_outputs() {
    for (const Value* output : graph_.outputs) {
      if (!values_.contains(output)) {
        report("an output is no value of the graph", "expected a result of an op in `return`");
        continue;
      }
      if (output->type().kind == Type::Kind::Async)
        report(concat("return of %", output->name(), ", which is in flight"), "expected a tensor; insert a wait");
      check_not_donated(*output, [] { return std::string("return"); });
    }
  }

  void check_carries() {
    std::set<const Value*> seen;
    for (const Carry& carry : graph_.carries) {
      if (!values_.contains(carry.current) || !values_.contains(carry.next)) {
        report("a carry of what is no value of the graph", "expected results of ops on both sides");
        continue;
      }
      check_carry(*carry.current, *carry.next);
      if (!seen.insert(carry.current).second)
        report(concat('%', carry.current->name(), " is carried twice"), "expected one next value");
    }
  }

  void check_carry(const Value& current, const Value& next) {
    const Op& owner = *current.producer();
    if (!owner.is("param") && !owner.is("state"))
      report(concat("carry of %", current.name(), ", a result of ", owner.opcode), "expected a param or a state");
    const Type &a = current.type(), &b = next.type();
    if (a.kind != b.kind || a.dtype != b.dtype || a.shape() != b.shape())
      report(concat("carry %", current.name(), " = %", next.name(), " changes the type"),
             concat("expected ", a, ", got ", b));
    if (&current != &next) check_not_donated(next, [] { return std::string("carry"); });
  }

  // param= of a gradient says in words what the operands of its update say.
  void check_gradients() {
    std::set<std::string> params, marked;
    for (const auto& op : graph_.ops())
      if (op->is("param")) params.insert(op->attr<std::string>("name"));
    for (const auto& op : graph_.ops()) {
      op_ = op.get();
      if (op->is("gradient")) {
        const auto& name = op->attr<std::string>("param");
        if (!params.contains(name))
          report(concat(name_of(*op), " has param=", quote_if_needed(name)),
                 "expected the name of a param of the graph");
        else if (!marked.insert(name).second)
          report(concat(name_of(*op), " is the second with param=", quote_if_needed(name)),
                 "expected one gradient of a param");
      }
      const Op* gradient = is_update(*op) ? marked_gradient(*op) : nullptr;
      if (!gradient) continue;
      const Op& updated = *op->operands[0]->producer();
      if (updated.is("param") && gradient->attr<std::string>("param") != updated.attr<std::string>("name"))
        report(concat(name_of(*op), " updates ", quote_if_needed(updated.attr<std::string>("name")), " by ",
                      name_of(*gradient), " param=", quote_if_needed(gradient->attr<std::string>("param"))),
               "expected its own gradient");
    }
    op_ = nullptr;
  }

  // Before it is scaled, as what clips it does; nullptr: there is none.
  static const Op* marked_gradient(const Op& update) {
    const Value* value = update.operands[gradient_operand(update)];
    while (value) {
      const Op& op = *value->producer();
      if (op.is("gradient")) return &op;
      value = op.is("scale", "mul_scalar", "cast") || aliased_operand(op) == 0 ? op.operands[0] : nullptr;
    }
    return nullptr;
  }

  const Graph& graph_;
  const SourceMap* locations_;
  const Op* op_ = nullptr;  // the one being checked
  std::vector<Diagnostic> diagnostics_;
  std::unordered_map<const Op*, size_t> positions_;
  std::unordered_set<const Value*> values_;  // by address: an operand may be of another graph, or erased
  std::set<const Value*> carried_;
  std::vector<const Value*> in_flight_;                  // in graph order, as diagnostics walk over it
  ValueTable<const Value*> storage_;                     // of every value defined so far; nullptr: of none
  std::unordered_map<const Value*, const Op*> donated_;  // storage to the op that took it
  std::unordered_set<std::string> root_names_;
};

}  // namespace

std::vector<Diagnostic> verify(const Graph& graph, const SourceMap* locations) {
  return Verifier(graph, locations).verify();
}

void verify_or_throw(const Graph& graph, const SourceMap* locations) {
  const std::vector<Diagnostic> diagnostics = verify(graph, locations);
  if (!diagnostics.empty()) throw UserError(to_string(diagnostics));
}

std::string compare_collectives(const Graph& mine, const Graph& other) {
  struct Calls {
    std::vector<std::string> what;   // must be equal
    std::vector<std::string> names;  // of the results, to find them
    std::string text(size_t i) const { return i < what.size() ? concat(what[i], " (%", names[i], ")") : "nothing"; }
  };
  std::map<std::string, std::array<Calls, 2>> calls;  // by axes
  for (const size_t side : {0, 1})
    for (const auto& op : (side == 0 ? mine : other).ops()) {
      if (!is_collective(*op)) continue;
      Calls& over_axes = calls[join(axes_of(*op).value_or(std::vector<std::string>{}), ",")][side];
      over_axes.what.push_back(call_text(*op));
      over_axes.names.push_back(op->result()->name());
    }
  for (const auto& [axes, both] : calls) {
    const auto& [a, b] = both;
    const auto i = static_cast<size_t>(std::ranges::mismatch(a.what, b.what).in1 - a.what.begin());
    if (i < std::max(a.what.size(), b.what.size()))
      return concat("call ", i + 1, " over ", axes, " is ", a.text(i), " in one program, ", b.text(i), " in the other");
  }
  return "";
}

}  // namespace sfsdp::ir
