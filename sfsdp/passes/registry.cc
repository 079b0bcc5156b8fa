// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/registry.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/diagnostic.h"
#include "sfsdp/ir/lexer.h"
#include "sfsdp/passes/bucket.h"
#include "sfsdp/passes/chunk_loss.h"
#include "sfsdp/passes/dead_code.h"
#include "sfsdp/passes/merge_duplicates.h"
#include "sfsdp/passes/prefetch_gathers.h"
#include "sfsdp/passes/remat.h"
#include "sfsdp/passes/reshard.h"
#include "sfsdp/passes/sink_waits.h"
#include "sfsdp/passes/split_collectives.h"
#include "sfsdp/passes/wrap.h"

namespace sfsdp::passes {
namespace {

using ir::Token;

template <class T>
const T& get(const OptionValues& values, const std::string& name) {
  return std::get<T>(values.at(name));
}

bool run_wrap(ir::Graph& graph, const OptionValues& values, PassContext& ctx) {
  WrapOptions options;
  options.units = get<std::string>(values, "units");
  options.mode = get<std::string>(values, "mode");
  std::optional<cost::Machine> machine;
  if (const auto& file = get<std::string>(values, "machine"); !file.empty())
    options.machine = &machine.emplace(cost::load_machine(file));
  options.memory_bytes = static_cast<int64_t>(get<double>(values, "memory_gib") * 1073741824.0);
  options.micro_batches = get<int64_t>(values, "micro_batches");
  options.choose_reshard = get<bool>(values, "keep");
  return wrap(graph, options, ctx);
}

// One row per pass: its name is the name of its file.
const std::vector<PassInfo>& rows() {
  static const std::vector<PassInfo> kRows = {
      {.name = "bucket",
       .exactness = Exactness::Exact,
       .help = "one flat shard, one gather, one reduction and one update per unit",
       .options = {{.name = "alignment",
                    .fallback = int64_t{256},
                    .min = 1,
                    .max = 1 << 20,
                    .help = "bytes, of each parameter in its bucket and of each rank's shard"}},
       .run = [](ir::Graph& graph, const OptionValues& values,
                 PassContext& ctx) { return bucket(graph, {.alignment = get<int64_t>(values, "alignment")}, ctx); }},
      {.name = "chunk_loss",
       .exactness = Exactness::ReordersSums,
       .help = "computes the last product and the cross entropy in chunks of tokens",
       .options = {{.name = "chunks", .fallback = int64_t{8}, .min = 1, .max = 1e6, .help = "1: none"}},
       .run = [](ir::Graph& graph, const OptionValues& values,
                 PassContext& ctx) { return chunk_loss(graph, {.chunks = get<int64_t>(values, "chunks")}, ctx); }},
      {.name = "dead_code",
       .exactness = Exactness::Exact,
       .help = "removes ops whose results nobody reads",
       .options = {},
       .run = [](ir::Graph& graph, const OptionValues&, PassContext& ctx) { return dead_code(graph, ctx); }},
      {.name = "merge_duplicates",
       .exactness = Exactness::Exact,
       .help = "computes once what is computed twice",
       .options = {{.name = "across_sections",
                    .fallback = false,
                    .help = "also merge with an op of another section: its result then lives until there"}},
       .run =
           [](ir::Graph& graph, const OptionValues& values, PassContext& ctx) {
             return merge_duplicates(graph, {.across_sections = get<bool>(values, "across_sections")}, ctx);
           }},
      {.name = "prefetch_gathers",
       .exactness = Exactness::Exact,
       .help = "starts each gather under the compute of earlier units",
       .options = {{.name = "depth", .fallback = int64_t{1}, .max = 1000, .help = "units ahead; 0: none"},
                   {.name = "forward", .fallback = std::string("before"), .help = "before or after the earlier wait"},
                   {.name = "backward", .fallback = std::string("after"), .help = "before or after the earlier wait"},
                   {.name = "max_bytes",
                    .fallback = int64_t{0},
                    .max = 1e15,
                    .help = "of gathers in flight at once, besides one; 0: no bound"}},
       .run =
           [](ir::Graph& graph, const OptionValues& values, PassContext& ctx) {
             return prefetch_gathers(graph,
                                     {.depth = get<int64_t>(values, "depth"),
                                      .forward = get<std::string>(values, "forward"),
                                      .backward = get<std::string>(values, "backward"),
                                      .max_bytes = get<int64_t>(values, "max_bytes")},
                                     ctx);
           }},
      {.name = "remat",
       .exactness = Exactness::Exact,
       .help = "backward computes again what forward would have to keep",
       .options = {{.name = "mode", .fallback = std::string("none"), .help = "none, full, op or memory_budget"},
                   {.name = "every", .fallback = int64_t{1}, .min = 1, .max = 1000, .help = "only every k-th block"},
                   {.name = "mm_again",
                    .fallback = int64_t{0},
                    .max = 1000,
                    .help = "op: every k-th product of a block is computed again too; 0: none"},
                   {.name = "memory_budget",
                    .fallback = 0.5,
                    .max = 1,
                    .help = "memory_budget: share of the bytes kept between full (0) and none (1)"}},
       .run =
           [](ir::Graph& graph, const OptionValues& values, PassContext& ctx) {
             return remat(graph,
                          {.mode = get<std::string>(values, "mode"),
                           .every = get<int64_t>(values, "every"),
                           .mm_again = get<int64_t>(values, "mm_again"),
                           .memory_budget = get<double>(values, "memory_budget")},
                          ctx);
           }},
      {.name = "reshard",
       .exactness = Exactness::Exact,
       .help = "drops the second gather of params with keep=true",
       .options = {},
       .run = [](ir::Graph& graph, const OptionValues&, PassContext& ctx) { return reshard(graph, ctx); }},
      {.name = "sink_waits",
       .exactness = Exactness::Exact,
       .help = "waits for each gradient reduction at the next one",
       .options = {{.name = "depth", .fallback = int64_t{1}, .max = 1000, .help = "reductions in flight; 0: none"},
                   {.name = "next", .fallback = std::string("before"), .help = "before or after that start"}},
       .run =
           [](ir::Graph& graph, const OptionValues& values, PassContext& ctx) {
             return sink_waits(graph,
                               {.depth = get<int64_t>(values, "depth"), .next = get<std::string>(values, "next")}, ctx);
           }},
      {.name = "split_collectives",
       .exactness = Exactness::Exact,
       .help = "cuts collectives into start and wait",
       .options = {},
       .run = [](ir::Graph& graph, const OptionValues&, PassContext& ctx) { return split_collectives(graph, ctx); }},
      {.name = "wrap",
       .exactness = Exactness::Exact,
       .help = "says which parameters form a unit",
       .options = {{.name = "units",
                    .fallback = std::string(),
                    .help = "module paths, as \"tok_embeddings, layers.*, [norm, output]\"; empty: by module number"},
                   {.name = "mode", .fallback = std::string("manual"), .help = "manual, auto or search"},
                   {.name = "machine", .fallback = std::string(), .help = "of auto and search: a machine file"},
                   {.name = "memory_gib", .fallback = 0.0, .max = 1e6, .help = "that a rank may use; 0: all it has"},
                   {.name = "micro_batches", .fallback = int64_t{1}, .min = 1, .max = 1e9, .help = "of a step"},
                   {.name = "keep", .fallback = false, .help = "units may stay gathered until backward"}},
       .run = run_wrap},
  };
  return kRows;
}

[[noreturn]] void fail(std::string_view text, const std::string& message, const std::string& detail) {
  throw UserError(concat("error in passes \"", text, "\": ", message, "\n  ", detail));
}

std::string suggestion(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string nearest = ir::nearest_name(name, candidates);
  if (!nearest.empty()) return concat("did you mean ", nearest, '?');
  std::string text = "expected one of:";
  for (const std::string& candidate : candidates) text += " " + candidate;
  return candidates.empty() ? "it has no options" : text;
}

ir::Attr parse_value(const Token& token, const PassOption& option, std::string_view text) {
  ir::Attr value;
  const char* const first = token.text.data();
  const char* const last = first + token.text.size();
  if (std::holds_alternative<bool>(option.fallback)) {
    if (token.text == "true" || token.text == "false") value = token.text == "true";
  } else if (std::holds_alternative<std::string>(option.fallback)) {
    if (token.kind == Token::Kind::Word || token.kind == Token::Kind::String) value = token.text;
  } else if (std::holds_alternative<int64_t>(option.fallback)) {
    int64_t number = 0;
    if (std::from_chars(first, last, number).ptr == last && static_cast<double>(number) >= option.min &&
        static_cast<double>(number) <= option.max)
      value = number;
  } else {
    double number = 0;
    if (std::from_chars(first, last, number).ptr == last && number >= option.min && number <= option.max)
      value = number;
  }
  if (!std::holds_alternative<std::monostate>(value)) return value;
  std::string range;
  if (std::holds_alternative<int64_t>(option.fallback) || std::holds_alternative<double>(option.fallback))
    range = concat(" in [", option.min, ", ", option.max, ']');
  fail(text, concat(option.name, '=', token.text), concat("expected a value like ", option.fallback, range));
}

PassCall defaults(const PassInfo& info) {
  PassCall call{.info = &info, .options = {}};
  for (const PassOption& option : info.options) call.options.emplace(option.name, option.fallback);
  return call;
}

class CallParser {
 public:
  explicit CallParser(std::string_view text) : text_(text), tokens_(lex(text)) {}

