// SPDX-License-Identifier: BSD-3-Clause
// How each value of a rank's program lies on each model axis, derived op by op from what the ops' rows say of their iteration
// spaces: written apart from parallel/partition.h, which makes such programs, and held against what the types say.
#pragma once

#include <string>

#include "sfsdp/ir/graph.h"

namespace sfsdp::plan {

// On a model axis (is_model_axis) a value is whole on every rank, cut evenly in one dimension, a summand, or the rows of a rank's
// groups; a flat buffer holds parts of several kinds. From the roots on:
//   param, state   as the type says, a bucket as cuts= says of its members; a moment as its parameter; inputs and constants whole
//   collectives    over the axis: all_gather of what is cut there, reduce_scatter and all_reduce (sum) of summands, all_to_all of
//                  what is cut in join=, which is then cut in split=, no others
//   own_part       over the axis: of what is whole, cut; as_summand: a summand
//   all_to_all_v   over the axis: of what is cut in dimension 0, a rank's rows by its offsets; of such, by the same: cut there
//   own_rows       over the axis: of what is whole, a rank's rows by its operand's offsets; spread_rows of such, by the same: a summand;
//                  own_ends of what is whole: cut in dimension 0
//   aten._grouped_mm by own_ends over the axis: of a rank's rows and matrices cut in dimension 0, a rank's rows; of rows by rows, cut there;
//                  elsewhere a rank's rows pass where each row is made of the same one, by the same offsets
//   permute        over the axis, attention with shift= and what it gives: another rank's part, and terms (ring_layouts.h)
//   own_part with shift=, join_parts, add_parts, and products of parts (part_layouts.h)
//   narrow and aten.cat   in the dimension that is cut: some of a rank's rows, and all of them again (own_rows_layouts.h)
//   ops over a part of a vocabulary, with axis= this one (vocabulary_layouts.h): what tables, logits and results have to be
//                  padding of one that the ranks do not divide is never seen (padding.h)
//   views, reshapes, permutations   the same elements elsewhere: a cut dimension stays one, and leads those it is joined with
//   other ops      by the row's access map (ir/access.h): where a factor is cut in one operand, it must be in all that have it,
//                  and is so in the results; what is cut and added up makes summands where the op is linear; summands pass
//                  where it is linear in them together; what must be whole must be
//                  what is cut to one index a rank is told from what has one by the op's rule of types, on the whole's sizes (whole_sizes.h)
//   cast           of a summand to a wider floating dtype: a summand
//   sum_squares    over the axis: of what is whole one rank counts, of what is cut all do
// What a step returns must be whole; what it carries on lies as what it replaces. Types that name the axis must say the same,
// and those of values that are not whole must name it, but for flat buffers.
// Returns "" or what is wrong, with the op.
std::string verify_layouts(const ir::Graph& graph);

}  // namespace sfsdp::plan
