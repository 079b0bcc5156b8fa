// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/registry.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <optional>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/diagnostic.h"
#include "sfsdp/ir/lexer.h"
#include "sfsdp/passes/bucket/bucket.h"
#include "sfsdp/passes/bucket/copy_buckets.h"
#include "sfsdp/passes/bucket/reshard.h"
#include "sfsdp/passes/bucket/wrap.h"
#include "sfsdp/passes/cleanup/dead_code.h"
#include "sfsdp/passes/cleanup/fold_views.h"
#include "sfsdp/passes/cleanup/hoist_casts.h"
#include "sfsdp/passes/cleanup/merge_duplicates.h"
#include "sfsdp/passes/memory/chunk_loss.h"
#include "sfsdp/passes/memory/remat.h"
#include "sfsdp/passes/overlap/pipeline_reductions.h"
#include "sfsdp/passes/overlap/prefetch_gathers.h"
#include "sfsdp/passes/overlap/sink_waits.h"
#include "sfsdp/passes/overlap/split_collectives.h"
#include "sfsdp/passes/shard/keep_whole.h"

namespace sfsdp::passes {
namespace {

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
       .needs = {"wrap"},
       .run =
           [](ir::Graph& graph, const OptionValues& values, PassContext& ctx) {
             return bucket(graph, {.alignment = get<int64_t>(values, "alignment"), .layout = ctx.layout}, ctx);
           }},
      {.name = "chunk_loss",
       .exactness = Exactness::ReordersSums,
       .help = "computes the last product and the cross entropy in chunks of tokens",
       .options = {{.name = "chunks", .fallback = int64_t{8}, .min = 1, .max = 1e6, .help = "1: none"}},
       .run = [](ir::Graph& graph, const OptionValues& values,
                 PassContext& ctx) { return chunk_loss(graph, {.chunks = get<int64_t>(values, "chunks")}, ctx); }},
      {.name = "copy_buckets",
       .exactness = Exactness::Exact,
       .help = "one gather and one reduction per unit of parameters that are stored one by one, by copies",
       .options = {},
       .needs = {"wrap"},
       .run = [](ir::Graph& graph, const OptionValues&, PassContext& ctx) { return copy_buckets(graph, ctx); }},
      {.name = "dead_code",
       .exactness = Exactness::Exact,
       .help = "removes ops whose results nobody reads",
       .options = {},
       .run = [](ir::Graph& graph, const OptionValues&, PassContext& ctx) { return dead_code(graph, ctx); }},
      {.name = "fold_views",
       .exactness = Exactness::Exact,
       .help = "views of views become one, views that change nothing none",
       .options = {},
       .run = [](ir::Graph& graph, const OptionValues&, PassContext& ctx) { return fold_views(graph, ctx); }},
      {.name = "hoist_casts",
       .exactness = Exactness::Exact,
       .help = "casts a shard instead of what it is gathered to",
       .options = {},
       .run = [](ir::Graph& graph, const OptionValues&, PassContext& ctx) { return hoist_casts(graph, ctx); }},
      {.name = "keep_whole",
       .exactness = Exactness::Exact,
       .help = "gathers params behind their update, to be read whole by the next step",
       .options = {},
       .run = [](ir::Graph& graph, const OptionValues&, PassContext& ctx) { return keep_whole(graph, ctx); }},
      {.name = "merge_duplicates",
       .exactness = Exactness::Exact,
       .help = "computes once what is computed twice",
       .options = {},
       .run = [](ir::Graph& graph, const OptionValues&, PassContext& ctx) { return merge_duplicates(graph, ctx); }},
      {.name = "pipeline_reductions",
       .exactness = Exactness::Exact,
       .help = "starts what is reduced once per step as soon as it is there, updates in that order",
       .options = {{.name = "micro_batches", .fallback = int64_t{1}, .min = 1, .max = 1e9, .help = "of a step"}},
       .run =
           [](ir::Graph& graph, const OptionValues& values, PassContext& ctx) {
             return pipeline_reductions(graph, {.micro_batches = get<int64_t>(values, "micro_batches")}, ctx);
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
       .needs = {"split_collectives"},
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
       .options = {{.name = "keep_last", .fallback = false, .help = "also of the unit that forward reads last"}},
       .run = [](ir::Graph& graph, const OptionValues& values,
                 PassContext& ctx) { return reshard(graph, {.keep_last = get<bool>(values, "keep_last")}, ctx); }},
      {.name = "sink_waits",
       .exactness = Exactness::Exact,
       .help = "waits for each gradient reduction at the next one",
       .options = {{.name = "depth", .fallback = int64_t{1}, .max = 1000, .help = "reductions in flight; 0: none"},
                   {.name = "next", .fallback = std::string("before"), .help = "before or after that start"}},
       .needs = {"split_collectives"},
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

// Passes of users' code, in the order they came. A deque: pointers to its rows stay valid.
struct Registered {
  std::mutex mutex;
  std::deque<PassInfo> passes;
};

Registered& registered() {
  static Registered instance;
  return instance;
}

void check_info(const PassInfo& info) {
  const auto fail = [&](const std::string& message, const std::string& detail) {
    throw UserError(concat("register_pass: ", message, "\n  ", detail));
  };
  if (!ir::is_word(info.name)) fail(concat("the name '", info.name, "'"), "expected a word, such as drop_mul_by_one");
  if (!info.run) fail(concat(info.name, " has no function"), "expected run, which rewrites the graph");
  std::set<std::string> names;
  for (const PassOption& option : info.options) {
    if (!ir::is_word(option.name) || !names.insert(option.name).second)
      fail(concat(info.name, " has an option '", option.name, "'"), "expected words, each once");
    if (option.fallback.index() < 1 || option.fallback.index() > 4)
      fail(concat(info.name, ": option ", option.name, " = ", option.fallback),
           "expected a bool, int64_t, double or std::string");
  }
}

}  // namespace

std::vector<const PassInfo*> all_passes() {
  std::vector<const PassInfo*> passes;
  for (const PassInfo& row : rows()) passes.push_back(&row);
  Registered& own = registered();
  const std::lock_guard lock(own.mutex);
  for (const PassInfo& info : own.passes) passes.push_back(&info);
  return passes;
}

const PassInfo* find_pass(std::string_view name) {
  for (const PassInfo* pass : all_passes())
    if (pass->name == name) return pass;
  return nullptr;
}

bool is_registered(const PassInfo& pass) {
  return std::ranges::none_of(rows(), [&](const PassInfo& row) { return &row == &pass; });
}

void register_pass(PassInfo info) {
  check_info(info);
  const auto same_name = [&](const PassInfo& other) { return other.name == info.name; };
  Registered& own = registered();
  const std::lock_guard lock(own.mutex);
  if (std::ranges::any_of(rows(), same_name) || std::ranges::any_of(own.passes, same_name))
    throw UserError(concat("register_pass: there is a pass ", info.name, " already",
                           "\n  expected another name, and one call per process"));
  own.passes.push_back(std::move(info));
}

}  // namespace sfsdp::passes