  std::vector<PassCall> parse() {
    std::vector<PassCall> calls;
    if (peek().kind == Token::Kind::End) return calls;
    do calls.push_back(parse_call());
    while (accept(","));
    if (peek().kind != Token::Kind::End)
      fail(text_, concat("cannot read '", peek().text, '\''), "expected name option=value, name …");
    return calls;
  }

 private:
  static std::vector<Token> lex(std::string_view text) {
    try {
      return ir::lex_line(text);
    } catch (const ir::SyntaxError& error) {
      fail(text, error.message, error.detail);
    }
  }

  const Token& peek() const { return tokens_[at_]; }
  bool accept(std::string_view punct) {
    if (peek().kind != Token::Kind::Punct || peek().text != punct) return false;
    ++at_;
    return true;
  }
  std::string word(std::string_view expected) {
    if (peek().kind != Token::Kind::Word)
      fail(text_, concat("got '", peek().text, '\''), concat("expected ", expected));
    return tokens_[at_++].text;
  }

  PassCall parse_call() {
    const std::string name = word("the name of a pass");
    const PassInfo* info = find_pass(name);
    if (!info) {
      std::vector<std::string> names;
      for (const PassInfo& row : rows()) names.push_back(row.name);
      fail(text_, concat("unknown pass ", name), suggestion(name, names));
    }
    PassCall call = defaults(*info);
    while (peek().kind == Token::Kind::Word) parse_option(call);
    return call;
  }

  void parse_option(PassCall& call) {
    const std::string name = word("an option");
    const auto option = std::ranges::find(call.info->options, name, &PassOption::name);
    if (option == call.info->options.end()) {
      std::vector<std::string> names;
      for (const PassOption& row : call.info->options) names.push_back(row.name);
      fail(text_, concat(call.info->name, " has no option ", name), suggestion(name, names));
    }
    if (!accept("=")) fail(text_, concat("no value for ", name), concat("expected ", name, '=', option->fallback));
    call.options[name] = parse_value(peek(), *option, text_);
    ++at_;
  }

  std::string_view text_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace

std::span<const PassInfo> all_passes() { return rows(); }

const PassInfo* find_pass(std::string_view name) {
  const auto found = std::ranges::find(rows(), name, &PassInfo::name);
  return found == rows().end() ? nullptr : &*found;
}

std::vector<PassCall> parse_passes(std::string_view text) { return CallParser(text).parse(); }

}  // namespace sfsdp::passes
