// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/common_runs.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::plan {
namespace {

int64_t end_of(Chunk chunk) { return chunk.offset + chunk.length; }

Chunk common(Chunk a, Chunk b) {
  const int64_t offset = std::max(a.offset, b.offset);
  return {offset, std::max<int64_t>(0, std::min(end_of(a), end_of(b)) - offset)};
}

}  // namespace

Box whole_box(const std::vector<int64_t>& shape, Chunk range) {
  Box box;
  for (const int64_t size : shape) box.dims.push_back({0, size});
  box.flat = range;
  return box;
}

Box whole_box(const std::vector<int64_t>& shape) {
  Box box = whole_box(shape, {});
  box.flat.length = elements_of(box.dims);
  return box;
}

Box whole_beside(const Box& box, const std::vector<int64_t>& shape) {
  return whole_box(box.block_shape.empty() ? shape : box.block_shape);
}

bool is_block_shape(const std::vector<int64_t>& blocks, const std::vector<int64_t>& shape) {
  if (blocks.size() != shape.size() + 1) return false;
  const auto differ = std::ranges::mismatch(shape, blocks);
  if (differ.in1 == shape.end()) return false;
  return ir::saturating_product(differ.in2[0], differ.in2[1]) == *differ.in1 &&
         std::equal(differ.in1 + 1, shape.end(), differ.in2 + 2);
}

int64_t elements_of(const std::vector<Chunk>& dims) {
  int64_t product = 1;
  for (const Chunk& chunk : dims) product *= chunk.length;
  return product;
}

std::string to_string(const std::vector<Chunk>& dims) {
  std::vector<std::string> parts;
  for (const Chunk& chunk : dims) parts.push_back(concat(chunk.offset, ":", end_of(chunk)));
  return "[" + join(parts, ",") + "]";
}

// Dimensions from the last inwards that both boxes have alike are one run, together with what they share of the next one; the
// dimensions outside are counted. Runs begin at higher places in both boxes, the higher their number: so those that
// neither range has are found by bisection at either end.
CommonRuns::CommonRuns(const Box& first, const Box& second) : of_first_(first.flat), of_second_(second.flat) {
  SFSDP_CHECK(first.dims.size() == second.dims.size(), to_string(first.dims), " and ", to_string(second.dims));
  size_t inner = first.dims.size();
  Dim step{1, 1, 1};
  start_.count = 1;
  while (inner > 0 && first.dims[inner - 1] == second.dims[inner - 1]) start_.count *= first.dims[--inner].length;
  step.first = step.second = start_.count;
  end_ = start_.count > 0 ? 1 : 0;
  for (size_t d = inner; d-- > 0;) {
    const Chunk a = first.dims[d], b = second.dims[d], both = common(a, b);
    start_.first += (both.offset - a.offset) * step.first;
    start_.second += (both.offset - b.offset) * step.second;
    if (d + 1 == inner)
      start_.count *= both.length;
    else
      dims_.push_back({both.length, step.first, step.second});
    end_ *= d + 1 == inner ? std::min<int64_t>(both.length, 1) : both.length;
    step.first *= a.length;
    step.second *= b.length;
  }
  std::ranges::reverse(dims_);
  const auto first_run = [&](const auto& holds) {  // the lowest number for which it does
    int64_t low = 0, high = end_;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (holds(whole_run(middle)))
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  };
  begin_ = first_run([&](const BoxRun& run) {
    return run.first + run.count > of_first_.offset && run.second + run.count > of_second_.offset;
  });
  end_ = std::max(begin_, first_run([&](const BoxRun& run) {
                    return run.first >= end_of(of_first_) || run.second >= end_of(of_second_);
                  }));
  if (begin_ < end_ && clipped(whole_run(begin_)).count <= 0) end_ = begin_;  // between the two ranges of one run
  at_ = begin_;
}

BoxRun CommonRuns::whole_run(int64_t number) const {
  BoxRun run = start_;
  for (size_t d = dims_.size(); d-- > 0; number /= dims_[d].count) {
    run.first += number % dims_[d].count * dims_[d].first;
    run.second += number % dims_[d].count * dims_[d].second;
  }
  return run;
}

BoxRun CommonRuns::clipped(BoxRun run) const {
  const int64_t from = std::max({int64_t{0}, of_first_.offset - run.first, of_second_.offset - run.second});
  const int64_t to = std::min({run.count, end_of(of_first_) - run.first, end_of(of_second_) - run.second});
  return {run.first + from, run.second + from, to - from};
}

std::optional<BoxRun> CommonRuns::next() {
  if (at_ == end_) return std::nullopt;
  return clipped(whole_run(at_++));
}

Chunk CommonRuns::range() const {
  if (begin_ == end_) return {};
  const BoxRun first = clipped(whole_run(begin_)), last = clipped(whole_run(end_ - 1));
  return {first.first, last.first + last.count - first.first};
}

int64_t place_in_whole(const std::vector<int64_t>& shape, const Box& box, int64_t index) {
  const auto run = CommonRuns({box.dims, {box.flat.offset + index, 1}}, whole_beside(box, shape)).next();
  SFSDP_CHECK(run && index < box.flat.length, "element ", index, " of ", box.flat.length, " of ", to_string(box.dims));
  return run->second;
}

void for_each_run(const Box& first, const Box& second, const std::function<void(const BoxRun&)>& body) {
  CommonRuns runs(first, second);
  while (const auto run = runs.next()) body(*run);
}

}  // namespace sfsdp::plan
