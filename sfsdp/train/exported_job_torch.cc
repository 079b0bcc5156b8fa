// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/exported_job.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/exported/grad_marks.h"
#include "sfsdp/models/exported/exported_module.h"
#include "sfsdp/models/loss.h"
#include "sfsdp/plan/common_runs.h"
#include "sfsdp/train/config/config_resolve.h"
#include "sfsdp/train/data/sample_source.h"
#include "sfsdp/train/trained_parameters_torch.h"
#include "sfsdp/train/weights/adapter_names.h"
#include "sfsdp/train/weights/archive_values.h"
#include "sfsdp/train/weights/float_convert.h"

namespace sfsdp::train {
namespace {

using exported::OutputValue;

[[noreturn]] void refuse(const std::string& what, const std::string& expected) {
  throw UserError(concat(what, "\n  expected ", expected));
}

std::vector<std::string> input_names(const exported::Program& program) {
  std::vector<std::string> names;
  for (const exported::InputTensor& input : program.inputs) names.push_back(input.name);
  return names;
}

// Which tensor of a sample each input of the archive is given: "input_ids=tokens". With dataset = tensors, that of its name.
std::vector<std::string> parts_of(const JobConfig& config, const exported::Program& program) {
  const std::vector<std::string> names = input_names(program);
  std::map<std::string, std::string> given;
  for (const std::string& text : config.model.inputs) {
    const size_t equals = text.find('=');
    const std::string name(trim(std::string_view(text).substr(0, equals)));
    const std::string part(equals == std::string::npos ? "" : trim(std::string_view(text).substr(equals + 1)));
    if (std::ranges::find(names, name) == names.end())
      refuse(concat("model.inputs: ", config.model.path, " has no input ", quote_safe(name)),
             concat(join(names, ", "), did_you_mean(name, names)));
    if (part.empty())
      refuse(concat("model.inputs: ", name, " is given nothing"), concat(name, "=tokens, or another tensor"));
    if (!given.emplace(name, part).second) refuse(concat("model.inputs: ", name, " twice"), "each input once");
  }
  std::vector<std::string> parts;
  for (const std::string& name : names) {
    if (!given.contains(name) && config.training.dataset == "tensors") given[name] = name;
    if (!given.contains(name))
      refuse(concat("model.inputs: nothing is given to input ", quote_safe(name), " of ", config.model.path),
             concat("all of ", join(names, ", "), ", such as --model.inputs ", join(names, "=tokens,"), "=tokens"));
    parts.push_back(given.at(name));
  }
  return parts;
}

std::vector<std::string> output_names(const exported::Program& program) {
  std::vector<std::string> names;
  for (const OutputValue& output : program.outputs)
    if (output.kind == OutputValue::Kind::User) names.push_back(output.name);
  return names;
}

void expect_output(const exported::Program& program, const std::string& name, const char* key) {
  const std::vector<std::string> names = output_names(program);
  if (std::ranges::find(names, name) == names.end())
    refuse(concat("model.", key, ": ", program.archive.path(), " has no output ", quote_safe(name)),
           concat(join(names, ", "), did_you_mean(name, names)));
}

// The outputs that are one floating number.
std::vector<std::string> scalar_outputs(const exported::Program& program) {
  std::vector<std::string> names;
  for (const OutputValue& output : program.outputs) {
    const auto* value = std::get_if<exported::ValueArgument>(&output.value);
    if (output.kind != OutputValue::Kind::User || !value || value->slot == exported::kNone) continue;
    const auto& tensor = program.graph.values[static_cast<size_t>(value->slot)].tensor;
    if (tensor && tensor->sizes.empty() && ir::is_floating(tensor->dtype)) names.push_back(output.name);
  }
  return names;
}

std::string loss_output(const JobConfig& config, const exported::Program& program) {
  if (config.model.loss) return *config.model.loss;
  const std::vector<std::string> scalars = scalar_outputs(program);
  if (std::ranges::find(scalars, "loss") != scalars.end()) return "loss";
  if (scalars.size() == 1) return scalars.front();
  refuse(concat(config.model.path, " has ", scalars.size(), " outputs that are a single number"),
         "a loss: give model.loss its name, give model.logits that of the logits, or export the model with its labels");
}

// Mean over all elements, in float32 or what is wider.
at::Tensor mean_squared_error(const at::Tensor& prediction, const at::Tensor& targets) {
  if (!prediction.defined() || prediction.sizes() != targets.sizes())
    refuse(concat("model.prediction is ", prediction.defined() ? concat(prediction.sizes()) : "no tensor",
                  ", and the tensor targets of the batch ", targets.sizes()),
           "the same sizes");
  const auto dtype = at::promote_types(prediction.scalar_type(), at::kFloat);
  return at::mse_loss(prediction.to(dtype), targets.to(dtype));
}

struct Objective {
  std::string output;                                                                       // of the archive
  const char* key;                                                                          // of [model], that names it
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& targets)> compares;  // empty: it is the loss
};

Objective objective_of(const JobConfig& config, const exported::Program& program) {
  if (config.model.logits) return {*config.model.logits, "logits", models::cross_entropy};
  if (config.model.prediction) return {*config.model.prediction, "prediction", mean_squared_error};
  return {loss_output(config, program), "loss", {}};
}

// A loss that counts some targets alone: our cross entropy of logits, or a loss that the graph computes of its labels.
struct Mask {
  size_t targets = 0;         // their place in the batch, kIgnoredTarget where none counts
  bool in_graph = false;      // the output is the mean over the targets that count, NaN where none does
  bool shifted_there = true;  // the graph takes the first of each row for no target, as models of transformers do

