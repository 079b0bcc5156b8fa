// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/checkpoint/manifest.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/mesh/chunk.h"
#include "sfsdp/plan/common_runs.h"
#include "sfsdp/train/weights/safetensors.h"

namespace sfsdp::train::checkpoint {
namespace {

constexpr std::string_view kFormat = "sfsdp checkpoint 1";
constexpr std::array<std::string_view, 3> kKinds = {"parameter", "buffer", "optimizer"};
constexpr std::array<std::string_view, 4> kSources = {"initial", "archive", "hf", "checkpoint"};
constexpr size_t kMaxRank = 64;
constexpr size_t kMaxNameBytes = 4096;

std::string first_line(uint64_t hash) {
  return concat("{\"format\": \"", kFormat, "\", \"xxh3\": \"", hex(hash), "\",\n");
}

// --- writing ---

template <class Values>
std::string numbers(const Values& values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(values[i]);
  }
  return text + "]";
}

std::string print(const StoredRange& r) {
  std::string text = concat("[", r.begin, ", ", r.end, ", ", r.file, ", ", r.offset);
  for (uint64_t hash : r.hashes) {
    text += ", \"";
    text += hex(hash);
    text += '"';
  }
  return text + "]";
}

std::string print(std::span<const StoredRange> ranges) {
  std::string text;
  for (const StoredRange& r : ranges) text += (text.empty() ? "" : ", ") + print(r);
  return "\"ranges\": [" + text + "]";
}

std::string print(const std::vector<Chunk>& box) {
  std::string text;
  for (const Chunk& c : box) text += concat(text.empty() ? "" : ", ", "[", c.offset, ", ", c.offset + c.length, "]");
  return "\"box\": [" + text + "]";
}

std::string print(const StoredTensor& t) {
  std::string text = concat("{\"name\": ", json_quoted(t.name), ", \"kind\": \"", kKinds[static_cast<size_t>(t.kind)],
                            "\", \"dtype\": \"", safetensors_name(t.dtype), "\", \"shape\": ", numbers(t.shape));
  if (t.rank >= 0) text += concat(", \"rank\": ", t.rank);
  if (t.boxes.empty()) return concat(text, ", ", print(std::span(t.ranges)), "}");
  std::string boxes;
  for (const auto ranges : t.by_box())
    boxes += concat(boxes.empty() ? "{" : ", {", print(t.place_of(ranges[0]).dims), ", ", print(ranges), "}");
  if (!t.block_shape.empty()) text += concat(", \"block_shape\": ", numbers(t.block_shape));
  return concat(text, ", \"boxes\": [", boxes, "]}");
}

std::string print_left_out(const StoredTensor& t) {
  return concat("{\"name\": ", json_quoted(t.name), ", \"dtype\": \"", safetensors_name(t.dtype),
                "\", \"shape\": ", numbers(t.shape), ", \"digest\": \"", hex(*t.digest), "\"}");
}

template <class Items, class Print>
std::string lines(std::string_view key, const Items& items, const Print& print_one) {
  std::string text = concat("\"", key, "\": [");
  for (size_t i = 0; i < items.size(); ++i) {
    text += i > 0 ? ",\n  " : "\n  ";
    text += print_one(items[i]);
  }
  return text + "]";
}

template <class Values, class Print>
std::string object(const std::map<std::string, Values>& members, const Print& print_one) {
  std::string text = "{";
  for (const auto& [name, value] : members) {
    if (text.size() > 1) text += ", ";
    text += concat(json_quoted(name), ": ", print_one(value));
  }
  return text + "}";
}

std::string body(const Manifest& m) {
  const RunState& run = m.run;
  std::string text = concat("\"step\": ", run.step, ", \"tokens\": ", run.tokens, ", \"seed\": ", run.seed,
                            ", \"model_only\": ", m.model_only ? "true" : "false", ",\n");
  text += concat("\"lr_offset\": ", run.lr_offset, ", \"skipped\": ", run.skipped,
                 ", \"schedule\": ", object(run.schedule, [](const std::string& value) { return json_quoted(value); }),
                 ",\n");
  text +=
      concat("\"kernels\": ", object(run.kernels, [](const std::string& value) { return json_quoted(value); }), ",\n");
  text += concat("\"data\": ", object(run.data, [](int64_t value) { return std::to_string(value); }), ",\n");
  text += concat("\"world_size\": ", m.world_size, ", \"data_ranks\": ", m.data_ranks,
                 ", \"mesh\": ", json_quoted(m.mesh), ", \"plan\": ", json_quoted(m.plan), ",\n");
  text += concat("\"model\": ", json_quoted(m.model), ", \"model_args\": ",
                 object(m.model_args, [](const std::string& value) { return json_quoted(value); }), ",\n");
  text += concat("\"save\": ", m.save, ", \"saved_at\": ", m.saved_at, ", \"launch\": ", json_quoted(m.launch),
                 ", \"sfsdp_version\": ", json_quoted(m.sfsdp_version),
                 ", \"torch_version\": ", json_quoted(m.torch_version), ", \"block_bytes\": ", kBlockBytes, ",\n");
  text += lines("files", m.files, [](const StoredFile& f) {
    return concat("{\"name\": ", json_quoted(f.name), ", \"bytes\": ", f.bytes, ", \"header_bytes\": ", f.header_bytes,
                  ", \"header_xxh3\": \"", hex(f.header_hash), "\"}");
  });
  text += ",\n";
  std::vector<const StoredTensor*> held;
  for (const StoredTensor& t : m.tensors)
    if (!t.digest) held.push_back(&t);
  text += lines("tensors", held, [](const StoredTensor* t) { return print(*t); });
  if (const auto left_out = m.left_out(); !left_out.empty())
    text += concat(",\n\"left_out\": {\"from\": \"", kSources[static_cast<size_t>(m.source.kind)],
                   "\", \"path\": ", json_quoted(m.source.path), ",\n",
                   lines("tensors", left_out, [](const StoredTensor* t) { return print_left_out(*t); }), "}");
  return text + "}\n";
}

// --- reading ---

// One object of the document and where it stands, for messages.
class Reader {
 public:
  Reader(const JsonValue& value, std::string where) : where_(std::move(where)), object_(value.as<JsonObject>()) {
    if (!object_) fail(describe(value), "an object");
  }

