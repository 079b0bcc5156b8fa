// SPDX-License-Identifier: BSD-3-Clause
// Which numbers an optimizer's op updates which elements with: one parameter's, or those of each segment of a bucket.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

struct UpdateSegment {
  int64_t begin = 0, end = 0;  // elements
  double weight_decay = 0;
  double lr_factor = 1;  // the learning rate of the step is multiplied by it
};

// The segments of an update that lie in a rank's shard: `numel` elements of the bucket, from element `first` on. Begin
// and end count from the shard's first element.
std::vector<UpdateSegment> update_segments(const Op& update, int64_t first, int64_t numel);

// Says the same in attributes. Neighbours of equal numbers become one segment; where all are equal there are no lists.
//   segments: in order, without gaps, of the whole bucket
//   axes:     what the bucket is cut over; none: each rank has it whole
void set_update_segments(Attrs& attrs, std::span<const UpdateSegment> segments, const std::vector<std::string>& axes);

}  // namespace sfsdp::ir
