// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/explain_partition.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/mesh/model_axis.h"
#include "sfsdp/parallel/model_parallel.h"
#include "sfsdp/parallel/tensor_parallel.h"
#include "sfsdp/train/plan_summary.h"

namespace sfsdp::tools {
namespace {

// Lines in the order in which they were met first, each with how often.
class Counted {
 public:
  void add(std::string line) {
    const auto found = std::ranges::find(lines_, line, &std::pair<std::string, int64_t>::first);
    if (found == lines_.end())
      lines_.emplace_back(std::move(line), 1);
    else
      ++found->second;
  }
  void print(std::ostream& out) const {
    for (const auto& [line, count] : lines_) out << "    " << line << (count > 1 ? concat("  × ", count) : "") << '\n';
  }

 private:
  std::vector<std::pair<std::string, int64_t>> lines_;
};

void explain_parameters(const ir::Graph& graph, const TensorParallel& tensor, const std::map<std::string, Shard>& cuts,
                        std::ostream& out) {
  Counted cut, whole;
  for (const auto& op : graph.ops()) {
    if (!op->is("param")) continue;
    const auto name = op->attr<std::string>("name");
    const auto found = cuts.find(name);
    const auto rule = std::ranges::find_if(tensor.rules, [&](const TensorParallelRule& r) {
      return parallel::names(r.pattern, name) && (found == cuts.end() || r.cut == found->second);
    });
    const std::string path = with_stars(name);
    if (found != cuts.end())
      cut.add(concat(path, "  ", op->result()->type(), ", dimension ", found->second.dim,
                     found->second.blocks == 1 ? "" : concat(" in ", found->second.blocks, " blocks"), ": ",
                     rule->pattern));
    else
      whole.add(
          concat(path, "  ", op->result()->type(),
                 rule == tensor.rules.end() ? ": no rule names it" : concat(": it has no dimension ", rule->cut.dim)));
  }
  out << "  cut\n";
  cut.print(out);
  out << "  whole on every rank\n";
  whole.print(out);
}

// Parameters of which each rank of ep has some, and by which pattern.
void explain_experts(const ir::Graph& graph, const ExpertParallelOptions& expert, int64_t ranks, std::ostream& out) {
  const std::map<std::string, int64_t> cuts = parallel::find_experts(graph, expert, ranks);
  Counted cut;
  for (const auto& op : graph.ops()) {
    if (!op->is("param")) continue;
    const auto name = op->attr<std::string>("name");
    if (!cuts.contains(name)) continue;
    const auto pattern = std::ranges::find_if(expert.experts, [&](const auto& p) { return parallel::names(p, name); });
    cut.add(concat(with_stars(name), "  ", op->result()->type(), ", dimension 0, experts: ", *pattern));
  }
  out << "  cut\n";
  cut.print(out);
}

std::string in_ms(double seconds) {
  char text[64];
  std::snprintf(text, sizeof text, "%.3f ms", seconds * 1e3);
  return text;
}

// Which products are computed part by part beside what is sent.
void explain_products(const std::vector<tune::ProductSiteChoice>& sites, std::ostream& out) {
  if (sites.empty()) return;
  Counted lines;
  for (const tune::ProductSiteChoice& site : sites) {
    std::string line = concat(ir::to_string(site.section), "  ", with_stars(site.path), "  ", site.opcode, " of ",
                              train::bytes_text(site.bytes), " beside ", site.products,
                              site.products == 1 ? " product: " : " products: ");
    line += !site.refused.empty() ? "refused, " + with_stars(site.refused) : site.taken ? "taken" : "left as it stands";
    if (site.seconds > 0)
      line += concat(", ", in_ms(site.in_steps), " part by part, ", in_ms(site.seconds), " as it stands");
    lines.add(std::move(line));
  }
  const auto taken = std::ranges::count_if(sites, &tune::ProductSiteChoice::taken);
  const auto refused = std::ranges::count_if(sites, [](const auto& site) { return !site.refused.empty(); });
  out << "  products part by part: " << sites.size() << " sites, " << taken << " taken, " << refused << " refused\n";
  lines.print(out);
}

// What attention exchanges over cp: as it is asked for, or what is fastest.
void explain_attention(const std::vector<step::AttentionChoice>& choices, RotateMethod asked, std::ostream& out) {
  if (choices.empty()) return;
  Counted lines;
  for (const step::AttentionChoice& choice : choices) {
    std::vector<std::string> forms;
    for (const step::AttentionForm& form : choice.forms)
      forms.push_back(concat(to_string(form.method), ' ',
                             form.refused.empty() ? in_ms(form.seconds) : concat("refused, it ", form.refused)));
    const bool is_chosen = asked == RotateMethod::Auto;
    lines.add(concat(with_stars(choice.path), "  ", to_string(is_chosen ? choice.chosen : asked),
                     is_chosen ? ", the fastest: " : ", as asked for: ", join(forms, ", ")));
  }
  out << "  attention\n";
  lines.print(out);
}

}  // namespace

void explain_partition(ir::Graph& graph, const Strategy& strategy, const step::StepOptions& options,
                       std::ostream& out) {
  const AxisList axes = strategy.model_axes();
  if (axes.empty()) return;
  const ir::Graph captured = graph.clone();
  const RotateMethod asked = strategy.context.rotate_method;
  const std::vector<step::AttentionChoice> attention = step::attention_choices(graph, strategy, options);
  const auto reports = parallel::apply_model_parallel(
      graph, asked == RotateMethod::Auto ? step::with_methods(strategy, attention) : strategy);
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t ranks = strategy.mesh.size(axes[i]);
    out << "Over " << axes[i] << " = " << ranks << '\n';
    if (is_expert_axis(axes[i])) explain_experts(captured, strategy.expert, ranks, out);
    if (is_tensor_axis(axes[i])) explain_parameters(captured, strategy.tensor, reports[i].cuts, out);
    if (!reports[i].constrained.empty()) {
      Counted constrained;
      for (const parallel::PartitionReport::Constrained& one : reports[i].constrained)
        constrained.add(
            concat(with_stars(one.path), "  ", one.opcode, " is ", one.from, ", made ", one.to, ": ", one.constraint));
      out << "  as the user wants it\n";
      constrained.print(out);
    }
    Counted moves;
    for (const parallel::PartitionReport::Move& move : reports[i].moves)
      moves.add(concat(
          ir::to_string(move.section), "  ", with_stars(move.path), "  ", move.opcode, " of ",
          train::bytes_text(move.bytes), ", as ", move.reader,
          move.reader_path.empty() || move.reader_path == move.path ? "" : concat(" at ", with_stars(move.reader_path)),
          " wants it", move.cure.empty() ? "" : concat("; ", move.cure)));
    out << "  made to lie otherwise\n";
    moves.print(out);
    if (is_sequence_axis(axes[i])) explain_attention(attention, asked, out);
    if (is_tensor_axis(axes[i])) explain_products(step::product_sites(graph, strategy, options.tune), out);
  }
}

}  // namespace sfsdp::tools
