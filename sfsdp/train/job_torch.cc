// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <ATen/Version.h>
#include <dlfcn.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <set>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/base/version.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/exec/planned/onednn_matmul.h"
#include "sfsdp/exec/planned/products.h"
#include "sfsdp/exec/random_ops.h"
#include "sfsdp/exported/describe.h"
#include "sfsdp/kernels/family.h"
#include "sfsdp/models/loss.h"
#include "sfsdp/passes/print_ir.h"
#include "sfsdp/step/holders.h"
#include "sfsdp/train/checkpoint/left_out.h"
#include "sfsdp/train/config/config_resolve.h"
#include "sfsdp/train/config/step_setup.h"
#include "sfsdp/train/exported_job.h"
#include "sfsdp/train/job.h"
#include "sfsdp/train/job_data.h"
#include "sfsdp/train/trained_parameters_torch.h"
#include "sfsdp/train/weights/adapter_values.h"
#include "sfsdp/train/weights/hf_config_json.h"
#include "sfsdp/train/weights/hf_parameters.h"
#include "sfsdp/train/weights/hf_weights.h"
#include "sfsdp/train/weights/safetensors.h"
#include "sfsdp/tune/simulated.h"

namespace sfsdp::train {

namespace {

// config.json says what the weights were trained as: a flavor that differs would train, only worse.
void check_flavor(const JobConfig& config, const std::map<std::string, models::Arg>& built, const HfConfig& hf,
                  const std::string& folder) {
  if (config.model.name != hf.model)
    throw UserError(concat("model.name = ", config.model.name, ", but ", folder, "/config.json is a ", hf.model,
                           "\n  expected the same; set model.name = hf to take it from there"));
  if (const auto differ = args_that_differ(hf, built); !differ.empty())
    throw UserError(concat("model.flavor = ", config.model.flavor, " is not the model of ", folder,
                           "/config.json: ", join(differ, "; "),
                           "\n  expected the same model.args; set model.name = hf to take them all from there"));
}

LossValue as_loss(const models::CountedLoss& loss) { return {loss.sum, loss.count}; }

// The model on meta tensors and shapes of a batch; no program yet.
CompiledJob uncompiled_job(const JobConfig& config) {
  CompiledJob job;
  if (config.model.name == "exported") return exported_job(config);
  models::ModelSpec spec{config.model.name, config.model.flavor, {}};
  job.hf_folder = initial_hf_folder(config);
  if (!job.hf_folder.empty()) {
    job.hf_config = read_hf_config(job.hf_folder);
    job.notices = job.hf_config->notices;
    check_sliding_window(*job.hf_config, config.training.seq_len, job.hf_folder);
  }
  if (config.model.name == "hf") {
    const HfConfig hf = read_hf_config(config.model.hf_assets_path);
    job.notices = hf.notices;
    check_sliding_window(hf, config.training.seq_len, config.model.hf_assets_path);
    spec = {hf.model, "", {hf.args.begin(), hf.args.end()}};
  }
  job.model_name = spec.name;
  for (const auto& [name, value] : config.model_args) spec.args[name] = value;
  capture::run_meta_init([&] {
    job.model = models::make_language_model(spec);
    if (config.training.dtype == "bfloat16") job.model.module->to(at::kBFloat16);
    choose_trained(*job.model.module, config, job);
    return job.model.module;
  });
  const MatrixElements matrices = matrix_elements(*job.model.module);
  job.model.flops_per_token = [whole = job.model.flops_per_token, other = 6 * matrices.adapters - 2 * matrices.frozen](
                                  int64_t seq_len) { return whole(seq_len) + other; };
  if (job.hf_config && config.model.name != "hf") check_flavor(config, job.model.args, *job.hf_config, job.hf_folder);
  if (job.hf_config && config.model.name == "hf") expect_vocabulary_of(*job.hf_config, job.model.args, job.hf_folder);
  const bool packed = config.training.document_mask;
  job.loss = [forward = job.model.forward, counted = counts_targets(config.training),
              packed](const Batch& batch) -> LossValue {
    const at::Tensor logits = forward(batch[0], packed ? batch[2] : at::Tensor());
    if (counted) return as_loss(models::counted_cross_entropy(logits, batch[1]));
    return {models::cross_entropy(logits, batch[1]), {}};
  };
  job.batch = {"tokens", "targets"};
  if (packed) job.batch.emplace_back("positions");
  return job;
}

size_t place_in(const std::vector<SampleTensor>& layout, const std::string& name) {
  const auto found = std::ranges::find(layout, name, &SampleTensor::name);
  if (found == layout.end()) {
    std::vector<std::string> names;
    for (const SampleTensor& tensor : layout) names.push_back(tensor.name);
    throw UserError(concat("the data has no tensor ", json_quoted(name),
                           "\n  expected one for each input of the model: ", join(names, ", "),
                           did_you_mean(name, names)));
  }
  return static_cast<size_t>(found - layout.begin());
}

std::vector<int64_t> rows_of(const SampleTensor& tensor, int64_t rows) {
  std::vector<int64_t> shape = {rows};
  shape.insert(shape.end(), tensor.shape.begin(), tensor.shape.end());
  return shape;
}

// Only shapes and dtypes of the example are read.
Batch example_of(const JobConfig& config, const CompiledJob& job) {
  const std::vector<SampleTensor> layout = sample_layout(config);
  Batch batch;
  for (const std::string& name : job.batch) {
    const SampleTensor& tensor = layout[place_in(layout, name)];
    batch.push_back(at::empty(rows_of(tensor, given_rows(config.parallelism, config.training.local_batch_size)),
                              at::TensorOptions(capture::scalar_type_of(tensor.dtype)).device(at::kMeta)));
  }
  return batch;
}

// As ir/named_kernels.h names it; "": LibTorch's at::mm. For `measured` what shapes take that were not.
std::string products_of(const std::string& products) {
  using exec::ProductKernel;
  const auto all_by = [&](ProductKernel kernel, const char* expected) {
    if (!exec::has_product(kernel))
      throw UserError(concat("exec.products = ", products, ": this ", expected, ", or measured"));
    return std::string(exec::to_string(kernel));
  };
  if (products == "onednn")
    return all_by(ProductKernel::OneDnn,
                  "LibTorch offers no product of oneDNN on this processor (AVX-512)\n  expected aten");
  if (products == "openblas")
    return all_by(
        ProductKernel::OpenBlas,
        "machine has no libopenblas.so.0 (Debian: libopenblas0-pthread), or the process uses it for something else"
        "\n  expected aten, onednn");
  return products != "aten" && exec::prefers_onednn_matmul(at::kFloat) ? exec::to_string(ProductKernel::OneDnn) : "";
}

// What a clock chooses is not the same in each run.
bool measures_products(const JobConfig& config) {
  return config.exec.products == "measured" && !config.debug.deterministic;
}

// Those of its products, for each shape as the plan's ops name them, and for all others.
void add_products(std::map<std::string, std::string>& kernels, const Program& program) {
  const auto text = [](const std::string& named) { return exec::described(*exec::product_kernel(named)); };
  kernels["products"] = text(program.options().pipeline.kernels.products);
  const Held<const Program::Variant> first = program.first();
  for (const auto& op : first->graph.ops())
    if (const auto shape = ir::product_of(*op))
      kernels[concat("products ", ir::to_string(*shape))] = text(op->attr_or<std::string>("product_kernel", ""));
}

}  // namespace

CompiledJob make_job(const JobConfig& config, int64_t world_size, const JobOptions& job_options) {
  CompiledJob job = uncompiled_job(config);
  job.example = example_of(config, job);
  StepSetup setup = step_setup(config, world_size);
  follow_checkpoints(setup, config, job.checkpointed_blocks);
  job.shares = setup.shares;
  CompileOptions options;
  options.max_norm = setup.options.max_norm;
  options.balance.rate = job.model.load_balance_coeff;
  options.uncast = job.uncast;
  options.micro_batches = setup.options.micro_batches;
  options.tune = setup.options.tune;
  options.pipeline = setup.options.pipeline;
  options.pipeline.fuse.scope = job_options.fuse;
  options.target = job_options.target;
  if (job_options.rank == 0)
    options.pipeline.observer =
        passes::print_ir({config.debug.print_ir_after_all, config.debug.print_ir_diff}, std::cout, std::cerr);
  if (!job_options.measured_on.empty())
    options.pipeline.measure = [machine = cost::load_machine(job_options.measured_on, attention_of(config.model))](
                                   const ir::Graph& graph) { return tune::simulated(graph, machine); };
  options.seed = static_cast<uint64_t>(config.debug.seed.value_or(0));
  options.executor = config.exec.executor == "planned" ? ExecutorKind::Planned : ExecutorKind::Reference;
  if (options.executor == ExecutorKind::Planned && job_options.target.is_cpu) {
    const std::string rule = products_of(config.exec.products);
    if (!measures_products(config)) {
      options.pipeline.kernels.products = rule;
    } else if (job_options.choose_products) {
      options.pipeline.kernels.products = rule;
      options.choose_products = [choose = job_options.choose_products, rule](const auto& shapes) {
        return choose(shapes, rule);
      };
    }
    if (config.exec.attention != "aten") options.pipeline.kernels.attention = "sfsdp.flash";
    if (config.exec.rows != "aten") options.pipeline.kernels.rows = "sfsdp.rows";
    options.make_device = device::cpu_device(config.exec.lanes, job_options.cores);
  }
  job.program = std::make_shared<Program>(job.model.module, job.loss, setup.options.optimizer, job.example,
                                          std::move(setup.strategy), options);
  return job;
}

std::string note_of_products(const JobConfig& config, const JobOptions& options) {
  if (config.exec.executor != "planned" || !measures_products(config) || !options.target.is_cpu ||
      options.choose_products)
    return "";
  return "products name no library: exec.products = measured chooses when training begins; another value names one "
         "here";
}

CapturedJob capture_job(const JobConfig& config) {
  const CompiledJob job = uncompiled_job(config);
  const Batch example = example_of(config, job);
  capture::CaptureOptions options;
  options.param_dtype = mixed_precision_of(config.training).param_dtype;
  options.uncast = job.uncast;
  const auto state = capture::take_state(*job.model.module);
  const auto capture = [&](const Batch& batch) {
    return capture::capture_step(*job.model.module, state, job.loss, batch, options).graph;
  };
  CapturedJob out;
  out.graph = capture(example);
  out.draws_wrong = exec::number_random_ops(
      out.graph, [&](int64_t factor) { return capture(capture::with_more_rows(example, {}, factor)); });
  const auto is_half = [](c10::ScalarType type) { return c10::isReducedFloatingType(type); };
  out.half_precision = (options.param_dtype && is_half(capture::scalar_type_of(*options.param_dtype))) ||
                       std::ranges::any_of(state, is_half, &capture::StateTensor::dtype);
  out.checkpointed_blocks = job.checkpointed_blocks;
  out.flops_per_token = job.model.flops_per_token(config.training.seq_len);
  out.load_balance_coeff = job.model.load_balance_coeff;
  return out;
}

namespace {

std::vector<std::string> load_base_weights(const CompiledJob& job, Step& step) {
  if (job.archive) return load_exported_weights(*job.archive, step, job.lora_alpha.has_value());
  if (job.hf_folder.empty()) return {};
  const auto start = std::chrono::steady_clock::now();
  const auto checkpoint = SafetensorsCheckpoint::open(job.hf_folder);
  load_hf_weights(step, checkpoint, *job.hf_config);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {concat("Weights of ", job.hf_folder, ": ", checkpoint.names().size(), " tensors in ",
                 checkpoint.files().size(), " files, this rank's part in ", with_commas(seconds, 3), " s")};
}

}  // namespace

std::vector<std::string> load_initial_weights(const CompiledJob& job, Step& step) {
  std::vector<std::string> notes = load_base_weights(job, step);
  if (job.adapter) notes.push_back(load_adapter(*job.adapter, step));
  return notes;
}

namespace {

checkpoint::WeightSource weight_source(const CompiledJob& job) {
  using Kind = checkpoint::WeightSource::Kind;
  if (job.archive) return checkpoint::resolved({Kind::Archive, job.archive->archive.path()}, "");
  if (!job.hf_folder.empty()) return checkpoint::resolved({Kind::HuggingFace, job.hf_folder}, "");
  return {};
}

}  // namespace

void load_weights_of(const checkpoint::WeightSource& source, const CompiledJob& job, Step& step) {
  using Kind = checkpoint::WeightSource::Kind;
  if (source.kind == weight_source(job).kind) {
    load_base_weights(job, step);
  } else if (source.kind == Kind::HuggingFace) {
    load_hf_weights(step, SafetensorsCheckpoint::open(source.path), read_hf_config(source.path));
  } else {
    throw UserError(concat("this run begins with ", checkpoint::to_string(weight_source(job)),
                           "\n  expected the flags of the run that saved the checkpoint"));
  }
}

std::vector<checkpoint::Piece> checkpoint_pieces(Step& step, int64_t rank) {
  using Kind = checkpoint::TensorKind;
  const Program& program = step.program();
  const Strategy& strategy = program.strategy();
  std::set<std::string> written;  // by forward: each data rank's own
  const Held<const Program::Variant> first = program.first();
  for (const ir::Carry& carry : first->graph.carries)
    written.insert(carry.current->producer()->attr<std::string>("name"));
  const auto values = step.state_dict();
  std::vector<checkpoint::Piece> pieces;
  for (const auto& t : program.tensors()) {
    const at::Tensor& value = values.at(t.name);
    SFSDP_CHECK(value.is_contiguous(), t.name);
    const plan::Box box = step.box_of(t.name);
    checkpoint::Piece piece;
    piece.name = t.name;
    piece.dtype = capture::dtype_of(value.scalar_type());
    piece.shape = t.global_shape;
    if (!t.cuts.empty()) piece.box = box.dims;
    piece.block_shape = t.block_shape;
    piece.begin = box.flat.offset;
    piece.end = box.flat.offset + box.flat.length;
    piece.data = static_cast<std::byte*>(value.mutable_data_ptr());
    const bool is_buffer = t.source >= 0 && program.state()[static_cast<size_t>(t.source)].is_buffer;
    piece.kind = t.source < 0 ? Kind::Optimizer : is_buffer ? Kind::Buffer : Kind::Parameter;
    piece.frozen = piece.kind == Kind::Parameter && !t.trainable && !written.contains(t.buffer);
    const bool own = is_buffer && written.contains(t.buffer);
    if (own) piece.rank = strategy.mesh.group_rank(rank, strategy.data_axes());
    piece.along = own ? step::model_holder_axes(strategy, t) : step::holder_axes(strategy, t);
    piece.holder = strategy.mesh.group_rank(rank, piece.along);
    piece.holders = strategy.mesh.group_size(piece.along);
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

namespace {

// Below the dump folder, unless checkpoint.folder is absolute.
std::string checkpoint_folder(const JobConfig& config) {
  return (std::filesystem::path(config.job.dump_folder) / config.checkpoint.folder).string();
}

}  // namespace

checkpoint::CheckpointOptions checkpoint_options(const JobConfig& config, const CompiledJob& job) {
  Program& program = *job.program;
  const auto& c = config.checkpoint;
  checkpoint::CheckpointOptions options;
  options.enable = c.enable;
  options.folder = checkpoint_folder(config);
  options.interval = c.interval;
  options.keep_latest_k = c.keep_latest_k;
  options.in_background = c.async_mode != "disabled";
  options.load_step = c.load_step;
  if (!c.initial_load_in_hf) options.initial_load_path = c.initial_load_path.value_or("");
  options.initial_load_model_only = c.initial_load_model_only;
  options.last_save_model_only = c.last_save_model_only;
  options.last_save_in_hf = c.last_save_in_hf;
  options.export_dtype = checkpoint::parse_export_dtype(c.export_dtype);
  options.exclude_from_loading = c.exclude_from_loading;
  options.enable_first_step_checkpoint = c.enable_first_step_checkpoint;
  options.load_only = c.load_only;
  options.frozen.leave_out = c.frozen == "none";
  options.frozen.source = weight_source(job);
  options.launch = checkpoint::launch_from_environment();
  options.total_steps = config.training.steps;
  options.seed = program.options().seed;
  const auto& lr = config.lr_scheduler;
  options.schedule = {{"decay_ratio", lr.decay_ratio ? shortest(*lr.decay_ratio) : "all after warm-up"},
                      {"decay_type", lr.decay_type},
                      {"lr", shortest(config.optimizer.lr)},
                      {"min_lr_factor", shortest(lr.min_lr_factor)},
                      {"total_steps", std::to_string(lr.total_steps.value_or(config.training.steps))},
                      {"warmup_steps", std::to_string(lr.warmup_steps)}};
  // sfsdp's own have other last bits on each family of processors.
  const auto own = [](const std::string& named) {
    return named.empty() ? named : concat(named, " on ", kernels::family().name);
  };
  const auto kernel = [](const std::string& named, const char* otherwise) { return named.empty() ? otherwise : named; };
  const passes::NameKernelsOptions& kernels = program.options().pipeline.kernels;
  options.kernels = {{"attention", kernel(own(kernels.attention), "aten.flash")},
                     {"rows", kernel(own(kernels.rows), "aten.ops")}};
  add_products(options.kernels, program);
  const Strategy& strategy = program.strategy();
  options.about.model = job.model_name;
  options.about.model_args = texts_of_args(job.model.args);
  if (job.archive) options.about.model_args[checkpoint::kGraphOfModel] = hex(exported::graph_hash(*job.archive));
  if (job.lora_alpha) options.about.model_args[kLoraAlpha] = shortest(*job.lora_alpha);
  options.about.world_size = strategy.mesh.world_size();
  options.about.data_ranks = strategy.data_ranks();
  options.about.mesh = to_string(strategy.mesh);
  const Held<const Program::Variant> first = program.first();
  options.about.plan = hex(program.hash_of(*first));
  options.about.sfsdp_version = version();
  options.about.torch_version = TORCH_VERSION;
  return options;
}

std::string last_hf_folder(const JobConfig& config, int64_t step) {
  const auto& c = config.checkpoint;
  if (!c.last_save_in_hf || c.load_only) return "";
  return concat(checkpoint_folder(config), "/hf-step-", step);
}

HfConfig export_config(const JobConfig& config, const CompiledJob& job) {
  std::optional<HfConfig> from;
  if (config.model.name == "hf") from = read_hf_config(config.model.hf_assets_path);
  return hf_config_of_model(job.model_name, job.model.args, hf_sources(*job.program), from ? &*from : nullptr);
}

std::string export_last(const JobConfig& config, const CompiledJob& job, const Step& step, comm::CommWorld* world) {
  const std::string folder = last_hf_folder(config, step.step), assets = config.model.hf_assets_path;
  const HfConfig hf = export_config(config, job);
  HfExportOptions options;
  options.dtype = checkpoint::parse_export_dtype(config.checkpoint.export_dtype);
  options.max_positions = config.training.seq_len;
  options.assets = assets;
  const auto start = std::chrono::steady_clock::now();
  const HfExported done = export_hf_folder(step, world, hf, folder, options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return concat("Saved ", folder, ": ", hf.architecture, ", ",
                with_commas(static_cast<double>(done.tensor_bytes) / (1 << 20), 1), " MiB in ", done.files,
                done.files == 1 ? " file" : " files", ", ", with_commas(seconds, 2), " s",
                done.set_aside.empty() ? "" : concat("; what an earlier export had left is now ", done.set_aside));
}

std::string libtorch_include_dir() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<const void*>(&at::show_config), &info) || !info.dli_fname) return "";
  std::error_code ignored;
  const auto lib = std::filesystem::canonical(info.dli_fname, ignored).parent_path();
  const auto include = lib.parent_path() / "include";
  return std::filesystem::is_directory(include, ignored) ? include.string() : "";
}

Batch to_batch(const CompiledJob& job, const MicroBatch& rows, const std::vector<SampleTensor>& layout) {
  Batch batch;
  for (const std::string& name : job.batch) {
    const size_t place = place_in(layout, name);
    const SampleTensor& tensor = layout[place];
    const std::vector<std::byte>& bytes = rows.tensors.at(place);
    const int64_t count = tensor.bytes() == 0 ? 0 : static_cast<int64_t>(bytes.size() / tensor.bytes());
    batch.push_back(at::empty(rows_of(tensor, count), at::TensorOptions(capture::scalar_type_of(tensor.dtype))));
    std::memcpy(batch.back().mutable_data_ptr(), bytes.data(), bytes.size());
  }
  return batch;
}

}  // namespace sfsdp::train
