// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/models/exported/exported_module.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/exported/size_expression.h"
#include "sfsdp/models/exported/scalar_types.h"

namespace sfsdp::models {
namespace {

// A step of a path: torch::nn has modules without a type of their own for what only holds others.
struct ExportedPart : torch::nn::Module {};

[[noreturn]] void refuse_name(const exported::Program& program, const std::string& name, const std::string& why) {
  throw UserError(concat(program.archive.path(), ": a tensor is named ", quote_safe(name), ", ", why,
                         "\n  expected paths such as layers.0.weight"));
}

// One tensor is trained as a whole or not at all.
[[noreturn]] void refuse_tie(const exported::Program& program, const exported::StateTensor& a,
                             const exported::StateTensor& b) {
  throw UserError(concat(program.archive.path(), ": ", a.name, " and ", b.name, " are one tensor, and ",
                         (a.requires_grad ? b : a).name,
                         " has requires_grad = False\n  expected one Parameter under both",
                         " names, or two tensors: nn.Parameter(weight.detach().clone(), requires_grad=False)"));
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

// Holds the sizes of a batch against those that the graph was exported for: numbers, symbols, what is computed of symbols.
class InputSizes {
 public:
  InputSizes(const exported::Program& program, const std::vector<at::Tensor>& inputs)
      : program_(program), inputs_(inputs) {}

  //   throws: UserError naming input, expected and got
  void check() {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const exported::TensorMeta& meta = meta_of(i);
      if (inputs_[i].scalar_type() != scalar_type_of(meta.dtype))
        refuse(i, concat(scalar_type_of(meta.dtype), ", as the model was exported with"));
      if (static_cast<size_t>(inputs_[i].dim()) != meta.sizes.size())
        refuse(i, concat(meta.sizes.size(), " dimensions"));
      for (size_t d = 0; d < meta.sizes.size(); ++d) check_number(i, d);
    }
    // Symbols first, then what is computed of them; what two are computed of may wait for one that is computed of one.
    for (const bool symbols : {true, false, false})
      for (size_t i = 0; i < inputs_.size(); ++i)
        for (size_t d = 0; d < meta_of(i).sizes.size(); ++d) check_expression(i, d, symbols);
    for (const exported::Program::Range& range : program_.ranges) check_range(range);
  }

 private:
  const exported::TensorMeta& meta_of(size_t input) const {
    return *program_.graph.values[static_cast<size_t>(program_.inputs[input].slot)].tensor;
  }
  [[noreturn]] void refuse(size_t input, const std::string& expected) const {
    throw UserError(concat("input ", program_.inputs[input].name, " of ", program_.archive.path(), " is ",
                           inputs_[input].scalar_type(), " ", inputs_[input].sizes(), "\n  expected ", expected));
  }

  void check_number(size_t input, size_t d) const {
    const exported::SymInt& size = meta_of(input).sizes[d];
    if (size.expr.empty() && inputs_[input].size(static_cast<int64_t>(d)) != size.value)
      refuse(input, concat(size.value, " in dimension ", d,
                           ", which was baked into the graph; to train with other sizes export it with"
                           " dynamic_shapes={\"",
                           program_.inputs[input].name, "\": {", d, ": torch.export.Dim(\"size\")}}"));
  }

  // What a text is by what is known; of another form it is a symbol of its own.
  std::optional<exported::SizeExpression::Line> line_of(const std::string& text) const {
    if (const auto expression = exported::SizeExpression::parse(text)) return expression->at(known_);
    const auto found = known_.find(text);
    if (found == known_.end()) return exported::SizeExpression::Line{1, 0, text};
    return exported::SizeExpression::Line{0, found->second, ""};
  }

  void check_expression(size_t input, size_t d, bool symbols) {
    const std::string& text = meta_of(input).sizes[d].expr;
    if (text.empty()) return;
    const int64_t got = inputs_[input].size(static_cast<int64_t>(d));
    const auto line = line_of(text);
    if (!line || (symbols && line->unknown != text && !known_.contains(text))) return;
    if (line->unknown.empty()) {
      if (line->constant == got) return;
      refuse(input, known_.contains(text) ? concat(line->constant, " in dimension ", d, ": the graph has one size ",
                                                   text, " for it and for another")
                                          : concat(line->constant, " in dimension ", d, ": the graph has the size ",
                                                   text, " there", known_text()));
    }
    int64_t above = 0;
    if (__builtin_sub_overflow(got, line->constant, &above) || above % line->factor != 0)
      refuse(input, concat(text, " in dimension ", d, ", for some whole ", line->unknown));
    known_[line->unknown] = above / line->factor;
  }

  std::string known_text() const {
    std::vector<std::string> texts;
    for (const auto& [symbol, value] : known_) texts.push_back(concat(symbol, " = ", value));
    return texts.empty() ? "" : concat(", and ", join(texts, ", "));
  }

  void check_range(const exported::Program::Range& range) const {
    const auto line = line_of(range.symbol);
    if (!line || !line->unknown.empty()) return;
    if ((range.min && line->constant < *range.min) || (range.max && line->constant > *range.max))
      throw UserError(concat("a size of the batch is ", line->constant, "\n  expected ",
                             range.min ? std::to_string(*range.min) : "0", " to ",
                             range.max ? std::to_string(*range.max) : "any", ", as ", program_.archive.path(),
                             " was exported for ", range.symbol));
  }

  const exported::Program& program_;
  const std::vector<at::Tensor>& inputs_;
  std::map<std::string, int64_t> known_;  // symbols, and texts of another form
};

// Place in program.state of what an output is written to, after run_decompositions.
size_t written_state(const exported::Program& program, const exported::OutputValue& output) {
  const auto found = std::ranges::find(program.state, output.name, &exported::StateTensor::name);
  const auto* value = std::get_if<exported::ValueArgument>(&output.value);
  const auto refuse = [&](const std::string& got, const std::string& expected) {
    throw UserError(concat(program.archive.path(), ": an output is written to the buffer ", quote_safe(output.name),
                           ", ", got, "\n  expected ", expected));
  };
  if (found == program.state.end() || found->kind != exported::StateTensor::Kind::Buffer)
    refuse("which the program does not have", "one of its buffers");
  const auto* meta = value && value->slot != exported::kNone
                         ? &program.graph.values[static_cast<size_t>(value->slot)].tensor
                         : nullptr;
  if (!meta || !*meta) refuse("but is no tensor", "a tensor of its sizes");
  const exported::TensorMeta& tensor = **meta;
  const bool same = tensor.dtype == found->dtype &&
                    std::ranges::equal(tensor.sizes, found->sizes, [](const exported::SymInt& size, int64_t expected) {
                      return size.expr.empty() && size.value == expected;
                    });
  if (!same) refuse("but has other sizes or another dtype", concat(ir::Type::tensor(found->dtype, found->sizes)));
  return static_cast<size_t>(found - program.state.begin());
}

}  // namespace

ExportedModuleImpl::Side ExportedModuleImpl::side_of(std::shared_ptr<const exported::Program> program) {
  const exported::Program& read = *program;
  Side side{std::move(program), ExportedGraph(read.graph)};
  side.state.resize(read.state.size());
  for (size_t i = 0; i < read.outputs.size(); ++i)
    if (read.outputs[i].kind == exported::OutputValue::Kind::BufferMutation)
      side.writes.push_back({i, written_state(read, read.outputs[i])});
  for (size_t i = 0; i < read.inputs.size(); ++i) side.inputs.push_back(i);
  for (const exported::OutputValue& output : read.outputs)
    if (output.kind == exported::OutputValue::Kind::User) side.output_names.push_back(output.name);
  return side;
}

ExportedModuleImpl::ExportedModuleImpl(std::shared_ptr<const exported::Program> program,
                                       std::optional<ir::DType> stored,
                                       std::shared_ptr<const exported::Program> evaluation)
    : torch::nn::Module("ExportedModule"), stored_(stored), training_(side_of(std::move(program))) {
  for (size_t i = 0; i < training_.state.size(); ++i) register_state(training_.program->state[i], i);
  if (!evaluation) return;
  evaluation_.emplace(side_of(std::move(evaluation)));
  share_state();
}

// Evaluation reads what training writes, by name.
void ExportedModuleImpl::share_state() {
  const exported::Program &training = *training_.program, &evaluation = *evaluation_->program;
  const auto refuse = [&](const std::string& what) {
    throw UserError(concat(evaluation.archive.path(), " ", what, "\n  expected the model of ", training.archive.path(),
                           ", exported after eval()"));
  };
  for (size_t i = 0; i < evaluation.state.size(); ++i) {
    const exported::StateTensor& tensor = evaluation.state[i];
    if (tensor.kind == exported::StateTensor::Kind::Constant) {
      evaluation_->state[i] = read_constant(evaluation, tensor);
      continue;
    }
    const auto same = std::ranges::find(training.state, tensor.name, &exported::StateTensor::name);
    if (same == training.state.end() || same->kind != tensor.kind)
      refuse(concat("reads ", quote_safe(tensor.name), ", which ", training.archive.path(), " does not have"));
    if (same->sizes != tensor.sizes || same->dtype != tensor.dtype)
      refuse(concat("has ", tensor.name, " as ", ir::Type::tensor(tensor.dtype, tensor.sizes), ", not ",
                    ir::Type::tensor(same->dtype, same->sizes)));
    evaluation_->state[i] = training_.state[static_cast<size_t>(same - training.state.begin())];
  }
  for (size_t i = 0; i < evaluation.inputs.size(); ++i) {
    const auto same = std::ranges::find(training.inputs, evaluation.inputs[i].name, &exported::InputTensor::name);
    if (same == training.inputs.end()) refuse(concat("has an input ", quote_safe(evaluation.inputs[i].name)));
    evaluation_->inputs[i] = static_cast<size_t>(same - training.inputs.begin());
  }
}

torch::nn::Module& ExportedModuleImpl::module_of(const std::string& path) {
  torch::nn::Module* module = this;
  if (path.empty()) return *module;
  for (const std::string& step : split(path, '.')) {
    if (step.empty()) refuse_name(*training_.program, path, "with an empty part");
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
    training_.state[place] = read_constant(*training_.program, tensor);
    return;
  }
  const size_t dot = tensor.name.rfind('.');
  torch::nn::Module& owner = module_of(dot == std::string::npos ? "" : tensor.name.substr(0, dot));
  const std::string name = dot == std::string::npos ? tensor.name : tensor.name.substr(dot + 1);
  if (name.empty()) refuse_name(*training_.program, tensor.name, "which ends in a dot");
  at::Tensor made;
  for (size_t i = 0; i < place && !made.defined(); ++i) {
    const exported::StateTensor& other = training_.program->state[i];
    if (!exported::is_tied(other, tensor)) continue;
    if (other.kind == Kind::Parameter && tensor.kind == Kind::Parameter && other.requires_grad != tensor.requires_grad)
      refuse_tie(*training_.program, other, tensor);
    made = training_.state[i];
  }
  const bool casts = stored_ && tensor.kind == Kind::Parameter && ir::is_floating(tensor.dtype);
  if (!made.defined())
    made = at::zeros(tensor.sizes, at::TensorOptions(scalar_type_of(casts ? *stored_ : tensor.dtype)));
  try {
    if (tensor.kind == Kind::Parameter)
      training_.state[place] = owner.register_parameter(name, made, tensor.requires_grad && made.is_floating_point());
    else
      training_.state[place] = owner.register_buffer(name, made);
  } catch (const c10::Error& error) {
    refuse_name(*training_.program, tensor.name, error.what_without_backtrace());
  }
}

std::vector<at::Tensor> ExportedModuleImpl::forward(const std::vector<at::Tensor>& given) {
  const Side& side = running();
  const exported::Program& program = *side.program;
  SFSDP_CHECK(given.size() == training_.program->inputs.size(), given.size(), " inputs for ",
              training_.program->inputs.size());
  std::vector<at::Tensor> inputs;
  for (const size_t place : side.inputs) inputs.push_back(given[place]);
  InputSizes(program, inputs).check();
  std::vector<c10::IValue> values(program.graph.values.size());
  for (const auto& [slot, place] : program.state_inputs) {
    const bool written = std::ranges::find(side.writes, place, &Side::Write::place) != side.writes.end();
    // Backward may read what a written buffer was before.
    values[static_cast<size_t>(slot)] = written ? side.state[place].clone() : side.state[place];
  }
  for (size_t i = 0; i < inputs.size(); ++i) values[static_cast<size_t>(program.inputs[i].slot)] = inputs[i];
  std::vector<c10::IValue> arguments;
  for (const exported::Slot slot : program.graph.inputs)
    arguments.push_back(slot == exported::kNone ? c10::IValue() : values[static_cast<size_t>(slot)]);
  const std::vector<c10::IValue> results = side.graph.run(arguments, is_training());
  {
    const at::NoGradGuard no_grad;
    for (const auto& [output, place] : side.writes) {
      at::Tensor buffer = side.state[place];
      buffer.copy_(results.at(output).toTensor());
    }
  }
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < results.size() && i < program.outputs.size(); ++i)
    if (program.outputs[i].kind == exported::OutputValue::Kind::User)
      outputs.push_back(results[i].isTensor() ? results[i].toTensor() : at::Tensor());
  return outputs;
}

}  // namespace sfsdp::models
