// SPDX-License-Identifier: BSD-3-Clause
// What each value of a rank's program is to the other ranks, derived op by op: a forgotten reduction, one too many, or a
// shard read as if it were the whole are found whatever pass made them.
#pragma once

#include <string>

#include "sfsdp/ir/graph.h"

namespace sfsdp::plan {

// On every data axis of the mesh (model axes: layouts.h) a value has one ir::Placement::Kind: Replicate; Shard, the rank's part of a whole; or Own,
// what the rank computed from its own batch and is still to be reduced. From the leaves on:
//   param, state   Shard where the type is split over the axis, else Replicate (a buffer that is written from Own values, such
//                  as batch norm's statistics, is local to a rank and so Own); input Own over the axes its type names;
//                  constants Own: a rank may give its number of rows as one
//   all_gather     of a Shard: Replicate; of Own values: Replicate (each rank's value, side by side)
//   reduce_scatter, all_reduce (sum)   of Own: a Shard, Replicate; of Replicate: an error, every rank would count once
//   sum_squares    of Shards: Own (a part of the sum)
//   other ops      Own if an operand is; a Shard if one is and the op is elementwise or moves no data, else an error.
//                  Where all are Replicate: in forward, loss and backward Own, unless the op only moves or casts; elsewhere Replicate
//   loop, end      what is carried is what stood before or what a trip leaves; Own where the number of trips may differ
// The number of trips of a loop whose body has collectives over an axis must be the same on all its ranks: a param or state that is
// Replicate, what an all_gather or all_reduce makes, or what pure ops make of such alone.
// The loss, the norm and what the next step starts from must not be Own; an update takes a gradient placed as its
// parameter.
// Source: docs/architecture.md, section 4.
// Returns "" or what is wrong, with the op.
std::string check_axis_states(const ir::Graph& graph);

}  // namespace sfsdp::plan
