// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/machine.h"

#include <toml++/toml.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/base/toml_text.h"

namespace sfsdp::cost {
namespace {

// Beyond any machine, in any unit of the file, and small enough for every time of a step to be a number.
constexpr double kHighest = 1e18;

// As toml++ prints it. What it prints itself is a value: where it lays out a list it negates -2^63, which is undefined.
std::string text_of(const toml::node& node) {
  std::vector<std::string> parts;
  if (const toml::array* array = node.as_array()) {
    for (const toml::node& inner : *array) parts.push_back(text_of(inner));
    return parts.empty() ? "[]" : concat("[ ", join(parts, ", "), " ]");
  }
  if (const toml::table* table = node.as_table()) {
    for (const auto& [key, inner] : *table) parts.push_back(concat(key.str(), " = ", text_of(inner)));
    return parts.empty() ? "{}" : concat("{ ", join(parts, ", "), " }");
  }
  std::ostringstream value;
  node.visit([&](const auto& leaf) { value << leaf; });
  return value.str();
}

// Reads keys of one table and afterwards complains of those it did not ask for.
class Table {
 public:
  Table(const toml::table& table, std::string path, std::string file)
      : table_(table), path_(std::move(path)), file_(std::move(file)) {}

  std::string text(const std::string& key) {
    known_.push_back(key);
    const auto value = table_[key].value<std::string>();
    if (!value) fail(key, "a text");
    return *value;
  }
  double number(const std::string& key, double low, const double* fallback = nullptr) {
    known_.push_back(key);
    if (!table_.contains(key) && fallback) return *fallback;
    const auto value = table_[key].value<double>();
    if (!value || !(*value >= low && *value <= kHighest)) fail(key, concat("a number from ", low, " to ", kHighest));
    return *value;
  }
  double number(const std::string& key, double low, double fallback) { return number(key, low, &fallback); }
  int64_t whole(const std::string& key, int64_t fallback) {
    const double value = number(key, 1, static_cast<double>(fallback));
    if (value != static_cast<double>(static_cast<int64_t>(value)))
      fail(key, concat("a whole number from 1 to ", kHighest));
    return static_cast<int64_t>(value);
  }
  bool flag(const std::string& key, bool fallback) {
    known_.push_back(key);
    if (!table_.contains(key)) return fallback;
    const auto value = table_[key].value_exact<bool>();
    if (!value) fail(key, "true or false");
    return *value;
  }
  // At least one number, each at least `low`.
  std::vector<double> numbers(const std::string& key, double low) {
    known_.push_back(key);
    const toml::array* array = table_[key].as_array();
    std::vector<double> found;
    for (size_t i = 0; array && i < array->size(); ++i) {
      const auto value = (*array)[i].value<double>();
      if (!value || !(*value >= low && *value <= kHighest)) break;
      found.push_back(*value);
    }
    if (!array || array->empty() || found.size() != array->size())
      fail(key, concat("a list of numbers from ", low, " to ", kHighest));
    return found;
  }
  Table table(const std::string& key) {
    known_.push_back(key);
    const toml::table* inner = table_[key].as_table();
    if (!inner) fail(key, "a table");
    return Table(*inner, path_ + key + ".", file_);
  }
  // The tables of an array, none if there is no such key.
  std::vector<Table> tables(const std::string& key) {
    known_.push_back(key);
    std::vector<Table> found;
    if (!table_.contains(key)) return found;
    const toml::array* array = table_[key].as_array();
    if (!array) fail(key, "an array of tables");
    for (size_t i = 0; i < array->size(); ++i) {
      const toml::table* inner = (*array)[i].as_table();
      if (!inner) fail(key, "an array of tables");
      found.emplace_back(*inner, concat(path_, key, "[", i, "]."), file_);
    }
    return found;
  }
  bool has(const std::string& key) const { return table_.contains(key); }
  [[noreturn]] void fail(const std::string& key, const std::string& expected) const {
    const std::string got = table_.contains(key) ? text_of(*table_.get(key)) : "nothing";
    throw UserError(concat(file_, ": ", path_, key, " = ", got, "\n  expected ", expected));
  }
  void expect_no_more() const {
    for (const auto& [key, value] : table_) {
      const std::string name(key.str());
      if (std::find(known_.begin(), known_.end(), name) == known_.end())
        throw UserError(concat(file_, ": unknown key ", path_, name, "\n  expected a key of a machine file",
                               did_you_mean(name, known_)));
    }
  }

