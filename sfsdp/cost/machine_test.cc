// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/machine.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <set>

#include "sfsdp/base/error.h"
#include "sfsdp/testing/source_dir.h"

namespace sfsdp::cost::machine_test {
namespace {

const std::filesystem::path kMachines = std::filesystem::path(testing::source_dir()) / "machines";

TEST_CASE("machine files: every one loads, is named as its file, and is a machine that could exist") {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kMachines)) {
    CAPTURE(entry.path().string());
    REQUIRE(entry.path().extension() == ".toml");
    const Machine m = load_machine(entry.path().string());
    CHECK(m.name == entry.path().stem().string());
    names.insert(m.name);
    CHECK(m.launch < 1e-4);
    if (m.name == "cpu_local") {  // measured, not from data sheets: no bf16 units, no network, one kernel of attention
      CHECK_FALSE(m.measured.ops.empty());
      CHECK_FALSE(m.measured.collectives.empty());
      continue;
    }
    CHECK(m.measured == Measured{});
    CHECK(m.peak_f32 < m.peak_bf16);
    for (const double share : {m.matmul_efficiency, m.attention_efficiency, m.vendor_attention_efficiency,
                               m.triton_attention_efficiency, m.memory_efficiency})
      CHECK((share > 0 && share < 1));
    CHECK(m.triton_attention_efficiency <= m.attention_efficiency);
    CHECK(m.attention_efficiency <= m.vendor_attention_efficiency);
    CHECK(m.network.bandwidth < m.node.bandwidth);
    CHECK(m.network.base_latency >= m.node.base_latency);
    CHECK(m.network.hop_latency >= m.node.hop_latency);
    CHECK(m.node.bandwidth < m.memory_bandwidth);
    CHECK(m.node.congestion == 0);  // a switch within a node is not shared
  }
  for (const char* expected :
       {"a100_40g", "a100_80g", "b200", "cpu_local", "dgx_h100", "gb200", "h100_96g_500w", "h200", "l40s", "rtx4090"})
    CHECK(names.contains(expected));
}

TEST_CASE("machine files are read, and mistakes in them named") {
  const Machine h100 = load_machine((kMachines / "dgx_h100.toml").string());
  CHECK(h100.peak_bf16 == doctest::Approx(989e12));
  CHECK(h100.devices_per_node == 8);
  CHECK(h100.network.bandwidth == doctest::Approx(46e9));
  CHECK_THROWS_WITH_AS(load_machine("nowhere.toml"), doctest::Contains("machine nowhere.toml is no name"), UserError);
  CHECK_THROWS_WITH_AS(parse_machine("name = 3", "m.toml"), doctest::Contains("name = 3\n  expected a text"),
                       UserError);
  CHECK_THROWS_WITH_AS(parse_machine("name = ", "m.toml"), doctest::Contains("m.toml:1"), UserError);
  const std::string text = print_machine(h100, "");
  for (const char* value : {"inf", "-inf", "nan", "1e308", "-1.0", "\"fast\""})
    for (const std::string key : {"launch_us", "memory_gib", "peak_bf16_tflops", "devices_per_node"}) {
      const size_t at = text.find("\n" + key + " = ") + key.size() + 4;
      std::string changed = text;
      changed.replace(at, text.find('\n', at) - at, value);
      CAPTURE(changed);
      CHECK_THROWS_WITH_AS(parse_machine(changed, "m.toml"), doctest::Contains(("m.toml: " + key + " = ").c_str()),
                           UserError);
    }
}

TEST_CASE("machines are found by name, and all names are told where one is wrong") {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(kMachines)) files.insert(entry.path().stem().string());
  const auto names = machine_names();
  CHECK(std::set<std::string>(names.begin(), names.end()) == files);
  CHECK(print_machine(load_machine("dgx_h100"), "") ==
        print_machine(load_machine((kMachines / "dgx_h100.toml").string()), ""));
  CHECK_THROWS_WITH_AS(load_machine("dgx_h10"), doctest::Contains("cpu_local, dgx_h100, gb200"), UserError);
  CHECK_THROWS_WITH_AS(load_machine("dgx_h10"), doctest::Contains("did you mean dgx_h100?"), UserError);
  CHECK_THROWS_AS(load_machine("/"), UserError);
}

