// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/plan/storage_layout.h"

namespace sfsdp::plan {
namespace {

constexpr std::string_view kHeader = "storage_layout version=1 hash=HASH entries=N";
constexpr std::string_view kEntry =
    "entry NAME kind=KIND [of=NAME] key=AXES/DTYPE shape=[N,...] [cut.DIM=AXES[:N,...]] region=REGION offset=N bytes=N";
constexpr std::string_view kMember = "  member NAME shape=[N,...] [cut.DIM=AXES[:N,...]] offset=N";
constexpr std::array<StateKind, 4> kKinds = {StateKind::Parameter, StateKind::Moment, StateKind::Counter,
                                             StateKind::Buffer};
constexpr std::array<Region, 2> kStateRegions = {Region::State, Region::Window};

std::string numbers_text(const std::vector<int64_t>& numbers) {
  std::vector<std::string> words;
  for (const int64_t n : numbers) words.push_back(std::to_string(n));
  return join(words, ",");
}

std::string shape_text(const std::vector<int64_t>& shape, const std::vector<Cut>& cuts) {
  std::string text = concat(" shape=[", numbers_text(shape), "]");
  for (size_t d = 0; d < cuts.size(); ++d) {
    if (cuts[d].axes.empty()) continue;
    text += concat(" cut.", d, "=", join(cuts[d].axes, ","));
    if (!cuts[d].lengths.empty()) text += concat(":", numbers_text(cuts[d].lengths));
  }
  return text;
}

std::string entry_text(const StateEntry& entry) {
  std::string text = concat("entry ", entry.name, " kind=", to_string(entry.kind));
  if (!entry.of.empty()) text += concat(" of=", entry.of);
  text += concat(" key=", to_string(key_of(entry)), shape_text(entry.shape, entry.cuts),
                 " region=", to_string(entry.region), " offset=", entry.offset, " bytes=", entry.bytes, "\n");
  for (const FlatMember& member : entry.members)
    text += concat("  member ", member.name, shape_text(member.shape, member.cuts), " offset=", member.offset, "\n");
  return text;
}

std::string mesh_text(const StorageLayout& layout) { return concat("mesh ", to_string(DeviceMesh(layout.mesh)), "\n"); }

std::string header_text(const StorageLayout& layout) {
  return concat("storage_layout version=", kStorageLayoutVersion, " hash=", hex(hash(layout)),
                " entries=", layout.entries.size());
}

class LayoutReader {
 public:
  LayoutReader(std::string_view text, std::string file) : lines_(split(text, '\n')), file_(std::move(file)) {}

  StorageLayout read() {
    read_version();
    ++at_;
    read_mesh();
    for (++at_; at_ < lines_.size() && !lines_[at_].empty(); ++at_) {
      words_ = split(trim(lines_[at_]), ' ');
      next_ = 0;
      if (lines_[at_].starts_with("  member "))
        read_member();
      else
        read_entry();
      if (next_ != words_.size()) fail(lines_[at_].starts_with("  ") ? kMember : kEntry);
    }
    if (const std::string wrong = check_layout(layout_); !wrong.empty())
      throw UserError(concat("storage layout ", file_, ": ", wrong));
    compare_lines();
    return std::move(layout_);
  }

 private:
  [[noreturn]] void fail(std::string_view expected) const {
    throw UserError(concat("storage layout ", file_, ", line ", at_ + 1, ": ",
                           at_ < lines_.size() ? lines_[at_].substr(0, 200) : "(end)", "\n  expected ", expected));
  }

  void read_version() const {
    const auto words = split(lines_[0], ' ');
    if (words.size() != 4 || words[0] != "storage_layout" || !words[1].starts_with("version=")) fail(kHeader);
    if (words[1] != concat("version=", kStorageLayoutVersion))
      fail(concat("version=", kStorageLayoutVersion,
                  ": the layout is of another sfsdp; have this one print its own, checkpoints need none"));
  }

  void read_mesh() {
    const std::string line = at_ < lines_.size() ? lines_[at_] : "";
    if (!line.starts_with("mesh [") || !line.ends_with("]")) fail("mesh [AXIS=SIZE, ...]");
    const std::string axes = line.substr(6, line.size() - 7);
    for (const std::string& axis : axes.empty() ? std::vector<std::string>{} : split(axes, ',')) {
      const auto parts = split(trim(axis), '=');
      const auto size = parts.size() == 2 ? parse_int(parts[1]) : std::nullopt;
      if (!size) fail("mesh [AXIS=SIZE, ...]");
      layout_.mesh.push_back({parts[0], *size});
    }
    DeviceMesh checked(layout_.mesh);
  }

