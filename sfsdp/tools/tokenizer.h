// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <iosfwd>

#include "sfsdp/tools/commands.h"
#include "sfsdp/train/data/tokenizer/tokenizer.h"

namespace sfsdp::tools {

// {"text": ...} to {"ids": [...]}, or back, a line each; each answer is flushed before the next line is read.
//   special: encode adds what the tokenizer's post-processor adds; decode keeps special tokens in the text
//   throws: UserError naming the line
int convert_lines(const train::Tokenizer& tokenizer, bool encodes, bool special, std::istream& in, std::ostream& out);

int run_tokenizer(const Request& request, std::ostream& out, std::ostream& err);

}  // namespace sfsdp::tools
