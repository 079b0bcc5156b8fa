// SPDX-License-Identifier: BSD-3-Clause
// Token files of inputs that are text, made once: by the first process that asks, while the others of the host wait for it.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace sfsdp::train {

struct TokenCacheOptions {
  std::string folder;               // of the cache, made if need be, such as <dump_folder>/tokens
  std::vector<std::string> inputs;  // files, in the order of their documents
  std::string recipe;               // what else decides the ids, such as the tokenizer's hash
};

// The folder <options.folder>/<16 digits> with token files of the inputs, complete. The digits are the hash of recipe and
// contents, so other contents get a folder of their own; contents are hashed again where size or time of a file changed.
// A folder gets its name only after the inputs were looked at once more, so it holds the tokens of what was hashed.
//   make: writes the token files and dataset.json into a folder "….unfinished-…", which may hold what an earlier call left of
//         inputs with the same contents and times
//   throws: UserError naming a file that cannot be read or written; InputChanged; and what `make` throws
std::string cached_tokens(const TokenCacheOptions& options, const std::function<void(const std::string& folder)>& make);

}  // namespace sfsdp::train
