// SPDX-License-Identifier: BSD-3-Clause
// What:   computes the last product and the cross entropy after it in chunks of tokens, forward and backward of a chunk
//         together, so that logits exist for one chunk at a time.
// Why:    logits and what is derived from them are tokens × vocabulary: 8,192 × 128,256 in f32 is 3.9 GiB, several times.
// Needs:  logits = mm(hidden, weight), [cast], log_softmax, nll_loss without class weights, and their backward, all read
//         by nobody else; or the same in canonical ops, of which a rank has some rows or classes (chunk_rows_of_loss.h).
//         Buckets are not formed yet: the weight's gather for backward is moved to the front of the loss.
// Leaves: per chunk of rows the same ops in section bwd; rows of the gradient of `hidden` by the same numbers, put
//         together; the gradient of the weight and the loss as sums over chunks, in f32 at least. Nothing of the size of
//         the logits. A graph without the pattern stays as it is, which "losses" says: 0.
#pragma once

#include <cstdint>
#include <string>

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

struct ChunkLossOptions {
  int64_t chunks = 8;  // of equal rows, the last one fewer; 1: none

  static const std::vector<Field<ChunkLossOptions>>& fields();
};

bool chunk_loss(ir::Graph& graph, const ChunkLossOptions& options, PassContext& ctx);

// Why a loss in canonical ops stays in one, which names what stands in its way; "": there is none, or all were cut.
std::string why_not_chunked(const ir::Graph& graph, int64_t chunks);

// Throws InternalError unless the products of backward that read `weight` (transposed, where it is mm) are of chunks of at most
// `most_rows` rows of `hidden`, each row once, in order. The pass calls it on its own result.
void expect_chunked(const ir::Graph& graph, const ir::Value* hidden, const ir::Value* weight, int64_t most_rows);

}  // namespace sfsdp::passes
