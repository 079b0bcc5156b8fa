// SPDX-License-Identifier: BSD-3-Clause
// Ids that are put before and after those of a text, such as BOS.
#pragma once

#include <cstdint>
#include <vector>

#include "sfsdp/train/data/tokenizer/fields.h"

namespace sfsdp::train::tokenizer {

// What is put around the ids of a text: `post_processor` of a tokenizer.json.
//   known: TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel (of offsets alone), Sequence with one of them
struct PostProcessor {
  std::vector<int32_t> before, after;

  // most: ids are below
  static PostProcessor parse(const Field& field, int64_t most);
};

}  // namespace sfsdp::train::tokenizer
