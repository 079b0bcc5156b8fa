// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/opset.h"

#include <algorithm>
#include <deque>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/shape_rules.h"

namespace sfsdp::ir {
namespace {

#define SFSDP_OP(name, min_operands, max_operands, results, flags, cost, alias, rule, access) \
  OpRow{name, min_operands, max_operands, results, flags, CostClass::cost, Alias::alias, rule},
#define SFSDP_UPDATE(name, moments, operands, results, flags, rule, access) \
  OpRow{name, operands, operands, results, flags, CostClass::Alone, Alias::Fresh, rule, moments},
#define SFSDP_COLLECTIVE(name, fewest, most, rule)                                                 \
  OpRow{name, fewest, most, 1, kPure | kCollective, CostClass::Communication, Alias::Fresh, rule}, \
      OpRow{                                                                                       \
          name ".start", fewest, most, 1, kPure | kCollective | kStart, CostClass::Communication, Alias::Fresh, rule},
constexpr OpRow kOwnRows[] = {
#include "sfsdp/ir/opset.def"
};
#define SFSDP_ATEN SFSDP_OP
constexpr OpRow kAtenRows[] = {
#include "sfsdp/ir/atenset.def"
};
#undef SFSDP_ATEN
#undef SFSDP_OP
#undef SFSDP_COLLECTIVE
#undef SFSDP_UPDATE

// ---- what aten ops do beside giving results: draw random numbers, write an argument, stop the program ----------------
// The others are pure. Names are without "aten."; capture/tracer_test.cc compares with LibTorch's schemas and tags.

// Read a generator, in every overload.
constexpr std::string_view kDrawing =
    "_cudnn_attention_forward_no_dropout_inplace _cudnn_init_dropout_state _cudnn_rnn _fill_mem_eff_dropout_mask_ "
    "_fused_dropout _lstm_mps _nested_tensor_softmax_with_shape _sample_dirichlet _standard_gamma alpha_dropout "
    "alpha_dropout_ bernoulli bernoulli_ binomial cauchy cauchy_ dropout dropout_ exponential exponential_ "
    "feature_alpha_dropout feature_alpha_dropout_ feature_dropout feature_dropout_ geometric geometric_ gru "
    "log_normal log_normal_ lstm miopen_rnn multinomial native_dropout normal normal_ normal_functional poisson rand "
    "rand_like randint randint_like randn randn_like random random_ randperm rnn_relu rnn_tanh rrelu rrelu_ "
    "rrelu_with_noise rrelu_with_noise_ rrelu_with_noise_functional uniform uniform_";
// Read one if their attribute dropout_p is above 0.
constexpr std::string_view kDropsOut =
    "_cudnn_attention_backward _cudnn_attention_forward _efficient_attention_forward _flash_attention_forward "
    "_flash_attention_forward_no_dropout_inplace _fused_sdp_choice _scaled_dot_product_attention_math "
    "_scaled_dot_product_attention_math_for_mps _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_cudnn_attention_backward _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_fused_attention_overrideable "
    "_triton_scaled_dot_attention scaled_dot_product_attention";
// Overloads that write an argument, or have an effect and no result that says so. An op whose name ends in _ (but not in
// __) writes its first argument too.
constexpr std::string_view kWrites =
    "__iand__.Scalar __iand__.Tensor __ilshift__.Scalar __ilshift__.Tensor __ior__.Scalar __ior__.Tensor "
    "__irshift__.Scalar __irshift__.Tensor __ixor__.Scalar __ixor__.Tensor _assert_async _assert_async.msg "
    "_assert_scalar _assert_tensor_metadata _backward _batch_norm_with_update _cufft_clear_plan_cache "
    "_cufft_set_plan_cache_max_size _cummax_helper _cummin_helper _flash_attention_forward_no_dropout_inplace "
    "_functional_assert_async.msg _functional_assert_scalar _fused_moving_avg_obs_fq_helper _linalg_check_errors "
    "_native_batch_norm_legit _print _propagate_xla_data _validate_compressed_sparse_indices "
    "_validate_sparse_bsc_tensor_args _validate_sparse_bsr_tensor_args _validate_sparse_compressed_tensor_args "
    "_validate_sparse_coo_tensor_args _validate_sparse_csc_tensor_args _validate_sparse_csr_tensor_args "
    "fused_moving_avg_obs_fake_quant geqrf.a record_stream retain_grad rrelu_with_noise set_data sym_constrain_range "
    "sym_constrain_range_for_size";
// Overloads, of any op, that write their result into an argument; so do "out" and "…_out".
constexpr std::string_view kOutOverloads =
    "L OutScalar_Other OutScalar_Self OutTensor Q U X dim_max dim_min dim_values dimname_values dimname_values_stable "
    "eigenvalues eigvals grad_input inverse names_dim_max names_dim_min names_dim_values out_ out_mode "
    "out_rcond_tensor out_tol_tensor output result sign values values_stable";

using Names = std::unordered_set<std::string_view>;
Names names_in(std::string_view text) {
  Names names;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    names.insert(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

constexpr std::string_view kAten = "aten.";

struct AtenName {
  std::string_view base;      // "add"
  std::string_view overload;  // "Tensor" or ""
};

AtenName split_aten(std::string_view opcode) {
  std::string_view rest = opcode.substr(kAten.size());
  const size_t dot = rest.find('.');
  if (dot == std::string_view::npos) return {rest, ""};
  return {rest.substr(0, dot), rest.substr(dot + 1)};
}

bool is_random_aten(const Op& op) {
  static const Names draws = names_in(kDrawing), drops_out = names_in(kDropsOut);
  const AtenName name = split_aten(op.opcode);
  const auto* p = op.find_attr<double>("dropout_p");
  return draws.contains(name.base) || (p && *p > 0 && drops_out.contains(name.base));
}

bool writes_argument(std::string_view opcode) {
  static const Names writes = names_in(kWrites), out_overloads = names_in(kOutOverloads);
  const AtenName name = split_aten(opcode);
  const bool in_place = name.base.ends_with('_') && !name.base.ends_with("__");
  return in_place || writes.contains(opcode.substr(kAten.size())) || name.overload == "out" ||
         name.overload.ends_with("_out") || out_overloads.contains(name.overload);
}

}  // namespace

std::span<const OpRow> opset() {
  static std::deque<std::string> names;  // whose texts the rows keep
  static const auto all = [] {
    std::vector<OpRow> rows(std::begin(kOwnRows), std::end(kOwnRows));
    for (OpRow row : kAtenRows)
      for (const std::string& name : split(row.name, ' ')) {
        row.name = names.emplace_back(concat(kAten, name));
        rows.push_back(row);
      }
    return rows;
  }();
  return all;
}

const OpRow* find_row(std::string_view opcode) {
  struct Rows {
    std::unordered_map<std::string_view, const OpRow*> exact;
    std::unordered_map<std::string_view, const OpRow*> families;  // "aten.add.*" as "aten.add"
  };
  static const Rows rows = [] {
    Rows all;
    for (const OpRow& row : opset()) {
      const std::string_view name = row.name;
      if (name.ends_with(".*"))
        all.families.emplace(name.substr(0, name.size() - 2), &row);
      else
        all.exact.emplace(name, &row);
    }
    return all;
  }();
  if (const auto found = rows.exact.find(opcode); found != rows.exact.end()) return found->second;
  if (!is_aten(opcode)) return nullptr;
  const auto [base, overload] = split_aten(opcode);
  if (overload == "out" || overload.ends_with("_out")) return nullptr;
  const auto family = rows.families.find(opcode.substr(0, kAten.size() + base.size()));
  return family == rows.families.end() ? nullptr : family->second;
}

bool has_flag(const Op& op, OpFlags flag) {
  const OpRow* row = op.opcode.row();
  return row && (row->flags & flag) != 0;
}

std::vector<std::string> unchecked_opcodes(const Graph& graph) {
  std::set<std::string> found;
  for (const auto& op : graph.ops()) {
    const OpRow* row = op->opcode.row();
    if (!row || (is_aten(op->opcode) && row->rule == no_rule)) found.insert(op->opcode);
  }
  return {found.begin(), found.end()};
}

bool is_aten(std::string_view opcode) { return opcode.starts_with(kAten) && opcode.size() > kAten.size(); }

bool is_pure(const Op& op) {
  return is_aten(op.opcode) ? !writes_argument(op.opcode) && !is_random_aten(op) : has_flag(op, kPure);
}
bool is_root(const Op& op) { return has_flag(op, kRoot); }
bool is_collective(const Op& op) { return has_flag(op, kCollective); }
bool is_start(const Op& op) { return has_flag(op, kStart); }
bool is_wait(const Op& op) { return op.is("wait"); }

bool is_update(const Op& op) {
  const OpRow* row = op.opcode.row();
  return row && row->moments >= 0;
}

size_t gradient_operand(const Op& update) {
  SFSDP_CHECK(is_update(update), update.opcode, " is no update");
  return 1 + static_cast<size_t>(update.opcode.row()->moments);
}

bool is_once(const Op& op) {
  const auto* once = op.find_attr<bool>("once");
  return once && *once;
}

bool is_repeated(const Op& op) { return is_repeated(op.section) && !is_once(op); }

bool is_random(const Op& op) { return is_aten(op.opcode) && is_random_aten(op); }

bool draws(const Op& op) { return is_random(op) || has_flag(op, kDraws); }

int aliased_operand(const Op& op) {
  if (op.operands.empty() || !op.operands[0]) return -1;
  const OpRow* row = op.opcode.row();
  return row && row->alias == Alias::ViewOfFirst ? 0 : -1;
}

const Value* storage_of(const Value* value) {
  while (true) {
    const int aliased = aliased_operand(*value->producer());
    if (aliased < 0) return value;
    value = value->producer()->operands[static_cast<size_t>(aliased)];
  }
}

const Value* memory_of(const Value* value) {
  while (true) {
    value = storage_of(value);
    const auto donated = donated_operands(*value->producer());
    const auto result = static_cast<size_t>(value->result_index());
    if (result >= donated.size()) return value;
    value = value->producer()->operands[static_cast<size_t>(donated[result])];
  }
}

Value* reshaped_operand(const Value& value) {
  const Op& view = *value.producer();
  if (!has_flag(view, kReshape) || !value.type().strides.empty()) return nullptr;
  Value* below = view.operands[0];
  return below->type().strides.empty() && below->type().numel() == value.type().numel() ? below : nullptr;
}

std::string_view collective_kind(const Op& op) {
  const std::string_view name = op.opcode;
  return name.substr(0, name.find('.'));
}

ReduceOp reduce_op(const Op& op) {
  return op.has_attr("op") ? parse_reduce_op(op.attr<std::string>("op")).value_or(ReduceOp::Sum) : ReduceOp::Sum;
}

bool sends_to_rows(const Op& op) {
  const auto* to = op.find_attr<std::string>("to");
  return to && *to == "rows";
}

int64_t rows_of_groups(const Op& op) {
  const bool by_index = op.has_attr("adds") != sends_to_rows(op);
  return by_index ? op.operands[1]->type().numel() : op.attr<int64_t>("rows");
}

int64_t collective_bytes(const Op& op) {
  const Type &in = op.operands[0]->type(), &out = op.result()->type();
  if (collective_kind(op) != "all_to_all_v") return std::max(in.bytes(), out.bytes());
  const bool to_rows = sends_to_rows(op), adds = op.has_attr("adds");
  const Type& part = to_rows ? in : out;
  const int64_t indexes = op.operands[1]->type().numel(), size = part.dims[0].size;
  if (adds == to_rows || size == 0) return part.bytes();  // a row of the part for each index
  const int64_t ranks = std::max<int64_t>(op.attr<int64_t>("rows") / size, 1);
  return part.bytes() / size * (indexes / ranks);
}

std::string call_text(const Op& op) {
  Type sent = op.operands[0]->type();
  sent.placements.clear();
  std::string text = concat(collective_kind(op), " of ", sent);
  for (const char* key : {"op", "root", "dim", "split", "join", "shift", "rows", "to", "adds", "room"})
    if (op.has_attr(key)) text += concat(" ", key, "=", op.attrs.at(key));
  return text;
}

std::optional<std::vector<std::string>> axes_of(const Op& op) {
  if (const auto* axis = op.find_attr<std::string>("axis")) return std::vector<std::string>{*axis};
  if (const auto* axes = op.find_attr<std::vector<std::string>>("axis")) return *axes;
  return std::nullopt;
}

std::optional<int64_t> axis_size(const Graph& graph, std::span<const std::string> axes) {
  int64_t size = 1;
  for (const std::string& axis : axes) {
    const auto found = std::ranges::find(graph.mesh, axis, &MeshAxis::name);
    if (found == graph.mesh.end()) return std::nullopt;
    size *= found->size;
  }
  return size;
}

double number_of(const Op& op, const std::string& key) {
  if (const auto* whole = op.find_attr<int64_t>(key)) return static_cast<double>(*whole);
  if (const auto* flag = op.find_attr<bool>(key)) return *flag ? 1 : 0;
  return op.attr<double>(key);
}

double number_of(const Op& op, const std::string& key, double fallback) {
  return op.has_attr(key) ? number_of(op, key) : fallback;
}

std::vector<int64_t> donated_operands(const Op& op) {
  const auto* indexes = op.find_attr<std::vector<int64_t>>("donates");
  return indexes ? *indexes : std::vector<int64_t>();
}

}  // namespace sfsdp::ir
