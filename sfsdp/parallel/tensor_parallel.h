// SPDX-License-Identifier: BSD-3-Clause
// The user's verb of the axis tp: which dimension of which weights is cut.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp {

struct ShardOptions {
  // A weight that holds as many equal blocks side by side in the dimension, such as q, k and v: each rank has its part of each.
  int64_t blocks = 1;
};

// A dimension that an axis cuts into equal parts: Shard(0), or of each of 3 blocks Shard(0, {.blocks = 3}).
struct Shard {
  int64_t dim = 0;
  int64_t blocks = 1;
  explicit constexpr Shard(int64_t d, ShardOptions options = {}) : dim(d), blocks(options.blocks) {}
  bool operator==(const Shard&) const = default;
};
std::string to_string(const Shard& cut);  // "Shard(0, {.blocks = 3})"

// Parameters by path, or by the path of their module: of that one's those that have the dimension. * is any text, ? one character;
// "*." in front stands for no text too; "a.x|y" is "a.x" or "a.y".
struct TensorParallelRule {
  std::string pattern;
  Shard cut{0};
  // Rules of a plan for several models, with experts in some layers or without, may.
  bool may_name_nothing = false;
};

// How what a module gives to others lies over the axis, whatever would send least. Modules by path: * is any text, ? one character,
// "*." in front stands for no text too, "a.x|y" is "a.x" or "a.y".
struct Constraint {
  std::string pattern;
  std::optional<Shard> cut = {};  // nullopt: whole on every rank
};
struct Replicate {};
Constraint constrain(std::string pattern, Shard cut);
Constraint constrain(std::string pattern, Replicate whole);
std::string to_string(const Constraint& constraint);  // "constrain("norm", Shard(1))"

// Where products are computed part by part, so that gathers and reductions of their rows pass under them (pipeline_products): nowhere; where
// that is faster on the machine that costs are counted on (TuneOptions::machine); wherever it can be done.
enum class AsyncProducts : uint8_t { Off, WhereFaster, Everywhere };

struct TensorParallelOptions {
  // Between the products that add up and those that are cut again, each rank has its part of the rows of what has 3 dimensions at
  // least: of the samples where the axis divides their number, else of the sequence. Sums are reduce_scatters, and all_gathers
  // come before products: as many bytes, for a tp-th of these activations.
  bool sequence_parallel = false;
  // Where logits are cut in their classes, ranks send three numbers a token for the loss, and each makes the gradient of its own.
  // false: the logits are gathered before the loss.
  bool loss_parallel = true;
  // The first one that names a module counts. Its result is what it makes in forward of parameters and the batch, and ops
  // of other modules read, or of a loss that is told apart (Section::Loss): all of several values. An op that reads no parameter counts to the module whose op came
  // before it, such as the residual sum after a block's last product. The gradient of such a value lies as it may.
  std::vector<Constraint> constraints = {};
  // With sequence_parallel. A training step of which no product is computed so is an error, which says why.
  AsyncProducts async_products = AsyncProducts::Off;
};

// What no rule names is whole on every rank of the axis. The first rule that names a parameter counts.
struct TensorParallel {
  std::vector<TensorParallelRule> rules = {};
  TensorParallelOptions options = {};
};
TensorParallel tensor_parallel(std::vector<TensorParallelRule> rules, TensorParallelOptions options = {});

namespace parallel {

// A parameter, or its module.
bool names(std::string_view pattern, std::string_view path);
// This path, and not the one before its last dot.
bool names_itself(std::string_view pattern, std::string_view path);

// Which dimension of which parameters of the graph the rules cut, by name, over an axis of `ranks`.
//   throws: UserError for a rule that names no parameter, none that has its dimension, or one that the ranks do not divide, other than
//           rows of a vocabulary (pad_vocabularies.h); for blocks that do not divide the dimension, or that the ranks do not divide
std::map<std::string, Shard> find_cuts(const ir::Graph& graph, const TensorParallel& tensor, int64_t ranks);

}  // namespace parallel
}  // namespace sfsdp
