// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/step/write_pt2.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/version.h>

#include <algorithm>
#include <cstring>

#include "sfsdp/base/check.h"
#include "sfsdp/base/durable_file.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/exec/aten_call.h"
#include "sfsdp/exported/of_graphs.h"
#include "sfsdp/exported/sizes.h"

namespace sfsdp::step {
namespace {

using capture::Batch;
using exported::OpSignature;
using exported::Sizes;

std::span<const std::byte> bytes_in(const at::Tensor& t, int64_t begin, int64_t end) {
  const auto element = static_cast<int64_t>(t.itemsize());
  return {static_cast<const std::byte*>(t.const_data_ptr()) + begin * element,
          static_cast<size_t>((end - begin) * element)};
}

OpSignature::Kind kind_of(const c10::Argument& argument) {
  using Kind = OpSignature::Kind;
  if (capture::takes_tensor(argument)) return Kind::Tensor;
  if (capture::takes_tensor_list(argument)) return Kind::TensorList;
  const c10::TypePtr& type = argument.real_type();
  const auto* optional = type->castRaw<c10::OptionalType>();
  switch ((optional ? optional->getElementType() : type)->kind()) {
    case c10::TypeKind::ScalarTypeType: return Kind::DType;
    case c10::TypeKind::MemoryFormatType: return Kind::MemoryFormat;
    case c10::TypeKind::LayoutType: return Kind::Layout;
    case c10::TypeKind::DeviceObjType: return Kind::Device;
    default: return Kind::Other;
  }
}

OpSignature signature_of(const std::string& opcode) {
  const c10::OperatorHandle op = exec::find_op(opcode);
  OpSignature signature;
  for (const c10::Argument& argument : op.schema().arguments())
    signature.parameters.push_back({argument.name(), kind_of(argument), argument.kwarg_only()});
  const auto& returns = op.schema().returns();
  signature.returns_list = returns.size() == 1 && capture::takes_tensor_list(returns[0]);
  return signature;
}

// The names of the sizes that may vary, in the order in which inputs have them.
std::vector<exported::Symbol> symbols_of(const Batch& example, const Pt2Options& options) {
  std::vector<exported::Symbol> symbols;
  if (options.sizes.size() > example.size())
    throw UserError(concat("Pt2Options::sizes has ", options.sizes.size(), " lists\n  expected one for each of ",
                           example.size(), " inputs"));
  for (size_t i = 0; i < options.sizes.size(); ++i) {
    if (static_cast<int64_t>(options.sizes[i].size()) > example[i].dim())
      throw UserError(concat("Pt2Options::sizes names ", options.sizes[i].size(), " dimensions of input ", i,
                             "\n  expected at most ", example[i].dim()));
    for (const std::string& name : options.sizes[i]) {
      if (name.empty() || std::ranges::find(symbols, name, &exported::Symbol::name) != symbols.end()) continue;
      const auto range = options.ranges.find(name);
      symbols.push_back({name, 1, std::nullopt});
      if (range != options.ranges.end()) symbols.back().min = range->second.min, symbols.back().max = range->second.max;
    }
  }
  for (const auto& [name, range] : options.ranges)
    if (std::ranges::find(symbols, name, &exported::Symbol::name) == symbols.end() || range.min < 1)
      throw UserError(concat("Pt2Options::ranges has ", name, " from ", range.min,
                             "\n  expected names that Pt2Options::sizes has, and sizes of at least 1"));
  return symbols;
}

Batch batch_at(const Batch& example, const Pt2Options& options, const Sizes& sizes, size_t point) {
  Batch batch;
  for (size_t i = 0; i < example.size(); ++i) {
    std::vector<int64_t> shape = example[i].sizes().vec();
    for (size_t d = 0; i < options.sizes.size() && d < options.sizes[i].size(); ++d) {
      const auto symbol = std::ranges::find(sizes.symbols(), options.sizes[i][d], &exported::Symbol::name);
      if (symbol != sizes.symbols().end())
        shape[d] = sizes.points()[point][static_cast<size_t>(symbol - sizes.symbols().begin())];
    }
    batch.push_back(at::empty(shape, example[i].options().device(at::kMeta)));
  }
  return batch;
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.numel() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

void check_same_constants(const std::vector<at::Tensor>& first, const std::vector<at::Tensor>& other) {
  for (size_t i = 0; i < first.size() && i < other.size(); ++i)
    if (!same_bytes(first[i], other[i]))
      throw UserError(
          concat("the forward makes a constant of shape ", first[i].sizes(), " that is another at other sizes, ",
                 other[i].sizes(),
                 "\n  expected one that does not depend on them; make it of ops on the inputs, or without a device"));
}

std::vector<std::string> names_of(const Batch& example, const Pt2Options& options) {
  if (!options.inputs.empty()) {
    if (options.inputs.size() != example.size())
      throw UserError(concat("Pt2Options::inputs has ", options.inputs.size(), " names\n  expected ", example.size()));
    return options.inputs;
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < example.size(); ++i) names.push_back(concat("input_", i));
  return names;
}

// A whole tensor at a time, in the dtype and order of the archive.
class Values {
 public:
  Values(const std::vector<capture::StateTensor>& state, const Pt2Options& options) : options_(options) {
    for (const auto& s : state) own_[s.name] = s.value;
  }
  std::span<const std::byte> operator()(const exported::StateTensor& t, int64_t begin, int64_t end) {
    if (name_ != t.name) {
      const at::Tensor value = options_.values ? options_.values(t.name) : own_.at(t.name);
      if (!value.defined())
        throw UserError(
            concat("write_pt2: there are no values of ", t.name,
                   "\n  expected a module with real weights, or Pt2Options::values: those of a compiled module are"
                   " in its Step, step.gather(path)"));
      if (value.sizes() != at::IntArrayRef(t.sizes))
        throw UserError(concat("write_pt2: the values of ", t.name, " have shape ", value.sizes(), "\n  expected ",
                               at::IntArrayRef(t.sizes)));
      tensor_ = value.detach().to(at::kCPU, capture::scalar_type_of(t.dtype)).contiguous();
      name_ = t.name;
    }
    return bytes_in(tensor_, begin, end);
  }

 private:
  const Pt2Options& options_;
  std::map<std::string, at::Tensor> own_;
  std::string name_;  // of the tensor that is held
  at::Tensor tensor_;
};

}  // namespace

CapturedProgram capture_program(torch::nn::Module& module, const std::vector<capture::StateTensor>& state,
                                const capture::ForwardFunction& forward, const Batch& example,
                                const Pt2Options& options) {
  const Sizes sizes(symbols_of(example, options));
  const auto dtype = options.dtype ? std::optional(capture::dtype_of(*options.dtype)) : std::nullopt;
  CapturedProgram program;
  std::vector<ir::Graph> graphs;
  for (size_t point = 0; point < Sizes::kPoints; ++point) {
    auto captured = capture::capture_forward(module, state, forward, batch_at(example, options, sizes, point), dtype);
    graphs.push_back(std::move(captured.graph));
    if (point == 0)
      program.constants = std::move(captured.constants);
    else
      check_same_constants(program.constants, captured.constants);
  }
  exported::CapturedForward captured = {graphs, names_of(example, options), {}};
  for (const auto& s : state)
    if (!s.other_names.empty()) captured.tied[s.name] = s.other_names;
  program.contents = exported::contents_of(captured, sizes, signature_of);
  return program;
}

void write_archive(const CapturedProgram& program, const std::string& path, const exported::ReadElements& values) {
  std::map<std::string, at::Tensor> constants;
  for (size_t i = 0; i < program.constants.size(); ++i)
    constants[concat("constant_", i)] = program.constants[i].contiguous();
  const exported::ReadElements read = [&](const exported::StateTensor& t, int64_t begin, int64_t end) {
    if (t.kind == exported::StateTensor::Kind::Constant) return bytes_in(constants.at(t.name), begin, end);
    return values(t, begin, end);
  };
  const auto write = [&](const exported::WriteBytes& to) {
    exported::write_program(program.contents, TORCH_VERSION, read, to);
  };
  if (path.empty()) return write([](std::span<const std::byte>, uint64_t) {});
  write_new_file(path, [&](int file, const std::string& name) {
    write([&](std::span<const std::byte> bytes, uint64_t offset) {
      write_file(file, bytes, static_cast<int64_t>(offset), name);
    });
  });
}

void write_pt2(torch::nn::Module& module, const capture::ForwardFunction& forward, const Batch& example,
               const std::string& path, const Pt2Options& options) {
  const auto state = capture::look_at_state(module);
  const CapturedProgram program = capture_program(module, state, forward, example, options);
  Values values(state, options);
  write_archive(program, path, std::ref(values));
}

}  // namespace sfsdp::step
