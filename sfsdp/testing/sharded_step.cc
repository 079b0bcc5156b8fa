// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/sharded_step.h"

#include <map>
#include <string_view>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/mesh/chunk.h"

namespace sfsdp::testing {
namespace {

// The lines of each section, written one parameter after the other. A line has words in braces, such as {p}: the
// parameter's name, or {shard}: the dims of what a rank stores of it.
class StepWriter {
 public:
  StepWriter(int64_t world, const ShardedStep& step) : world_(world), step_(step) {
    words_["world"] = std::to_string(world);
    words_["compute"] = step.bf16 ? "bf16" : "f32";
    words_["tokens"] = std::to_string(step.tokens);
    words_["replicate"] = step.replicas > 1 ? concat("dp_replicate=", step.replicas, ", ") : "";
    words_["own"] = step.replicas > 1 ? "dp_replicate, dp_shard" : "dp_shard";
  }

  std::string write(const std::vector<Param>& params) {
    add(head_, "graph mesh [{replicate}dp_shard={world}] view local");
    add(head_, "  %step = state name=step : f32[]");
    if (step_.batch) add(head_, "  %x = input name=x : f32[] own({own})");
    add(forward_, "  %loss0 = full value=0.0 : f32[]");
    add(update_, "  %step.new = step_count %step, %nf : f32[]");
    add(carries_, "  carry %step = %step.new");
    words_["loss"] = "%loss0";
    std::vector<std::string> gradients;
    for (const Param& p : params) {
      set_words(p);
      write_stored();
      write_gather(forward_, ".f");
      write_loss();
      write_gather(backward_, ".b");
      write_gradient();
      write_reduction();
      write_update();
      gradients.push_back("%" + p.name + ".grad");
    }
    words_["gradients"] = join(gradients, ", ");
    words_["replicated"] = join(std::vector<std::string>(params.size(), "false"), ", ");
    words_["params"] = std::to_string(params.size());
    add(clip_, "  %sq = sum_squares [{gradients}] axis=dp_shard replicated=[{replicated}] : f64[{params}]");
    add(clip_, "  %sq.all = all_reduce %sq axis=dp_shard : f64[{params}]");
    add(clip_, "  %norm = grad_norm %sq.all : f64[]");
    add(clip_, "  %nf = non_finite %norm : f32[]");
    add(clip_, "  %c = clip_coefficient %norm max_norm=1.0 : f32[]");
    return concat(head_, "fwd:\n", forward_, "bwd:\n", backward_, "clip:\n", clip_, "opt:\n", update_, "  return ",
                  words_["loss"], ", %norm\n", carries_);
  }

 private:
  void add(std::string& section, std::string_view line) const {
    for (size_t at = 0; at < line.size(); ++at) {
      if (line[at] != '{' || line[at + 1] == '1') {  // {1, n} are strides
        section += line[at];
        continue;
      }
      const size_t end = line.find('}', at);
      section += words_.at(std::string(line.substr(at + 1, end - at - 1)));
      at = end;
    }
    section += '\n';
  }

  void set_words(const Param& p) {
    const int64_t rows = ceil_div(p.rows, world_), padded = rows * world_;
    is_uneven_ = padded != p.rows;
    const auto dims = [&](const auto& first) { return concat("[", first, ", ", p.columns, "]"); };
    words_["p"] = p.name;
    words_["rows"] = std::to_string(p.rows);
    words_["columns"] = std::to_string(p.columns);
    words_["padded"] = std::to_string(padded);
    words_["shard"] = dims(concat(rows, "/dp_shard", is_uneven_ ? "~" : ""));
    words_["plain"] = dims(rows);  // of a reduced gradient, which names no axis
    words_["whole"] = dims(p.rows);
    words_["all"] = dims(padded);  // of all shards side by side
    words_["decay"] = shortest(p.weight_decay);
    words_["factor"] = p.lr_factor == 1 ? "" : concat("lr_factor=", shortest(p.lr_factor), ' ');
  }

  void write_stored() {
    add(head_, "  %{p}.exp_avg = state name={p}.exp_avg : f32{shard}");
    add(head_, "  %{p}.exp_avg_sq = state name={p}.exp_avg_sq : f32{shard}");
    add(head_, "  %{p} = param name={p} rows={rows} : f32{shard}");
    if (step_.tokens > 0) add(head_, "  %{p}.x = input name={p}.x : {compute}[{tokens}, {rows}] own(dp_shard)");
  }

  // suffix: of the gathered value's name
  void write_gather(std::string& section, const std::string& suffix) {
    words_["to"] = words_["p"] + suffix;
    words_["from"] = words_["p"] + (step_.bf16 ? suffix + ".c" : "");
    words_["gathered"] = words_["to"] + (is_uneven_ ? ".all" : "");
    if (step_.bf16) add(section, "  %{from} = cast %{p} : bf16{shard}");
    add(section, "  %{gathered} = all_gather %{from} axis=dp_shard dim=0 : {compute}{all}");
    if (is_uneven_) add(section, "  %{to} = narrow %{gathered} dim=0 length={rows} start=0 : {compute}{whole}");
  }