TEST_CASE("machine files: what is printed reads back as the same machine, measured points and all") {
  Machine m = load_machine((kMachines / "dgx_h100.toml").string());
  m.tile_m = 64;
  m.network.overlap_slowdown = 0.03;
  m.measured.ops = {{"aten.mm", "f32[512, 256] f32[256, 64]{1, 256} -> f32[512, 64]", 16777216, 720896, 1.25e-4},
                    {"aten.neg", "f32[3] -> f32[3]", 0, 24, 7.1e-7}};
  m.measured.collectives = {{"all_gather", 2, 1024, 3.5e-5}, {"all_reduce", 4, 268435456, 0.75, 2}};
  m.measured.kernels = {
      {"linear f32[6, 4] f32[5, 4] -> f32[6, 5] onednn.matmul; aten.neg f32[6, 5] -> f32[6, 5]", 1.25e-4, 1.25e-4},
      {"accumulate f32[6, 5] -> f32[6, 5]", 0.75, 0.5}};
  m.inline_collectives = true;
  m.node.bus["all_reduce"] = BusBandwidth({{4, 363e9}, {8, 473e9}});
  m.network.bus["all_gather"] = BusBandwidth({{2, 185e9}, {64, 11e9}});
  const std::string text = print_machine(m, "first line\nsecond");
  CHECK(text.starts_with("# first line\n# second\nname = "));
  const Machine back = parse_machine(text, "m.toml");
  CHECK(back.name == m.name);
  CHECK(back.tile_m == 64);
  CHECK(back.peak_bf16 == doctest::Approx(m.peak_bf16).epsilon(1e-14));
  CHECK(back.vendor_attention_efficiency == m.vendor_attention_efficiency);
  CHECK(back.memory_bytes == doctest::Approx(m.memory_bytes).epsilon(1e-14));
  CHECK(back.dispatch == doctest::Approx(m.dispatch).epsilon(1e-14));
  CHECK(back.network.congestion == m.network.congestion);
  CHECK(back.network.overlap_slowdown == m.network.overlap_slowdown);
  CHECK(back.node.bus == m.node.bus);
  CHECK(back.network.bus == m.network.bus);
  CHECK(back.inline_collectives);
  REQUIRE(back.measured.kernels.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(back.measured.kernels[i].ops == m.measured.kernels[i].ops);
    CHECK(back.measured.kernels[i].seconds == doctest::Approx(m.measured.kernels[i].seconds).epsilon(1e-14));
    CHECK(back.measured.kernels[i].first == doctest::Approx(m.measured.kernels[i].first).epsilon(1e-14));
  }
  REQUIRE(back.measured.ops.size() == 2);
  REQUIRE(back.measured.collectives.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(back.measured.ops[i].op == m.measured.ops[i].op);
    CHECK(back.measured.ops[i].types == m.measured.ops[i].types);
    CHECK(back.measured.ops[i].flops == m.measured.ops[i].flops);
    CHECK(back.measured.ops[i].bytes == m.measured.ops[i].bytes);
    CHECK(back.measured.ops[i].seconds == doctest::Approx(m.measured.ops[i].seconds).epsilon(1e-14));
    CHECK(back.measured.collectives[i].kind == m.measured.collectives[i].kind);
    CHECK(back.measured.collectives[i].ranks == m.measured.collectives[i].ranks);
    CHECK(back.measured.collectives[i].nodes == m.measured.collectives[i].nodes);
    CHECK(back.measured.collectives[i].bytes == m.measured.collectives[i].bytes);
    CHECK(back.measured.collectives[i].seconds == doctest::Approx(m.measured.collectives[i].seconds).epsilon(1e-14));
  }
  CHECK(print_machine(back, "first line\nsecond") == text);
}

