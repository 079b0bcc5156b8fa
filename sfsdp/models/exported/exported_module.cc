// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/models/exported/exported_module.h"

#include <ATen/ATen.h>

#include <map>
#include <span>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/models/exported/scalar_types.h"

namespace sfsdp::models {
namespace {

// A step of a path: torch::nn has modules without a type of their own for what only holds others.
struct ExportedPart : torch::nn::Module {};

[[noreturn]] void refuse_name(const exported::Program& program, const std::string& name, const std::string& why) {
  throw UserError(concat(program.archive.path(), ": a tensor is named ", quote_safe(name), ", ", why,
                         "\n  expected paths such as layers.0.weight"));
}

// The values of a constant, read whole: they are a part of the graph.
at::Tensor read_constant(const exported::Program& program, const exported::StateTensor& t) {
  const exported::ZipEntry& entry = program.archive.entries()[t.entry];
  const at::TensorOptions options(scalar_type_of(t.dtype));
  at::Tensor storage =
      at::empty({static_cast<int64_t>(entry.bytes) / ir::size_in_bytes(t.dtype)}, options.device(at::kCPU));
  program.archive.read(entry, 0,
                       {static_cast<std::byte*>(storage.mutable_data_ptr()), static_cast<size_t>(storage.nbytes())});
  return at::as_strided(storage, t.sizes, t.strides, t.offset).clone();
}

}  // namespace

ExportedModuleImpl::ExportedModuleImpl(std::shared_ptr<const exported::Program> program,
                                       std::optional<ir::DType> stored)
    : torch::nn::Module("ExportedModule"), program_(std::move(program)), stored_(stored), graph_(program_->graph) {
  state_.resize(program_->state.size());
  for (size_t i = 0; i < state_.size(); ++i) register_state(program_->state[i], i);
  for (const exported::OutputValue& output : program_->outputs)
    if (output.kind == exported::OutputValue::Kind::User) output_names_.push_back(output.name);
}

torch::nn::Module& ExportedModuleImpl::module_of(const std::string& path) {
  torch::nn::Module* module = this;
  if (path.empty()) return *module;
  for (const std::string& step : split(path, '.')) {
    if (step.empty()) refuse_name(*program_, path, "with an empty part");
    std::shared_ptr<torch::nn::Module> next;
    for (const auto& child : module->named_children())
      if (child.key() == step) next = child.value();
    if (!next) next = module->register_module(step, std::make_shared<ExportedPart>());
    module = next.get();
  }
  return *module;
}

void ExportedModuleImpl::register_state(const exported::StateTensor& tensor, size_t place) {
  using Kind = exported::StateTensor::Kind;
  if (tensor.kind == Kind::Constant) {
    state_[place] = read_constant(*program_, tensor);
    return;
  }
  const size_t dot = tensor.name.rfind('.');
  torch::nn::Module& owner = module_of(dot == std::string::npos ? "" : tensor.name.substr(0, dot));
  const std::string name = dot == std::string::npos ? tensor.name : tensor.name.substr(dot + 1);
  if (name.empty()) refuse_name(*program_, tensor.name, "which ends in a dot");
  at::Tensor made;
  for (size_t i = 0; i < place && !made.defined(); ++i)
    if (exported::is_tied(program_->state[i], tensor)) made = state_[i];
  const bool casts = stored_ && tensor.kind == Kind::Parameter && ir::is_floating(tensor.dtype);
  if (!made.defined())
    made = at::zeros(tensor.sizes, at::TensorOptions(scalar_type_of(casts ? *stored_ : tensor.dtype)));
  try {
    if (tensor.kind == Kind::Parameter)
      state_[place] = owner.register_parameter(name, made, tensor.requires_grad && made.is_floating_point());
    else
      state_[place] = owner.register_buffer(name, made);
  } catch (const c10::Error& error) {
    refuse_name(*program_, tensor.name, error.what_without_backtrace());
  }
}

void ExportedModuleImpl::check_inputs(const std::vector<at::Tensor>& inputs) const {
  SFSDP_CHECK(inputs.size() == program_->inputs.size(), inputs.size(), " inputs for ", program_->inputs.size());
  std::map<std::string, int64_t> symbols;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const exported::InputTensor& input = program_->inputs[i];
    const exported::TensorMeta& meta = *program_->graph.values[static_cast<size_t>(input.slot)].tensor;
    const auto refuse = [&](const std::string& expected) {
      throw UserError(concat("input ", input.name, " of ", program_->archive.path(), " is ", inputs[i].scalar_type(),
                             " ", inputs[i].sizes(), "\n  expected ", expected));
    };
    if (inputs[i].scalar_type() != scalar_type_of(meta.dtype))
      refuse(concat(scalar_type_of(meta.dtype), ", as the model was exported with"));
    if (static_cast<size_t>(inputs[i].dim()) != meta.sizes.size()) refuse(concat(meta.sizes.size(), " dimensions"));
    for (size_t d = 0; d < meta.sizes.size(); ++d) {
      const exported::SymInt& size = meta.sizes[d];
      const int64_t got = inputs[i].size(static_cast<int64_t>(d));
      if (size.expr.empty() && got != size.value)
        refuse(concat(size.value, " in dimension ", d,
                      ", which was baked into the graph; to train with other sizes export"
                      " it with dynamic_shapes={\"",
                      input.name, "\": {", d, ": torch.export.Dim(\"size\")}}"));
      if (size.expr.empty()) continue;
      const auto [known, fresh] = symbols.emplace(size.expr, got);
      if (!fresh && known->second != got)
        refuse(concat(known->second, " in dimension ", d, ": the graph has one size ", size.expr,
                      " for it and for another"));
    }
  }
  for (const exported::Program::Range& range : program_->ranges) {
    const auto found = symbols.find(range.symbol);
    if (found == symbols.end()) continue;
    if ((range.min && found->second < *range.min) || (range.max && found->second > *range.max))
      throw UserError(concat("a size of the batch is ", found->second, "\n  expected ",
                             range.min ? std::to_string(*range.min) : "0", " to ",
                             range.max ? std::to_string(*range.max) : "any", ", as ", program_->archive.path(),
                             " was exported for ", range.symbol));
  }
}

std::vector<at::Tensor> ExportedModuleImpl::forward(const std::vector<at::Tensor>& inputs) {
  check_inputs(inputs);
  std::vector<c10::IValue> values(program_->graph.values.size());
  for (const auto& [slot, place] : program_->state_inputs) values[static_cast<size_t>(slot)] = state_[place];
  for (size_t i = 0; i < inputs.size(); ++i) values[static_cast<size_t>(program_->inputs[i].slot)] = inputs[i];
  std::vector<c10::IValue> arguments;
  for (const exported::Slot slot : program_->graph.inputs)
    arguments.push_back(slot == exported::kNone ? c10::IValue() : values[static_cast<size_t>(slot)]);
  const std::vector<c10::IValue> results = graph_.run(arguments, is_training());
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < results.size() && i < program_->outputs.size(); ++i)
    if (program_->outputs[i].kind == exported::OutputValue::Kind::User)
      outputs.push_back(results[i].isTensor() ? results[i].toTensor() : at::Tensor());
  return outputs;
}

}  // namespace sfsdp::models
