// SPDX-License-Identifier: BSD-3-Clause
// Every class of torch/nn/modules/ with default options: captured, and then equal to eager LibTorch in loss, gradients
// and buffers, or refused with a message. docs/modules.md is the list that this test makes.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/capture_step.h"
#include "sfsdp/exec/random_ops.h"
#include "sfsdp/exec/reference/reference_executor.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/shape_rules.h"
#include "sfsdp/testing/modules_torch.h"
#include "sfsdp/testing/source_dir.h"

namespace sfsdp::capture {
namespace nn_modules_test {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using testing::ModuleRow;

struct Outcome {
  Tensor loss;
  std::map<std::string, Tensor> gradients, buffers;
};

Outcome run_eager(const ModuleRow& row) {
  std::function<Tensor(const Tensors&)> loss;
  auto harness = testing::build(row, loss);
  at::manual_seed(5);
  Outcome result{loss(harness->inputs), {}, {}};
  Tensors leaves;
  for (const Tensor& p : harness->parameters()) leaves.push_back(p);
  const Tensors gradients = torch::autograd::grad({result.loss}, leaves, {}, false, false, /*allow_unused=*/true);
  const auto named = harness->named_parameters();
  for (size_t i = 0; i < named.size(); ++i)
    if (gradients[i].defined()) result.gradients[named[i].key()] = gradients[i];
  for (const auto& b : harness->named_buffers())
    if (b.value().defined()) result.buffers[b.key()] = b.value();
  return result;
}

// What docs/modules.md says: the table, then the messages of what is refused. Beside it the opcodes of what is captured
// whose types the verifier does not know, and those of which it knows nothing.
struct Page {
  std::string table, refusals;
  std::set<std::string> without_rule, without_row;
};

void note_rows(const ir::Graph& graph, Page& page) {
  for (const auto& op : graph.ops()) {
    const ir::OpRow* row = op->opcode.row();
    if (!row)
      page.without_row.insert(op->opcode);
    else if (ir::is_aten(op->opcode) && row->rule == ir::no_rule)
      page.without_rule.insert(op->opcode);
  }
}

Outcome run_captured(const ModuleRow& row, Page& page) {
  testing::CapturedModule captured = testing::capture_module(row);
  auto& [step, state, batch] = captured;
  note_rows(step.graph, page);
  exec::number_random_ops(step.graph);
  exec::ReferenceExecutor executor(step.graph, step.constants, {}, {}, exec::Rng::Eager);
  for (const StateTensor& s : state) executor.state[s.name] = s.value;
  Outcome result;
  executor.on_op = [&](const ir::Op& op, const Tensors& results) {
    if (op.is("gradient")) result.gradients[op.attr<std::string>("param")] = results[0];
  };
  at::manual_seed(5);
  result.loss = executor.run({batch}, {})[0];
  for (const StateTensor& s : state)
    if (s.is_buffer) result.buffers[s.name] = executor.state.at(s.name);
  return result;
}

void expect_equal(const ModuleRow& row, const std::map<std::string, Tensor>& got,
                  const std::map<std::string, Tensor>& expected) {
  CHECK(got.size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    CAPTURE(name);
    CHECK(got.contains(name));
    if (!got.contains(name)) continue;
    if (row.tolerance == 0)
      CHECK(at::equal(got.at(name), tensor));
    else
      CHECK(at::allclose(got.at(name), tensor, row.tolerance, row.tolerance * tensor.abs().max().item<double>()));
  }
}

// Ops that modules of torch::nn are captured as and have a row in ir/atenset.def, but no rule: they run, and the verifier
// does not check their types. Our models have none (tests/e2e/commands.sh). One that gets a rule leaves the list; a new one
// has to be put here.
constexpr const char* kWithoutRule =
    "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward "
    "_embedding_bag _embedding_bag_backward _functional_assert_async.msg _native_batch_norm_legit_functional "
    "_prelu_kernel _prelu_kernel_backward _trilinear adaptive_max_pool2d adaptive_max_pool2d_backward "
    "adaptive_max_pool3d adaptive_max_pool3d_backward all avg_pool2d avg_pool2d_backward avg_pool3d "
    "avg_pool3d_backward binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits celu "
    "clamp_min clamp_min.Tensor col2im elu elu_backward fractional_max_pool2d fractional_max_pool2d_backward glu "
    "glu_backward hardshrink hardshrink_backward hardtanh hardtanh_backward huber_loss huber_loss_backward im2col "
    "leaky_relu leaky_relu_backward linalg_vector_norm log_sigmoid_backward log_sigmoid_forward "
    "max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices "
    "max_pool3d_with_indices_backward max_unpool2d max_unpool3d mish mish_backward mse_loss mse_loss_backward "
    "multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_backward multilabel_margin_loss_forward "
    "native_batch_norm native_batch_norm_backward native_group_norm_backward new_empty new_empty_strided "
    "norm.ScalarOpt_dim pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad1d_backward reflection_pad2d "
    "reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward replication_pad1d "
    "replication_pad1d_backward replication_pad2d replication_pad2d_backward replication_pad3d "
    "replication_pad3d_backward rrelu_with_noise_backward rrelu_with_noise_functional scalar_tensor sgn sign "
    "smooth_l1_loss smooth_l1_loss_backward soft_margin_loss soft_margin_loss_backward softplus softplus_backward "
    "softshrink softshrink_backward threshold unsafe_split.Tensor upsample_nearest2d upsample_nearest2d_backward "
    "xlogy.Tensor";

// Those without a row, which run alone and of which nothing is known.
const std::set<std::string> kWithoutRow = {};

void try_module(const ModuleRow& row, Page& page) {
  CAPTURE(row.name);
  Outcome expected, got;
  try {
    expected = run_eager(row);
  } catch (const std::exception& error) {
    FAIL_CHECK("not a call that LibTorch takes: " << error.what());
    return;
  }
  try {
    got = run_captured(row, page);
  } catch (const UserError& error) {
    page.table += concat("| `", row.name, "` | no, see below |\n");
    page.refusals +=
        concat("\n`", row.name, "`:\n\n    ", std::regex_replace(error.what(), std::regex("\n"), "\n    "), "\n");
    return;
  }
  expect_equal(row, {{"loss", got.loss}}, {{"loss", expected.loss}});
  expect_equal(row, got.gradients, expected.gradients);
  expect_equal(row, got.buffers, expected.buffers);
  page.table += concat("| `", row.name, "` | yes, ",
                       row.tolerance == 0 ? "the bits of eager" : "to the order of its sums", " |\n");
}

TEST_CASE("every class of torch/nn/modules has a row") {
  std::set<std::string> listed, declared;
  for (const ModuleRow& row : testing::module_rows()) listed.insert(row.name);
  // Headers say TORCH_MODULE(Linear), or define a holder of their own with options.
  const std::regex holder(R"((?:^TORCH_MODULE\((\w+)\))|(?:^class (\w+) : public (?:torch::nn::)?ModuleHolder<))");
  for (const auto& file : std::filesystem::recursive_directory_iterator(SFSDP_TORCH_MODULES)) {
    std::ifstream in(file.path());
    for (std::string line; std::getline(in, line);)
      if (std::smatch match; std::regex_search(line, match, holder)) declared.insert(match[1].str() + match[2].str());
  }
  CHECK(declared.size() > 100);
  for (const std::string& name : declared) {
    CAPTURE(name);
    CHECK(listed.contains(name));
  }
}

TEST_CASE("modules of torch::nn are captured and equal eager, or refused; docs/modules.md lists them") {
  Page page;
  for (const ModuleRow& row : testing::module_rows()) try_module(row, page);
  CHECK(page.without_row == kWithoutRow);
  std::set<std::string> listed;
  for (const std::string& name : split(kWithoutRule, ' ')) listed.insert("aten." + name);
  for (const std::string& opcode : page.without_rule)
    CHECK_MESSAGE(listed.contains(opcode), opcode, " has no rule and stands in no list");
  for (const std::string& opcode : listed)
    CHECK_MESSAGE(page.without_rule.contains(opcode), opcode, " has a rule by now, or no module is captured as it");
  std::ifstream in(testing::source_dir() + "/docs/modules.md");
  std::stringstream held;
  held << in.rdbuf();
  const std::string head = held.str().substr(0, held.str().find("| `"));
  const std::string expected = head + page.table + "\n## Refused\n" + page.refusals;
  if (held.str() == expected) return;
  const auto made = std::filesystem::temp_directory_path() / "modules.md";
  std::ofstream(made) << expected;
  FAIL_CHECK("docs/modules.md is out of date; what it should hold: " << made.string());
}

}  // namespace nn_modules_test
}  // namespace sfsdp::capture
