// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/modules_torch.h"

#include "sfsdp/testing/module_rows_torch.h"

namespace sfsdp::testing {

HarnessImpl::HarnessImpl(const std::shared_ptr<nn::Module>& module, const Tensors& examples) {
  register_module("module", module);
  for (size_t i = 0; i < examples.size(); ++i)
    inputs.push_back(examples[i].requires_grad()
                         ? register_parameter("input" + std::to_string(i), examples[i].detach().clone())
                         : examples[i]);
}

std::shared_ptr<HarnessImpl> build(const ModuleRow& row, std::function<Tensor(const Tensors&)>& loss) {
  at::manual_seed(3);
  BuiltModule built = row.build();
  loss = built.loss;
  return std::make_shared<HarnessImpl>(built.module, row.inputs);
}

std::vector<ModuleRow> module_rows() {
  at::manual_seed(1);
  std::vector<ModuleRow> rows;
  for (const auto& some : {activations(), layers(), images(), pools(), sequences(), losses()})
    rows.insert(rows.end(), some.begin(), some.end());
  return rows;
}

CapturedModule capture_module(const ModuleRow& row) {
  std::function<Tensor(const Tensors&)> loss;
  auto harness = build(row, loss);
  CapturedModule captured;
  for (const Tensor& t : row.inputs)
    if (!t.requires_grad()) captured.batch.push_back(t);
  captured.state = capture::take_state(*harness);
  const auto traced = [&](const capture::Batch& batch) {
    Tensors inputs = harness->inputs;
    size_t next = 0;
    for (size_t i = 0; i < inputs.size(); ++i)
      if (!row.inputs[i].requires_grad()) inputs[i] = batch[next++];
    return capture::LossValue{loss(inputs), {}};
  };
  captured.step = capture::capture_step(*harness, captured.state, traced, captured.batch, {});
  return captured;
}

}  // namespace sfsdp::testing
