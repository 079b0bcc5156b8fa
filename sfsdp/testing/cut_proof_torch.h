// SPDX-License-Identifier: BSD-3-Clause
// What rows say of how ops may be cut (parallel/op_cuts.h) and in which operands they are linear, held against LibTorch's
// kernels: operands are cut, or torn into summands of random signs, over one axis and over two, the op runs on each rank's part,
// and what the parts make together must be what the whole makes.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/parallel/op_cuts.h"

namespace sfsdp::testing {

// How one axis of `ranks` cuts an op, or tears what it is linear in.
struct AxisWay {
  int64_t ranks = 2;
  parallel::OpCut way;
  bool tears = false;
};

// What two axes do to one op.
enum class Pair : uint8_t {
  TwoDims,       // each cuts another factor that the results have
  OneDim,        // both cut the same dimension of an operand
  CutAndSum,     // one at least cuts a factor that is added up: its ranks' results are summands
  CutOfSummand,  // one cuts, the other tears
  Summands,      // both tear
};
inline constexpr size_t kPairs = 5;

// By row: what was run, and what was not.
struct CutCounts {
  int calls = 0;                       // that were to be cut
  int no_kernel = 0;                   // of these, what has no kernel of doubles, or refuses what was drawn
  int cuts = 0;                        // ways of one axis to cut the op
  int torn = 0;                        // groups of operands that were torn, over one axis
  int refused = 0;                     // ways, of one axis or two, whose parts would lie in memory with gaps
  std::array<int, kPairs> pairs = {};  // ways of two axes
  int searches = 0;                    // calls of which some were run over two axes
  void add(const CutCounts& other);
  int of_two() const { return pairs[0] + pairs[1] + pairs[2] + pairs[3] + pairs[4]; }
};

// Grows with each call.
class CutProof {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Kernel = std::function<Tensors(const Tensors& operands)>;
  // What runs an op, which has to outlive the kernel.
  using KernelOf = std::function<Kernel(const ir::Op& op)>;
  // Changes what is known of one rank's op after `axes` axes have cut it: a mistake that a proof has to see.
  using Mistake = std::function<void(ir::Graph& graph, size_t axes)>;

  explicit CutProof(Mistake mistake = {}) : mistake_(std::move(mistake)) {}

  // Every dimension of every operand over 2 and 3 ranks, as one range and in 2 and 3 blocks, and every group of operands that the
  // row calls linear; then some of these on an axis within another one. In double precision, for which an op has to have a kernel.
  void prove(const ir::Op& op, const Tensors& operands, const KernelOf& kernel_of);
  // What another one has seen.
  void join(const CutProof& other);

  const std::set<std::string>& wrong() const { return wrong_; }
  const std::map<std::string, CutCounts>& counts() const { return counts_; }
  // Operands in which an op was linear in all calls, and whose row does not say so: "aten.view 0".
  std::set<std::string> unclaimed() const;
  // By row, how far from the whole's the numbers of parts were at most: more than 1e-12 of the scale is wrong. The scale is the
  // largest magnitude of the result, or of what is added up to it, ranks' summands together.
  const std::map<std::string, double>& distances() const { return distances_; }

 private:
  void prove_wide(const ir::Op& op, const Tensors& operands, const KernelOf& kernel_of);
  void prove_pairs(const ir::Op& op, const std::vector<AxisWay>& first, const Tensors& operands, const Tensors& whole,
                   const KernelOf& kernel_of);
  ir::Graph one_rank(const ir::Op& op, std::span<const AxisWay> axes) const;
  // Whether it ran.
  bool cut(const ir::Op& op, std::span<const AxisWay> axes, const Tensors& operands, const Tensors& whole,
           const KernelOf& kernel_of);
  void compare(const ir::Op& op, const std::string& how, size_t result, const at::Tensor& got,
               const at::Tensor& expected, double scale, bool alike);
  void look_for_linear(const ir::Op& op, const Tensors& operands, const Tensors& whole, const Kernel& kernel);
  CutCounts& counts_of(const ir::Op& op);

  Mistake mistake_;
  std::mt19937_64 engine_{5};
  std::set<std::string> wrong_;
  std::map<std::string, CutCounts> counts_;
  std::map<std::string, double> distances_;
  struct Tried {
    int times = 0;
    bool held = true;
  };
  std::map<std::string, Tried> tried_;  // by opcode and operand that no row calls linear
};

// Whether the row says of some factor that it may be cut, or that operands are linear.
bool claims_cut(const ir::OpRow& row);
bool claims_linear(const ir::OpRow& row);

}  // namespace sfsdp::testing