  [[noreturn]] void fail(const std::string& got, const std::string& expected) const {
    throw DamagedError(concat(where_, ": ", got, "\n  expected ", expected));
  }
  const JsonValue& at(std::string_view key) const {
    for (const auto& [name, value] : *object_)
      if (name == key) return value;
    fail(concat("no ", key), "it, as sfsdp writes it");
  }
  bool has(std::string_view key) const {
    return std::ranges::any_of(*object_, [&](const auto& member) { return member.first == key; });
  }
  template <class T>
  const T& as(std::string_view key, const char* expected) const {
    const T* value = at(key).as<T>();
    if (!value) fail(concat(key, " is ", describe(at(key))), expected);
    return *value;
  }
  std::string text(std::string_view key) const { return as<std::string>(key, "a text"); }
  bool flag(std::string_view key) const { return as<bool>(key, "true or false"); }
  const JsonArray& array(std::string_view key) const { return as<JsonArray>(key, "a list"); }
  const JsonObject& object(std::string_view key) const { return as<JsonObject>(key, "an object"); }
  int64_t count(std::string_view key) const { return count(at(key), key); }
  // A whole number from 0 to 2^63 - 1.
  int64_t count(const JsonValue& value, std::string_view what) const {
    const auto* number = value.as<uint64_t>();
    if (!number || *number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      fail(concat(what, " is ", describe(value)), "a whole number from 0 to 2^63 - 1");
    return static_cast<int64_t>(*number);
  }
  uint64_t hash(const JsonValue& value, std::string_view what) const {
    const auto* digits = value.as<std::string>();
    const auto parsed = digits ? parse_hash(*digits) : std::nullopt;
    if (!parsed) fail(concat(what, " is ", describe(value)), "16 hexadecimal digits");
    return *parsed;
  }
  const std::string& where() const { return where_; }

 private:
  std::string where_;
  const JsonObject* object_;
};

int64_t integer_of(const Reader& in, const JsonValue& value, const std::string& name) {
  if (const auto* negative = value.as<int64_t>()) return *negative;
  return in.count(value, name);
}

std::map<std::string, std::string> texts_of(const Reader& in, const std::string& key) {
  std::map<std::string, std::string> texts;
  for (const auto& [name, value] : in.object(key)) {
    const auto* text = value.as<std::string>();
    if (!text) in.fail(concat(key, ".", name, " is ", describe(value)), "a text");
    texts[name] = *text;
  }
  return texts;
}

// A file of the manifest's own folder.
bool stays_inside(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.size() < 256 &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

StoredFile read_file(const JsonValue& value, const std::string& where) {
  const Reader in(value, where);
  StoredFile file{in.text("name"), in.count("bytes"), in.count("header_bytes"),
                  in.hash(in.at("header_xxh3"), "header_xxh3")};
  if (!stays_inside(file.name)) in.fail("name is " + quote_safe(file.name), "the name of a file in the same folder");
  if (file.header_bytes < 8 || file.header_bytes > file.bytes)
    in.fail(concat("header_bytes is ", file.header_bytes), concat("from 8 to its ", file.bytes, " bytes"));
  return file;
}

StoredRange read_range(const Reader& in, const JsonValue& value, const std::vector<StoredFile>& files,
                       int64_t element_bytes) {
  const auto* parts = value.as<JsonArray>();
  if (!parts || parts->size() < 4) in.fail("a range is " + describe(value), "[begin, end, file, offset, hashes...]");
  StoredRange range{in.count((*parts)[0], "begin"),
                    in.count((*parts)[1], "end"),
                    in.count((*parts)[2], "file"),
                    in.count((*parts)[3], "offset"),
                    {}};
  const std::string name = concat("range ", range.begin, " to ", range.end);
  if (range.begin >= range.end || range.end > ir::kMaxBytes)
    in.fail(name, "a begin below its end, and both below 2^60");
  if (range.file >= static_cast<int64_t>(files.size()))
    in.fail(concat(name, " is in file ", range.file), concat("one of the ", files.size(), " files"));
  const StoredFile& file = files[static_cast<size_t>(range.file)];
  const int64_t bytes = ir::saturating_product(range.end - range.begin, element_bytes);
  if (range.offset < file.header_bytes || range.offset > file.bytes || bytes > file.bytes - range.offset)
    in.fail(concat(name, " is ", bytes, " bytes at ", range.offset, " of ", quote_safe(file.name)),
            concat("a place from ", file.header_bytes, " to its end, ", file.bytes));
  const int64_t blocks = ceil_div(bytes, kBlockBytes);
  if (static_cast<int64_t>(parts->size()) - 4 != blocks)
    in.fail(concat(name, " has ", parts->size() - 4, " hashes"), concat(blocks, ", one per ", kBlockBytes, " bytes"));
  for (size_t i = 4; i < parts->size(); ++i) range.hashes.push_back(in.hash((*parts)[i], name + ": a hash"));
  return range;
}

std::vector<Chunk> read_box(const Reader& in, const std::vector<int64_t>& shape) {
  const JsonArray& dims = in.array("box");
  if (dims.size() != shape.size())
    in.fail(concat("a box of ", dims.size(), " dimensions"), concat(shape.size(), ", as the tensor has"));
  std::vector<Chunk> box;
  for (size_t d = 0; d < shape.size(); ++d) {
    const auto* ends = dims[d].as<JsonArray>();
    if (!ends || ends->size() != 2) in.fail("a range of a box is " + describe(dims[d]), "[begin, end]");
    const int64_t begin = in.count((*ends)[0], "begin"), end = in.count((*ends)[1], "end");
    if (begin >= end || end > shape[d])
      in.fail(concat("a box has ", begin, " to ", end, " of dimension ", d),
              concat("a begin below its end, and both inside its size, ", shape[d]));
    box.push_back({begin, end - begin});
  }
  return box;
}

void read_block_shape(const Reader& in, StoredTensor& t) {
  for (const JsonValue& size : in.array("block_shape")) t.block_shape.push_back(in.count(size, "a size"));
  if (!plan::is_block_shape(t.block_shape, t.shape))
    in.fail("block_shape " + numbers(t.block_shape),
            concat("the shape ", numbers(t.shape), " with one dimension as blocks and what a block has"));
}

void read_boxes(const Reader& in, const std::vector<StoredFile>& files, StoredTensor& t) {
  if (in.has("ranges")) in.fail("both ranges and boxes", "one of the two");
  if (in.has("block_shape")) read_block_shape(in, t);
  for (const JsonValue& value : in.array("boxes")) {
    const Reader one(value, in.where());
    t.boxes.push_back(read_box(one, t.block_shape.empty() ? t.shape : t.block_shape));
    const Reader named(value, concat(in.where(), ": box ", plan::to_string(t.boxes.back())));
    if (named.array("ranges").empty()) named.fail("no ranges", "all of its elements");
    for (const JsonValue& range : named.array("ranges")) {
      t.ranges.push_back(read_range(named, range, files, ir::size_in_bytes(t.dtype)));
      t.ranges.back().box = std::ssize(t.boxes) - 1;
    }
  }
}

void check_name(const Reader& in, const std::string& name) {
  if (name.empty() || name.size() > kMaxNameBytes) in.fail("this name", "1 to 4096 bytes");
}

void read_type(const Reader& in, StoredTensor& t) {
  const auto dtype = dtype_of_safetensors(in.text("dtype"));
  if (!dtype) in.fail("dtype is " + quote_safe(in.text("dtype")), "a dtype of sfsdp, as F32 or BF16");
  t.dtype = *dtype;
  if (in.array("shape").size() > kMaxRank) in.fail("this shape", "at most 64 dimensions");
  int64_t bytes = ir::size_in_bytes(t.dtype);
  for (const JsonValue& size : in.array("shape")) {
    t.shape.push_back(in.count(size, "a size"));
    bytes = ir::saturating_product(bytes, t.shape.back());
  }
  if (bytes > ir::kMaxBytes) in.fail("a shape of 2^60 bytes or more", "less");
}

StoredTensor read_tensor(const JsonValue& value, const std::vector<StoredFile>& files, int64_t data_ranks,
                         const std::string& file) {
  StoredTensor t;
  t.name = Reader(value, file + ": a tensor").text("name");
  const Reader in(value, file + ": tensor " + quote_safe(t.name));
  check_name(in, t.name);
  const std::string kind = in.text("kind");
  const auto found = std::ranges::find(kKinds, kind);
  if (found == kKinds.end()) in.fail("kind is " + quote_safe(kind), "parameter, buffer or optimizer");
  t.kind = static_cast<TensorKind>(found - kKinds.begin());
  read_type(in, t);
  if (in.has("rank")) t.rank = in.count("rank");
  if (t.rank >= data_ranks) in.fail(concat("rank is ", t.rank), concat("below data_ranks, ", data_ranks));
  if (in.has("boxes"))
    read_boxes(in, files, t);
  else
    for (const JsonValue& range : in.array("ranges"))
      t.ranges.push_back(read_range(in, range, files, ir::size_in_bytes(t.dtype)));
  return t;
}

void read_left_out(const JsonValue& value, Manifest& m, const std::string& file) {
  const Reader in(value, file + ": left_out");
  const std::string kind = in.text("from");
  const auto found = std::ranges::find(kSources, kind);
  if (found == kSources.end()) in.fail("from is " + quote_safe(kind), "initial, archive, hf or checkpoint");
  m.source = {static_cast<WeightSource::Kind>(found - kSources.begin()), in.text("path")};
  if (m.source.path.size() > kMaxNameBytes || m.source.path.find('\0') != std::string::npos)
    in.fail(concat("a path of ", m.source.path.size(), " bytes"),
            concat("at most ", kMaxNameBytes, ", none of them 0"));
  for (const JsonValue& one : in.array("tensors")) {
    StoredTensor t;
    t.name = Reader(one, in.where() + ": a tensor").text("name");
    const Reader tensor(one, concat(file, ": tensor ", quote_safe(t.name), ", left out"));
    check_name(tensor, t.name);
    read_type(tensor, t);
    t.digest = tensor.hash(tensor.at("digest"), "digest");
    m.tensors.push_back(std::move(t));
  }
}

// Ranges of one box, or of the whole tensor, stand in order and do not overlap; with `whole` nothing is missing.
void check_ranges(std::span<const StoredRange> ranges, int64_t numel, bool whole, const std::string& where) {
  const auto fail = [&](const std::string& what) {
    throw DamagedError(concat(where, ": ", what, "\n  expected each of its ", numel, " elements once"));
  };
  int64_t at = 0;
  for (const StoredRange& r : ranges) {
    if (r.begin < at) fail(concat("element ", r.begin, " twice"));
    if (whole && r.begin > at) fail(concat("elements ", at, " to ", r.begin, " are nowhere"));
    at = r.end;
  }
  if (at > numel) fail(concat("an element ", at - 1));
  if (whole && at < numel) fail(concat("elements ", at, " to ", numel, " are nowhere"));
}

bool overlap(const std::vector<Chunk>& a, const std::vector<Chunk>& b) {
  for (size_t d = 0; d < a.size(); ++d)
    if (a[d].offset >= b[d].offset + b[d].length || b[d].offset >= a[d].offset + a[d].length) return false;
  return true;
}

// No two boxes share an element; with `whole` they are all of the tensor together.
void check_boxes(const StoredTensor& t, bool whole, const std::string& where) {
  const auto fail = [&](const std::string& what) {
    throw DamagedError(concat(where, ": ", what, "\n  expected each of its ", t.numel(), " elements in one box"));
  };
  if (t.boxes.size() > kMaxBoxes)
    throw DamagedError(concat(where, ": ", t.boxes.size(), " boxes\n  expected at most ", kMaxBoxes));
  int64_t elements = 0;
  for (size_t i = 0; i < t.boxes.size(); ++i) {
    for (size_t k = 0; k < i; ++k)
      if (overlap(t.boxes[i], t.boxes[k]))
        fail(concat("boxes ", plan::to_string(t.boxes[k]), " and ", plan::to_string(t.boxes[i]), " overlap"));
    elements += plan::elements_of(t.boxes[i]);  // at most all of the tensor, as none is counted twice
  }
  if (whole && elements < t.numel()) fail(concat("its boxes have ", elements, " elements"));
}

void check_tensor(const StoredTensor& t, bool whole, const std::string& file) {
  const std::string where = concat(file, ": tensor ", quote_safe(t.name));
  if (t.boxes.empty()) return check_ranges(t.ranges, t.numel(), whole, where);
  check_boxes(t, whole, where);
  for (const auto ranges : t.by_box()) {
    const std::vector<Chunk> box = t.place_of(ranges[0]).dims;
    check_ranges(ranges, plan::elements_of(box), whole, concat(where, ": box ", plan::to_string(box)));
  }
}

void check(const Manifest& m, bool whole, const std::string& file) {
  std::set<std::string> names;
  for (const StoredFile& f : m.files)
    if (!names.insert(f.name).second)
      throw DamagedError(concat(file, ": file ", quote_safe(f.name), " twice\n  expected each once"));
  std::set<std::pair<std::string, int64_t>> tensors;
  for (const StoredTensor& t : m.tensors) {
    if (!tensors.emplace(t.name, t.rank).second)
      throw DamagedError(concat(file, ": tensor ", quote_safe(t.name), " twice\n  expected each once"));
    if (!t.digest) check_tensor(t, whole, file);
  }
}

constexpr int64_t kMostCount = int64_t{1} << 60;  // a run adds to what it reads: all sums stay below 2^63

Manifest read(std::string_view text, const std::string& file, bool whole) {
  const size_t line = text.find('\n');
  const std::string_view rest = line == std::string_view::npos ? "" : text.substr(line + 1);
  if (line == std::string_view::npos || text.substr(0, line + 1) != first_line(xxh3(rest)))
    throw DamagedError(concat(file, ": this is not what sfsdp wrote there: ",
                              text.find(kFormat) > 64 ? concat("no ", json_quoted(kFormat), " in its first line")
                                                      : std::string("it does not have the hash in its first line"),
                              "\n  expected a whole manifest; take another checkpoint"));
  const JsonValue document = [&] {
    try {
      return parse_json(text, file);
    } catch (const DamagedError&) {
      throw;
    } catch (const UserError& error) {
      throw DamagedError(error.what());
    }
  }();
  const Reader in(document, file);
  if (in.count("block_bytes") != kBlockBytes)
    in.fail(concat("block_bytes is ", in.count("block_bytes")), std::to_string(kBlockBytes));
  Manifest m;
  m.run.step = in.count("step");
  m.run.tokens = in.count("tokens");
  m.run.seed = static_cast<uint64_t>(in.count("seed"));
  m.run.lr_offset = in.count("lr_offset");
  if (in.has("skipped")) m.run.skipped = in.count("skipped");  // this and the other has() came later
  if (in.has("launch")) m.launch = in.text("launch");
  for (const auto& [name, value] : in.object("data")) m.run.data[name] = integer_of(in, value, "data." + name);
  m.run.schedule = texts_of(in, "schedule");
  if (in.has("kernels")) m.run.kernels = texts_of(in, "kernels");
  if (in.has("save")) m.save = in.count("save");
  if (in.has("model")) m.model = in.text("model");
  if (in.has("model_args")) m.model_args = texts_of(in, "model_args");
  m.model_only = in.flag("model_only");
  m.world_size = in.count("world_size");
  m.data_ranks = in.count("data_ranks");
  if (m.world_size < 1 || m.data_ranks < 1) in.fail("world_size or data_ranks is 0", "at least 1");
  m.saved_at = in.count("saved_at");
  m.mesh = in.text("mesh");
  m.plan = in.text("plan");
  m.sfsdp_version = in.text("sfsdp_version");
  m.torch_version = in.text("torch_version");
  for (const JsonValue& value : in.array("files")) m.files.push_back(read_file(value, file + ": a file"));
  for (const JsonValue& value : in.array("tensors"))
    m.tensors.push_back(read_tensor(value, m.files, m.data_ranks, file));
  if (in.has("left_out")) read_left_out(in.at("left_out"), m, file);
  check(m, whole, file);
  check_counts(m, file);
  return m;
}

}  // namespace

void check_counts(const Manifest& m, const std::string& file) {
  const auto expect = [&](std::string_view name, int64_t value, int64_t most, std::string_view what) {
    if (value < 0 || value > most)
      throw DamagedError(concat(file, ": ", name, " is ", value, "\n  expected from 0 to ", most, ", ", what));
  };
  expect("step", m.run.step, kMostCount, "2^60");
  expect("tokens", m.run.tokens, kMostCount, "2^60");
  expect("save", m.save, kMostCount, "2^60");
  expect("lr_offset", m.run.lr_offset, m.run.step, "its step");
  expect("skipped", m.run.skipped, m.run.step, "its step");
}

int64_t StoredTensor::numel() const {
  int64_t product = 1;
  for (int64_t size : shape) product = ir::saturating_product(product, size);
  return product;
}

plan::Box StoredTensor::place_of(const StoredRange& range) const {
  const Chunk elements{range.begin, range.end - range.begin};
  if (range.box < 0) return plan::whole_box(shape, elements);
  return {boxes.at(static_cast<size_t>(range.box)), elements, block_shape};
}

std::vector<std::span<const StoredRange>> StoredTensor::by_box() const {
  std::vector<std::span<const StoredRange>> groups;
  for (std::span<const StoredRange> rest = ranges; !rest.empty();) {
    const int64_t box = rest.front().box;
    const auto end = std::ranges::partition_point(rest, [&](const StoredRange& r) { return r.box <= box; });
    groups.push_back(rest.first(static_cast<size_t>(end - rest.begin())));
    rest = rest.subspan(groups.back().size());
  }
  return groups;
}

std::string StoredTensor::name_of(const StoredRange& range, int64_t begin, int64_t end) const {
  const std::string of = range.box < 0 ? "" : concat("box ", plan::to_string(place_of(range).dims), " of ");
  return concat("elements ", begin, " to ", end, " of ", of, quote_safe(name));
}

const StoredTensor* Manifest::find(std::string_view name, int64_t rank) const {
  const auto found = std::ranges::find_if(tensors, [&](const auto& t) { return t.name == name && t.rank == rank; });
  return found == tensors.end() ? nullptr : &*found;
}

int64_t Manifest::bytes() const {
  int64_t sum = 0;
  for (const StoredFile& file : files) sum += file.bytes;
  return sum;
}

std::vector<const StoredTensor*> Manifest::left_out() const {
  std::vector<const StoredTensor*> found;
  for (const StoredTensor& t : tensors)
    if (t.digest) found.push_back(&t);
  return found;
}

bool is_older(const Manifest& a, const Manifest& b) {
  return std::tie(a.save, a.saved_at, a.run.step) < std::tie(b.save, b.saved_at, b.run.step);
}

std::string print(const Manifest& manifest) {
  const std::string rest = body(manifest);
  return first_line(xxh3(rest)) + rest;
}

Manifest parse_manifest(std::string_view text, const std::string& file) { return read(text, file, /*whole=*/true); }
Manifest parse_fragment(std::string_view text, const std::string& file) { return read(text, file, /*whole=*/false); }

namespace {

// The place of a box in the list, at whose end it is added.
int64_t number_of(const std::vector<Chunk>& box, std::vector<std::vector<Chunk>>& boxes) {
  const auto found = std::ranges::find(boxes, box);
  const int64_t place = found - boxes.begin();
  if (found == boxes.end()) boxes.push_back(box);
  return place;
}

}  // namespace

Manifest merge(const std::vector<Manifest>& fragments) {
  Manifest all = fragments.at(0);
  all.files.clear();
  all.tensors.clear();
  std::map<std::pair<std::string, int64_t>, size_t> places;
  for (const Manifest& fragment : fragments) {
    const auto first_file = static_cast<int64_t>(all.files.size());
    all.files.insert(all.files.end(), fragment.files.begin(), fragment.files.end());
    for (const StoredTensor& t : fragment.tensors) {
      const auto [place, fresh] = places.try_emplace({t.name, t.rank}, all.tensors.size());
      if (fresh) {
        all.tensors.push_back(t);
        all.tensors.back().ranges.clear();
        all.tensors.back().boxes.clear();
        all.tensors.back().block_shape.clear();
        if (t.digest) all.tensors.back().digest = 0;
      }
      StoredTensor& into = all.tensors[place->second];
      SFSDP_CHECK(into.kind == t.kind && into.dtype == t.dtype && into.shape == t.shape, "ranks differ in ", t.name);
      SFSDP_CHECK(into.digest.has_value() == t.digest.has_value(), "ranks differ in whether ", t.name, " is left out");
      if (t.digest) *into.digest += *t.digest;
      for (StoredRange range : t.ranges) {
        range.file += first_file;
        if (range.box >= 0) {
          SFSDP_CHECK(into.boxes.empty() || into.block_shape == t.block_shape, "ranks differ in blocks of ", t.name);
          into.block_shape = t.block_shape;
          range.box = number_of(t.boxes[static_cast<size_t>(range.box)], into.boxes);
        }
        into.ranges.push_back(std::move(range));
      }
    }
  }
  for (StoredTensor& t : all.tensors) {
    std::ranges::sort(t.ranges, {}, [](const StoredRange& r) { return std::pair(r.box, r.begin); });
    SFSDP_CHECK(t.boxes.empty() || t.ranges[0].box >= 0, "ranks differ in whether they hold a box of ", t.name);
  }
  try {
    check(all, /*whole=*/true, "what the ranks wrote");
  } catch (const DamagedError& error) {
    throw InternalError(error.what());
  }
  return all;
}

ir::DType parse_export_dtype(const std::string& text) {
  if (text == "float32") return ir::DType::f32;
  if (text == "bfloat16") return ir::DType::bf16;
  if (text == "float16") return ir::DType::f16;
  throw UserError(concat("dtype ", text, "\n  expected float32, bfloat16 or float16"));
}

}  // namespace sfsdp::train::checkpoint
