// SPDX-License-Identifier: BSD-3-Clause
// How products of groups are cut over an axis of which each rank has some of the groups, by name: their rows, sorted by group, are then
// a range on each rank, which only memory says (Placement::Kind::Rows). Their map says that each row picks its matrix by an index, so
// that op_cuts.h would gather. The same of ops that pick those rows, or put them back.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/placement.h"
#include "sfsdp/parallel/expert_parallel.h"
#include "sfsdp/parallel/op_cuts.h"

namespace sfsdp::parallel {

// aten._grouped_mm, whose operand 2, where groups end, each rank then has of its own groups (own_ends):
//   of rows and matrices that are cut in dimension 0   the rank's rows by its matrices: the rank's rows
//   of two matrices whose rows are a rank's            a matrix for each of the rank's groups
// nullopt: the op is none of these, or its operands are not cut so.
//   offsets: which of the graph's offsets operand 2 is
std::optional<OpCut> expert_cut_of(const ir::Op& op, const std::vector<ir::Placement>& operands, int64_t offsets);

// Rows that products of a mixture's groups read, or that ops make theirs of row by row, as an index picks them out of tokens, or adds what is
// owed to them: what is to be sent to the ranks of their groups. By the result of the index_select or index_add, where their groups end.
using WantedRows = std::unordered_map<const ir::Value*, ir::Value*>;

// Those of products with the parameters that `cuts` names. What makes the offsets is moved above what picks the rows.
WantedRows find_wanted_rows(ir::Graph& graph, const std::map<std::string, int64_t>& cuts);

// Which operand of an index_select or index_add in dimension 0 has the rows, under any name; nullopt: the op is none, or adds to what is no
// zeros.
std::optional<size_t> rows_operand(const ir::Op& op);

// Which row is which, of an op that rows_operand knows: one number for each.
ir::Value* row_index(const ir::Op& op);

// Such an op where the rows that it reads are a rank's groups', which go to its part, or its part, or whole, which go to the groups:
//   offsets: of those that its result is wanted by; 0: none wants it
// nullopt: they are neither, or the ranks do not divide its result.
std::optional<OpCut> exchange_cut_of(const ir::Op& op, const std::vector<ir::Placement>& operands, int64_t offsets,
                                     int64_t ranks);

// For how many of so many rows a rank has room at once; 0: for all.
//   capacity: ExpertParallelOptions::capacity
int64_t room_of(int64_t rows, int64_t ranks, double capacity);

// Whether to send the rows that the op picks out of tokens takes less than to gather the tokens.
bool exchanges_less(const ir::Op& op, const std::vector<ir::Placement>& operands, int64_t ranks);

// What was asked for cannot be: rows are not picked out of tokens, or wanted of all ranks where some are there.
//   reader: which op wants the value so; nullptr: the step
[[noreturn]] void throw_not_exchanged(const std::string& axis, const ir::Value& value, const ir::Op* reader);
[[noreturn]] void throw_no_room(const std::string& axis, const ir::Value& value, const ir::Op* reader);

// Over another axis than ep nothing joins or adds up a rank's rows of experts: their ranks have other numbers of them.
//   reader: as above
//   throws: UserError where the value is some, naming reader and value
void check_no_rows(const std::string& axis, const ir::Value& value, const ir::Op* reader);

// The all_to_all_v that does what the op does, beside it.
//   index: row_index, as all ranks have it
ir::Value* make_exchange(const ir::Builder::Place& place, const ir::Op& op, ir::Value* index, ir::Value* ends,
                         const std::string& axis, bool to_rows);

}  // namespace sfsdp::parallel