  // Adds to the loss the sum of the squares of a gathered parameter, or of its product.
  void write_loss() {
    const bool has_product = step_.tokens > 0;
    words_["read"] = words_["p"] + (has_product ? ".y" : ".f");
    words_["dims"] = has_product ? concat("[", step_.tokens, ", ", words_["columns"], "]") : words_["whole"];
    words_["squares"] = words_["p"] + (step_.bf16 ? ".sqf" : ".sq");
    if (has_product) add(forward_, "  %{p}.y = aten.mm %{p}.x, %{p}.f : {compute}{dims}");
    add(forward_, "  %{p}.sq = aten.mul.Tensor %{read}, %{read} : {compute}{dims}");
    if (step_.bf16) add(forward_, "  %{p}.sqf = cast %{p}.sq : f32{dims}");
    add(forward_, "  %{p}.sum = aten.sum %{squares} : f32[]");
    add(forward_, "  %{p}.loss = aten.add.Tensor {loss}, %{p}.sum alpha=1 : f32[]");
    words_["loss"] = "%" + words_["p"] + ".loss";
  }

  // The parameter's gradient, not cast yet; that of a product after its other operand's.
  void write_gradient() {
    if (step_.tokens > 0) {
      add(backward_, "  %{p}.t = aten.t %{p}.b : {compute}[{columns}, {rows}]{1, {columns}}");
      add(backward_, "  %{p}.dx = aten.mm %{p}.y, %{p}.t : {compute}[{tokens}, {rows}]");
      add(backward_, "  %{p}.xt = aten.t %{p}.dx : {compute}[{rows}, {tokens}]{1, {rows}}");
      add(backward_, "  %{p}.g = aten.mm %{p}.xt, %{p}.y : {compute}{whole}");
    } else if (step_.batch) {
      add(backward_, "  %{p}.g = scale %{p}.b, %x : {compute}{whole}");
    } else {
      add(backward_, "  %{p}.g = mul_scalar %{p}.b value=0.25 : {compute}{whole}");
    }
  }

  // From the gradient %{p}.g to what the update reads; `last` is the value so far.
  void write_reduction() {
    std::string& last = words_["last"];
    last = words_["p"] + ".g";
    const auto then = [&](std::string& section, const char* suffix, std::string_view line) {
      add(section, line);
      last = words_["p"] + suffix;
    };
    words_["once"] = step_.reduce_once ? " once=true" : "";
    words_["summed"] = words_[step_.reduce_once ? "all" : "plain"];
    const char* reduce = "  %{p}.rs = reduce_scatter %{last} axis=dp_shard dim=0{once} : f32{plain}";
    if (step_.bf16) then(backward_, ".gf", "  %{p}.gf = cast %{last} : f32{whole}");
    if (is_uneven_) then(backward_, ".gp", "  %{p}.gp = pad %{last} dim=0 size={padded} : f32{all}");
    if (!step_.reduce_once) then(backward_, ".rs", reduce);
    then(backward_, ".acc", "  %{p}.acc = accumulate %{last} : f32{summed}");
    if (step_.reduce_once) then(backward_, ".rs", reduce);
    if (step_.replicas > 1) then(clip_, ".ar", "  %{p}.ar = all_reduce %{last} axis=dp_replicate : f32{plain}");
    add(clip_, "  %{p}.grad = gradient %{last} param={p} : f32{plain}");
  }

  void write_update() {
    add(update_, "  %{p}.scaled = scale %{p}.grad, %c : f32{plain}");
    add(update_,
        "  %{p}.new, %{p}.m, %{p}.v = adamw %{p}, %{p}.exp_avg, %{p}.exp_avg_sq, %{p}.scaled, %step.new, %nf"
        " beta1=0.5 beta2=0.75 donates=[0, 1, 2] eps=0.5 {factor}weight_decay={decay}"
        " : f32{shard}, f32{shard}, f32{shard}");
    add(carries_, "  carry %{p} = %{p}.new");
    add(carries_, "  carry %{p}.exp_avg = %{p}.m");
    add(carries_, "  carry %{p}.exp_avg_sq = %{p}.v");
  }

  const int64_t world_;
  const ShardedStep& step_;
  bool is_uneven_ = false;  // the parameter at hand does not divide: its last rows are padding
  std::map<std::string, std::string> words_;
  std::string head_, forward_, backward_, clip_, update_, carries_;
};

}  // namespace

std::string sharded_step_text(int64_t world, const std::vector<Param>& params, const ShardedStep& step) {
  return StepWriter(world, step).write(params);
}

}  // namespace sfsdp::testing
