// SPDX-License-Identifier: BSD-3-Clause
// Several documents in one row: each token attends within its own, and positions begin anew with each.
#pragma once

#include <ATen/ATen.h>

#include <limits>

namespace sfsdp::models {

// What attention adds to the scores: 0 where a token may attend, -inf at later tokens and at those of other documents.
//   positions: [B, S] int64, 0 where a document begins; what begins before the row goes on from any number
//   like:      its dtype is the result's
// Result [B, 1, S, S].
inline at::Tensor document_mask(const at::Tensor& positions_BS, const at::Tensor& like) {
  const at::Tensor document_BS = (positions_BS == 0).cumsum(1);
  const at::Tensor may_attend = (document_BS.unsqueeze(2) == document_BS.unsqueeze(1)).tril().unsqueeze(1);
  return at::where(may_attend, at::scalar_tensor(0.0, like.options()),
                   at::scalar_tensor(-std::numeric_limits<double>::infinity(), like.options()));
}

}  // namespace sfsdp::models
