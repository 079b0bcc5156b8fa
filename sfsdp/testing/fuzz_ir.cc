// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/fuzz_ir.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <random>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/cost/machine.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/passes/pipeline.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/plan/verify/verify_plan.h"
#include "sfsdp/sim/simulate.h"
#include "sfsdp/testing/random_graph.h"
#include "sfsdp/testing/sharded_step.h"
#include "sfsdp/testing/source_dir.h"

namespace sfsdp::testing {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  size_t below(size_t limit) { return static_cast<size_t>(engine_() % limit); }
  bool one_in(size_t n) { return below(n) == 0; }
  template <class Items>
  const auto& pick(const Items& items) {
    return items[below(std::size(items))];
  }

 private:
  std::mt19937_64 engine_;
};

// ---- valid texts ----------------------------------------------------------------------------------------------------

// A block of a transformer and its loss, with a row of atenset.def in most lines.
constexpr const char* kModel = R"(graph mesh [dp_replicate=2, dp_shard=2] view local
  %table = param name=table rows=32 : f32[16/dp_shard, 8] at tok
  %w = param name=layers.0.w rows=16 : f32[8/dp_shard, 8] at layers.0.w
  %ids = input name=ids : i64[2, 4] own(dp_replicate, dp_shard)
  %labels = input name=labels : i64[8] own(dp_replicate, dp_shard)
fwd:
  %table.f = all_gather %table axis=dp_shard dim=0 : f32[32, 8] at tok
  %e = aten.embedding %table.f, %ids : f32[2, 4, 8] at tok
  %w.f = all_gather %w axis=dp_shard dim=0 : f32[16, 8] at layers.0.w
  %n, %mean, %rstd = aten.native_layer_norm %e, none, none eps=1e-05 normalized_shape=[8] : f32[2, 4, 8], f32[2, 4, 1], f32[2, 4, 1] at layers.0
  %n2 = aten.view %n size=[8, 8] : f32[8, 8] at layers.0
  %wt = aten.t %w.f : f32[8, 16]{1, 8} at layers.0.w
  %q = aten.mm %n2, %wt : f32[8, 16] at layers.0.w
  %q4 = aten.view %q size=[2, 4, 2, 8] : f32[2, 4, 2, 8] at layers.0
  %qt = aten.transpose.int %q4 dim0=1 dim1=2 : f32[2, 2, 4, 8]{64, 8, 16, 1} at layers.0
  %a, %lse = aten._scaled_dot_product_flash_attention_for_cpu %qt, %qt, %qt, none is_causal=true : f32[2, 2, 4, 8], f32[2, 2, 4] at layers.0
  %h0 = aten.select.int %a dim=1 index=0 : f32[2, 4, 8]{64, 8, 1} at layers.0
  %s = aten.silu %h0 : f32[2, 4, 8] at layers.0
  %r = aten.add.Tensor %s, %e : f32[2, 4, 8] at layers.0
  %r2 = aten.view %r size=[8, 8] : f32[8, 8] at out
  %tt = aten.t %table.f : f32[8, 32]{1, 8} at out
  %logits = aten.mm %r2, %tt : f32[8, 32] at out
loss:
  %lp = aten._log_softmax %logits dim=1 half_to_float=false : f32[8, 32] at out
  %loss, %count = aten.nll_loss_forward %lp, %labels, none ignore_index=-100 reduction=1 : f32[], f32[] at out
