// SPDX-License-Identifier: BSD-3-Clause
// A job's configuration: TOML, then keys, types and ranges.
#include "sfsdp/train/config/config.h"
#include "target.h"

namespace sfsdp::fuzz {
namespace {

void read(std::string_view bytes) { train::to_toml(train::load_config_file(as_file(bytes))); }

std::vector<std::string> seeds() {
  std::vector<std::string> texts = {train::to_toml({})};
  for (const char* name : {"llama3_debug", "llama3_8b", "gpt2_124m"})
    texts.push_back(source_file(std::string("configs/") + name + ".toml"));
  return texts;
}

SFSDP_FUZZ_TARGET(toml, read, seeds)

}  // namespace
}  // namespace sfsdp::fuzz
