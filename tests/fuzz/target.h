// SPDX-License-Identifier: BSD-3-Clause
// What reads a kind of file, as the fuzzer calls it. A target is a file of this folder with one SFSDP_FUZZ_TARGET.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sfsdp::fuzz {

struct Target {
  std::string name;
  void (*read)(std::string_view bytes) = nullptr;  // throws UserError for what it refuses; any other end is a finding
  std::vector<std::string> (*seeds)() = nullptr;   // inputs that `read` takes
  // For three of four inputs, in place of the driver's own changes: what gets past the outer layers of a format. The same for
  // the same seed and number.
  std::string (*change)(const std::string& seed, uint64_t number) = nullptr;
  uint64_t counts = 1;  // how many of another target's inputs one of this one's is, by its time
};

// All targets that are linked in.
std::vector<Target>& targets();

struct Register {
  explicit Register(Target target) { targets().push_back(std::move(target)); }
};

// Bytes as a file that can be opened by its path and mapped. One at a time; the next call replaces it.
std::string as_file(std::string_view bytes);

// All of a file below the source tree, such as "configs/llama3_8b.toml".
std::string source_file(const std::string& path);

}  // namespace sfsdp::fuzz

// Defines the entry point that libFuzzer calls too (libfuzzer.cc), and lists the target for driver.cc. UserError is caught
// by whoever calls `read`.
#define SFSDP_FUZZ_TARGET(name, read, seeds, ...) \
  static const ::sfsdp::fuzz::Register registered_##name({#name, read, seeds __VA_OPT__(, ) __VA_ARGS__});
