// SPDX-License-Identifier: BSD-3-Clause
// What the verifier asks of a graph, a file per subject. ir/verifier.cc asks it in order.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "sfsdp/ir/diagnostic.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/side_table.h"

namespace sfsdp::ir::checks {

// What was found, each at the op that was being checked.
class Report {
 public:
  explicit Report(const SourceMap* locations) : locations_(locations) {}

  void at(const Op* op) { op_ = op; }  // nullptr: the graph as a whole
  void operator()(std::string message, std::string detail) {
    const bool known = locations_ && locations_->contains(op_);
    diagnostics_.push_back({known ? locations_->at(op_) : Location(), std::move(message), std::move(detail)});
  }
  size_t count() const { return diagnostics_.size(); }
  std::vector<Diagnostic> take() { return std::move(diagnostics_); }

 private:
  const SourceMap* locations_;
  const Op* op_ = nullptr;
  std::vector<Diagnostic> diagnostics_;
};

// What there is, and how far the walk over the ops has come. By address, as an op may name what is erased or another graph's.
struct Known {
  Known(const Graph& graph, Report& report);  // reports names that are not unique
  void define(const Op& op, bool sound);      // its results

  std::unordered_set<const Op*> ops;
  std::unordered_set<const Value*> values, carried;
  ValueTable<const Value*> storage;  // of every value defined so far; nullptr: of none
  std::unordered_set<std::string> root_names;
  std::vector<const Value*> in_flight;                  // in graph order, as diagnostics walk over it
  std::unordered_map<const Value*, const Op*> donated;  // storage to the op that took it
};

// graph.cc
void check_mesh(const Graph& graph, Report& report);
void check_sizes(const Graph& graph, Report& report);
void check_outputs(const Graph& graph, const Known& known, Report& report);
void check_carries(const Graph& graph, const Known& known, Report& report);
void check_gradients(const Graph& graph, Report& report);

// op.cc. Whether operands and results are there, as many as the op's row says: other checks of an op read through them.
bool check_form(const Op& op, const Known& known, Report& report);
void check_attributes(const Op& op, Report& report);
void check_rule(const Graph& graph, const Op& op, Report& report);
void check_types(const Graph& graph, const Op& op, Report& report);

// sections.cc
void check_sections(const Op& op, Report& report);
void check_root(const Op& op, Known& known, Report& report);
void check_bwd_of(const Op& op, const Known& known, Report& report);

// flight.cc. Nothing but its wait reads what is in flight, and each start has one.
void check_flight(const Op& op, Known& known, Report& report);
void check_all_waited(const Known& known, Report& report);

// donations.cc. A donated buffer has one new owner, and nothing reads the value that was in it.
void check_donations(const Op& op, Known& known, Report& report);
void check_not_donated(const Value& value, const std::function<std::string()>& reader, const Known& known,
                       Report& report);

}  // namespace sfsdp::ir::checks
