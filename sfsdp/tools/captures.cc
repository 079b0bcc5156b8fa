// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/captures.h"

#include <algorithm>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/compile/complete_step.h"
#include "sfsdp/parallel/expert_parallel.h"
#include "sfsdp/passes/canonical/canonicalise.h"
#include "sfsdp/train/config/config_resolve.h"

namespace sfsdp::tools {
namespace {

constexpr const char* kFirstPass = "canonicalise";

}  // namespace

CompiledStep Captures::compile(const train::JobConfig& config, train::StepSetup setup) {
  passes::PipelineOptions& pipeline = setup.options.pipeline;
  const bool canonical =
      pipeline.loss_chunks == 1 && std::ranges::find(pipeline.disable, kFirstPass, trim) == pipeline.disable.end();
  const auto entry = get(config, canonical ? &pipeline.canonical : nullptr);
  train::follow_checkpoints(setup, config, entry->job->checkpointed_blocks);
  if (!entry->job->draws_wrong.empty() && setup.strategy.data_ranks() * setup.options.micro_batches > 1)
    throw UserError(entry->job->draws_wrong);
  setup.options.balance.rate = entry->job->load_balance_coeff;
  if (canonical) pipeline.disable.emplace_back(kFirstPass);  // done
  return {step::complete_step(entry->job->graph.clone(), setup.strategy, setup.options, entry->job->half_precision),
          entry->job->flops_per_token};
}

int64_t Captures::experts(const train::JobConfig& config) {
  const passes::CanonicaliseOptions usual;  // as compile asks for it, so that it finds this capture
  return parallel::count_experts(get(config, &usual)->job->graph, train::expert_parallel_of(config));
}

std::shared_ptr<const Captures::Entry> Captures::get(const train::JobConfig& config,
                                                     const passes::CanonicaliseOptions* canonical) {
  const std::shared_ptr<Entry> entry =
      find(concat(canonical ? concat("canonical/", canonical->document_tokens, '/') : "", train::capture_key(config)));
  const std::lock_guard lock(entry->mutex);
  if (entry->job) return entry;
  {
    const std::lock_guard one(capturing_);
    entry->job = capture_(config);
  }
  passes::PassContext ignored;
  if (canonical) passes::canonicalise(entry->job->graph, *canonical, ignored);
  return entry;
}

std::shared_ptr<Captures::Entry> Captures::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  auto& entry = entries_[key];
  if (entry) return entry;
  entry = std::make_shared<Entry>();
  order_.push_back(key);
  const auto found = entry;
  if (order_.size() > kMost) {
    entries_.erase(order_.front());
    order_.pop_front();
  }
  return found;
}

}  // namespace sfsdp::tools
