// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/machine/torn_kernel.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <exception>
#include <limits>
#include <set>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/testing/machine/bytes.h"

namespace sfsdp::plan::machine {

using ir::Op, ir::Value;

namespace {

constexpr int kMostBlocks = 1;  // that are looked at after each part

bool is_same(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

constexpr size_t kOtherNumbers = 2;  // nan, and numbers of the other sign

// An integer becomes another one of the same tensor, as it may be an index.
double other_number(const Array& made, size_t element, size_t kind) {
  const double x = made.data[element];
  if (made.dtype == ir::DType::b1) return 1 - x;
  if (!ir::is_floating(made.dtype)) return made.data[made.data.size() - 1 - element];
  if (kind == 1 || !std::isfinite(x)) return std::numeric_limits<double>::quiet_NaN();
  return ir::interp::round_to(made.dtype, x > 0 ? -1 - x : 1 - x);
}

// Whether its elements lie one after the other, as its storage has them.
bool is_in_order(const Value& value) {
  const std::vector<int64_t> offsets = offsets_of(value.type());
  for (size_t e = 0; e < offsets.size(); ++e)
    if (offsets[e] != static_cast<int64_t>(e) * ir::size_in_bytes(value.type().dtype)) return false;
  return true;
}

}  // namespace

TornKernel::TornKernel(const TaskRun& run, Rank& rank, Draw draw, MeasuredOps& measured, bool may_rehearse)
    : run_(run), rank_(rank), draw_(std::move(draw)), measured_(measured), made_(rank.evaluate(run)) {
  for (const auto& [value, array] : made_) {
    written_.emplace_back(array.data.size());
    in_memory_.push_back(rank_.is_in_memory(*value) ? 1 : 0);
    if (in_memory_.back() == 0) continue;
    reads_itself_ |= rank_.reads_where_written(run_, *value);
    cut(written_.size() - 1);
  }
  for (size_t i = 0; reads_itself_ && i < made_.size(); ++i)
    before_.push_back(in_memory_[i] != 0 ? rank_.save(*made_[i].first) : std::vector<std::byte>());
  for (size_t i = parts_.size(); i > 1; --i) std::swap(parts_[i - 1], parts_[draw_(i)]);
  if (may_rehearse && reads_itself_ && is_without_number()) fault_on_made_up_ = rehearse();
}

// Whether one of its results in memory should hold numbers and holds none.
bool TornKernel::is_without_number() const {
  for (size_t i = 0; i < made_.size(); ++i) {
    const Array& array = made_[i].second;
    if (in_memory_[i] != 0 && !array.data.empty() && ir::is_floating(array.dtype) &&
        std::ranges::none_of(array.data, [](double x) { return std::isfinite(x); }))
      return true;
  }
  return false;
}

std::string TornKernel::rehearse() const {
  Rank copy = rank_;
  copy.make_up(run_);
  std::string fault;
  try {
    TornKernel kernel(run_, copy, draw_, measured_, false);
    while (!kernel.is_over() && fault.empty()) fault = kernel.step();
  } catch (const std::exception&) {  // an op refuses the numbers
  }
  return fault;
}

// Into two parts, each of random elements or of what some last dimensions hold; what a pack finds in its place is in neither.
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
  size_t width = 1;
  const std::vector<int64_t>& shape = made_[result].second.shape;
  for (size_t d = shape.size(), dims = draw_(shape.size() + 1); dims > 0; --dims)
    width *= static_cast<size_t>(std::max<int64_t>(shape[--d], 1));
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
  if (!fault_on_made_up_.empty()) return std::exchange(fault_on_made_up_, "");
  if (is_over()) return "";
  if (!reads_itself_) return draw_(4) != 0 ? "" : compare();
  const size_t kind = draw_(1 + kOtherNumbers);
  if (kind == 0) return compare();
  try {
    return with_other_numbers(kind, [&] { return compare(); });
  } catch (const std::exception&) {  // an op refuses them
    return compare();
  }
}

std::string TornKernel::with_other_numbers(size_t kind, const std::function<std::string()>& find) {
  const auto store = [&](bool others) {
    for (size_t k = 0; k < made_.size(); ++k) {
      if (in_memory_[k] == 0) continue;
      Array array = made_[k].second;
      for (size_t e = 0; others && e < array.data.size(); ++e) array.data[e] = other_number(made_[k].second, e, kind);
      rank_.store(*made_[k].first, array, written_[k]);
    }
  };
  store(true);
  try {
    std::string found = find();
    store(false);
    return found;
  } catch (...) {
    store(false);
    throw;
  }
}

// The width of blocks, and what is added up over them. An op that reads across blocks anything that may be written over leaves
// neither: then a block is an element. So does a view of registers in another order, or a read of other places than those that
// are written, for what is added up: its own order would be another one than that of the blocks.
void TornKernel::measure() {
  is_measured_ = true;
  over_blocks_.assign(made_.size(), 0);
  bool by_blocks = true, in_order = true;
  std::set<const Value*> touched;  // registers that are made of what may be written over
  std::set<const Op*> touching;
  for (const Op* each : run_.ops) {
    const Op& op = *each;
    bool touches = false;
    for (const Value* operand : op.operands) {
      if (!operand) continue;
      const bool from_register = touched.contains(ir::storage_of(operand));
      touches |= from_register || std::ranges::any_of(made_, [&](const auto& made) {
                   return rank_.is_in_memory(*made.first) && rank_.meet(*operand, *made.first);
                 });
      in_order &= !from_register || is_in_order(*operand);
    }
    if (!touches) continue;
    touching.insert(&op);
    for (const auto& result : op.results()) touched.insert(result.get());
  }
  rank_.measure(run_, touching, measured_);
  for (const Op* op : touching) {
    by_blocks &= measured_.at(op).by_blocks;
    width_ = std::max(width_, measured_.at(op).width);
  }
  if (!by_blocks) width_ = 1;
  for (size_t i = 0; by_blocks && in_order && i < made_.size(); ++i) {
    const Value& value = *made_[i].first;
    const Op& op = *value.producer();
    if (!touching.contains(&op)) continue;
    over_blocks_[i] = measured_.at(&op).over_blocks.at(static_cast<size_t>(value.result_index()));
    for (size_t k = 0; k < i; ++k)  // a cast of such a sum
      if (over_blocks_[k] != 0 && op.operands.size() == 1 && ir::storage_of(op.operands[0]) == made_[k].first &&
          made_[k].second.numel() == made_[i].second.numel())
        over_blocks_[i] = 1;
  }
}

// A block has the elements at its place of all results as large, and the number for it of results that have one for each block.
template <class Use>
void TornKernel::for_block(size_t result, size_t element, Use use) const {
  const auto width = static_cast<size_t>(width_);
  const size_t size = written_[result].size();
  for (size_t k = 0; k < made_.size(); ++k) {
    const size_t other = written_[k].size();
    size_t begin = 0, end = 0;
    if (size == other) {
      begin = element / width * width;
      end = std::min(begin + width, other);
    } else if (size == other * width) {
      begin = element / width;
      end = begin + 1;
    } else if (size * width == other) {
      begin = element * width;
      end = begin + width;
    }
    if (in_memory_[k] == 0 || over_blocks_[k] != 0) continue;
    for (size_t e = begin; e < end; ++e)
      if (written_[k][e] != 0) use(k, e);
  }
}

std::vector<std::vector<char>> TornKernel::written_by_block(size_t result, size_t element) const {
  std::vector<std::vector<char>> block;
  for (const std::vector<char>& written : written_) block.emplace_back(written.size());
  for_block(result, element, [&](size_t k, size_t e) { block[k][e] = 1; });
  return block;
}

Made TornKernel::evaluate_without(std::span<const std::vector<char>> which) {
  std::vector<std::vector<std::byte>> now;
  for (const auto& [value, array] : made_)
    now.push_back(rank_.is_in_memory(*value) ? rank_.save(*value) : std::vector<std::byte>());
  for (size_t k = 0; k < made_.size(); ++k)
    if (in_memory_[k] != 0) rank_.put_back(*made_[k].first, before_[k], which[k]);
  Made made = rank_.evaluate(run_);
  for (size_t k = 0; k < made_.size(); ++k)
    if (in_memory_[k] != 0) rank_.put_back(*made_[k].first, now[k], which[k]);
  return made;
}

// An element that is still to be written must come out as before, or do so for its own block.
std::string TornKernel::compare() {
  const Made again = rank_.evaluate(run_);
  std::vector<std::pair<size_t, size_t>> differ;  // result and element
  for (size_t i = 0; i < made_.size(); ++i)
    for (size_t e = 0; in_memory_[i] != 0 && e < written_[i].size(); ++e)
      if (written_[i][e] == 0 && !is_same(made_[i].second.data[e], again[i].second.data[e])) differ.emplace_back(i, e);
  if (differ.empty()) return "";
  const auto now_of = [&](const auto& at) { return again[at.first].second.data[at.second]; };
  if (!reads_itself_) return fault(differ[0].first, differ[0].second, now_of(differ[0]));
  if (!is_measured_) measure();
  // What is added up over all blocks, each of which has read its elements before it has written over them.
  std::vector<std::vector<char>> written = written_;
  for (size_t k = 0; k < made_.size(); ++k)
    if (over_blocks_[k] != 0 || in_memory_[k] == 0 || !rank_.reads_at_its_place(run_, *made_[k].first))
      std::ranges::fill(written[k], char{0});
  const bool any_over = std::ranges::any_of(differ, [&](const auto& at) { return over_blocks_[at.first] != 0; });
  const Made before_blocks = any_over ? evaluate_without(written) : Made();
  std::vector<std::pair<size_t, size_t>> in_blocks;
  for (const auto& at : differ) {
    const auto [i, e] = at;
    if (over_blocks_[i] == 0)
      in_blocks.push_back(at);
    else if (!is_same(before_blocks[i].second.data[e], made_[i].second.data[e]))
      return fault(i, e, now_of(at));
  }
  for (const auto& [i, e] : in_blocks) {
    bool any = false;
    for_block(i, e, [&](size_t, size_t) { any = true; });
    if (!any) return fault(i, e, again[i].second.data[e]);
  }
  for (int k = 0; k < kMostBlocks && !in_blocks.empty(); ++k) {
    const auto [i, e] = in_blocks[draw_(in_blocks.size())];
    const double now = evaluate_without(written_by_block(i, e))[i].second.data[e];
    if (!is_same(now, made_[i].second.data[e])) return fault(i, e, now);
  }
  return "";
}

std::string TornKernel::fault(size_t result, size_t element, double now) const {
  const Value& value = *made_[result].first;
  return concat(ir::name_of(*value.producer()), " makes element ", element, " of %", value.name(), " as ", now,
                " once other elements of %", made_[parts_[next_ - 1].result].first->name(), " are written\n  expected ",
                made_[result].second.data[element], ", as when its kernel began");
}

}  // namespace sfsdp::plan::machine
