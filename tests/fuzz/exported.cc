// SPDX-License-Identifier: BSD-3-Clause
// An archive of torch.export. Three of four inputs are changed where a reader looks: numbers of the zip format, or values of
// the JSON inside, packed again with the CRCs that they ask for. Whatever is read must be sound, and what is refused must
// be refused in words that a terminal can show.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/exported/describe.h"
#include "sfsdp/exported/printable.h"
#include "sfsdp/exported/program.h"
#include "sfsdp/exported/read_values.h"
#include "sfsdp/testing/zip_bytes.h"
#include "target.h"

namespace sfsdp::fuzz {
namespace {

using Json = nlohmann::ordered_json;
using testing::ZipParts;

// ---- what must hold -------------------------------------------------------------------------------------------------

// Which values of a graph are there, in its order.
struct SlotWalk {
  const exported::Graph& graph;
  std::set<exported::Slot> made = {};

  void read(exported::Slot slot) const {
    SFSDP_CHECK(slot == exported::kNone || made.contains(slot), "reads value ", slot);
  }
  void make(exported::Slot slot) {
    if (slot == exported::kNone) return;
    SFSDP_CHECK(slot >= 0 && static_cast<size_t>(slot) < graph.values.size(), "value ", slot);
    SFSDP_CHECK(made.insert(slot).second, "value ", slot, " is made twice");
  }
  void read(const exported::Argument& argument) const {
    if (const auto* one = std::get_if<exported::ValueArgument>(&argument)) read(one->slot);
    if (const auto* list = std::get_if<exported::ValuesArgument>(&argument))
      for (const exported::Slot slot : list->slots) read(slot);
    if (const auto* list = std::get_if<exported::SymIntsArgument>(&argument))
      for (const auto& item : list->items)
        if (const auto* value = std::get_if<exported::ValueArgument>(&item)) read(value->slot);
    if (const auto* inner = std::get_if<std::shared_ptr<const exported::Graph>>(&argument)) SlotWalk{**inner}.walk();
  }
  void make(const exported::Argument& argument) {
    if (const auto* one = std::get_if<exported::ValueArgument>(&argument)) make(one->slot);
    if (const auto* list = std::get_if<exported::ValuesArgument>(&argument))
      for (const exported::Slot slot : list->slots) make(slot);
  }
  void walk() {
    for (const exported::Slot slot : graph.inputs) make(slot);
    for (const exported::Node& node : graph.nodes) {
      for (const exported::NamedArgument& input : node.inputs) read(input.value);
      for (const exported::Argument& output : node.outputs) make(output);
    }
    for (const exported::Argument& output : graph.outputs) read(output);
  }
};

void check_program(const exported::Program& program) {
  SlotWalk{program.graph}.walk();
  SFSDP_CHECK(program.outputs.size() == program.graph.outputs.size(), program.outputs.size(), " outputs");
  int64_t bytes = 0;
  for (const exported::ZipEntry& entry : program.archive.entries()) bytes += static_cast<int64_t>(entry.bytes);
  for (const exported::StateTensor& t : program.state) {
    const int64_t numel = ir::Type::tensor(t.dtype, t.sizes).numel(), element = ir::size_in_bytes(t.dtype);
    SFSDP_CHECK(numel * element <= bytes + (64 << 20), t.name, " has ", numel, " elements");
    std::vector<std::byte> some(static_cast<size_t>(std::min<int64_t>(numel, 4096) * element));
    for (const int64_t first : {int64_t{0}, numel - static_cast<int64_t>(some.size()) / element})
      exported::read_values(program.archive, t, first, some);
  }
  for (const std::string& line : split(exported::describe(program), '\n'))
    SFSDP_CHECK(exported::is_printable(line), "a description has control characters");
}

void read(std::string_view bytes) {
  const std::string path = as_file(bytes);
  try {
    check_program(exported::read_program(path));
  } catch (const UserError& error) {
    const std::string_view text = error.what();
    SFSDP_CHECK(text.starts_with(path + ": ") && text.find("\n  expected ") != std::string_view::npos, text);
    SFSDP_CHECK(text.size() < 8192, "a message of ", text.size(), " bytes");
    for (const std::string& line : split(text, '\n')) SFSDP_CHECK(exported::is_printable(line), "control characters");
    throw;
  }
}

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  for (const char* name : {"shared", "convolutions", "dropout", "half", "decoder"})
    all.push_back(source_file(concat("tests/fixtures/exported/", name, ".pt2")));
  return all;
}

// ---- numbers of the zip format --------------------------------------------------------------------------------------

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  size_t below(size_t limit) { return limit == 0 ? 0 : static_cast<size_t>(engine_() % limit); }
  template <class All>
  const auto& one_of(const All& all) {
    return all[below(std::size(all))];
  }
  int64_t number() {
    static constexpr std::array<int64_t, 16> kNumbers = {
        0, 1, 2, -1, 3, 7, 8, 64, 255, 65535, 65536, 0x7fffffff, 0xffffffff, INT64_MAX, INT64_MIN, int64_t{1} << 62};
    return below(3) == 0 ? static_cast<int64_t>(engine_() >> below(64)) : one_of(kNumbers);
  }

