// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/capture/check_product.h"

#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::capture {

void check_product(const ir::Op& op) {
  const ir::OpRow* row = op.opcode.row();
  if (!row || row->cost != ir::CostClass::Product) return;
  const bool grouped = op.is("aten._grouped_mm");  // whose offsets are integers
  std::vector<std::string> types;
  bool alike = true;
  for (size_t k = 0; k < op.operands.size(); ++k) {
    if (!op.operands[k] || (grouped && k == 2)) continue;
    const ir::Type& type = op.operands[k]->type();
    types.push_back(concat(type));
    alike &= type.dtype == op.operands[0]->type().dtype;
  }
  if (alike) return;
  throw UserError(
      concat(ir::opcode_at(op), " is given ", join(types, " and "),
             ", and LibTorch multiplies tensors of one dtype alone\n  expected the same dtype of all: cast one with ",
             ".to(...), or the module with module.to(...)"));
}

}  // namespace sfsdp::capture