  // The word at hand without `key`, and goes on to the next; nullopt: another one stands there.
  std::optional<std::string> take(std::string_view key) {
    if (next_ >= words_.size() || !words_[next_].starts_with(key)) return std::nullopt;
    return words_[next_++].substr(key.size());
  }
  std::string take_or_fail(std::string_view key, std::string_view form) {
    const auto word = take(key);
    if (!word) fail(form);
    return *word;
  }
  int64_t number(const std::string& word, std::string_view form) const {
    const auto n = parse_int(word);
    if (!n || *n < 0 || *n > ir::kMaxBytes) fail(form);
    return *n;
  }
  std::vector<int64_t> numbers(const std::string& words, std::string_view form) const {
    std::vector<int64_t> numbers;
    if (!words.empty())
      for (const std::string& word : split(words, ',')) numbers.push_back(number(word, form));
    return numbers;
  }
  template <class Enum, size_t N>
  Enum one_of(const std::array<Enum, N>& values, const std::string& word, std::string_view form) const {
    for (const Enum value : values)
      if (word == to_string(value)) return value;
    fail(form);
  }

  void read_shape(std::vector<int64_t>& shape, std::vector<Cut>& cuts, std::string_view form) {
    const std::string text = take_or_fail("shape=", form);
    if (text.size() < 2 || text.front() != '[' || text.back() != ']') fail(form);
    shape = numbers(text.substr(1, text.size() - 2), form);
    while (const auto cut = take("cut.")) {
      const size_t equals = cut->find('='), colon = cut->find(':');
      if (equals == std::string::npos) fail(form);
      const auto dim = static_cast<size_t>(number(cut->substr(0, equals), form));
      if (dim >= shape.size()) fail(form);
      cuts.resize(shape.size());
      cuts[dim].axes = split(cut->substr(equals + 1, colon == std::string::npos ? colon : colon - equals - 1), ',');
      if (colon != std::string::npos) cuts[dim].lengths = numbers(cut->substr(colon + 1), form);
    }
  }

  void read_entry() {
    take_or_fail("entry", kEntry);
    StateEntry entry{.name = take_or_fail("", kEntry)};
    entry.kind = one_of(kKinds, take_or_fail("kind=", kEntry), kEntry);
    entry.of = take("of=").value_or("");
    const std::string key = take_or_fail("key=", kEntry);
    const auto dtype = ir::parse_dtype(key.substr(key.find('/') + 1));
    if (!dtype) fail(kEntry);
    entry.dtype = *dtype;
    read_shape(entry.shape, entry.cuts, kEntry);
    entry.region = one_of(kStateRegions, take_or_fail("region=", kEntry), kEntry);
    entry.offset = number(take_or_fail("offset=", kEntry), kEntry);
    entry.bytes = number(take_or_fail("bytes=", kEntry), kEntry);
    layout_.entries.push_back(std::move(entry));
  }

  void read_member() {
    take_or_fail("member", kMember);
    if (layout_.entries.empty()) fail(kEntry);
    FlatMember member{.name = take_or_fail("", kMember), .shape = {}};
    read_shape(member.shape, member.cuts, kMember);
    member.offset = number(take_or_fail("offset=", kMember), kMember);
    layout_.entries.back().members.push_back(std::move(member));
  }

  // What is written where nothing else would be: the key, the hash, one form of each line.
  void compare_lines() {
    const auto written = split(print(layout_), '\n');
    for (at_ = 0; at_ < std::max(written.size(), lines_.size()); ++at_)
      if (at_ >= written.size() || at_ >= lines_.size() || written[at_] != lines_[at_])
        fail(at_ < written.size() ? written[at_] : "the end");
  }

  const std::vector<std::string> lines_;
  const std::string file_;
  StorageLayout layout_;
  size_t at_ = 0;                   // of lines_
  std::vector<std::string> words_;  // of that line
  size_t next_ = 0;                 // of words_
};

}  // namespace

std::string print(const StorageLayout& layout) {
  std::string text = concat(header_text(layout), "\n", mesh_text(layout));
  for (const StateEntry& entry : layout.entries) text += entry_text(entry);
  return text;
}

StorageLayout parse_storage_layout(std::string_view text, const std::string& file_name) {
  return LayoutReader(text, file_name.empty() ? "text" : file_name).read();
}

uint64_t hash(const StorageLayout& layout, size_t entries) {
  SFSDP_CHECK(entries <= layout.entries.size(), entries, " entries of ", layout.entries.size());
  std::string text = mesh_text(layout);
  for (size_t i = 0; i < entries; ++i) text += entry_text(layout.entries[i]);
  return hash_path(text);
}

}  // namespace sfsdp::plan