 private:
  std::mt19937_64 engine_;
};

// A field of a header becomes a number, that of another header, or what points at one.
std::string change_zip(std::string text, Random& random) {
  static constexpr std::array<std::string_view, 6> kSigns = {"PK\x01\x02", "PK\x01\x02", "PK\x03\x04",
                                                             "PK\x05\x06", "PK\x07\x08", "PK\x06\x07"};
  for (size_t changes = 1 + random.below(3); changes > 0; --changes) {
    const std::string_view sign = random.one_of(kSigns);
    std::vector<size_t> places;
    for (size_t at = text.find(sign); at != std::string::npos; at = text.find(sign, at + 1)) places.push_back(at);
    if (places.empty()) continue;
    const size_t at = random.one_of(places) + 4 + 2 * random.below(22), width = size_t{2} << random.below(3);
    const size_t other = random.one_of(places);
    if (at + width > text.size()) continue;
    const uint64_t value = random.below(3) == 0 ? other : static_cast<uint64_t>(random.number());
    if (random.below(4) == 0)
      text.replace(random.one_of(places), std::min<size_t>(46, text.size() - other), text.substr(other, 46));
    else
      std::memcpy(text.data() + at, &value, width);
  }
  return text;
}

// ---- values of the JSON inside --------------------------------------------------------------------------------------

// A seed as parts, its JSON parsed. Seeds are few.
struct Opened {
  ZipParts parts;
  std::map<size_t, Json> json;  // by place in parts
};

const Opened& opened(const std::string& seed) {
  static std::map<std::string, Opened> all;
  const auto [at, fresh] = all.try_emplace(seed);
  if (!fresh) return at->second;
  const auto archive = exported::ZipArchive::open(as_file(seed));
  for (const exported::ZipEntry& entry : archive.entries()) {
    at->second.parts.emplace_back(entry.name, archive.read_text(entry, 1 << 20));
    if (entry.name.ends_with(".json"))
      at->second.json[at->second.parts.size() - 1] = Json::parse(at->second.parts.back().second);
  }
  return at->second;
}

// A value somewhere in `from`, deep ones as often as shallow ones.
Json& some_value(Json& from, Random& random) {
  Json* at = &from;
  while (at->is_structured() && !at->empty() && random.below(12) != 0)
    at = &*std::next(at->begin(), static_cast<long>(random.below(at->size())));
  return *at;
}

