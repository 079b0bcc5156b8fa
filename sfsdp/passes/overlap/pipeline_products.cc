// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/overlap/pipeline_products.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Value;
using Ops = std::vector<Op*>;

bool is_linear(const Op& op) { return op.is("linear", "linear_dx"); }

// Whether the product has a row of its result for each row of the value.
bool reads_rows(const Op& op, const Value* value) {
  return is_linear(op) && op.operands[0] == value && std::count(op.operands.begin(), op.operands.end(), value) == 1;
}

// The one axis, or "".
std::string axis_of(const Op& op) {
  const auto axes = ir::axes_of(op);
  return axes && axes->size() == 1 ? axes->front() : "";
}

class SiteFinder {
 public:
  SiteFinder(const Graph& graph, std::string_view axis)
      : graph_(graph), axis_(axis), ranks_(ir::axis_size(graph, AxisList{axis_}).value_or(1)), index_(graph) {}

  std::vector<ProductSite> find() const {
    std::vector<ProductSite> sites;
    std::unordered_set<const Op*> seen;
    for (const auto& op : graph_.ops()) {
      if (!op->is("all_gather", "reduce_scatter") || axis_of(*op) != axis_) continue;
      ProductSite site = op->is("all_gather") ? of_gather(op.get()) : of_scatter(op.get());
      if (site.products.empty()) continue;
      if (site.refused.empty()) site.refused = refused(site);
      for (const Op* product : site.products)
        if (!seen.insert(product).second && site.refused.empty())
          site.refused = concat(ir::opcode_at(*product), " stands beside another collective too");
      sites.push_back(std::move(site));
    }
    return sites;
  }

 private:
  // What is sent is in one piece, or has a dimension of ranks that is brought to its front, and back (parallel/redistribute.h).
  ProductSite site_of(Op* collective) const {
    ProductSite site{.collective = collective,
                     .from = collective->operands[0],
                     .to = collective->result(),
                     .dim = collective->attr<int64_t>("dim"),
                     .moves = {collective}};
    const Op* back = index_.only_reader(site.to);
    if (!back || !ir::has_flag(*back, ir::kPermute)) return site;
    Ops above, below;
    for (Op* op = site.from->producer(); is_form(*op) && above.size() < 3; op = op->operands[0]->producer()) {
      above.insert(above.begin(), op);
      if (op->is("aten.view")) break;
    }
    for (Op* op = index_.only_reader(site.to); op && is_form(*op) && below.size() < 3;
         op = index_.only_reader(op->result())) {
      below.push_back(op);
      if (op->is("aten.view")) break;
    }
    if (above.empty() || !above.front()->is("aten.view") || !below.back()->is("aten.view")) return site;
    Value *from = above.front()->operands[0], *to = below.back()->result();
    const auto dim = dim_of_part(*from, *to, collective->is("all_gather"));
    if (!dim || !brings_to_front(above, *dim)) return site;
    site.from = from;
    site.to = to;
    site.dim = *dim;
    site.moves = above;
    site.moves.push_back(collective);
    site.moves.insert(site.moves.end(), below.begin(), below.end());
    return site;
  }

  bool is_form(const Op& op) const {
    return op.is("aten.view", "aten.clone") || (ir::has_flag(op, ir::kPermute) && op.has_attr("dims"));
  }

  // In which a rank has a part of what is gathered, or gets one of what is reduced; nullopt: they differ otherwise.
  std::optional<int64_t> dim_of_part(const Value& from, const Value& to, bool gathers) const {
    const auto all = (gathers ? to : from).type().shape(), own = (gathers ? from : to).type().shape();
    std::optional<int64_t> dim;
    if (all.size() != own.size()) return dim;
    for (size_t d = 0; d < all.size(); ++d) {
      if (all[d] == own[d]) continue;
      if (dim || all[d] != own[d] * ranks_) return std::nullopt;
      dim = static_cast<int64_t>(d);
    }
    return dim;
  }

  // A view with ranks as a dimension before it, and that one in front.
  static bool brings_to_front(const Ops& above, int64_t dim) {
    for (const Op* op : above)
      if (const auto* dims = op->find_attr<std::vector<int64_t>>("dims"))
        return !dims->empty() && dims->front() == dim && std::is_sorted(dims->begin() + 1, dims->end());
    return false;
  }

  ProductSite of_gather(Op* gather) const {
    ProductSite site = site_of(gather);
    site.has_others = index_.is_returned(site.to);
    for (Op* reader : index_.readers(site.to)) {
      if (reader->section == gather->section && reads_rows(*reader, site.to))
        site.products.push_back(reader);
      else
        site.has_others = true;
    }
    return site;
  }

