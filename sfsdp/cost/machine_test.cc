// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/machine.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <set>

#include "sfsdp/base/error.h"

namespace sfsdp::cost {
namespace {

const std::filesystem::path kMachines = std::filesystem::path(SFSDP_SOURCE_DIR) / "machines";

TEST_CASE("machine files: every one loads, is named as its file, and is a machine that could exist") {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kMachines)) {
    CAPTURE(entry.path().string());
    REQUIRE(entry.path().extension() == ".toml");
    const Machine m = load_machine(entry.path().string());
    CHECK(m.name == entry.path().stem().string());
    names.insert(m.name);
    CHECK(m.peak_f32 < m.peak_bf16);
    for (const double share : {m.matmul_efficiency, m.attention_efficiency, m.vendor_attention_efficiency,
                               m.triton_attention_efficiency, m.memory_efficiency})
      CHECK((share > 0 && share < 1));
    CHECK(m.triton_attention_efficiency <= m.attention_efficiency);
    CHECK(m.attention_efficiency <= m.vendor_attention_efficiency);
    CHECK(m.launch < 1e-4);
    CHECK(m.network.bandwidth < m.node.bandwidth);
    CHECK(m.network.base_latency >= m.node.base_latency);
    CHECK(m.network.hop_latency >= m.node.hop_latency);
    CHECK(m.node.bandwidth < m.memory_bandwidth);
    CHECK(m.node.congestion == 0);  // a switch within a node is not shared
  }
  for (const char* expected : {"a100_80g", "b200", "dgx_h100", "gb200", "h100_96g_500w", "h200"})
    CHECK(names.contains(expected));
}

TEST_CASE("machine files are read, and mistakes in them named") {
  const Machine h100 = load_machine((kMachines / "dgx_h100.toml").string());
  CHECK(h100.peak_bf16 == doctest::Approx(989e12));
  CHECK(h100.devices_per_node == 8);
  CHECK(h100.network.bandwidth == doctest::Approx(46e9));
  CHECK_THROWS_WITH_AS(load_machine("nowhere.toml"), doctest::Contains("nowhere.toml cannot be read"), UserError);
  CHECK_THROWS_WITH_AS(parse_machine("name = 3", "m.toml"), doctest::Contains("name = 3\n  expected a text"),
                       UserError);
  CHECK_THROWS_WITH_AS(parse_machine("name = ", "m.toml"), doctest::Contains("m.toml:1"), UserError);
}

TEST_CASE("machine: a kernel of attention is chosen by name") {
  Machine m;
  m.attention_efficiency = 0.4;
  m.vendor_attention_efficiency = 0.6;
  m.triton_attention_efficiency = 0.2;
  Machine flash = m, vendor = m, triton = m;
  choose_attention(flash, "flash", "--attention");
  choose_attention(vendor, "vendor", "--attention");
  choose_attention(triton, "triton", "--attention");
  CHECK(flash.attention_efficiency == 0.4);
  CHECK(vendor.attention_efficiency == 0.6);
  CHECK(triton.attention_efficiency == 0.2);
  CHECK_THROWS_WITH_AS(choose_attention(m, "fast", "--attention"),
                       "--attention fast\n  expected flash, vendor or triton", UserError);
}

}  // namespace
}  // namespace sfsdp::cost