bwd:
  %seed = full value=1.0 : f32[]
  %glp = aten.nll_loss_backward %seed, %lp, %labels, none, %count ignore_index=-100 reduction=1 bwd_of=%loss : f32[8, 32] at out
  %gl = aten._log_softmax_backward_data %glp, %lp dim=1 input_dtype=f32 bwd_of=%lp : f32[8, 32] at out
  %glt = aten.t %gl bwd_of=%logits : f32[32, 8]{1, 32} at out
  %gt = aten.mm %glt, %r2 bwd_of=%logits : f32[32, 8] at out
  %table.b = all_gather %table axis=dp_shard dim=0 : f32[32, 8] at tok
  %gr = aten.mm %gl, %table.b bwd_of=%logits : f32[8, 8] at out
  %gs = aten.silu_backward %gr, %r2 bwd_of=%s : f32[8, 8] at layers.0
  %gst = aten.t %gs : f32[8, 8]{1, 8} at layers.0
  %gcat = aten.cat [%gst, %gs] dim=0 : f32[16, 8] at layers.0
  %gw = aten.sum.dim_IntList %gcat dim=[1] keepdim=true : f32[16, 1] at layers.0
  %gwe = aten.expand %gw size=[16, 8] : f32[16, 8]{1, 0} at layers.0
  %rt = reduce_scatter %gt axis=dp_shard dim=0 : f32[16, 8] at tok
  %rw = reduce_scatter %gwe axis=dp_shard dim=0 : f32[8, 8] at layers.0.w
  %at = accumulate %rt : f32[16, 8] at tok
  %aw = accumulate %rw : f32[8, 8] at layers.0.w
clip:
  %art = all_reduce %at axis=dp_replicate : f32[16, 8] at tok
  %arw = all_reduce %aw axis=dp_replicate : f32[8, 8] at layers.0.w
  %gradt = gradient %art param=table : f32[16, 8] at tok
  %gradw = gradient %arw param=layers.0.w : f32[8, 8] at layers.0.w
  %sq = sum_squares [%gradt, %gradw] axis=dp_shard replicated=[false, false] : f64[2]
  %sq.all = all_reduce %sq axis=dp_shard : f64[2]
  %norm = grad_norm %sq.all : f64[]
  %nf = non_finite %norm : f32[]
opt:
  %table.new = sgd %table, none, %gradt, %nf momentum=0.0 weight_decay=0.1 : f32[16/dp_shard, 8] at tok
  %w.new = sgd %w, none, %gradw, %nf lr_factor=0.5 momentum=0.0 weight_decay=0.0 : f32[8/dp_shard, 8] at layers.0.w
  return %loss, %norm
  carry %table = %table.new
  carry %w = %w.new
)";

std::string bucketed(const std::string& text, const passes::PipelineOptions& options) {
  ir::Graph graph = ir::parse_or_throw(text);
  std::optional<plan::BucketLayouts> layout;
  passes::run_pipeline(graph, options, layout);
  return ir::print(graph);
}

// What models, data parallelism and the passes leave.
const std::vector<std::string>& corpus() {
  static const std::vector<std::string> kTexts = [] {
    const std::vector<Param> params = {{"layers.0.w", 8, 4}, {"layers.1.w", 5, 4}, {"out", 8, 2}};
    std::vector<std::string> texts = {kModel, sharded_step_text(2, params),
                                      sharded_step_text(2, params, {.bf16 = true, .replicas = 2}),
                                      sharded_step_text(4, params, {.reduce_once = true})};
    const size_t plain = texts.size();
    for (size_t i = 0; i < plain; ++i) {
      texts.push_back(bucketed(texts[i], {}));
      texts.push_back(bucketed(texts[i], {.flat = false, .wrap = {.units = "layers.*"}}));
    }
    for (uint64_t seed = 0; seed < 8; ++seed) texts.push_back(ir::print(random_program(seed)));
    return texts;
  }();
  return kTexts;
}

// ---- changes --------------------------------------------------------------------------------------------------------

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

bool is_part_of_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '%' || c == '-';
}

// Words, values and numbers as one each, anything else by the character.
std::vector<std::string> split_tokens(const std::string& line) {
  std::vector<std::string> tokens;
  for (const char c : line) {
    const bool joins = !tokens.empty() && is_part_of_word(c) && is_part_of_word(tokens.back().back());
    if (joins)
      tokens.back() += c;
    else
      tokens.emplace_back(1, c);
  }
  return tokens;
}

constexpr std::array kNumbers = {"0",
                                 "1",
                                 "2",
                                 "3",
                                 "4",
                                 "8",
                                 "-1",
                                 "-2",
                                 "16",
                                 "64",
                                 "1000000007",
                                 "2147483648",
                                 "1e30",
                                 "nan",
                                 "inf",
                                 "-0.0",
                                 "9223372036854775807",
                                 "-9223372036854775808",
                                 "1152921504606846976"};

