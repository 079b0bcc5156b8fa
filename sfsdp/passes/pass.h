// SPDX-License-Identifier: BSD-3-Clause
// What a pass is: an options struct, a function bool(Graph&, const Options&, PassContext&), and a row in registry.cc, or
// register_pass from the user's own code.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/options.h"
#include "sfsdp/plan/bucket_layout.h"

namespace sfsdp::passes {

// What a pass promises of the numbers that the graph computes.
enum class Exactness {
  Exact,         // bit for bit the same
  ReordersSums,  // the same sums in another order
  ExactAsRun,    // the same in the executor, which runs the ops that were there; in the interpreter another formula
};

// What a pass did, counted: a pass that does nothing must be seen to.
class Metrics {
 public:
  void add(const std::string& name, int64_t count) { counts_[name] += count; }
  int64_t get(const std::string& name) const {
    const auto found = counts_.find(name);
    return found == counts_.end() ? 0 : found->second;
  }
  const std::map<std::string, int64_t>& counts() const { return counts_; }

 private:
  std::map<std::string, int64_t> counts_;
};

struct PassContext {
  Metrics metrics;
  // Storage that an earlier graph on the same state has decided; null: this graph decides.
  const plan::BucketLayouts* layout = nullptr;
};

struct PassInfo {
  std::string name;
  Exactness exactness = Exactness::Exact;
  std::string help;
  std::vector<PassOption> options;
  std::vector<std::string> needs = {};  // passes without which this one has nothing to do
  bool knows_loops = false;             // else a graph that has some is refused: it would move ops over their borders
  std::function<bool(ir::Graph&, const OptionValues&, PassContext&)> run = {};  // true: changed the graph
};

}  // namespace sfsdp::passes
