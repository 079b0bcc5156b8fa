// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/measured.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/named_kernels.h"

namespace sfsdp::cost {
namespace {

using Points = std::vector<std::pair<double, double>>;

// Without meshes and states.
ir::Type bare(const ir::Type& type) {
  ir::Type plain = ir::Type::tensor(type.dtype, type.shape());
  plain.strides = type.strides;
  return plain;
}

bool is_product(std::string_view opcode) {
  return opcode == "aten.mm" || opcode == "aten.addmm" || opcode == "aten.bmm" || opcode == "aten.baddbmm";
}

// Whose points are on one curve. The types of a product begin with its dtype.
std::string curve_key(const std::string& opcode, const std::string& types) {
  return is_product(opcode) ? concat("product of ", types.substr(0, types.find('['))) : opcode;
}

double work_of(double flops, double bytes) { return flops > 0 ? flops : bytes; }

}  // namespace

Curve::Curve(Points points) {
  SFSDP_CHECK(!points.empty(), "a curve without points");
  std::ranges::sort(points);
  for (size_t i = 0; i < points.size();) {
    const double work = points[i].first;
    double logs = 0;
    const size_t first = i;
    for (; i < points.size() && points[i].first == work; ++i) {
      SFSDP_CHECK(work > 0 && points[i].second > 0, "point of work ", work, " and ", points[i].second, " s");
      logs += std::log(points[i].second);
    }
    // One point as it is: the logarithm's rounding would make it inexact.
    const bool alone = i == first + 1;
    points_.emplace_back(work, alone ? points[first].second : std::exp(logs / static_cast<double>(i - first)));
  }
}

double Curve::at(double work) const {
  if (work <= points_.front().first) return points_.front().second;
  if (work >= points_.back().first) return points_.back().second * (work / points_.back().first);
  const auto high = std::ranges::lower_bound(points_, work, {}, &std::pair<double, double>::first);
  if (high->first == work) return high->second;
  const auto low = std::prev(high);
  const double share = std::log(work / low->first) / std::log(high->first / low->first);
  return low->second * std::pow(high->second / low->second, share);
}

std::string types_of(const ir::Op& op) {
  std::ostringstream out;
  for (const ir::Value* operand : op.operands) {
    if (operand)
      out << bare(operand->type()) << ' ';
    else
      out << "none ";
  }
  out << "->";
  for (const auto& result : op.results()) out << ' ' << bare(result->type());
  return out.str();
}

std::string ops_of(const std::vector<const ir::Op*>& kernel) {
  std::string text;
  for (const ir::Op* op : kernel) {
    text += concat(text.empty() ? "" : "; ", op->opcode, ' ', types_of(*op));
    for (const char* key : ir::kKernelAttributes)
      if (const auto* name = op->find_attr<std::string>(key)) text += concat(' ', *name);
  }
  return text;
}

namespace {

// Without the kernels that its products name, which stand after the types of an op.
std::string without_products(const std::string& kernel) {
  std::string text;
  bool is_opcode = true;
  for (const std::string& word : split(kernel, ' ')) {
    const bool is_last = word.ends_with(';');
    const std::string_view name = std::string_view(word).substr(0, word.size() - (is_last ? 1 : 0));
    if (is_opcode || std::ranges::find(ir::kProductKernels, name) == ir::kProductKernels.end())
      text += concat(text.empty() ? "" : " ", word);
    else if (is_last)
      text += ';';
    is_opcode = is_last;
  }
  return text;
}

}  // namespace

MeasuredOps::MeasuredOps(const Measured& measured) {
  for (const MeasuredKernel& m : measured.kernels) kernels_.emplace(m.ops, &m);
  for (const MeasuredKernel& m : measured.kernels) kernels_.emplace(without_products(m.ops), &m);
  std::map<std::string, Points> points;
  for (const MeasuredOp& m : measured.ops) {
    exact_.emplace(concat(m.op, ' ', m.types), m.seconds);
    if (work_of(m.flops, m.bytes) > 0)
      points[curve_key(m.op, m.types)].emplace_back(work_of(m.flops, m.bytes), m.seconds);
  }
  for (auto& [key, of_key] : points) curves_.emplace(key, Curve(std::move(of_key)));
}

std::optional<double> MeasuredOps::seconds(const ir::Op& op, double flops, double bytes) const {
  if (exact_.empty()) return std::nullopt;
  const std::string types = types_of(op);
  if (const auto found = exact_.find(concat(op.opcode, ' ', types)); found != exact_.end()) return found->second;
  const auto curve = curves_.find(curve_key(op.opcode, types));
  const double work = work_of(flops, bytes);
  if (curve == curves_.end() || work <= 0) return std::nullopt;
  return curve->second.at(work);
}

const MeasuredKernel* MeasuredOps::kernel(const std::vector<const ir::Op*>& ops) const {
  if (kernels_.empty()) return nullptr;
  const auto found = kernels_.find(ops_of(ops));
  return found == kernels_.end() ? nullptr : found->second;
}

std::optional<Curve> measured_collective(const Measured& measured, std::string_view kind, int64_t ranks,
                                         int64_t nodes) {
  Points points;
  for (const MeasuredCollective& m : measured.collectives)
    if (m.kind == kind && m.ranks == ranks && m.nodes == nodes) points.emplace_back(m.bytes, m.seconds);
  if (points.empty()) return std::nullopt;
  return Curve(std::move(points));
}

}  // namespace sfsdp::cost
