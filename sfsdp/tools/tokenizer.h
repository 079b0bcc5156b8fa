// SPDX-License-Identifier: BSD-3-Clause
// What `sfsdp tokenize` and `sfsdp tokenizer` share, and tests of them call.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "sfsdp/tools/commands.h"
#include "sfsdp/train/data/tokenize.h"
#include "sfsdp/train/data/tokenizer/tokenizer.h"

namespace sfsdp::tools {

// {"text": ...} to {"ids": [...]}, or back, a line each; each answer is flushed before the next line is read.
//   special: encode adds what the tokenizer's post-processor adds; decode keeps special tokens in the text
//   throws: UserError naming the line
int convert_lines(const train::Tokenizer& tokenizer, bool encodes, bool special, std::istream& in, std::ostream& out);

// A bar, the share of the input that is read, tokens so far, tokens per second and the time that is left:
// "[######..................] 25.0 %  1,000,000 tokens  2.00 M/s  ETA 1:30".
//   seconds: since this call began; tokens_before, bytes_before: what was done when it began
std::string progress_line(const train::TokenizeProgress& progress, double seconds, int64_t tokens_before,
                          int64_t bytes_before);

int run_tokenizer(const Request& request, std::ostream& out, std::ostream& err);
int run_tokenize(const Request& request, std::ostream& out, std::ostream& err);

}  // namespace sfsdp::tools
