// SPDX-License-Identifier: BSD-3-Clause
// Which kernels an op may join: the rule of fuse.h as questions, each with a reason for its no.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/access.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/fuse/fuse.h"

namespace sfsdp::passes {

// Why an op is in another kernel than what it reads.
enum class Apart : uint8_t {
  No,  // nothing stands against it
  BeginsItsOwn,
  // the kernel had ended
  Collective,
  ReadByAnother,
  WrittenOver,
  AfterUpdate,
  EndsWithItsOp,
  // the two run at other times, or for others
  Scope,
  Once,
  Section,
  OtherUpdate,
  JoinedAnother,
  // the op works on other elements than the kernel, or reads others than its own block has
  WritesWhatIsRead,
  NotByPlace,
  RowsOfTiles,
  NotInRows,
  OtherWidth,
  OtherSize,
  PartsOfProduct,
  Pairs,
  AfterAllRows,
  OtherOrder,
  OtherElements,
};
inline constexpr size_t kAparts = static_cast<size_t>(Apart::OtherElements) + 1;
// "a tile of a product holds no whole row"
std::string_view to_string(Apart why);

// A kernel while ops are dealt out.
struct Kernel {
  enum Kind : uint8_t { Single, Product, Pointwise, Row } kind = Single;
  std::vector<ir::Op*> ops;
  int64_t numel = 0;  // of what it works on
  int64_t width = 0;  // of a row; 0: no reduction yet
  int64_t group = 0;  // of the dimension that holds pairs; 0: none are read
  ir::Section section = ir::Section::Init;
  std::string block;
  Apart ended = Apart::No;  // No: ops may join
  bool open() const { return ended == Apart::No; }
};

// Rules that read the graph and what was dealt out before. No state of its own but the maps of ops.
class JoinRules {
 public:
  //   made_by: the kernel of each op so far; outlives the rules
  JoinRules(const ir::Graph& graph, FuseScope scope, const std::unordered_map<const ir::Op*, Kernel*>& made_by)
      : scope_(scope), accesses_(graph), made_by_(made_by) {}

  // Whether `op` may join an open kernel: No, or the first rule that stands against it.
  Apart ask(const ir::Op& op, cost::Class kind, const Kernel& kernel);

  // The kernel that makes the memory of a value; nullptr: none does, or not yet.
  Kernel* maker_of(const ir::Value* value) const;
  const ir::OpAccess& access(const ir::Op& op) { return accesses_.of(op); }
  static bool reads(const Kernel& kernel, const ir::Value* storage);
  // Whether some op of the kernel reads what `op` reads, as large as what the kernel works on.
  static bool reads_alike(const ir::Op& op, const Kernel& kernel);

 private:
  Apart ask_size(const ir::Op& op, cost::Class kind, const Kernel& kernel);
  Apart ask_reads(const ir::Op& op, cost::Class kind, const Kernel& kernel, int64_t numel, int64_t width);
  bool is_over_rows(const ir::Value& made);
  int64_t numel_read(const ir::Op& op, const Kernel& kernel) const;
  const ir::Value* part_of(const ir::Value* value, const Kernel& kernel) const;
  bool scales_gradient(const ir::Op& update, const Kernel& kernel);
  Apart ask_place(const ir::Op& reader, const ir::Value& value, int64_t numel, int64_t width);

  const FuseScope scope_;
  ir::Accesses accesses_;
  const std::unordered_map<const ir::Op*, Kernel*>& made_by_;
};

}  // namespace sfsdp::passes
