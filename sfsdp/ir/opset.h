// SPDX-License-Identifier: BSD-3-Clause
// What is known of an opcode: the rows of opset.def and atenset.def. An "aten." op without a row may be captured and run;
// of it the spelling alone tells something, the verifier does not know its types, and it is a kernel by itself.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

class RuleContext;

enum OpFlags : uint32_t {
  kNoFlags = 0,
  kPure = 1,  // the result depends on operands and attributes alone: may be removed, merged, moved, computed again
  kRoot = 2,  // stands for what the graph is given; part of its interface, so never removed
  kCollective = 4,  // all ranks of the axes must reach it in the same order
  kStart = 8,       // the result is in flight until `wait`
  kOptional = 32,   // operands may be absent, except the first
  kReshape = 64,    // the result has the operand's elements, or a range of them, in the same row-major order
  kPermute = 128,   // the result has the operand's dimensions in another order
  kPicks = 256,     // reads of the first operand as much as the second, of indexes, picks
  kMoves = 512,     // computes nothing: the result has the operands' elements, elsewhere or in another dtype, and zeros
  kDraws = 1024,    // draws random numbers: the host's seed, step and micro-batch say which
  kByCoordinate = 2048,  // with axis=, what it does depends on the rank's coordinate there
  kTakesRanges = 4096,   // each result is a range of the dimension dim= of the operand (ranges.h)
  kJoinsRanges = 8192,   // the result has the operands side by side in the dimension dim=
};

// Free moves no data; pointwise ops and reductions are what a compiler joins; Alone: kernels that it joins with nothing
// (gathers and scatters by index, the optimizer, packing into buckets).
enum class CostClass : uint8_t { Free, Pointwise, Reduction, Product, Attention, Alone, Communication };
enum class Alias : uint8_t { Fresh, ViewOfFirst };

struct OpRow {
  std::string_view name;
  int min_operands;
  int max_operands;  // kAny: no limit
  int results;       // kAny: at least one
  uint32_t flags;
  CostClass cost;
  Alias alias;
  void (*rule)(RuleContext&);  // says what is wrong with types and attributes
  int moments = -1;            // operands between parameter and gradient of an optimizer's update; -1: another op
};
inline constexpr int kAny = -1;

// Rows of both lists. `aten.add.*` stands for every overload that has no row of its own.
std::span<const OpRow> opset();
const OpRow* find_row(std::string_view opcode);  // nullptr: no row
bool has_flag(const Op& op, OpFlags flag);       // false where there is no row
// The opcodes of a graph, each once, in alphabetical order, whose types the verifier cannot check: an "aten." op that has
// no row, or one without a rule.
std::vector<std::string> unchecked_opcodes(const Graph& graph);
bool is_aten(std::string_view opcode);

bool is_pure(const Op& op);
bool is_root(const Op& op);
bool is_collective(const Op& op);
bool is_start(const Op& op);
bool is_wait(const Op& op);
bool is_update(const Op& op);               // an optimizer's, of a parameter or a bucket
size_t gradient_operand(const Op& update);  // after the parameter and its moments, of which some may be absent
bool is_random(const Op& op);               // one of LibTorch's that draws
bool draws(const Op& op);                   // is_random, or kDraws
// Attribute once=true, in a section that micro-batches repeat: the last one alone runs it.
bool is_once(const Op& op);
// Whether every micro-batch runs it.
bool is_repeated(const Op& op);
// "all_gather" of all_gather and of all_gather.start; of other ops what stands before the first dot.
std::string_view collective_kind(const Op& op);
// How a collective reduces; Sum where op= says nothing else.
ReduceOp reduce_op(const Op& op);
// The larger of what a rank gives and gets; of rows that memory shares out (all_to_all_v) what it has of them if all have as many.
int64_t collective_bytes(const Op& op);
// How many rows the groups of all ranks have together, of an all_to_all_v.
int64_t rows_of_groups(const Op& op);
// Whether what a rank gets of an all_to_all_v are its groups' rows, rather than its part.
bool sends_to_rows(const Op& op);
// What the ranks of a collective must agree on: "reduce_scatter of f32[8] op=max dim=0".
std::string call_text(const Op& op);
// The operand whose memory the results share, as a view does; -1: the results are memory of their own.
int aliased_operand(const Op& op);
// Where the memory of a value comes from, through all views.
const Value* storage_of(const Value* value);
// The value that has that memory first: through views, and through ops that write over an operand (donates=).
const Value* memory_of(const Value* value);
// The operand whose elements `value` has, all of them in the same order, as `reshape` does, both without strides; nullptr:
// it is no such view.
Value* reshaped_operand(const Value& value);

// The `axis` attribute, one axis or several, outer first; nullopt if it is absent or neither.
std::optional<std::vector<std::string>> axes_of(const Op& op);
// The number of ranks over these axes; nullopt if the mesh lacks one of them.
std::optional<int64_t> axis_size(const Graph& graph, std::span<const std::string> axes);

// A number attribute, whole or not. Throws InternalError where it is absent or no number.
double number_of(const Op& op, const std::string& key);
double number_of(const Op& op, const std::string& key, double fallback);

// The `donates` attribute: entry k is the operand whose buffer result k takes over. The operand's value is lost.
std::vector<int64_t> donated_operands(const Op& op);

}  // namespace sfsdp::ir
