// SPDX-License-Identifier: BSD-3-Clause
// That nobody sees the padding of a vocabulary which the ranks of a tensor axis do not divide: rows of tables and classes of logits that the
// last ranks' tensors have beyond it. Written apart from parallel/pad_vocabularies.h, which makes such programs.
#pragma once

#include <string>

#include "sfsdp/ir/graph.h"
#include "sfsdp/mesh/device_mesh.h"

namespace sfsdp::plan {

// A value is padded in one dimension, or not; its padding is 0, or anything. From the roots on:
//   param          vocabulary= says so, and cuts= of a bucket of its members ("0/tp:5"): 0
//   embedding, cross_entropy_parts, cross_entropy_backward   num_weights= or classes= have to say what is there; the gradient is 0
//   views, permutations, casts, collectives over other axes  as the operand
//   other ops      by the row's access map: what is padded is read element by element, all operands alike, and stays 0 where the op
//                  is linear in what is 0; it is added up only where it is
// A gradient's padding has to be 0, so that weights, moments and the norm have none of it. What a step returns is not padded.
// Needs a graph that verify_layouts has found sound but for this. Returns "" or what is wrong, with the op.
std::string verify_padding(const ir::Graph& graph, const MeshAxis& axis);

}  // namespace sfsdp::plan
