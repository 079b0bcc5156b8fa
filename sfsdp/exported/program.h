// SPDX-License-Identifier: BSD-3-Clause
// A program of torch.export, read out of its archive: a graph of ATen calls, its parameters and buffers, and where in the
// file their bytes are. Nothing is computed and no weight is read. Names are resolved to slots here, so that whoever runs
// the graph meets no name that is not there.
// Source: torch/_export/serde/schema.py (schema 8), torch/export/pt2_archive/constants.py.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "sfsdp/exported/zip_archive.h"
#include "sfsdp/ir/type.h"

namespace sfsdp::exported {

// A size: a number, or an expression over symbols such as "s0*2", which stand for sizes of the batch.
struct SymInt {
  int64_t value = 0;  // of an expression: what it was in the example, or -1 where that is not known
  std::string expr;   // "" for a number
};

struct TensorMeta {
  ir::DType dtype = ir::DType::f32;
  std::vector<SymInt> sizes, strides;  // elements
  SymInt offset;                       // of the first element in its storage
  bool requires_grad = false;
};

struct Graph;

// The place of a value (a tensor, or a number that depends on the batch) in a graph's table; kNone: None.
using Slot = int32_t;
inline constexpr Slot kNone = -1;

struct NoneArgument {};
struct ValueArgument {
  Slot slot = kNone;
};
struct ValuesArgument {  // a list; kNone among them for an optional tensor that is not given
  std::vector<Slot> slots;
};
struct SymIntsArgument {  // a list of numbers, some of which are values
  std::vector<std::variant<int64_t, ValueArgument>> items;
};
struct DTypeArgument {
  ir::DType dtype = ir::DType::f32;
};
enum class MemoryFormat : uint8_t { Contiguous, ChannelsLast, ChannelsLast3d, Preserve };
struct StridedLayout {};   // the one layout that is not refused
struct DeviceArgument {};  // whichever it was: programs run where the step runs
struct ComplexArgument {
  double real = 0, imag = 0;
};
using Argument =
    std::variant<NoneArgument, ValueArgument, ValuesArgument, SymIntsArgument, bool, int64_t, double, std::string,
                 std::vector<bool>, std::vector<int64_t>, std::vector<double>, std::vector<std::string>, DTypeArgument,
                 MemoryFormat, StridedLayout, DeviceArgument, ComplexArgument, std::shared_ptr<const Graph>>;

struct NamedArgument {
  std::string name;  // of the op's schema; "" in higher-order ops
  Argument value;
  bool by_name = false;  // in a call from Python: given as name=value; read_program does not tell
};

struct Node {
  std::string target;  // "torch.ops.aten.add.Tensor", "_operator.mul"
  std::vector<NamedArgument> inputs;
  std::vector<Argument> outputs;  // ValueArgument, ValuesArgument or NoneArgument
  std::string module_path;        // "model.layers.0.mlp"
  std::string python;             // "modeling_llama.py:176: down_proj = self.down_proj(…)"; "" where not known
  bool checkpointed = false;      // ran in torch.utils.checkpoint, as python/sfsdp_export.py writes it down
};

struct Value {
  std::string name;
  std::optional<TensorMeta> tensor;  // none: a number
  SymInt number = {};                // what it is; read_program does not tell
};

// In the order that it runs. Each slot is given by an input or by one node, before it is read.
struct Graph {
  std::vector<Value> values;
  std::vector<Slot> inputs;
  std::vector<Argument> outputs;
  std::vector<Node> nodes;
};

// A parameter, a buffer or a constant tensor. Its sizes are numbers, its strides and offset those of its storage, which
// is all of `entry`: two tensors may lie in one.
struct StateTensor {
  enum class Kind : uint8_t { Parameter, Buffer, Constant };
  std::string name;  // as in Python: "model.layers.0.mlp.up_proj.weight"
  Kind kind = Kind::Parameter;
  bool persistent = true;  // in the state dict
  ir::DType dtype = ir::DType::f32;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  bool requires_grad = false;
  size_t entry = 0;  // in archive.entries(); of Contents: tensors with the same one are tied
};

// Whether both are one tensor under two names: tied.
bool is_tied(const StateTensor& a, const StateTensor& b);

struct InputTensor {
  std::string name;  // of the argument: "input_ids"
  Slot slot = kNone;
};

struct OutputValue {
  enum class Kind : uint8_t { User, BufferMutation, InputMutation };
  Kind kind = Kind::User;
  std::string name;  // User: by the output's structure, "loss", "logits"; else the buffer or input that is written
  Argument value;
};

// A program without the values of its tensors.
struct Contents {
  Graph graph;
  // The graph's inputs in order: state tensors by place in `state`, then those of the user.
  std::vector<std::pair<Slot, size_t>> state_inputs;  // slot, place in `state`
  std::vector<StateTensor> state;
  std::vector<InputTensor> inputs;
  std::vector<OutputValue> outputs;
  struct Range {
    std::string symbol;  // "s0"
    std::optional<int64_t> min, max;
  };
  std::vector<Range> ranges;
};

struct Program : Contents {
  ZipArchive archive;
  std::string torch_version;  // that wrote it
};

// throws: UserError naming file, place in the graph, expected and got
Program read_program(const std::string& path);

}  // namespace sfsdp::exported
