// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/sharded_step.h"

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/mesh/chunk.h"

namespace sfsdp::testing {

namespace {

// AdamW of one parameter. `shard` is the dims of its type, such as "[2/dp_shard, 3]", `plain` those of its gradient.
std::string update_text(const Param& p, const std::string& shard, const std::string& plain) {
  const std::string& name = p.name;
  const std::string factor = p.lr_factor == 1 ? "" : concat("lr_factor=", shortest(p.lr_factor), ' ');
  return concat("  %", name, ".scaled = scale %", name, ".grad, %c : f32", plain, "\n", "  %", name, ".new, %", name,
                ".m, %", name, ".v = adamw %", name, ", %", name, ".exp_avg, %", name, ".exp_avg_sq, %", name,
                ".scaled, %step.new, %nf beta1=0.5 beta2=0.75 donates=[0, 1, 2] eps=0.5 ", factor,
                "weight_decay=", shortest(p.weight_decay), " : f32", shard, ", f32", shard, ", f32", shard, "\n");
}

std::string compute_dtype(const ShardedStep& step) { return step.bf16 ? "bf16" : "f32"; }
std::string whole_dims(const Param& p) { return concat("[", p.rows, ", ", p.columns, "]"); }

// Adds to `loss` the sum of the squares of a gathered parameter, or of its product.
std::string loss_text(const Param& p, const ShardedStep& step, const std::string& loss) {
  const std::string compute = compute_dtype(step);
  std::string text, read = p.name + ".f", dims = whole_dims(p);
  if (step.tokens > 0) {
    dims = concat("[", step.tokens, ", ", p.columns, "]");
    text = concat("  %", p.name, ".y = aten.mm %", p.name, ".x, %", read, " : ", compute, dims, "\n");
    read = p.name + ".y";
  }
  text += concat("  %", p.name, ".sq = aten.mul.Tensor %", read, ", %", read, " : ", compute, dims, "\n");
  if (step.bf16) text += concat("  %", p.name, ".sqf = cast %", p.name, ".sq : f32", dims, "\n");
  return concat(text, "  %", p.name, ".sum = aten.sum %", p.name, step.bf16 ? ".sqf" : ".sq", " : f32[]\n  %", p.name,
                ".loss = aten.add.Tensor ", loss, ", %", p.name, ".sum alpha=1 : f32[]\n");
}

// The parameter's gradient, not cast yet; of a product after that of its other operand.
std::string gradient_text(const Param& p, const ShardedStep& step) {
  const std::string type = compute_dtype(step) + whole_dims(p);
  if (step.tokens == 0)
    return concat("  %", p.name, ".g = ", step.batch ? "scale %" : "mul_scalar %", p.name, ".b",
                  step.batch ? ", %x" : " value=0.25", " : ", type, "\n");
  const std::string dtype = compute_dtype(step);
  return concat("  %", p.name, ".t = aten.t %", p.name, ".b : ", dtype, "[", p.columns, ", ", p.rows, "]{1, ",
                p.columns, "}\n  %", p.name, ".dx = aten.mm %", p.name, ".y, %", p.name, ".t : ", dtype, "[",
                step.tokens, ", ", p.rows, "]\n  %", p.name, ".xt = aten.t %", p.name, ".dx : ", dtype, "[", p.rows,
                ", ", step.tokens, "]{1, ", p.rows, "}\n  %", p.name, ".g = aten.mm %", p.name, ".xt, %", p.name,
                ".y : ", type, "\n");
}

}  // namespace

std::string sharded_step_text(int64_t world, const std::vector<Param>& params, const ShardedStep& step) {
  const bool bf16 = step.bf16;
  std::string head = concat("graph mesh [", step.replicas > 1 ? concat("dp_replicate=", step.replicas, ", ") : "",
                            "dp_shard=", world, "] view local\n  %step = state name=step : f32[]\n");
  if (step.batch)
    head += concat("  %x = input name=x : f32[] own(", step.replicas > 1 ? "dp_replicate, " : "", "dp_shard)\n");
  std::string fwd = "fwd:\n  %loss0 = full value=0.0 : f32[]\n", bwd = "bwd:\n", clip = "clip:\n", opt = "opt:\n";
  std::string carries = "  carry %step = %step.new\n", squares, flags;
  std::string loss = "%loss0";
  const std::string compute = compute_dtype(step);
  for (const Param& p : params) {
    const int64_t rows = ceil_div(p.rows, world), padded = rows * world;
    const bool uneven = padded != p.rows;
    const std::string shard = concat("[", rows, "/dp_shard", uneven ? "~" : "", ", ", p.columns, "]"),
                      plain = concat("[", rows, ", ", p.columns, "]"), whole = whole_dims(p),
                      all = concat("[", padded, ", ", p.columns, "]");
    head += concat("  %", p.name, ".exp_avg = state name=", p.name, ".exp_avg : f32", shard, "\n");
    head += concat("  %", p.name, ".exp_avg_sq = state name=", p.name, ".exp_avg_sq : f32", shard, "\n");
    head += concat("  %", p.name, " = param name=", p.name, " rows=", p.rows, " : f32", shard, "\n");
    const auto gather = [&](const std::string& suffix) {
      std::string from = p.name, text;
      if (bf16) {
        text += concat("  %", p.name, suffix, ".c = cast %", p.name, " : bf16", shard, "\n");
        from = p.name + suffix + ".c";
      }
      text += concat("  %", p.name, suffix, uneven ? ".all" : "", " = all_gather %", from,
                     " axis=dp_shard dim=0 : ", compute, all, "\n");
      if (uneven)
        text += concat("  %", p.name, suffix, " = narrow %", p.name, suffix, ".all dim=0 length=", p.rows,
                       " start=0 : ", compute, whole, "\n");
      return text;
    };
    fwd += gather(".f");
    if (step.tokens > 0)
      head += concat("  %", p.name, ".x = input name=", p.name, ".x : ", compute, "[", step.tokens, ", ", p.rows,
                     "] own(dp_shard)\n");
    fwd += loss_text(p, step, loss);
    loss = concat("%", p.name, ".loss");
    bwd += gather(".b");
    bwd += gradient_text(p, step);
    std::string gradient = p.name + ".g";
    if (bf16) {
      bwd += concat("  %", p.name, ".gf = cast %", gradient, " : f32", whole, "\n");
      gradient = p.name + ".gf";
    }
    if (uneven) {
      bwd += concat("  %", p.name, ".gp = pad %", gradient, " dim=0 size=", padded, " : f32", all, "\n");
      gradient = p.name + ".gp";
    }
    const auto reduce = [&](const char* once) {
      bwd += concat("  %", p.name, ".rs = reduce_scatter %", gradient, " axis=dp_shard dim=0", once, " : f32", plain,
                    "\n");
      gradient = p.name + ".rs";
    };
    if (!step.reduce_once) reduce("");
    bwd += concat("  %", p.name, ".acc = accumulate %", gradient, " : f32", step.reduce_once ? all : plain, "\n");
    gradient = p.name + ".acc";
    if (step.reduce_once) reduce(" once=true");
    if (step.replicas > 1) {
      clip += concat("  %", p.name, ".ar = all_reduce %", gradient, " axis=dp_replicate : f32", plain, "\n");
      gradient = p.name + ".ar";
    }
    clip += concat("  %", p.name, ".grad = gradient %", gradient, " param=", p.name, " : f32", plain, "\n");
    squares += concat(squares.empty() ? "" : ", ", "%", p.name, ".grad");
    flags += squares.find(',') == std::string::npos && flags.empty() ? "false" : ", false";
    opt += update_text(p, shard, plain);
    carries += concat("  carry %", p.name, " = %", p.name, ".new\n  carry %", p.name, ".exp_avg = %", p.name,
                      ".m\n  carry %", p.name, ".exp_avg_sq = %", p.name, ".v\n");
  }
  const auto n = params.size();
  clip += concat("  %sq = sum_squares [", squares, "] axis=dp_shard replicated=[", flags, "] : f64[", n, "]\n",
                 "  %sq.all = all_reduce %sq axis=dp_shard : f64[", n, "]\n",
                 "  %norm = grad_norm %sq.all : f64[]\n  %nf = non_finite %norm : f32[]\n",
                 "  %c = clip_coefficient %norm max_norm=1.0 : f32[]\n");
  opt = "opt:\n  %step.new = step_count %step, %nf : f32[]\n" + opt.substr(5);
  return concat(head, fwd, bwd, clip, opt, "  return ", loss, ", %norm\n", carries);
}

}  // namespace sfsdp::testing
