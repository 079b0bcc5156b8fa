// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/memory_model.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::plan {

using ir::Op, ir::Value;

namespace {

constexpr size_t kMostErrors = 10;

// A pack that has nothing to copy, and so no kernel.
bool is_there_already(const Op& op) { return op.is("pack") && cost::class_of(op) == cost::Class::Free; }

}  // namespace

std::string place_of(const Buffer& b) { return concat(to_string(b.region), " ", b.offset); }

MemoryModel::MemoryModel(const StepPlan& plan, const LaneClocks& clocks)
    : plan_(plan), clocks_(clocks), buffer_of_(plan.graph) {
  for (const auto* buffers : {&plan.memory.constants, &plan.memory.state, &plan.memory.buffers})
    for (const Buffer& b : *buffers) buffer_of_[b.value] = &b;
  for (const Inside& i : plan.memory.inside) place_inside(i);
  for (const auto& op : plan.graph.ops()) {
    const auto donated = ir::donated_operands(*op);
    for (size_t r = 0; r < donated.size() && r < op->results().size(); ++r) {
      const Buffer* from = buffer_of_[ir::storage_of(op->operands[static_cast<size_t>(donated[r])])];
      if (from) buffer_of_[op->results()[r].get()] = from;
    }
  }
}

void MemoryModel::check_places() {
  check_window();
  check_packs();
}

// As if it had a buffer of its own there.
void MemoryModel::place_inside(const Inside& inside) {
  const Buffer* host = buffer_of_[inside.host];
  const int64_t bytes = inside.value->type().span_bytes();
  if (!host || buffer_of_[inside.value] || inside.offset < 0 || inside.offset + bytes > host->bytes)
    return error(concat('%', inside.value->name(), " inside %", inside.host->name(), " at +", inside.offset, " of ",
                        bytes, " bytes\n  expected a place of its own, within another's buffer"));
  Buffer& buffer = inside_.emplace_back(*host);
  buffer.value = inside.value;
  buffer.offset += inside.offset;
  buffer.bytes = std::max<int64_t>(bytes, 1);
  buffer_of_[inside.value] = &buffer;
}

// What collectives touch is at equal offsets on all ranks only in the window.
void MemoryModel::check_window() {
  for (const CommLane& lane : plan_.lanes)
    for (const Op* op : lane.collectives) {
      const auto inside = [&](const Value* value) {
        const Buffer* found = buffer_of_[ir::storage_of(value)];
        if (found && found->region != Region::Window)
          error(concat("%", found->value->name(), ", which ", ir::name_of(*op), " touches, lies in region ",
                       to_string(found->region), "\n  expected window"));
      };
      for (const Value* operand : op->operands) inside(operand);
      for (const auto& result : op->results()) inside(result.get());
    }
}

// What a pack does not copy lies in its result already.
void MemoryModel::check_packs() {
  for (const auto& op : plan_.graph.ops()) {
    if (!op->has_attr("inside") || !buffer_of_[op->result()]) continue;
    const Buffer& bucket = *buffer_of_[op->result()];
    const auto& offsets = op->attr<std::vector<int64_t>>("offsets");
    for (size_t k = 0; k < op->operands.size(); ++k) {
      if (!cost::is_inside(*op, k)) continue;
      const Value* part = ir::storage_of(op->operands[k]);
      const Buffer* found = buffer_of_[part];
      const int64_t expected = bucket.offset + offsets[k] * ir::size_in_bytes(part->type().dtype);
      if (op->has_attr("ranks") || !found || found->region != bucket.region || found->offset != expected ||
          part->type().span_bytes() != op->operands[k]->type().bytes())
        error(concat(ir::name_of(*op), " does not copy %", part->name(), ", which lies ",
                     !found ? "nowhere" : "at " + place_of(*found), "\n  expected it at ", to_string(bucket.region),
                     " ", expected));
    }
  }
}

void MemoryModel::place(const Value& value) {
  const Buffer* found = buffer_of_[&value];
  if (!found) return error(concat("%", value.name(), " has no place in memory\n  expected one"));
  contents_.erase({found->region, found->offset});
  replace(*found, value, {}, nullptr);
}

void MemoryModel::read(const Value& value, const Op& reader, const Run& run, const Clock& clock) {
  if (is_there_already(*value.producer())) {
    for (const Value* part : value.producer()->operands) read(*ir::storage_of(part), reader, run, clock);
    return;
  }
  const Buffer* found = buffer_of_[&value];
  if (!found)
    return error(concat("%", value.name(), ", which ", ir::name_of(reader),
                        " reads, has no place in memory\n  expected a buffer"));
  Content* content = holding(*found, value);
  if (!content)
    return error(concat(ir::name_of(reader), " reads %", value.name(), " at ", place_of(*found), ", which holds ",
                        held_at(*found), "\n  expected %", value.name()));
  if (!is_over(content->writer, clock))
    error(concat(ir::name_of(reader), " on lane ", clocks_.name_of(run.lane), " may read %", value.name(),
                 " before lane ", clocks_.name_of(content->writer.lane),
                 " has written it\n  expected an edge between them"));
  content->readers.resize(clocks_.lanes());
  content->readers[run.lane] = run.number;
}

void MemoryModel::expect(const Value& value, const std::string& why) {
  const Value& storage = *ir::storage_of(&value);
  const Buffer* found = buffer_of_[&storage];
  if (!found || holding(*found, storage)) return;
  error(concat("at the step's end ", place_of(*found), " holds ", held_at(*found), "\n  expected %", storage.name(),
               ": ", why));
}

Content* MemoryModel::holding(const Buffer& buffer, const Value& value) {
  const auto found = contents_.find({buffer.region, buffer.offset});
  return found != contents_.end() && found->second.value == &value && found->second.end == buffer.offset + buffer.bytes
             ? &found->second
             : nullptr;
}

void MemoryModel::replace(const Buffer& buffer, const Value& value, const Run& run, const Clock* clock) {
  const int64_t begin = buffer.offset, end = begin + buffer.bytes;
  auto at = contents_.upper_bound({buffer.region, begin});
  if (at != contents_.begin() && std::prev(at)->first.first == buffer.region && std::prev(at)->second.end > begin) --at;
  while (at != contents_.end() && at->first.first == buffer.region && at->first.second < end) {
    const Content& old = at->second;
    if (clock && !is_over(old.writer, *clock))
      error(concat("%", value.name(), " may be written over %", old.value->name(), " while lane ",
                   clocks_.name_of(old.writer.lane), " writes that\n  expected an edge between them"));
    for (size_t lane = 0; clock && lane < old.readers.size(); ++lane)
      if (lane != run.lane && !is_over({lane, old.readers[lane]}, *clock))
        error(concat("%", value.name(), " may be written over %", old.value->name(), " while lane ",
                     clocks_.name_of(lane), " reads that\n  expected an edge between them"));
    at = contents_.erase(at);
  }
  contents_[{buffer.region, begin}] = {.end = end, .value = &value, .writer = run, .readers = {}};
}

std::string MemoryModel::held_at(const Buffer& b) const {
  const auto found = contents_.find({b.region, b.offset});
  return found == contents_.end() ? "nothing whole" : concat('%', found->second.value->name());
}

void MemoryModel::error(std::string text) {
  if (!is_full()) errors_.push_back(std::move(text));
}
bool MemoryModel::is_full() const { return errors_.size() >= kMostErrors; }

}  // namespace sfsdp::plan