std::string other_token(const std::string& token, const std::vector<std::string>& lines, Dice& dice) {
  const bool number = std::isdigit(static_cast<unsigned char>(token[0])) || token[0] == '-';
  if (number && !dice.one_in(4)) return dice.pick(kNumbers);
  for (int tries = 0; tries < 20; ++tries) {  // one of its kind from elsewhere
    const auto tokens = split_tokens(dice.pick(lines));
    if (tokens.empty()) continue;
    const std::string& other = dice.pick(tokens);
    const bool alike =
        std::isalnum(static_cast<unsigned char>(other[0])) == std::isalnum(static_cast<unsigned char>(token[0])) &&
        (other[0] == '%') == (token[0] == '%');
    if (alike && other != token) return other;
  }
  return token;
}

void change_token(std::vector<std::string>& lines, Dice& dice) {
  std::string& line = lines[dice.below(lines.size())];
  std::vector<std::string> tokens = split_tokens(line);
  std::erase(tokens, "");
  if (tokens.empty()) return;
  size_t at = dice.below(tokens.size());
  while (tokens[at] == " " && !dice.one_in(8)) at = dice.below(tokens.size());
  switch (dice.below(8)) {
    case 0: tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(at)); break;
    case 1: tokens.insert(tokens.begin() + static_cast<std::ptrdiff_t>(at), std::string(dice.pick(tokens))); break;
    default: tokens[at] = other_token(tokens[at], lines, dice);
  }
  line.clear();
  for (const std::string& token : tokens) line += token;
}

void change_line(std::vector<std::string>& lines, Dice& dice) {
  const size_t from = dice.below(lines.size()), to = dice.below(lines.size());
  const std::string line = lines[from];
  const auto place = [&](size_t i) { return lines.begin() + static_cast<std::ptrdiff_t>(i); };
  switch (dice.below(4)) {
    case 0: lines.erase(place(from)); break;
    case 1: lines.insert(place(to), line); break;
    case 2: std::swap(lines[from], lines[to]); break;
    default: lines.erase(place(from)); lines.insert(place(std::min(to, lines.size())), line);
  }
}

// All uses of one value become those of another: what is left stays a graph more often than not.
void change_value(std::vector<std::string>& lines, Dice& dice) {
  std::vector<std::string> names;
  for (const std::string& line : lines)
    for (const std::string& token : split_tokens(line))
      if (token[0] == '%') names.push_back(token);
  if (names.empty()) return;
  const std::string from = dice.pick(names), to = dice.pick(names);
  for (std::string& line : lines) {
    const size_t reads = line.find(" = ");
    if (reads == std::string::npos) continue;
    std::string changed = line.substr(0, reads);
    for (const std::string& token : split_tokens(line.substr(reads))) changed += token == from ? to : token;
    line = changed;
  }
}

// The names of attributes.def, and bwd_of.
constexpr std::array kAttributes = {
#define SFSDP_ATTRIBUTE(name, opcodes, kinds) name,
#include "sfsdp/ir/attributes.def"
#undef SFSDP_ATTRIBUTE
    "bwd_of"};

// An attribute of any op, of any kind, on any op; that of the op where it has it.
void change_attribute(std::vector<std::string>& lines, Dice& dice) {
  constexpr std::array kValues = {"none",     "true", "false", "0",   "1",      "26",    "-1",     "0.5",   "word",
                                  "dp_shard", "f32",  "[]",    "[0]", "[1, 0]", "[0.5]", "[true]", "[word]"};
  std::string& line = lines[dice.below(lines.size())];
  const size_t types = line.find(" : ");
  if (types == std::string::npos) return;
  const std::string name = dice.pick(kAttributes);
  std::string value = dice.pick(kValues);
  if (name == "bwd_of") {  // a value of another line
    const std::string& other = dice.pick(lines);
    value = other.substr(std::min(other.find('%'), other.size()));
    value = value.substr(0, value.find_first_of(", "));
  }
  const std::string key = concat(' ', name, '=');
  const size_t at = std::min(line.find(key), types), end = at == types ? at : line.find(' ', at + 1);
  line.replace(at, end - at, key + value);
}

