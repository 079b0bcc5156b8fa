// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/machine_memory.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include "sfsdp/base/error.h"
#include "sfsdp/testing/temporary_folder.h"

namespace sfsdp::train::machine_memory_test {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr const char* kMeminfo =
    "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:    8388608 kB\nSwapTotal: 2097152 kB\nSwapFree: "
    "1048576 kB\n";

}  // namespace

TEST_CASE("the memory of a machine is what its control groups leave of it") {
  const testing::TemporaryFolder folder;
  const auto read = [&] { return read_machine_memory(folder / "proc", folder / "groups"); };
  CHECK(read().ram_bytes == 0);  // nothing can be read
  folder.write("proc/meminfo", kMeminfo);
  CHECK(read().ram_bytes == 16 * kGiB);
  CHECK(read().swap_bytes == 2 * kGiB);
  CHECK(read().available_bytes == 9 * kGiB);
  folder.write("proc/self/cgroup", "0::/job/step\n");
  folder.write("groups/job/step/memory.max", "max\n");
  CHECK(read().ram_bytes == 16 * kGiB);
  folder.write("groups/job/memory.max", "4294967296\n");  // of the group around it
  CHECK(read().ram_bytes == 4 * kGiB);
  CHECK(read().available_bytes == 5 * kGiB);
  folder.write("proc/self/cgroup", "3:cpu:/x\n2:memory:/job\n");
  folder.write("groups/memory/job/memory.limit_in_bytes", "9223372036854771712\n");  // version 1's "none"
  CHECK(read().ram_bytes == 16 * kGiB);
  folder.write("groups/memory/memory.limit_in_bytes", "1073741824\n");
  CHECK(read().ram_bytes == 1 * kGiB);
}

TEST_CASE("this machine has the memory that the C library counts, or less in a control group") {
  const MachineMemory machine = read_machine_memory();
  CHECK(machine.ram_bytes > 0);
  CHECK(machine.ram_bytes <= int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE));
  CHECK(machine.available_bytes > 0);
}

TEST_CASE("a plan above memory and swap is refused with the numbers, one above what is free now is said") {
  const MachineMemory machine = {16 * kGiB, 2 * kGiB, 9 * kGiB};
  CHECK(check_planned_memory(9 * kGiB, 1, machine).empty());
  CHECK(check_planned_memory(3 * kGiB, 3, machine).empty());
  CHECK(check_planned_memory(18 * kGiB, 1, machine).starts_with("planned peak 18.00 GiB, but 9.00 GiB are available"));
  CHECK_THROWS_WITH_AS(
      check_planned_memory(18 * kGiB + 1, 1, machine),
      doctest::Contains("planned peak 18.00 GiB, but this machine has 16.00 GiB of memory and 2.00 GiB of swap\n"
                        "  expected a step that fits; lower training.local_batch_size"),
      UserError);
  CHECK_THROWS_WITH_AS(
      check_planned_memory(5 * kGiB, 4, machine),
      doctest::Contains("planned peak 5.00 GiB on each of 4 ranks of this machine, together 20.00 GiB"), UserError);
  CHECK_THROWS_AS(check_planned_memory(int64_t{1} << 62, 8, machine), UserError);
  CHECK(check_planned_memory(100 * kGiB, 1, {}).empty());  // a machine that says nothing refuses nothing
}

}  // namespace sfsdp::train::machine_memory_test
