// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/machine/torn_kernel.h"

#include <algorithm>
#include <bit>

#include "sfsdp/base/check.h"
#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::plan::machine {

using ir::Op, ir::Value;

namespace {

bool is_same(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

}  // namespace

TornKernel::TornKernel(const TaskRun& run, Rank& rank, Draw draw)
    : run_(run), rank_(rank), draw_(std::move(draw)), made_(rank.evaluate(run)) {
  const Prepared& known = rank.prepared();
  for (const Op* op : run.ops) width_ = std::max(width_, known.block_width[op]);
  for (size_t i = 0; i < made_.size(); ++i) {
    const Value& value = *made_[i].first;
    written_.emplace_back(made_[i].second.data.size());
    const bool is_cast = value.producer()->is("cast");
    over_rows_.push_back(known.is_over_rows[is_cast ? ir::storage_of(value.producer()->operands[0]) : &value]);
    at_its_place_.push_back(rank_.is_in_memory(value) && rank_.reads_at_its_place(run_, value) ? 1 : 0);
    if (!rank_.is_in_memory(*made_[i].first)) continue;
    reads_itself_ |= rank_.reads_where_written(run_, *made_[i].first);
    cut(i);
  }
  for (size_t i = parts_.size(); i > 1; --i) std::swap(parts_[i - 1], parts_[draw_(i)]);
}

// Into two parts, each of random rows; what a pack finds in its place is in neither.
void TornKernel::cut(size_t result) {
  const Value& value = *made_[result].first;
  const Op& op = *value.producer();
  std::vector<char> skipped(written_[result].size());
  if (op.is("pack")) {
    const auto& offsets = op.attr<std::vector<int64_t>>("offsets");
    for (size_t k = 0; k < op.operands.size(); ++k)
      if (cost::is_inside(op, k)) std::fill_n(skipped.begin() + offsets[k], op.operands[k]->type().numel(), char{1});
  }
  Part first{result, std::vector<char>(skipped.size())}, second = first;
  const auto width = static_cast<size_t>(written_[result].size() % static_cast<size_t>(width_) == 0 ? width_ : 1);
  for (size_t begin = 0; begin < skipped.size(); begin += width) {
    Part& part = draw_(2) == 0 ? first : second;
    for (size_t e = begin; e < std::min(begin + width, skipped.size()); ++e) part.which[e] = skipped[e] == 0 ? 1 : 0;
  }
  parts_.push_back(std::move(first));
  parts_.push_back(std::move(second));
}

std::string TornKernel::step() {
  const Part& part = parts_[next_++];
  rank_.store(*made_[part.result].first, made_[part.result].second, part.which);
  for (size_t e = 0; e < part.which.size(); ++e)
    if (part.which[e] != 0) written_[part.result][e] = 1;
  return is_over() || (!reads_itself_ && draw_(4) != 0) ? "" : compare();
}

// Whether the block that computes an element of a result may have written already. It has the same place of another result, or the
// row there. What is added up over all rows it has read before it writes its row, where the kernel reads what it writes over
// row for row.
bool TornKernel::is_of_block(size_t result, size_t element) const {
  const size_t size = written_[result].size();
  const auto width = static_cast<size_t>(width_);
  for (size_t k = 0; k < made_.size(); ++k) {
    if (!rank_.is_in_memory(*made_[k].first)) continue;
    const std::vector<char>& written = written_[k];
    if (over_rows_[result] != 0 && over_rows_[k] == 0 && at_its_place_[k] != 0 &&
        std::ranges::find(written, char{1}) != written.end())
      return true;
    // the row's number, over one that the row reads
    if (width > 1 && over_rows_[k] == 0 && size == written.size() * width && written[element / width] != 0) return true;
    // element of this result -> row -> the row's elements of the other one
    const size_t own = size * width == written.size() ? element * width : element;
    if (size != written.size() && size * width != written.size()) continue;
    const size_t row = own / width * width;
    for (size_t e = row; e < row + width && e < written.size(); ++e)
      if (written[e] != 0) return true;
  }
  return false;
}

// An element that is still to be written must come out as before.
std::string TornKernel::compare() const {
  const Made again = rank_.evaluate(run_);
  for (size_t i = 0; i < made_.size(); ++i) {
    const Value& value = *made_[i].first;
    const std::vector<double>&before = made_[i].second.data, &now = again[i].second.data;
    for (size_t e = 0; e < before.size(); ++e)
      if (!is_same(before[e], now[e]) && !is_of_block(i, e))
        return concat(ir::name_of(*value.producer()), " makes element ", e, " of %", value.name(), " as ", now[e],
                      " once other elements of %", made_[parts_[next_ - 1].result].first->name(),
                      " are written\n  expected ", before[e], ", as when its kernel began");
  }
  return "";
}

}  // namespace sfsdp::plan::machine