 private:
  const toml::table& table_;
  std::string path_, file_;
  std::vector<std::string> known_;
};

// members: "nodes" or "ranks", what the curve goes over
BusBandwidth read_bus(Table table, const std::string& members) {
  const std::vector<double> over = table.numbers(members, 1), gb_s = table.numbers("gb_s", 1e-6);
  std::vector<BusBandwidth::Point> points;
  for (size_t i = 0; i < over.size(); ++i) {
    if (i > 0 && over[i] <= over[i - 1]) table.fail(members, "numbers that rise");
    if (i < gb_s.size()) points.push_back({.members = over[i], .bandwidth = gb_s[i] * 1e9});
  }
  if (over.size() != gb_s.size()) table.fail("gb_s", concat(over.size(), " numbers, one for each of ", members));
  table.expect_no_more();
  return BusBandwidth(std::move(points));
}

Link read_link(Table table, const std::string& members) {
  Link link;
  link.bandwidth = table.number("bandwidth_gb_s", 1e-6) * 1e9;
  link.base_latency = table.number("base_latency_us", 0) * 1e-6;
  link.hop_latency = table.number("hop_latency_us", 0) * 1e-6;
  link.overlap_slowdown = table.number("overlap_slowdown", 0, 0.0);
  link.congestion = table.number("congestion", 0, 0.0);
  for (const char* kind : kBusKinds)
    if (table.has(kind)) link.bus[kind] = read_bus(table.table(kind), members);
  table.expect_no_more();
  return link;
}

double above_zero(Table& table, const std::string& key) { return table.number(key, 1e-300); }

Measured read_measured(Table table) {
  Measured measured;
  for (Table& row : table.tables("op")) {
    MeasuredOp m;
    m.op = row.text("op");
    m.types = row.text("types");
    m.flops = row.number("flops", 0, 0.0);
    m.bytes = row.number("bytes", 0, 0.0);
    m.seconds = above_zero(row, "us") * 1e-6;
    row.expect_no_more();
    measured.ops.push_back(std::move(m));
  }
  for (Table& row : table.tables("kernel")) {
    MeasuredKernel m;
    m.ops = row.text("ops");
    m.seconds = above_zero(row, "us") * 1e-6;
    m.first = row.number("first_us", 1e-300, m.seconds * 1e6) * 1e-6;
    row.expect_no_more();
    measured.kernels.push_back(std::move(m));
  }
  for (Table& row : table.tables("collective")) {
    MeasuredCollective m;
    m.kind = row.text("kind");
    m.ranks = row.whole("ranks", 1);
    m.nodes = row.whole("nodes", 1);
    if (m.nodes > m.ranks) row.fail("nodes", concat("at most the ", m.ranks, " ranks"));
    m.bytes = above_zero(row, "bytes");
    m.seconds = above_zero(row, "us") * 1e-6;
    row.expect_no_more();
    measured.collectives.push_back(std::move(m));
  }
  table.expect_no_more();
  return measured;
}

void print_link(std::ostream& out, const std::string& name, const Link& link, const char* members) {
  out << "\n[" << name << "]\nbandwidth_gb_s = " << shortest(link.bandwidth / 1e9)
      << "\nbase_latency_us = " << shortest(link.base_latency * 1e6)
      << "\nhop_latency_us = " << shortest(link.hop_latency * 1e6)
      << "\noverlap_slowdown = " << shortest(link.overlap_slowdown) << "\ncongestion = " << shortest(link.congestion)
      << "\n";
  for (const auto& [kind, curve] : link.bus) {
    std::vector<std::string> over, gb_s;
    for (const BusBandwidth::Point& p : curve.points()) {
      over.push_back(shortest(p.members));
      gb_s.push_back(shortest(p.bandwidth / 1e9));
    }
    out << "\n[" << name << "." << kind << "]\n"
        << members << " = [" << join(over, ", ") << "]\ngb_s = [" << join(gb_s, ", ") << "]\n";
  }
}

void print_measured(std::ostream& out, const Measured& measured) {
  if (measured == Measured{}) return;
  out << "\n# The whole tensor's bytes; of an op what it reads and writes.\n[measured]\ncollective = [\n";
  for (const MeasuredCollective& m : measured.collectives)
    out << "  {kind = \"" << m.kind << "\", ranks = " << m.ranks << (m.nodes > 1 ? concat(", nodes = ", m.nodes) : "")
        << ", bytes = " << shortest(m.bytes) << ", us = " << shortest(m.seconds * 1e6) << "},\n";
  out << "]\nop = [\n";
  for (const MeasuredOp& m : measured.ops) {
    out << "  {op = \"" << m.op << "\", types = \"" << m.types << "\", ";
    if (m.flops > 0) out << "flops = " << shortest(m.flops) << ", ";
    out << "bytes = " << shortest(m.bytes) << ", us = " << shortest(m.seconds * 1e6) << "},\n";
  }
  out << "]\n";
  if (measured.kernels.empty()) return;
  out << "# As a plan has them.\nkernel = [\n";
  for (const MeasuredKernel& m : measured.kernels) {
    out << "  {ops = \"" << m.ops << "\", us = " << shortest(m.seconds * 1e6);
    if (m.first != m.seconds) out << ", first_us = " << shortest(m.first * 1e6);
    out << "},\n";
  }
  out << "]\n";
}

}  // namespace

Machine parse_machine(const std::string& toml_text, const std::string& file) {
  check_toml_characters(toml_text, file);
  toml::table document;
  try {
    document = toml::parse(toml_text, file);
  } catch (const toml::parse_error& error) {
    throw UserError(concat(file, ":", error.source().begin.line, ": ", error.description(),
                           "\n  expected a machine file as in machines/"));
  }
  Table table(document, "", file);
  Machine m;
  m.name = table.text("name");
  m.device = table.text("device");
  m.peak_bf16 = table.number("peak_bf16_tflops", 1e-6) * 1e12;
  m.peak_f32 = table.number("peak_f32_tflops", 1e-6) * 1e12;
  m.matmul_efficiency = table.number("matmul_efficiency", 1e-3, m.matmul_efficiency);
  if (table.has("attention")) {
    const auto attention = find_attention(table.text("attention"));
    if (!attention) table.fail("attention", "flash, vendor or triton");
    m.attention = *attention;
  }
  m.attention_efficiency = table.number("attention_efficiency", 1e-3, m.attention_efficiency);
  m.vendor_attention_efficiency = table.number("vendor_attention_efficiency", 1e-3, m.attention_efficiency);
  m.triton_attention_efficiency = table.number("triton_attention_efficiency", 1e-3, m.attention_efficiency);
  m.attention_half_length = table.number("attention_half_length", 0, m.attention_half_length);
  m.tile_m = table.whole("tile_m", m.tile_m);
  m.tile_n = table.whole("tile_n", m.tile_n);
  m.multiprocessors = table.whole("multiprocessors", m.multiprocessors);
  m.half_k = table.number("half_k", 0, m.half_k);
  m.memory_bandwidth = table.number("memory_bandwidth_gb_s", 1e-3) * 1e9;
  m.memory_efficiency = table.number("memory_efficiency", 1e-3, m.memory_efficiency);
  m.memory_bytes = table.number("memory_gib", 1e-3) * (1LL << 30);
  m.launch = table.number("launch_us", 0) * 1e-6;
  m.dispatch = table.number("dispatch_us", 0, 0.0) * 1e-6;
  m.inline_collectives = table.flag("inline_collectives", m.inline_collectives);
  m.devices_per_node = table.whole("devices_per_node", 1);
  m.node = read_link(table.table("node"), "ranks");
  m.network = read_link(table.table("network"), "nodes");
  if (table.has("measured")) m.measured = read_measured(table.table("measured"));
  table.expect_no_more();
  return m;
}

std::string print_machine(const Machine& m, const std::string& comment) {
  std::ostringstream out;
  for (const std::string& line : split(comment, '\n')) out << "# " << line << "\n";
  const auto put = [&](const char* key, double value) { out << key << " = " << shortest(value) << "\n"; };
  out << "name = \"" << m.name << "\"\ndevice = \"" << m.device << "\"\n";
  put("peak_bf16_tflops", m.peak_bf16 / 1e12);
  put("peak_f32_tflops", m.peak_f32 / 1e12);
  put("matmul_efficiency", m.matmul_efficiency);
  out << "attention = \"" << to_string(m.attention) << "\"\n";
  put("attention_efficiency", m.attention_efficiency);
  put("vendor_attention_efficiency", m.vendor_attention_efficiency);
  put("triton_attention_efficiency", m.triton_attention_efficiency);
  put("attention_half_length", m.attention_half_length);
  put("tile_m", static_cast<double>(m.tile_m));
  put("tile_n", static_cast<double>(m.tile_n));
  put("multiprocessors", static_cast<double>(m.multiprocessors));
  put("half_k", m.half_k);
  put("memory_bandwidth_gb_s", m.memory_bandwidth / 1e9);
  put("memory_efficiency", m.memory_efficiency);
  put("memory_gib", m.memory_bytes / (1LL << 30));
  put("launch_us", m.launch * 1e6);
  put("dispatch_us", m.dispatch * 1e6);
  if (m.inline_collectives) out << "inline_collectives = true\n";
  put("devices_per_node", static_cast<double>(m.devices_per_node));
  print_link(out, "node", m.node, "ranks");
  print_link(out, "network", m.network, "nodes");
  print_measured(out, m.measured);
  return out.str();
}

double attention_efficiency(const Machine& machine) {
  switch (machine.attention) {
    case Attention::Vendor: return machine.vendor_attention_efficiency;
    case Attention::Triton: return machine.triton_attention_efficiency;
    case Attention::Flash: break;
  }
  return machine.attention_efficiency;
}

std::string_view to_string(Attention attention) {
  switch (attention) {
    case Attention::Flash: return "flash";
    case Attention::Vendor: return "vendor";
    case Attention::Triton: break;
  }
  return "triton";
}

std::optional<Attention> find_attention(std::string_view text) {
  for (const Attention attention : {Attention::Flash, Attention::Vendor, Attention::Triton})
    if (to_string(attention) == text) return attention;
  return std::nullopt;
}

namespace {

// Beside an installed program, bin/../share; else that of the sources.
std::filesystem::path machines_folder() {
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const auto installed = program.parent_path().parent_path() / SFSDP_INSTALL_DATADIR "/sfsdp/machines";
  return std::filesystem::is_directory(installed, ignored) ? installed : std::filesystem::path(SFSDP_MACHINES_DIR);
}

}  // namespace

std::vector<std::string> machine_names() {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(machines_folder(), ignored))
    if (entry.path().extension() == ".toml") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

Machine load_machine(const std::string& name, std::optional<Attention> attention) {
  const std::vector<std::string> names = machine_names();
  const bool is_known = std::find(names.begin(), names.end(), name) != names.end();
  const std::string path = is_known ? (machines_folder() / (name + ".toml")).string() : name;
  std::ifstream file(path);
  std::error_code ignored;  // a folder opens as a file does
  if (!file || std::filesystem::is_directory(path, ignored))
    throw UserError(concat("machine ", name,
                           " is no name of a machine, and no file that can be read\n  expected one of ",
                           join(names, ", "), ", or a file such as sfsdp calibrate writes", did_you_mean(name, names)));
  std::stringstream text;
  text << file.rdbuf();
  Machine machine = parse_machine(text.str(), path);
  if (attention) machine.attention = *attention;
  return machine;
}

}  // namespace sfsdp::cost