  ProductSite of_scatter(Op* scatter) const {
    ProductSite site = site_of(scatter);
    const Op* first = site.moves.front();
    Ops open = {site.from->producer()};
    const auto is_own = [&](const Op* op) {
      const Op* reader = index_.only_reader(op->result());
      return op->section == first->section && reader &&
             std::count(reader->operands.begin(), reader->operands.end(), op->result()) == 1;
    };
    while (!open.empty()) {
      Op* op = open.back();
      open.pop_back();
      const bool adds = op->is("aten.add.Tensor") && !op->has_attr("alpha") &&
                        op->operands[0]->type().shape() == op->operands[1]->type().shape();
      if (!is_own(op) || (!adds && !is_linear(*op))) {
        site.refused = concat(ir::opcode_at(*op), is_own(op) ? " makes a part of the sum" : " is read by others too");
        continue;
      }
      (adds ? site.sums : site.products).push_back(op);
      if (adds)
        for (const Value* term : op->operands) open.push_back(term->producer());
    }
    const auto by_position = [&](const Op* op) { return index_.position(op); };
    std::ranges::sort(site.products, {}, by_position);
    std::ranges::sort(site.sums, {}, by_position);
    return site;
  }

  std::string refused(const ProductSite& site) const {
    const Op& op = *site.collective;
    const Value& rows = *(site.is_gather() ? site.from : site.to);
    if (site.dim + 1 >= std::ssize(rows.type().dims)) return "no rows are cut, but what a product adds up";
    if (const ir::ReduceOp reduce = ir::reduce_op(op); !site.is_gather() && reduce != ir::ReduceOp::Sum)
      return concat("it takes the ", ir::to_string(reduce));
    const ir::Dim& cut = rows.type().dims[static_cast<size_t>(site.dim)];
    for (size_t i = 0; i < cut.split.size(); ++i)
      if (cut.blocks_of(i) != 1) return concat("rows are cut in ", cut.blocks_of(i), " blocks over ", cut.split[i]);
    if (!site.from->type().strides.empty() || !site.to->type().strides.empty()) return "rows have gaps in memory";
    for (const Op* product : site.products) {
      if (!product->result()->type().strides.empty() || !product->operands[0]->type().strides.empty())
        return concat(ir::opcode_at(*product), " reads or makes what has gaps in memory");
      if (!site.is_gather()) continue;
      for (const Value* operand : product->operands)
        if (operand && operand != site.to && index_.position(operand->producer()) > index_.position(&op))
          return concat("what ", ir::opcode_at(*product), " reads beside the rows is made after they are gathered");
    }
    return "";
  }

  const Graph& graph_;
  const std::string axis_;
  const int64_t ranks_;
  const ir::Index index_;
};

class Rewriter {
 public:
  Rewriter(Graph& graph, const std::string& axis)
      : graph_(graph), build_(graph), axis_(axis), ranks_(ir::axis_size(graph, AxisList{axis}).value_or(1)) {}

  void take(const ProductSite& site) { site.is_gather() ? gather(site) : scatter(site); }
  void apply() {
    for (const auto& op : graph_.ops())
      if (const auto found = instead_of_.find(op->bwd_of); found != instead_of_.end()) op->bwd_of = found->second;
    build_.apply();
  }

 private:
  // The next rank's rows are on their way while those of this one are computed.
  void gather(const ProductSite& site) {
    const auto here = build_.after(site.moves.back()).like(*site.collective);
    std::vector<Value*> rows = {site.from};
    std::map<Op*, std::vector<Value*>> parts;
    for (int64_t shift = 0; shift < ranks_; ++shift) {
      if (shift + 1 < ranks_) rows.push_back(send(here, site.from, shift + 1, site.from->type(), "from"));
      for (Op* product : site.products) {
        std::vector<Value*> operands = product->operands;
        operands[0] = rows[static_cast<size_t>(shift)];
        parts[product].push_back(again(here.like(*product), *product, operands, site.dim, shift));
      }
    }
    for (Op* product : site.products) {
      instead_of_[product] = join(here.like(*product), product->result(), parts[product], site.dim);
      build_.erase(product);
    }
    if (site.has_others) join(here, site.to, rows, site.dim);
    build_.erase(site.moves);
  }

  Op* join(const ir::Builder::Place& place, Value* whole, const std::vector<Value*>& parts, int64_t dim) {
    Op* made =
        place.list("join_parts", parts, whole->type(), whole->name() + ".joined", {{"axis", axis_}, {"dim", dim}});
    build_.take_place(whole, made->result());
    return made;
  }

