// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/machine_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <sstream>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/train/plan_summary.h"

namespace sfsdp::train {
namespace {

namespace fs = std::filesystem;

// The one number of a file; none for "max", which is no limit.
std::optional<int64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  std::string text;
  file >> text;
  return parse_int(text);
}

// "MemTotal:  16316412 kB" -> bytes, by name.
std::map<std::string, int64_t> read_meminfo(const std::string& path) {
  std::map<std::string, int64_t> bytes;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t kib = 0;
    if (words >> name >> kib && !name.empty()) bytes[name.substr(0, name.size() - 1)] = kib << 10;
  }
  return bytes;
}

// The least limit of a group and of those that it lies in.
int64_t limit_of_group(const fs::path& root, const std::string& group, const char* file) {
  int64_t limit = std::numeric_limits<int64_t>::max();
  for (fs::path path = fs::path(group).relative_path();; path = path.parent_path()) {
    limit = std::min(limit, number_in(root / path / file).value_or(limit));
    if (path.empty()) return limit;
  }
}

// Reads the groups of version 2 ("0::/a/b") and of version 1 ("9:memory:/a/b").
int64_t limit_of_groups(const std::string& proc, const fs::path& groups) {
  int64_t limit = std::numeric_limits<int64_t>::max();
  std::ifstream file(proc + "/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> parts = split(line, ':');
    if (parts.size() != 3) continue;
    if (parts[1].empty()) limit = std::min(limit, limit_of_group(groups, parts[2], "memory.max"));
    if (parts[1] == "memory")
      limit = std::min(limit, limit_of_group(groups / "memory", parts[2], "memory.limit_in_bytes"));
  }
  return limit;
}

}  // namespace

MachineMemory read_machine_memory(const std::string& proc, const std::string& groups) {
  std::map<std::string, int64_t> bytes = read_meminfo(proc + "/meminfo");
  const int64_t limit = limit_of_groups(proc, groups);
  return {std::min(bytes["MemTotal"], limit), bytes["SwapTotal"],
          std::min(bytes["MemAvailable"], limit) + bytes["SwapFree"]};
}

std::string check_planned_memory(int64_t planned_bytes, int64_t local_ranks, const MachineMemory& machine) {
  SFSDP_CHECK(planned_bytes >= 0 && local_ranks >= 1, planned_bytes, " bytes of ", local_ranks, " ranks");
  if (machine.ram_bytes <= 0) return "";  // not known
  const bool is_more_than_int64 = planned_bytes > std::numeric_limits<int64_t>::max() / local_ranks;
  const int64_t all = is_more_than_int64 ? std::numeric_limits<int64_t>::max() : planned_bytes * local_ranks;
  const std::string plan = concat(
      "planned peak ", bytes_text(planned_bytes),
      local_ranks > 1 ? concat(" on each of ", local_ranks, " ranks of this machine, together ", bytes_text(all)) : "");
  if (all > machine.ram_bytes + machine.swap_bytes)
    throw UserError(
        concat(plan, ", but this machine has ", bytes_text(machine.ram_bytes), " of memory and ",
               bytes_text(machine.swap_bytes),
               " of swap\n  expected a step that fits; lower training.local_batch_size or training.seq_len,"
               " set activation_checkpoint.mode = full or training.loss_chunks, or shard over more machines"));
  if (all > machine.available_bytes)
    return concat(plan, ", but ", bytes_text(machine.available_bytes),
                  " are available now, swap included: the run may be slow, or be ended by the system");
  return "";
}

}  // namespace sfsdp::train
