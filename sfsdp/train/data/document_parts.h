// SPDX-License-Identifier: BSD-3-Clause
// What a line of JSON says a document is, and which of its ids the loss counts as targets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sfsdp/base/json.h"

namespace sfsdp::train {

// Side by side, parts make a document. Each text is tokenized by itself: no token lies over a border between two.
struct DocumentPart {
  std::string text;
  std::vector<int32_t> ids = {};  // of a line that holds ids instead of texts
  bool counts = true;
};

struct LineOptions {
  std::string field = "text";  // holds the text of a line without masks, all of whose ids count
  bool masks = false;      // lines may be {"prompt": "...", "completion": "..."} or {"tokens": [5, 7], "mask": [0, 1]}
  int64_t vocab_size = 0;  // of the tokenizer: ids are below it
};

//   where:  file and line, for messages
//   throws: UserError naming what the line lacks, has twice, or has of another kind than it should
std::vector<DocumentPart> parts_of_line(JsonValue line, const LineOptions& options, const std::string& where);

}  // namespace sfsdp::train
