// SPDX-License-Identifier: BSD-3-Clause
// `sfsdp export`: what a run of an exported model has learned, for Python.
#include <ostream>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/tools/commands.h"
#include "sfsdp/train/weights/adapter_values.h"
#include "sfsdp/train/weights/archive_export.h"

namespace sfsdp::tools {

int run_export(const Request& request, std::ostream& out, std::ostream&) {
  const auto& operands = request.own.operands;
  if (operands.size() != 2)
    throw UserError("sfsdp export: expected CHECKPOINT and OUT, such as outputs/checkpoint/step-100 trained.pt2");
  if (request.has("dtype"))
    throw UserError("sfsdp export: --dtype with an archive or adapters\n  expected none: they keep their dtypes");
  const std::string archive = request.get("archive");
  const std::string format = choice_of(request, "format", {"pt2", "safetensors", "peft"});
  const bool merge = request.has("merge");
  if (format == "peft") {
    if (merge)
      throw UserError("sfsdp export: --merge with --format peft\n  expected one: PEFT's files hold adapters alone");
    train::export_peft(operands[0], operands[1], request.get("hf-assets"));
    out << operands[1] << ": the adapters of " << operands[0] << "\n";
    return 0;
  }
  if (archive.empty())
    throw UserError("sfsdp export: expected --archive, the file that the run was given as model.path");
  if (format == "pt2")
    train::export_archive(operands[0], archive, operands[1], merge);
  else
    train::export_safetensors(operands[0], archive, operands[1], merge);
  out << operands[1] << ": " << format << ", with the weights of " << operands[0] << "\n";
  return 0;
}

}  // namespace sfsdp::tools
