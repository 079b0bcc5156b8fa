// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/registry.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/diagnostic.h"
#include "sfsdp/ir/lexer.h"
#include "sfsdp/passes/bucket/bucket.h"
#include "sfsdp/passes/bucket/copy_buckets.h"
#include "sfsdp/passes/bucket/group_weights.h"
#include "sfsdp/passes/bucket/pack_all_reduces.h"
#include "sfsdp/passes/bucket/reshard.h"
#include "sfsdp/passes/bucket/wrap.h"
#include "sfsdp/passes/canonical/canonicalise.h"
#include "sfsdp/passes/canonical/decompose.h"
#include "sfsdp/passes/cleanup/dead_code.h"
#include "sfsdp/passes/cleanup/fold_views.h"
#include "sfsdp/passes/cleanup/hoist_casts.h"
#include "sfsdp/passes/cleanup/keep_in_place.h"
#include "sfsdp/passes/cleanup/merge_duplicates.h"
#include "sfsdp/passes/fuse/fuse.h"
#include "sfsdp/passes/fuse/join_products.h"
#include "sfsdp/passes/fuse/name_kernels.h"
#include "sfsdp/passes/fuse/write_in_buckets.h"
#include "sfsdp/passes/memory/chunk_loss.h"
#include "sfsdp/passes/memory/further_rounds.h"
#include "sfsdp/passes/memory/remat.h"
#include "sfsdp/passes/memory/remat_in_kernels.h"
#include "sfsdp/passes/overlap/cover_exchanges.h"
#include "sfsdp/passes/overlap/cover_permutes.h"
#include "sfsdp/passes/overlap/early_all_reduces.h"
#include "sfsdp/passes/overlap/gather_once.h"
#include "sfsdp/passes/overlap/pipeline_products.h"
#include "sfsdp/passes/overlap/prefetch_gathers.h"
#include "sfsdp/passes/overlap/sink_waits.h"
#include "sfsdp/passes/overlap/split_collectives.h"

namespace sfsdp::passes {
namespace {

PassInfo row(std::string name, std::string help, bool (*pass)(ir::Graph&, PassContext&),
             std::vector<std::string> needs = {}) {
  return {.name = std::move(name),
          .help = std::move(help),
          .options = {},
          .needs = std::move(needs),
          .run = [pass](ir::Graph& graph, const OptionValues&, PassContext& ctx) { return pass(graph, ctx); }};
}

template <class Options>
PassInfo row(std::string name, std::string help, bool (*pass)(ir::Graph&, const Options&, PassContext&),
             std::vector<std::string> needs = {}) {
  PassInfo info{.name = std::move(name), .help = std::move(help), .options = {}, .needs = std::move(needs)};
  for (const Field<Options>& field : Options::fields()) info.options.push_back(field.option);
  info.run = [pass](ir::Graph& graph, const OptionValues& values, PassContext& ctx) {
    return pass(graph, options_of<Options>(values), ctx);
  };
  return info;
}

// Says something of ops and moves none.
PassInfo among_loops(PassInfo info) {
  info.knows_loops = true;
  return info;
}

PassInfo with(Exactness exactness, PassInfo info) {
  info.exactness = exactness;
  return info;
}

// One row per pass: its name is the name of its file.
const std::vector<PassInfo>& rows() {
  static const std::vector<PassInfo> kRows = {
      row("bucket", "one flat shard, one gather, one reduction and one update per unit", &bucket, {"wrap"}),
      with(Exactness::ExactAsRun,
           row("canonicalise", "names what several ops of LibTorch compute together", &canonicalise)),
      with(Exactness::ReordersSums,
           row("chunk_loss", "computes the last product and the cross entropy in chunks of tokens", &chunk_loss)),
      row("copy_buckets", "one gather and one reduction per unit of parameters that are stored one by one, by copies",
          &copy_buckets, {"wrap"}),
      row("cover_exchanges", "runs what does not depend on an exchange of rows under it", &cover_exchanges,
          {"split_collectives"}),
      row("cover_permutes", "lets keys and values of ring attention travel while attention is computed",
          &cover_permutes, {"split_collectives"}),
      row("dead_code", "removes ops whose results nobody reads", &dead_code),
      with(Exactness::ExactAsRun,
           row("decompose", "makes canonical ops the ops of LibTorch that they stand for", &decompose)),
      row("early_all_reduces", "starts what is reduced once per step as soon as it is there, updates in that order",
          &early_all_reduces),
      row("fold_views", "views of views become one, views that change nothing none", &fold_views),
      row("further_rounds", "makes the rounds of a mixture's rows that a rank has no room for at once, as loops",
          &further_rounds),
      row("fuse", "says which ops one kernel computes", &fuse),
      row("gather_once", "starts gathers that forward alone has before the first micro-batch", &gather_once,
          {"split_collectives"}),
      row("group_weights", "says which weights are to lie side by side: of layers that read one activation",
          &group_weights, {"wrap"}),
      row("hoist_casts", "casts a shard instead of what it is gathered to", &hoist_casts),
      with(Exactness::ExactAsRun, row("join_products", "makes one product of linear layers that read one activation",
                                      &join_products, {"group_weights", "bucket"})),
      row("keep_in_place", "what is carried to the next step is left where that step looks for it", &keep_in_place),
      row("merge_duplicates", "computes once what is computed twice", &merge_duplicates),
      with(Exactness::ReordersSums,
           among_loops(row("name_kernels", "says which kernels compute products, attention and loss", &name_kernels))),
      row("pack_all_reduces", "sums gradients of small weights that all ranks of tp have at once", &pack_all_reduces),
      with(Exactness::ReordersSums,
           row("pipeline_products", "computes products part by part beside the gathers and reductions of a model axis",
               &pipeline_products)),
      row("prefetch_gathers", "starts each gather under the compute of earlier units", &prefetch_gathers,
          {"split_collectives"}),
      row("remat", "backward computes again what forward would have to keep", &remat),
      row("remat_in_kernels",
          "computes pointwise ops again in the kernels that read them, instead of keeping what they make",
          &remat_in_kernels, {"fuse"}),
      row("reshard", "drops the second gather of params with keep=true", &reshard),
      row("sink_waits", "waits for each gradient reduction at the next one", &sink_waits, {"split_collectives"}),
      row("split_collectives", "cuts collectives into start and wait", &split_collectives),
      row("wrap", "says by name which parameters form a unit", &wrap),
      row("write_in_buckets", "gradients are written where their reduction reads them", &write_in_buckets, {"fuse"}),
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
