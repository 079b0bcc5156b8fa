// SPDX-License-Identifier: BSD-3-Clause
// How model axes cut what lies in flat buffers, as graphs say it: cuts= of a bucket's param.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sfsdp/plan/storage_layout.h"

namespace sfsdp::plan {

// A dimension of a member that an axis cuts.
struct MemberCut {
  int64_t dim = 0;
  std::string axis;
  int64_t whole =
      0;  // the dimension's size, where the axis does not divide it and the last ranks have fewer; 0: it does
};
// An entry of cuts=: "0/ep,1/tp" is dimension 0 over ep and dimension 1 over tp, "0/tp:5" 5 rows over tp, "" whole. Axes of one
// dimension: outer first.
// throws: InternalError for another text
std::vector<MemberCut> parse_member_cuts(const std::string& text);
std::string to_string(const std::vector<MemberCut>& cuts);

// Those of one member of the bucket that the param is, by dimension; empty: it is whole.
std::vector<Cut> cuts_of_member(const ir::Op& param, size_t member);

// What a rank of the mesh has of a tensor.
//   cuts: by dimension
Box box_of(const std::vector<int64_t>& shape, const std::vector<Cut>& cuts, const DeviceMesh& mesh, int64_t rank);

}  // namespace sfsdp::plan