TEST_CASE("machine files: curves of bus bandwidth are read by kind, and mistakes in them named") {
  const std::string text = print_machine(load_machine("a100_400g"), "");
  const auto with = [&](const std::string& more) { return parse_machine(text + more, "m.toml"); };
  const Machine m = with(
      "[network.reduce_scatter]\nnodes = [2, 4.0]\ngb_s = [80, 60.5]\n[node.broadcast]\nranks = [8]\ngb_s = [9]\n");
  CHECK(m.network.bus.at("reduce_scatter").at(4) == doctest::Approx(60.5e9));
  CHECK(m.node.bus.at("broadcast").at(8) == doctest::Approx(9e9));
  const auto refused = [&](const std::string& more, const char* words) {
    CAPTURE(more);
    CHECK_THROWS_WITH_AS(with(more), doctest::Contains(words), UserError);
  };
  refused("[network.all_gather]\nnodes = [2, 4]\ngb_s = [80]\n",
          "m.toml: network.all_gather.gb_s = [ 80 ]\n  expected 2 numbers, one for each of nodes");
  refused("[network.all_gather]\nnodes = [4, 2]\ngb_s = [80, 60]\n",
          "network.all_gather.nodes = [ 4, 2 ]\n  expected numbers that rise");
  refused("[network.all_gather]\nnodes = [0.5]\ngb_s = [80]\n", "expected a list of numbers from 1 to");
  refused("[network.all_gather]\nnodes = [2]\ngb_s = [\"fast\"]\n", "network.all_gather.gb_s = [ 'fast' ]");
  refused("[network.all_gather]\nnodes = [1, -9223372036854775808]\ngb_s = [80, 60]\n",
          "nodes = [ 1, -9223372036854775808 ]\n");
  refused("[network.all_gather]\nnodes = {a = 1, b = [[2], \"c\"]}\ngb_s = [80]\n",
          "nodes = { a = 1, b = [ [ 2 ], 'c' ] }\n");
  refused("[network.all_gather]\nnodes = []\ngb_s = []\n", "network.all_gather.nodes = []");
  refused("[network.all_gather]\ngb_s = [80]\n", "network.all_gather.nodes = nothing");
  refused("[node.all_gather]\nnodes = [2]\ngb_s = [80]\n", "node.all_gather.ranks = nothing");
  refused("[network.all_gather]\nnodes = [2]\ngb_s = [80]\nspeed = 1\n", "unknown key network.all_gather.speed");
  refused("[network.all_to_all]\nnodes = [2]\ngb_s = [80]\n", "unknown key network.all_to_all");
}

TEST_CASE("machine files: mistakes in measured points are named") {
  const std::string text = print_machine(load_machine((kMachines / "h200.toml").string()), "");
  const auto with = [&](const std::string& measured) {
    return parse_machine(text + "[measured]\n" + measured, "m.toml");
  };
  CHECK_THROWS_WITH_AS(with("op = [{op = \"aten.mm\", types = \"\", us = 0}]"),
                       doctest::Contains("measured.op[0].us = 0\n  expected a number"), UserError);
  CHECK_THROWS_WITH_AS(with("collective = [{kind = \"all_gather\", bytes = 8, us = 1, speed = 2}]"),
                       doctest::Contains("unknown key measured.collective[0].speed"), UserError);
  CHECK_THROWS_WITH_AS(with("collective = [{kind = \"all_gather\", ranks = 4, nodes = 8, bytes = 8, us = 1}]"),
                       doctest::Contains("measured.collective[0].nodes = 8\n  expected at most the 4 ranks"),
                       UserError);
  CHECK_THROWS_WITH_AS(with("op = 3"), doctest::Contains("measured.op = 3\n  expected an array of tables"), UserError);
}

TEST_CASE("machine: a kernel of attention is chosen by name") {
  Machine m;
  m.attention_efficiency = 0.4;
  m.vendor_attention_efficiency = 0.6;
  m.triton_attention_efficiency = 0.2;
  Machine flash = m, vendor = m, triton = m;
  vendor.attention = *find_attention("vendor");
  triton.attention = *find_attention("triton");
  CHECK(attention_efficiency(flash) == 0.4);
  CHECK(attention_efficiency(vendor) == 0.6);
  CHECK(attention_efficiency(triton) == 0.2);
  CHECK_FALSE(find_attention("default"));

  // A machine file says which is usual there.
  CHECK(load_machine("dgx_h100").attention == Attention::Flash);
  CHECK(load_machine("b200").attention == Attention::Vendor);
  CHECK(load_machine("b200", Attention::Flash).attention == Attention::Flash);
  std::string text = print_machine(load_machine("gb200"), "");
  CHECK(parse_machine(text, "m.toml").attention == Attention::Vendor);
  text.replace(text.find("\"vendor\""), 8, "\"fast\"");
  CHECK_THROWS_WITH_AS(parse_machine(text, "m.toml"), "m.toml: attention = 'fast'\n  expected flash, vendor or triton",
                       UserError);
}

}  // namespace
}  // namespace sfsdp::cost::machine_test