std::string mutate(std::string text, Dice& dice) {
  std::vector<std::string> lines = split_lines(text);
  for (size_t changes = 1 + dice.below(3); changes > 0 && !lines.empty(); --changes) {
    const size_t kind = dice.below(10);
    if (kind < 5)
      change_token(lines, dice);
    else if (kind < 7)
      change_line(lines, dice);
    else if (kind < 8)
      change_value(lines, dice);
    else
      change_attribute(lines, dice);
  }
  text.clear();
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// ---- what reads a graph ---------------------------------------------------------------------------------------------

// A mistake in the text that somebody says is what we want.
template <class Body>
void allow_user_error(const Body& body) {
  try {
    body();
  } catch (const UserError&) {
  }
}

std::vector<passes::PassCall> random_passes(Dice& dice) {
  std::vector<passes::PassCall> calls;
  const auto all = passes::all_passes();
  for (size_t count = 1 + dice.below(4); count > 0; --count) {
    passes::PassCall call{.info = dice.pick(all), .options = {}};
    for (const passes::PassOption& option : call.info->options) {
      ir::Attr value = option.fallback;
      if (auto* whole = std::get_if<int64_t>(&value); whole && dice.one_in(2))
        *whole = std::clamp(static_cast<int64_t>(dice.below(4)), static_cast<int64_t>(option.min),
                            static_cast<int64_t>(option.max));
      if (auto* flag = std::get_if<bool>(&value)) *flag = dice.one_in(2);
      call.options[option.name] = value;
    }
    calls.push_back(std::move(call));
  }
  return calls;
}

void plan_and_simulate(const ir::Graph& given, Dice& dice) {
  ir::Graph graph = given.clone();
  graph.micro_batches = 1 + static_cast<int64_t>(dice.below(3));
  allow_user_error([&] {
    const plan::StepPlan plan = plan::make_plan(graph.clone());
    plan::verify_plan(plan);
    const std::string text = plan::print(plan);
    SFSDP_CHECK(plan::print(plan::parse_plan(text)) == text, "the plan's text changes when read");
  });
  static const cost::Machine kMachine = cost::load_machine(testing::source_dir() + "/machines/dgx_h100.toml");
  constexpr cost::Execution kExecutions[] = {cost::Execution::Eager, cost::Execution::Compile,
                                             cost::Execution::Reference, cost::Execution::Fused};
  allow_user_error([&] { sim::simulate(graph, kMachine, {.execution = dice.pick(kExecutions)}); });
}

void use(const ir::Graph& graph, Dice& dice) {
  const std::string text = ir::print(graph);
  const ir::ParseResult again = ir::parse(text);
  SFSDP_CHECK(again.ok() && ir::print(again.graph) == text, "the printed text changes when read:\n", text);
  if (dice.one_in(2)) plan_and_simulate(graph, dice);
  ir::Graph rewritten = graph.clone();
  bool done = false;
  allow_user_error([&] {
    if (dice.one_in(3)) {
      std::optional<plan::BucketLayouts> layout;
      passes::PipelineOptions options{.flat = dice.one_in(2), .checks = passes::Checks::EveryPass};
      options.remat.mode = dice.one_in(2) ? passes::RematMode::Full : passes::RematMode::None;
      options.loss_chunks = 1 + static_cast<int64_t>(dice.below(2));
      options.gather_once = dice.one_in(4);
      rewritten.micro_batches = 1 + static_cast<int64_t>(dice.below(2));
      passes::run_pipeline(rewritten, options, layout);
    } else {
      passes::run_passes(rewritten, random_passes(dice));
    }
    done = true;
  });
  if (done) plan_and_simulate(rewritten, dice);
}

}  // namespace

FuzzOutcome fuzz_ir(uint64_t seed) {
  Dice dice(seed);
  FuzzOutcome outcome;
  outcome.text = mutate(dice.pick(corpus()), dice);
  try {
    const ir::ParseResult parsed = ir::parse(outcome.text, "fuzz.ir");
    if (!parsed.ok() || !ir::verify(parsed.graph, &parsed.locations).empty()) return outcome;
    outcome.verified = true;
    use(parsed.graph, dice);
  } catch (const std::exception& error) {
    outcome.finding = error.what();
  }
  return outcome;
}

}  // namespace sfsdp::testing