  LossValue loss(const at::Tensor& output, const Batch& batch) const {
    const at::Tensor& all = batch.at(targets);
    if (!in_graph) {
      const models::CountedLoss loss = models::counted_cross_entropy(output, all);
      return {loss.sum, loss.count};
    }
    const at::Tensor read = shifted_there ? all.narrow(1, 1, all.size(1) - 1) : all;
    const at::Tensor count = read.ne(kIgnoredTarget).sum();
    const at::Tensor mean = output.reshape({}).to(at::promote_types(output.scalar_type(), at::kFloat));
    return {at::where(count.gt(0), mean, at::zeros_like(mean)) * count, count};
  }
};

std::optional<Mask> mask_of(const JobConfig& config, const Objective& objective,
                            const std::vector<std::string>& batch) {
  if (!counts_targets(config.training)) return std::nullopt;
  const char* key = config.training.loss_mask ? "training.loss_mask" : "training.document_mask";
  if (config.model.prediction)
    refuse(concat(key, " = true with model.prediction"), "model.logits, or a model.loss of an input given labels");
  const auto place = [&](const char* part) {
    return static_cast<size_t>(std::ranges::find(batch, part) - batch.begin());
  };
  if (config.model.logits) return Mask{place("targets"), false, false};
  if (place("labels") < batch.size()) return Mask{place("labels"), true, true};
  if (place("targets") < batch.size()) return Mask{place("targets"), true, false};
  refuse(
      concat(key, " = true, but no input of ", config.model.path, " is given the mask, and its output ",
             objective.output, " is the loss"),
      "--model.inputs with labels=labels, which are the tokens, or targets, the tokens after them, -100 where the loss"
      " counts none; or model.logits");
}

// Attention would go over the borders of documents in a model that is not told where they are.
void expect_positions(const JobConfig& config, const std::vector<std::string>& batch) {
  if (!config.training.document_mask || std::ranges::find(batch, "positions") != batch.end()) return;
  refuse(
      concat("training.document_mask = true, but no input of ", config.model.path,
             " is given positions: attention would go over the borders of documents"),
      "--model.inputs with NAME=positions, as in position_ids=positions, of a model exported with such an input, which"
      " keeps documents apart by them; or training.document_mask = false");
}

// Rows of the first embedding that reads an input of the batch; 0: there is none.
int64_t vocabulary_of(const exported::Program& program) {
  std::set<exported::Slot> ids;
  for (const exported::InputTensor& input : program.inputs) ids.insert(input.slot);
  for (const exported::Node& node : program.graph.nodes) {
    const bool is_view =
        node.target == "torch.ops.aten.view.default" || node.target == "torch.ops.aten.reshape.default";
    const auto* same = node.inputs.empty() ? nullptr : std::get_if<exported::ValueArgument>(&node.inputs[0].value);
    const auto* made = node.outputs.empty() ? nullptr : std::get_if<exported::ValueArgument>(&node.outputs[0]);
    if (is_view && same && made && ids.contains(same->slot)) ids.insert(made->slot);  // GPT-2 and OPT fold ids first
    if (node.target != "torch.ops.aten.embedding.default" || node.inputs.size() < 2) continue;
    const auto* table = std::get_if<exported::ValueArgument>(&node.inputs[0].value);
    const auto* indices = std::get_if<exported::ValueArgument>(&node.inputs[1].value);
    if (!table || !indices || !ids.contains(indices->slot)) continue;
    const auto& meta = program.graph.values[static_cast<size_t>(table->slot)].tensor;
    if (meta && !meta->sizes.empty()) return meta->sizes[0].value;
  }
  return 0;
}

// A graph casts to the dtype that it was exported in wherever the model says so, and no flag changes that. A model in
// bfloat16 is trained on parameters kept in float32, unless training.dtype asks for bfloat16 throughout.
std::optional<ir::DType> stored_dtype(const JobConfig& config, const exported::Program& program) {
  std::set<std::string_view> dtypes;
  for (const exported::StateTensor& t : program.state)
    if (t.kind == exported::StateTensor::Kind::Parameter && ir::is_floating(t.dtype))
      dtypes.insert(ir::to_string(t.dtype));
  if (dtypes.size() > 1)
    refuse(concat(config.model.path, " has parameters of ", dtypes.size(),
                  " dtypes: ", join(std::vector<std::string>(dtypes.begin(), dtypes.end()), ", ")),
           "one: export the model after model.to(torch.bfloat16) or model.float()");
  const bool half = compute_dtype(config.training) == "bfloat16";
  if (half && !dtypes.contains("bf16"))
    refuse(concat("training.mixed_precision_param = ", config.training.mixed_precision_param, ", training.dtype = ",
                  config.training.dtype, ", but ", config.model.path, " was not exported in bfloat16"),
           "--training.mixed_precision_param float32; or export the model in bfloat16, model.to(torch.bfloat16), as the"
           " casts inside of a graph stay what they were");
  if (!half && dtypes.contains("bf16"))
    refuse(concat(config.model.path, " was exported in bfloat16"), "--training.mixed_precision_param bfloat16");
  if (half && config.training.dtype == "float32") return ir::DType::f32;
  return std::nullopt;
}

// Ids of a sample of the example that the model was exported with; 1 for a model without any.
double tokens_of_sample(const exported::Program& program) {
  double most = 1;
  for (const exported::InputTensor& input : program.inputs) {
    const exported::TensorMeta& meta = *program.graph.values[static_cast<size_t>(input.slot)].tensor;
    double ids = ir::is_floating(meta.dtype) ? 0 : 1;
    for (size_t d = 1; d < meta.sizes.size(); ++d)
      ids *= static_cast<double>(std::max<int64_t>(1, meta.sizes[d].value));
    most = std::max(most, ids);
  }
  return most;
}

// 6 per parameter and token, or per parameter and ids of a sample, 4 if it is frozen; attention is not counted, as an archive
// does not say what is.
std::function<double(int64_t)> flops_of(const JobConfig& config, const exported::Program& program,
                                        const torch::nn::Module& module) {
  const MatrixElements matrices = matrix_elements(module);
  const double tokens = config.training.dataset == "tensors" ? tokens_of_sample(program) : 1;
  return [flops = (6 * matrices.trained + 4 * matrices.frozen) * tokens](int64_t) { return flops; };
}

// A parameter that is to be trained, yet read under torch.no_grad alone, would stay as it is without a word.
void expect_gradients(const exported::Program& program, const torch::nn::Module& module) {
  const auto parameters = module.named_parameters();
  std::vector<std::string> names;
  for (const size_t place : exported::parameters_without_grad(program)) {
    const at::Tensor* parameter = parameters.find(program.state[place].name);
    if (parameter && parameter->requires_grad()) names.push_back(program.state[place].name);
  }
  if (names.empty()) return;
  const size_t shown = std::min<size_t>(names.size(), 3);
  refuse(concat(program.archive.path(), " reads ", names.size(), " parameters where gradients are off: ",
                join({names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown)}, ", "),
                shown < names.size() ? ", …" : ""),
         "a model exported without torch.utils.checkpoint(…, use_reentrant=True), which torch.export writes down so:"
         " python/sfsdp_export.py leaves it out; if they are not to be trained, --model.frozen with their names");
}

