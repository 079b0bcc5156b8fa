// SPDX-License-Identifier: BSD-3-Clause
// What is known of an opcode: the rows of opset.def, and what the spelling of an "aten." op tells.
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
  kPure = 1,        // the result depends on operands and attributes alone: may be removed, merged, moved, recomputed
  kRoot = 2,        // stands for what the graph is given; part of its interface, so never removed
  kCollective = 4,  // all ranks of the axes must reach it in the same order
  kStart = 8,       // the result is in flight until `wait`
  kRandom = 16,
  kOptional = 32,  // operands may be absent, except the first
};

enum class CostClass : uint8_t { Free, Pointwise, Reduction, Matmul, Communication };
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
};
inline constexpr int kAny = -1;

std::span<const OpRow> opset();
const OpRow* find_row(std::string_view opcode);  // nullptr: no row
bool is_aten(std::string_view opcode);

bool is_pure(const Op& op);
bool is_root(const Op& op);
bool is_collective(const Op& op);
bool is_start(const Op& op);
bool is_wait(const Op& op);
bool is_random(const Op& op);
// Attribute once=true, in a section that micro-batches repeat: the last one alone runs it.
bool is_once(const Op& op);
// Whether every micro-batch runs it.
bool is_repeated(const Op& op);
// "all_gather" of all_gather and of all_gather.start; of other ops what stands before the first dot.
std::string_view collective_kind(const Op& op);
// The operand whose memory the results share, as a view does; -1: the results are memory of their own.
int aliased_operand(const Op& op);
// Where the memory of a value comes from, through all views.
const Value* storage_of(const Value* value);

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
