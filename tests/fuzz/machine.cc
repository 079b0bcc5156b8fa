// SPDX-License-Identifier: BSD-3-Clause
// Machine files.
#include "sfsdp/cost/machine.h"

#include "target.h"

namespace sfsdp::fuzz {
namespace {

void read(std::string_view bytes) { cost::print_machine(cost::parse_machine(std::string(bytes), "fuzz.toml"), ""); }

std::vector<std::string> seeds() {
  std::vector<std::string> texts;
  for (const std::string& name : cost::machine_names()) texts.push_back(source_file("machines/" + name + ".toml"));
  return texts;
}

SFSDP_FUZZ_TARGET(machine, read, seeds)

}  // namespace
}  // namespace sfsdp::fuzz