Json hostile_value(Random& random) {
  static const std::array<const char*, 30> kTexts = {"",
                                                     "p_mix",
                                                     "x\x1b[31m",
                                                     "\x7f",
                                                     "\xe2\x80\xae",
                                                     "a.b..c",
                                                     "..",
                                                     "../../etc/passwd",
                                                     "as_tensor",
                                                     "weight_0",
                                                     "weight_1",
                                                     "model_weights_config.json",
                                                     "s23",
                                                     "Infinity",
                                                     "NaN",
                                                     "-Infinity",
                                                     "torch.ops.aten.from_file.default",
                                                     "[1, [[[[",
                                                     "[",
                                                     "linear",
                                                     "add",
                                                     "self",
                                                     "\n",
                                                     "a\nb",
                                                     "null",
                                                     "[\"loss\"]",
                                                     "L__self__,,Net;x,\x1b,y",
                                                     "File \"\x1b\", line 1\nx",
                                                     "\xc3\xa9",
                                                     "frozen"};
  static const std::array<const char*, 14> kKinds = {"as_none",
                                                     "as_tensor",
                                                     "as_int",
                                                     "as_ints",
                                                     "as_expr",
                                                     "as_graph",
                                                     "as_name",
                                                     "as_optional_tensor",
                                                     "as_optional_tensors",
                                                     "as_sym_int",
                                                     "as_sym_ints",
                                                     "as_tensors",
                                                     "as_float",
                                                     "as_string"};
  switch (random.below(12)) {
    case 0: return nullptr;
    case 1: return random.below(2) == 0;
    case 2: return 1.5;
    case 3: return Json::array();
    case 4: return Json::object();
    case 5:
    case 6: return random.one_of(kTexts);
    case 7: return std::string(random.below(20000), 'a');
    case 8:
      return {
          {random.one_of(kKinds), random.below(2) ? Json(random.number()) : Json({{"name", random.one_of(kTexts)}})}};
    case 9: return {{"as_optional_tensor", {{"as_none", true}}}};
    default: return random.number();
  }
}

void change_json(Json& document, Random& random) {
  Json& at = some_value(document, random);
  switch (random.below(10)) {
    case 0: at = Json(some_value(document, random)); break;  // of the same document: a graph into itself
    case 1:                                                  // a member gone, or one more
      if (at.is_structured() && !at.empty()) {
        at.erase(std::next(at.begin(), static_cast<long>(random.below(at.size()))));
        break;
      }
      [[fallthrough]];
    case 2:
      if (at.is_array()) {
        at.push_back(at.empty() ? hostile_value(random) : Json(random.one_of(at)));
        break;
      }
      [[fallthrough]];
    case 3: {  // deeper
      Json outer = at;
      for (size_t depth = 1 + random.below(20); depth > 0; --depth)
        outer = random.below(2) ? Json::array({outer}) : Json({{"as_graph", {{"graph", outer}, {"name", "g"}}}});
      at = outer;
      break;
    }
    case 4:  // a long list
      if (at.is_array()) {
        const Json item = at.empty() ? hostile_value(random) : Json(at.back());
        for (size_t count = size_t{1} << random.below(9); count > 0; --count) at.push_back(item);
        break;
      }
      [[fallthrough]];
    case 5:  // two values in each other's place
      if (at.is_array() && at.size() > 1) {
        std::swap(at[random.below(at.size())], at[random.below(at.size())]);
        break;
      }
      [[fallthrough]];
    case 6:
      if (at.is_number_integer()) {
        at = random.below(2) ? at.get<int64_t>() / 2 : random.number();
        break;
      }
      [[fallthrough]];
    default: at = hostile_value(random);
  }
}

std::string change(const std::string& seed, uint64_t number) {
  Random random(number);
  if (number % 4 == 1) return change_zip(seed, random);
  const Opened& good = opened(seed);
  ZipParts parts = good.parts;
  for (size_t changes = 1 + random.below(3); changes > 0; --changes) {
    const auto& [place, json] = *std::next(good.json.begin(), static_cast<long>(random.below(good.json.size())));
    Json changed = json;
    for (size_t i = 1 + random.below(2); i > 0; --i) change_json(changed, random);
    parts[place].second = changed.dump(-1, ' ', false, Json::error_handler_t::ignore);
  }
  if (random.below(16) == 0) parts.push_back(random.one_of(good.parts));
  if (random.below(16) == 0) parts.erase(parts.begin() + static_cast<long>(random.below(parts.size())));
  if (random.below(16) == 0) {
    std::string& bytes = parts[random.below(parts.size())].second;
    bytes.resize(random.below(bytes.size() + 1));
  }
  return testing::zip_of(parts);
}

SFSDP_FUZZ_TARGET(exported, read, seeds, change, 20)  // of 30 to 240 KB

}  // namespace
}  // namespace sfsdp::fuzz