  // The rows of the rank after this one first, the own ones, which nothing waits for, at last.
  void scatter(const ProductSite& site) {
    const auto here = build_.before(site.collective).like(*site.collective);
    std::vector<Value*> terms;
    for (int64_t to = 1; to <= ranks_; ++to) {
      Value* term = part_of(site, (ranks_ - to) % ranks_);
      terms.push_back(to == ranks_ ? term : send(here, term, to, site.to->type(), "home"));
    }
    const Op* made = here.list("add_parts", terms, site.to->type(), site.to->name() + ".added", {{"axis", axis_}});
    for (Op* product : site.products) instead_of_[product] = made;
    for (Op* sum : site.sums) instead_of_[sum] = made;
    build_.take_place(site.to, made->result());
    build_.erase(site.moves);
    build_.erase(site.products);
    build_.erase(site.sums);
  }

  // What leads to the reduce_scatter, of the rows of the rank `shift` before.
  Value* part_of(const ProductSite& site, int64_t shift) {
    const int64_t dim = site.dim;
    std::map<const Value*, Value*> own, made;
    Value* last = nullptr;
    for (const Op* product : site.products) {
      std::vector<Value*> operands = product->operands;
      const auto here = build_.before(site.collective).like(*product);
      Value*& rows = own[operands[0]];
      if (!rows)
        rows = here.value("own_part", {operands[0]}, cut(operands[0]->type(), dim), named(*operands[0], "rows", shift),
                          {{"axis", axis_}, {"dim", dim}, {"shift", shift}});
      operands[0] = rows;
      last = made[product->result()] = again(here, *product, operands, dim, shift);
    }
    for (const Op* sum : site.sums) {
      const auto here = build_.before(site.collective).like(*sum);
      last = made[sum->result()] =
          again(here, *sum, {made.at(sum->operands[0]), made.at(sum->operands[1])}, dim, shift);
    }
    return last;
  }

  static std::string named(const Value& value, const char* what, int64_t shift) {
    return concat(value.name(), ".", what, shift);
  }
  Value* send(const ir::Builder::Place& place, Value* value, int64_t shift, const ir::Type& type, const char* what) {
    return place.value("permute", {value}, type, named(*value, what, shift), {{"axis", axis_}, {"shift", shift}});
  }
  // A part of the whole is cut by the axis; what lies otherwise there says nothing of its rows.
  ir::Type cut(ir::Type type, int64_t dim) const {
    ir::Dim& rows = type.dims[static_cast<size_t>(dim)];
    const bool is_whole = type.placement_on(axis_) == ir::Placement::replicate();
    rows.size /= ranks_;
    if (is_whole) rows.add_axis(axis_);
    return type;
  }
  Value* again(const ir::Builder::Place& place, const Op& like, const std::vector<Value*>& operands, int64_t dim,
               int64_t shift) {
    const Value& all = *like.result();
    Op* made = place.again(like, operands, {{named(all, "of", shift), cut(all.type(), dim)}});
    made->bwd_of = like.bwd_of;
    return made->result();
  }

  Graph& graph_;
  ir::Builder build_;
  const std::string axis_;
  const int64_t ranks_;
  std::unordered_map<const Op*, const Op*> instead_of_;
};

// Those that are named, or all that can be.
std::vector<ProductSite> chosen(const Graph& graph, const PipelineProductsOptions& options) {
  std::vector<ProductSite> sites = find_product_sites(graph, options.axis);
  std::unordered_set<std::string> names;
  for (const std::string& name : split(options.sites, ','))
    if (!trim(name).empty()) names.insert(std::string(trim(name)));
  std::erase_if(sites, [&](const ProductSite& site) {
    return !site.refused.empty() || (options.sites != "all" && !names.contains(site.to->name()));
  });
  return sites;
}

}  // namespace

const std::vector<Field<PipelineProductsOptions>>& PipelineProductsOptions::fields() {
  static const std::vector<Field<PipelineProductsOptions>> kFields = {
      field("axis", &PipelineProductsOptions::axis, {}, "whose gathers and reductions of rows are taken apart"),
      field("sites", &PipelineProductsOptions::sites, {},
            "what the collectives make that are, parted by commas; all: each that can be")};
  return kFields;
}

std::vector<ProductSite> find_product_sites(const Graph& graph, std::string_view axis) {
  if (ir::axis_size(graph, AxisList{std::string(axis)}).value_or(1) == 1) return {};
  return SiteFinder(graph, axis).find();
}

bool pipeline_products(Graph& graph, const PipelineProductsOptions& options, PassContext& ctx) {
  const std::vector<ProductSite> sites = chosen(graph, options);
  Rewriter rewrite(graph, options.axis);
  for (const ProductSite& site : sites) {
    ctx.metrics.add(site.is_gather() ? "gathers_taken" : "reductions_taken", 1);
    ctx.metrics.add("products_taken", std::ssize(site.products));
    rewrite.take(site);
  }
  if (!sites.empty()) rewrite.apply();
  SFSDP_CHECK(chosen(graph, options).empty(), "a site that was to be taken is left");
  return !sites.empty();
}

}  // namespace sfsdp::passes