std::span<std::byte> bytes_of(const at::Tensor& t) {
  SFSDP_CHECK(t.is_contiguous(), t.sizes());
  return {static_cast<std::byte*>(t.mutable_data_ptr()), static_cast<size_t>(t.nbytes())};
}

void check_finite(const exported::Program& program, const StoredTensor& stored, const plan::Box& box,
                  const at::Tensor& mine) {
  if (const auto first = first_not_finite(bytes_of(mine), capture::dtype_of(mine.scalar_type())))
    refuse(concat(program.archive.path(), ": ", stored.name,
                  " holds infinite values or no numbers, the first of them element ",
                  plan::place_in_whole(stored.global_shape, box, *first)),
           "finite numbers; the file is damaged, or the run that wrote it had diverged");
}

}  // namespace

CompiledJob exported_job(const JobConfig& config) {
  CompiledJob job;
  job.archive = std::make_shared<const exported::Program>(exported::read_program(config.model.path));
  std::shared_ptr<const exported::Program> evaluation;
  if (config.model.eval_path)
    evaluation = std::make_shared<const exported::Program>(exported::read_program(*config.model.eval_path));
  const std::optional<ir::DType> stored = stored_dtype(config, *job.archive);
  job.model_name = "exported";
  job.batch = parts_of(config, *job.archive);
  expect_positions(config, job.batch);
  models::ExportedModule module = meta_init([&] {
    models::ExportedModule built(job.archive, stored, evaluation);
    choose_trained(*built, config, job);
    return built;
  });
  expect_gradients(*job.archive, *module);
  job.checkpointed_blocks = exported::checkpointed_blocks(*job.archive);
  const Objective objective = objective_of(config, *job.archive);
  for (const exported::Program* program : {job.archive.get(), evaluation.get()})
    if (program) expect_output(*program, objective.output, objective.key);
  const size_t inputs = job.batch.size();
  if (objective.compares) {
    job.uncast.push_back(inputs);
    job.batch.emplace_back("targets");
  }
  const std::optional<Mask> mask = mask_of(config, objective, job.batch);
  job.shifts_labels = mask && mask->in_graph && mask->shifted_there;
  job.loss = [module, objective, inputs, mask](const Batch& batch) mutable -> LossValue {
    const Batch given(batch.begin(), batch.begin() + static_cast<std::ptrdiff_t>(inputs));
    const std::vector<std::string>& names = module->output_names();
    const auto place = std::ranges::find(names, objective.output) - names.begin();
    const at::Tensor output = module->forward(given).at(static_cast<size_t>(place));
    if (mask) return mask->loss(output, batch);
    return {objective.compares ? objective.compares(output, batch.at(inputs)) : output, {}};
  };
  job.model.module = module.ptr();
  job.model.vocab_size = config.training.dataset == "tensors" ? 0 : vocabulary_of(*job.archive);
  if (job.model.vocab_size <= 0 && config.training.dataset != "tensors")
    refuse(concat(config.model.path, " has no embedding that reads an input"), "a model of token ids for this dataset");
  job.model.flops_per_token = flops_of(config, *job.archive, *module);
  return job;
}

std::vector<std::string> load_exported_weights(const exported::Program& program, Step& step, bool adapters) {
  const auto start = std::chrono::steady_clock::now();
  std::map<std::string, const exported::StateTensor*> by_name;
  for (const exported::StateTensor& t : program.state) by_name.emplace(t.name, &t);
  const auto state = step.state_dict();
  size_t tensors = 0;
  for (const StoredTensor& stored : step.program().tensors()) {
    if (stored.source < 0 || (adapters && is_adapter(stored.name))) continue;  // the optimizer's, or initialised here
    const auto found = by_name.find(stored.name);
    SFSDP_CHECK(found != by_name.end(), stored.name, " is not in ", program.archive.path());
    const at::Tensor& mine = state.at(stored.name);
    const plan::Box box = step.box_of(stored.name);
    read_archive_values(program.archive, *found->second, box, bytes_of(mine), capture::dtype_of(mine.scalar_type()));
    if (stored.trainable) check_finite(program, stored, box, mine);
    ++tensors;
  }
  step.load_state_dict({});  // whole copies are gathered anew from what was written
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {concat("Weights of ", program.archive.path(), ": ", tensors, " tensors, this rank's part in ",
                 with_commas(seconds, 3), " s")};
}

}  // namespace sfsdp::train
