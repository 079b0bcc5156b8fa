// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/capture/meta_init.h"

#include <torch/nn/module.h>

#include "sfsdp/base/check.h"
#include "sfsdp/capture/tracer.h"

namespace sfsdp::capture {
namespace {

// Rides on the tensor itself, so the recipe lives exactly as long as the parameter.
struct RecipeMeta : c10::BackendMeta {
  InitRecipe recipe;
};

}  // namespace

InitRecipe init_recipe(const at::Tensor& meta) {
  auto* held = dynamic_cast<RecipeMeta*>(meta.unsafeGetTensorImpl()->get_backend_meta());
  return held ? held->recipe : InitRecipe{};
}

void run_meta_init(const std::function<std::shared_ptr<torch::nn::Module>()>& build) {
  Tracer tracer;
  tracer.section = ir::Section::Init;
  std::shared_ptr<torch::nn::Module> module;
  tracer.run([&] { module = build(); });
  SFSDP_CHECK(module != nullptr, "meta_init built no module");

  std::vector<std::pair<at::Tensor, const ir::Value*>> values;
  const auto remember = [&](const at::Tensor& t) {
    if (t.defined() && t.is_meta()) values.emplace_back(t, tracer.value_of(t));
  };
  for (const auto& p : module->named_parameters()) remember(p.value());
  for (const auto& b : module->named_buffers()) remember(b.value());
  auto program = std::make_shared<InitProgram>();
  program->graph = std::move(tracer.graph);
  program->constants = std::move(tracer.constants);
  for (const auto& [tensor, value] : values) {
    auto held = c10::make_intrusive<RecipeMeta>();
    held->recipe = {program, value};
    tensor.unsafeGetTensorImpl()->set_backend_meta(held);
  }
}

}  // namespace sfsdp::capture
