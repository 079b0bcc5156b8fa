// SPDX-License-Identifier: BSD-3-Clause
// `sfsdp export` of a model of models/: its forward is captured, its weights are those of a checkpoint, which says what model
// it is.
#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <ostream>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/models/registry.h"
#include "sfsdp/step/write_pt2.h"
#include "sfsdp/tools/commands.h"
#include "sfsdp/train/checkpoint/stretch_reader.h"
#include "sfsdp/train/weights/adapter_values.h"

namespace sfsdp::tools {
namespace {

using train::checkpoint::Manifest;
using train::checkpoint::StoredTensor;

// The inverse of train::texts_of_args.
models::Arg arg_of(const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  if (const auto whole = parse_int(text)) return *whole;
  if (const auto real = parse_double(text)) return *real;
  return text;
}

models::ModelSpec spec_of(const Manifest& manifest, const std::string& checkpoint) {
  if (manifest.model != "llama3" && manifest.model != "gpt")
    throw UserError(concat(checkpoint, ": its model is ",
                           manifest.model.empty() ? "not said" : quote_safe(manifest.model),
                           "\n  expected llama3 or gpt; or --archive, the file that the run was given as model.path"));
  models::ModelSpec spec{manifest.model, "", {}};
  for (const auto& [name, text] : manifest.model_args)
    if (name != train::kLoraAlpha) spec.args[name] = arg_of(text);
  return spec;
}

// As the parameters are stored, which all have one dtype.
ir::DType stored_dtype(const Manifest& manifest) {
  for (const StoredTensor& t : manifest.tensors)
    if (t.kind == train::checkpoint::TensorKind::Parameter && ir::is_floating(t.dtype)) return t.dtype;
  return ir::DType::f32;
}

const StoredTensor& stored_as(const Manifest& manifest, const exported::StateTensor& t, const std::string& checkpoint) {
  const StoredTensor* stored = manifest.find(t.name);
  if (!stored || stored->shape != t.sizes)
    throw UserError(concat(checkpoint, ": ",
                           stored ? concat(t.name, " has another shape") : concat("there is no ", t.name),
                           "\n  expected the parameters of the model that it says it is of"));
  return *stored;
}

}  // namespace

int run_export_model(const Request& request, std::ostream& out, std::ostream&) {
  const auto& operands = request.own.operands;
  if (operands.size() != 2)
    throw UserError("sfsdp export: expected CHECKPOINT and OUT, such as outputs/checkpoint/step-100 trained.pt2");
  choice_of(request, "format", {"pt2"});
  train::checkpoint::StretchReader stored(operands[0]);
  const Manifest& manifest = stored.manifest();
  const ir::DType dtype =
      request.has("dtype") ? train::checkpoint::parse_export_dtype(request.get("dtype")) : stored_dtype(manifest);
  models::LanguageModel model;
  capture::run_meta_init([&] {
    model = models::make_language_model(spec_of(manifest, operands[0]));
    return model.module;
  });
  Pt2Options options;
  options.sizes = {{"batch", "length"}};
  options.ranges["length"] = {1, model.max_length};
  options.inputs = {"tokens"};
  options.dtype = capture::scalar_type_of(dtype);
  const step::CapturedProgram program = step::capture_program(
      *model.module, capture::look_at_state(*model.module),
      [&](const capture::Batch& batch) { return std::vector<at::Tensor>{model.forward(batch[0], {})}; },
      {at::empty({1, 1}, at::TensorOptions(at::kLong).device(at::kMeta))}, options);
  train::MergedReader reader(stored, request.has("merge"));
  step::write_archive(program, operands[1], [&](const exported::StateTensor& t, int64_t begin, int64_t end) {
    train::checkpoint::Piece piece = train::checkpoint::piece_of(stored_as(manifest, t, operands[0]));
    piece.dtype = t.dtype;
    return reader.read(piece, begin, end);
  });
  out << operands[1] << ": pt2, " << manifest.model << " with the weights of " << operands[0] << " in "
      << ir::to_string(dtype) << "\n";
  return 0;
}

}  // namespace sfsdp::tools
