// SPDX-License-Identifier: BSD-3-Clause
// Access maps (ir/access.h) held against LibTorch's kernels: an element of an operand is changed, and no element of a result
// may change but those that the map admits. What a map admits must be seen, in one call or another.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/ir/access.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/testing/cut_proof_torch.h"

namespace sfsdp::testing {

// What is claimed and what was seen, over many calls: grows with each walk.
class AccessProof {
 public:
  using Run = CutProof::Kernel;

  AccessProof() = default;
  // Compares with this map, whatever the row says. It has to outlive the proof.
  explicit AccessProof(const ir::AccessMap& map) : other_(&map) {}

  // What each value of a graph is, op by op, from what it is given; each op is proved on the way. On one thread: with several,
  // kernels refuse other operands and take far longer.
  void walk(const ir::Graph& graph, const std::function<at::Tensor(const ir::Op&)>& given);

  // The rows of the op set of which a call was proved.
  const std::set<std::string_view>& rows() const { return rows_; }
  const std::set<std::string>& wrong() const { return wrong_; }
  // How ops may be cut, and in what they are linear.
  const CutProof& cuts() const { return cuts_; }
  // What maps admit and no call has shown.
  std::set<std::string> unseen() const;

 private:
  int64_t below(int64_t end) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(end)); }
  void prove(const ir::Op& op, const std::vector<at::Tensor>& operands, const Run& run);
  void claim(const ir::Op& op, size_t k, const std::vector<at::Tensor>& results);
  bool set(const at::Tensor& tensor, const std::vector<int64_t>& at, int kind);
  void change(const ir::Op& op, const std::vector<at::Tensor>& operands, size_t k, int64_t element, int kind,
              const std::vector<at::Tensor>& before, const Run& run);
  void compare(const ir::Op& op, size_t k, const std::vector<int64_t>& from, size_t r, const at::Tensor& before,
               const at::Tensor& after);

  const ir::AccessMap* other_ = nullptr;
  const ir::AccessMap* map_ = nullptr;  // of the op at hand
  std::mt19937_64 engine_{11};
  std::map<std::string, int> calls_, texts_;  // by opcode; by an op's text
  std::set<std::string_view> rows_;
  std::map<std::string, bool> claims_;
  std::set<std::string> wrong_;
  CutProof cuts_;
};

}  // namespace sfsdp::testing
