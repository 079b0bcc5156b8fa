// SPDX-License-Identifier: BSD-3-Clause
// What:   records every LibTorch op that runs below autograd as an op of an ir::Graph.
// How:    a boxed fallback on kTraceKey; the traced code runs on meta tensors, so nothing is computed.
// Why not functionalization: reference and reasons in docs/decisions/0001-capture.md.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::capture {

// Identity of a value: two TensorImpls with equal keys are the same value. Without conj and neg, gradients of complex
// models are silently wrong (SavedVariable makes new TensorImpls over the same storage).
struct Geometry {
  c10::SmallVector<int64_t, 5> sizes, strides;
  int64_t offset = 0;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  bool conj = false, neg = false;
  bool operator==(const Geometry&) const = default;
};

// One trace into one graph. Not thread-safe: a process traces one step at a time (the constructor waits its turn).
class Tracer {
 public:
  Tracer();
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // Runs `body` with recording on and factory calls without a device sent to meta.
  void run(const std::function<void()>& body);

  // Makes `tensor` (meta) known as `value`, for parameters, buffers and inputs.
  void declare(const at::Tensor& tensor, ir::Value* value);
  // The value a tensor stands for now; a view of a tensor that was updated in place is rebuilt here. Throws UserError
  // for a meta tensor from outside the trace.
  ir::Value* value_of(const at::Tensor& tensor);
  // Adds a real tensor, which nobody may write to from now on, as a constant of the graph.
  ir::Value* constant(const at::Tensor& tensor);

  ir::Graph graph;
  std::vector<at::Tensor> constants;  // by attr `index` of op "constant"
  ir::Section section = ir::Section::Fwd;

  // Called by the fallback.
  void record(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  struct StorageState {
    ir::Value* base = nullptr;  // the value of the whole storage, as it stands now
    Geometry base_geometry;
    std::vector<std::pair<Geometry, ir::Value*>> views;  // values of this version; seldom more than three
    ir::Value* view(const Geometry& geometry) const;     // nullptr: none
    void set_view(const Geometry& geometry, ir::Value* value);
  };
  struct Call;
  struct Signature;
  // A real tensor that was met, and the meta one of its constant.
  struct StandIn {
    Geometry geometry;
    uint32_t version;  // an in-place op made another value of it
    at::Tensor meta;
  };

  void note_position(ir::Op& op);
  const ir::Op* forward_op() const;
  std::string at_module() const;
  std::string where(const c10::OperatorHandle& op) const;
  [[noreturn]] void refuse(const c10::OperatorHandle& op, const std::string& reason) const;
  [[noreturn]] void refuse_read(const c10::OperatorHandle& op, const Call& call) const;
  [[noreturn]] void refuse_outside(const at::Tensor& tensor) const;
  void refuse_sparse(const c10::OperatorHandle& op, std::span<const at::Tensor> tensors, const char* role) const;
  bool equal(const c10::OperatorHandle& op, const Call& call);
  void redispatch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) const;
  const Signature& signature_of(const c10::OperatorHandle& op);
  bool read_arguments(const c10::OperatorHandle& op, torch::jit::Stack& stack, Call& call);
  at::Tensor stand_in(const at::Tensor& real);
  void replace_real(c10::IValue& value);
  ir::Op* add_op(const c10::OperatorHandle& called, const c10::OperatorHandle& target, const Call& call,
                 std::vector<ir::Graph::NewResult> results);
  std::vector<at::Tensor> functional_results(const c10::OperatorHandle& twin, const Call& call) const;
  void bind_outputs(const c10::OperatorHandle& op, Call& call, const torch::jit::Stack& stack);
  void bind_results(ir::Op* op, const std::vector<at::Tensor>& tensors);
  void write(const at::Tensor& target, ir::Value* value, const at::Tensor& made);

  std::unordered_map<const c10::OperatorName*, Signature> signatures_;  // by the name that the dispatcher holds
  std::unordered_map<c10::StorageImpl*, StorageState> storages_;
  std::unordered_map<c10::StorageImpl*, std::vector<StandIn>> stand_ins_;  // by the storage of the real tensor
  std::vector<at::Tensor> alive_;           // a freed meta's storage address could come back as another tensor's
  std::map<int64_t, ir::Op*> forward_ops_;  // autograd sequence number -> the forward op that owns it
  std::string module_path_;
  int comparisons_ = 0;  // that were guarded
  bool recording_ = false;
};

}  // namespace sfsdp::capture
