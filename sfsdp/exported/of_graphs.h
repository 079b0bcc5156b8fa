// SPDX-License-Identifier: BSD-3-Clause
// From captures of a module's forward at several sizes to what an archive of torch.export holds. Torch-free: what is to be
// known of LibTorch's ops is asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/exported/program.h"
#include "sfsdp/exported/sizes.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::exported {

// What a call in Python needs to know of an op of LibTorch.
struct OpSignature {
  enum class Kind : uint8_t { Tensor, TensorList, DType, MemoryFormat, Layout, Device, Other };
  struct Parameter {
    std::string name;
    Kind kind = Kind::Other;
    bool by_name = false;  // may be given as name=value only
  };
  std::vector<Parameter> parameters;
  bool returns_list = false;  // one list of tensors, not one tensor or several
};
//   opcode: "aten.add.Tensor"
using FindSignature = std::function<OpSignature(const std::string& opcode)>;

struct CapturedForward {
  std::span<const ir::Graph> graphs;                     // at the points of the sizes, in their order
  std::vector<std::string> inputs;                       // names, in the order of the batch
  std::map<std::string, std::vector<std::string>> tied;  // other names of a parameter or buffer, by its first one
};

// The graph of the archive. Views are reshapes there, which no layout of memory can break: other devices' kernels choose
// others. Ops that nothing reads are left out.
//   returns: state: parameters, buffers, then constants by the graphs' `index`, named constant_0, constant_1, …; entries are
//            numbers, one for each but for those that are tied
//   throws:  UserError naming op, module path and numbers: the graphs differ, or a number of theirs is no sum of products
//            of the sizes
Contents contents_of(const CapturedForward& forward, const Sizes& sizes, const FindSignature& signature);

}  // namespace sfsdp::exported
