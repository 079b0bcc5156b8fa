// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/machine/rank.h"

#include <algorithm>
#include <cstring>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/by_rank.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/view_geometry.h"
#include "sfsdp/mesh/device_mesh.h"
#include "sfsdp/testing/interp/kernels.h"
#include "sfsdp/testing/machine/bytes.h"

namespace sfsdp::plan::machine {

using ir::Op, ir::Value;

namespace {

constexpr std::byte kUnwritten{0xff};  // nan in every floating dtype, -1 in every integer

// Where the host writes one of kHostValues.
std::byte* host_place(Memory& memory, std::string_view name) {
  return memory[static_cast<size_t>(Region::Io)].data() +
         std::ranges::find(kHostValues, name, &HostValue::name)->offset;
}
// All have 64 bits.
template <class T>
void write_number(Memory& memory, std::string_view name, T value) {
  static_assert(sizeof value == 8);
  std::memcpy(host_place(memory, name), &value, sizeof value);
}
template <class T>
T read_number(Memory& memory, std::string_view name) {
  static_assert(sizeof(T) == 8);
  T value;
  std::memcpy(&value, host_place(memory, name), sizeof value);
  return value;
}

}  // namespace

Rank::Rank(const Prepared& prepared, int64_t rank, const ir::interp::Inputs& given,
           const ir::interp::OtherKernels& other, uint64_t seed, const Memory* left)
    : prepared_(prepared),
      plan_(prepared.plan),
      places_(prepared.places.at(static_cast<size_t>(rank))),
      rank_(rank),
      other_(other) {
  for (size_t r = 0; r < kRegions; ++r) {
    const auto bytes = static_cast<size_t>(plan_.memory.region_bytes[r]);
    const bool kept = r == static_cast<size_t>(Region::State) || r == static_cast<size_t>(Region::Window);
    if (left && kept) memory_[r] = (*left)[r];
    memory_[r].resize(std::max(bytes, memory_[r].size()), kUnwritten);
  }
  write_number(memory_, "seed", seed);
  for (const auto& op : plan_.graph.ops()) {
    if (op->is("scalar")) store(*op->result(), run_op(*op, {})[0]);
    if (op->is("constant")) store(*op->result(), given.at(concat("constant.", op->attr<int64_t>("index"))));
  }
  for (size_t i = 0; i < plan_.memory.constants.size(); ++i) check_bits(i, given);
}

void Rank::store_step(double lr, int64_t step) {
  write_number(memory_, "lr", lr);
  write_number(memory_, "step", step);
}
void Rank::store_micro_batch(int64_t micro_batch) { write_number(memory_, "micro_batch", micro_batch); }

ir::interp::HostNumbers Rank::host_numbers() const {
  return {.lr = read_number<double>(memory_, "lr"),
          .step = read_number<int64_t>(memory_, "step"),
          .seed = read_number<uint64_t>(memory_, "seed"),
          .micro_batch = read_number<int64_t>(memory_, "micro_batch")};
}

Rank::Bytes Rank::bytes_of(const Value& value) const {
  const auto& place = places_.of(&value);
  if (!place) throw UserError(concat('%', value.name(), " has no place in memory"));
  const int64_t end = place->offset + prepared_.end[&value];
  const int64_t whole = plan_.memory.region_bytes[static_cast<size_t>(place->region)];
  if (place->offset < 0 || end > whole)
    throw UserError(concat('%', value.name(), " lies at ", to_string(place->region), ' ', place->offset, " to ", end,
                           "\n  expected a place within the ", whole, " bytes of its region"));
  return {place->region, place->offset, end};
}

void Rank::check_bits(size_t entry, const ir::interp::Inputs& given) const {
  const Op& op = *plan_.memory.constants[entry].value->producer();
  const auto expected = bits_of_constant(plan_, entry);
  if (!expected) return;
  const Array& array = given.at(concat("constant.", op.attr<int64_t>("index")));
  const ir::Type& type = op.result()->type();
  std::vector<std::byte> bytes(array.data.size() * static_cast<size_t>(ir::size_in_bytes(type.dtype)));
  machine::store(type.dtype, array, offsets_of(ir::Type::tensor(type.dtype, array.shape)), bytes.data());
  if (const uint64_t bits = xxh3(bytes); bits != *expected)
    throw UserError(concat(ir::name_of(op), " is given bits ", hex(bits), "\n  expected ", hex(*expected),
                           ", as the plan's text says"));
}

std::byte* Rank::at(const Value& value) const {
  const Bytes bytes = bytes_of(value);
  return memory_[static_cast<size_t>(bytes.region)].data() + bytes.begin;
}

Array Rank::load(const Value& value) const {
  const Op& op = *value.producer();
  if (!op.has_attr("row_counts") || !ir::has_counted_rows(plan_.graph, value))
    return machine::load(value.type(), prepared_.begin[&value], at(value));
  ir::Type own = value.type();
  const auto& counts = op.attr<std::vector<int64_t>>("row_counts");
  const int64_t place = DeviceMesh(plan_.graph.mesh).axis_rank(rank_, op.attr<std::string>("row_axis"));
  own.dims[0].size = counts[static_cast<size_t>(place)];
  return machine::load(own, offsets_of(own), at(value));
}

// Rows that the array does not have are left as they are.
void Rank::store(const Value& value, const Array& array, std::span<const char> which) {
  if (value.type().kind == ir::Type::Kind::Token) return;  // it holds nothing
  const std::vector<int64_t>& whole = prepared_.begin[&value];
  if (array.data.size() == whole.size()) return machine::store(value.type().dtype, array, whole, at(value), which);
  ir::Type type = value.type();
  type.strides = ir::strides_of(type);
  type.dims.at(0).size = array.shape.at(0);
  machine::store(type.dtype, array, offsets_of(type), at(value), which);
}

// What another op of the kernel has made, a view of that, or what memory holds.
Array Rank::get(const Value& value, const std::map<const Value*, Array>& made) const {
  if (const auto found = made.find(&value); found != made.end()) return found->second;
  if (!made.contains(ir::storage_of(&value))) return load(value);
  const Op& view = *value.producer();
  std::vector<Array> operands;
  for (const Value* operand : view.operands)
    if (operand) operands.push_back(get(*operand, made));
  return run_op(view, std::move(operands))[static_cast<size_t>(value.result_index())];
}

std::vector<Array> Rank::run_op(const Op& op, std::vector<Array> operands) const {
  if (!ir::is_by_rank(op)) return run_whole(op, operands);
  std::vector<Array> with_absent;
  size_t given = 0;
  for (const Value* operand : op.operands) with_absent.push_back(operand ? std::move(operands[given++]) : Array());
  const ir::RankOp local = ir::interp::rank_op(plan_.graph, op, rank_, with_absent);
  operands.clear();
  for (size_t k = 0; k < with_absent.size(); ++k)
    if (local.op().operands[k]) operands.push_back(std::move(with_absent[k]));
  return run_whole(local.op(), operands);
}

std::vector<Array> Rank::run_whole(const Op& op, const std::vector<Array>& operands) const {
  const ir::interp::Kernel kernel = ir::interp::find_kernel(op.opcode);
  if (!kernel && !other_) throw UserError(concat("the plan machine has no kernel for ", op.opcode));
  std::vector<const Array*> in;
  size_t next = 0;
  for (const Value* operand : op.operands) in.push_back(operand ? &operands[next++] : nullptr);
  const auto axes = ir::axes_of(op);
  const int64_t place = axes ? DeviceMesh(plan_.graph.mesh).group_rank(rank_, *axes) : 0;
  const int64_t places = axes ? ir::axis_size(plan_.graph, *axes).value_or(1) : 1;
  auto results =
      kernel ? kernel({.op = op, .operands = in, .host = host_numbers(), .axis_rank = place, .axis_ranks = places})
             : other_(op, in);
  for (size_t i = 0; i < results.size(); ++i) {
    const ir::Type& type = op.result(static_cast<int>(i))->type();
    SFSDP_CHECK(results[i].shape == type.shape(), op.opcode, " gave ", results[i], " for ", type);
    results[i].dtype = type.dtype;
    for (double& x : results[i].data) x = ir::interp::round_to(type.dtype, x);
  }
  return results;
}

Made Rank::evaluate(const TaskRun& run, const Observer& observe) const {
  std::map<const Value*, Array> made;
  Made in_order;
  for (const Op* op : run.ops) {
    std::vector<Array> operands;
    for (const Value* operand : op->operands)
      if (operand) operands.push_back(get(*operand, made));
    if (observe) observe(*op, operands);
    std::vector<Array> results = run_op(*op, std::move(operands));
    if (op->is("accumulate") && run.adds) {
      const Array sum = load(*op->result());
      for (size_t i = 0; i < sum.data.size(); ++i)
        results[0].data[i] = ir::interp::round_to(sum.dtype, results[0].data[i] + sum.data[i]);
    }
    for (size_t i = 0; i < results.size(); ++i) {
      const Value* value = op->result(static_cast<int>(i));
      in_order.emplace_back(value, results[i]);
      made.insert_or_assign(value, std::move(results[i]));
    }
  }
  return in_order;
}

void Rank::make_up(const TaskRun& run) {
  std::vector<const Value*> read;
  std::vector<Array> arrays;
  for (const Op* op : run.ops)
    for (const Value* operand : op->operands)
      if (operand && is_in_memory(*operand) && std::ranges::find(read, operand) == read.end()) {
        read.push_back(operand);
        arrays.push_back(load(*operand));
      }
  arrays = made_up(std::move(arrays));
  for (size_t i = 0; i < read.size(); ++i) store(*read[i], arrays[i]);
}

bool Rank::meet(const Value& value, const Value& other) const {
  if (!is_in_memory(value) || !is_in_memory(other)) return false;
  const Bytes a = bytes_of(value), b = bytes_of(other);
  return a.region == b.region && a.begin < b.end && b.begin < a.end;
}

bool Rank::reads_where_written(const TaskRun& run, const Value& written) const {
  return std::ranges::any_of(run.ops, [&](const Op* op) {
    if (op->is("accumulate") && run.adds && meet(*op->result(), written)) return true;
    return std::ranges::any_of(op->operands, [&](const Value* operand) { return operand && meet(*operand, written); });
  });
}

bool Rank::reads_at_its_place(const TaskRun& run, const Value& written) const {
  return std::ranges::all_of(run.ops, [&](const Op* op) {
    return std::ranges::all_of(op->operands, [&](const Value* operand) {
      if (!operand || !meet(*operand, written)) return true;
      return bytes_of(*operand).begin == bytes_of(written).begin &&
             prepared_.begin[operand] == prepared_.begin[&written];
    });
  });
}

void Rank::measure(const TaskRun& run, const std::set<const Op*>& ops, MeasuredOps& measured) const {
  if (std::ranges::all_of(ops, [&](const Op* op) { return measured.contains(op); })) return;
  evaluate(run, [&](const Op& op, const std::vector<Array>& operands) {
    if (ops.contains(&op) && !measured.contains(&op))
      measured[&op] = measure_reads(operands, [&](std::vector<Array> in) { return run_op(op, std::move(in)); });
  });
}

std::vector<std::byte> Rank::save(const Value& value) const {
  const Bytes bytes = bytes_of(value);
  const std::byte* begin = at(value);
  return {begin, begin + (bytes.end - bytes.begin)};
}

void Rank::put_back(const Value& value, std::span<const std::byte> saved, std::span<const char> which) {
  const std::vector<int64_t> offsets = offsets_of(value.type());
  std::byte* begin = at(value);
  for (size_t e = 0; e < std::min(offsets.size(), which.size()); ++e)  // rows that are counted may be fewer
    if (which[e] != 0)
      std::copy_n(saved.begin() + offsets[e], ir::size_in_bytes(value.type().dtype), begin + offsets[e]);
}

}  // namespace sfsdp::plan::machine
