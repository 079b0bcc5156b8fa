// SPDX-License-Identifier: BSD-3-Clause
// Shows what passes do to a graph: the graph after each of them, or the lines that each has changed.
#pragma once

#include <iosfwd>
#include <string>

#include "sfsdp/passes/pass_manager.h"

namespace sfsdp::passes {

// Where to: "stdout", "stderr", else a folder, which is made; "": nowhere.
struct PrintIrOptions {
  std::string after_all = {};  // 00-start.txt, 01-dead_code.txt, …
  std::string diff = {};       // 01-dead_code.diff, …: empty where a pass changed nothing
};

// The observer that prints, unset if there is nowhere to. The numbers go on where one observer sees several graphs: each
// begins with another start. Files of the same names are replaced. The streams must outlive it.
//   throws (when called): UserError for a folder or file that cannot be written
PassObserver print_ir(const PrintIrOptions& options, std::ostream& out, std::ostream& err);

}  // namespace sfsdp::passes
