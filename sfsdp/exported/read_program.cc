// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <set>
#include <unordered_map>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/exported/printable.h"
#include "sfsdp/exported/program.h"
#include "sfsdp/exported/read_graph.h"

namespace sfsdp::exported {
namespace {

constexpr uint64_t kMaxJsonBytes = uint64_t{1} << 30;
constexpr JsonLimits kJsonLimits = {.max_depth = 64, .max_values = 20'000'000};  // 405B has some 5 million
constexpr size_t kBytesOfValue = 4;  // at least, of JSON: a value takes some 64 of memory, and 13 to 21 in the fixtures
constexpr size_t kSmallJson = 1 << 10;       // values that any text may have
constexpr uint64_t kMaxRepeated = 64 << 20;  // bytes that tensors have above those of the file: expand(), views
constexpr size_t kMaxPathParts = 64;         // of a tensor's name: each is a module in the next
constexpr int64_t kSchemaMajor = 8;

[[noreturn]] void refuse(const std::string& where, const std::string& got, const std::string& expected) {
  throw UserError(concat(where, ": ", got, "\n  expected ", expected));
}

// A tensor's bytes by its name: a row of model_weights_config.json or model_constants_config.json.
struct Payload {
  std::string entry;
  TensorMeta meta;
};
using Payloads = std::unordered_map<std::string, Payload>;

JsonLimits limits_of(size_t bytes) {
  return {kJsonLimits.max_depth, std::min(kJsonLimits.max_values, kSmallJson + bytes / kBytesOfValue)};
}

struct Text {
  std::string file;  // "model.pt2: models/model.json"
  JsonValue json;
};

Text read_json(const ZipArchive& archive, const ZipEntry& entry, size_t root) {
  const std::string file = concat(archive.path(), ": ", entry.name.substr(root));
  return {file, parse_json(archive.read_text(entry, kMaxJsonBytes), file, limits_of(entry.bytes))};
}

// The folder that all entries lie in, with its slash; an archive of torch.export.save has one.
std::string root_of(const ZipArchive& archive) {
  constexpr std::string_view kFormat = "archive_format";
  for (const ZipEntry& entry : archive.entries()) {
    const size_t slash = entry.name.find('/');
    if (slash == std::string::npos || entry.name.substr(slash + 1) != kFormat) continue;
    if (const std::string format = archive.read_text(entry, 64); format != "pt2")
      refuse(archive.path(), concat("its format is ", quote_safe(format)), "pt2, as torch.export.save writes it");
    return entry.name.substr(0, slash + 1);
  }
  for (const ZipEntry& entry : archive.entries())
    if (entry.name.find("data.pkl") != std::string::npos || entry.name == "version" ||
        entry.name == "serialized_exported_program.json")
      refuse(archive.path(), "is a pickle, TorchScript or an old export, not an archive of today's torch.export",
             "what torch.export.save(torch.export.export(model.train(), …), path) of torch 2.11 or newer writes");
  refuse(archive.path(), "has no archive_format, so it is no archive of torch.export",
         "what torch.export.save(torch.export.export(model.train(), …), path) writes");
}

const ZipEntry& find_model(const ZipArchive& archive, const std::string& root) {
  std::vector<const ZipEntry*> models;
  for (const ZipEntry& entry : archive.entries())
    if (entry.name.starts_with(root + "models/") && entry.name.ends_with(".json")) models.push_back(&entry);
  if (models.size() != 1)
    refuse(archive.path(), concat("holds ", models.size(), " models"), "one, as torch.export.save writes it");
  return *models.front();
}

// "model" of models/model.json; its tensors are listed in files of that name.
Payloads read_payloads(const ZipArchive& archive, const std::string& root, const std::string& folder,
                       const std::string& list) {
  Payloads payloads;
  const ZipEntry* entry = archive.find(root + folder + list);
  if (!entry) return payloads;
  const Text text = read_json(archive, *entry, root.size());
  const JsonCursor document(text.json, text.file);
  document.member("config").for_members([&](const std::string& name, const JsonCursor& at) {
    if (at.member("use_pickle").boolean())
      at.refuse("a pickle",
                "plain tensors: pickles run code and are never read; export a model without custom objects"
                " and tensor subclasses");
    payloads.emplace(
        name, Payload{root + folder + at.member("path_name").text(), read_tensor_meta(at.member("tensor_meta"))});
  });
  return payloads;
}

std::vector<int64_t> numbers_of(const std::vector<SymInt>& sizes, const JsonCursor& at, const std::string& name) {
  std::vector<int64_t> numbers;
  for (const SymInt& size : sizes) {
    if (!size.expr.empty())
      at.refuse(concat(quote_safe(name), " has a size that varies, ", quote_safe(size.expr)), "numbers");
    numbers.push_back(size.value);
  }
  return numbers;
}

// From the first byte of the storage to after the tensor's last, or more than any file has. Its sizes, strides and offset
// are 0 or more.
int64_t bytes_spanned(const StateTensor& t) {
  int64_t last = std::min(t.offset, ir::kMaxBytes);
  for (size_t d = 0; d < t.sizes.size(); ++d) {
    if (t.sizes[d] == 0) return 0;
    last =
        std::min(last + std::min(ir::saturating_product(t.sizes[d] - 1, t.strides[d]), ir::kMaxBytes), ir::kMaxBytes);
  }
  return ir::saturating_product(last + 1, ir::size_in_bytes(t.dtype));
}

StateTensor read_state_tensor(const JsonCursor& at, const std::string& name, StateTensor::Kind kind, bool persistent,
                              const TensorMeta& in_graph, const Payloads& payloads, const ZipArchive& archive) {
  const auto found = payloads.find(name);
  if (found == payloads.end())
    at.refuse(concat(quote_safe(name), " has no values in the archive"), "a row of its config file");
  const TensorMeta& meta = found->second.meta;
  StateTensor t;
  t.name = name;
  t.kind = kind;
  t.persistent = persistent;
  t.dtype = meta.dtype;
  t.sizes = numbers_of(meta.sizes, at, name);
  t.strides = numbers_of(meta.strides, at, name);
  t.offset = numbers_of({meta.offset}, at, name).front();
  t.requires_grad = meta.requires_grad;
  if (numbers_of(in_graph.sizes, at, name) != t.sizes || in_graph.dtype != t.dtype)
    at.refuse(concat(quote_safe(name), " has another type in the graph than among the weights"), "one type");
  const ZipEntry* entry = archive.find(found->second.entry);
  if (!entry)
    at.refuse(concat(quote_safe(name), ": no entry ", quote_safe(found->second.entry)), "an entry of the archive");
  if (entry->name.ends_with(".json"))
    at.refuse(concat(quote_safe(name), " has its values in ", quote_safe(entry->name)), "an entry of its own");
  t.entry = static_cast<size_t>(entry - archive.entries().data());
  if (!ir::Type::tensor(t.dtype, t.sizes).fits() || t.offset < 0 || t.offset > ir::kMaxBytes ||
      static_cast<uint64_t>(bytes_spanned(t)) > entry->bytes)
    at.refuse(concat(quote_safe(name), " reaches beyond the ", entry->bytes, " bytes of ", quote_safe(entry->name)),
              "sizes, strides and an offset within them");
  return t;
}

// Names of what a pytree of torch.utils._pytree holds, in the order of its leaves: "loss", "states.0".
//   context: keys of a dict, or the fields of a class, as a JSON list in a text
void leaf_names(const JsonCursor& at, const std::string& prefix, int depth, std::vector<std::string>& out) {
  constexpr int kMaxDepth = 32;
  constexpr size_t kMaxKeyBytes = 200;
  if (depth > kMaxDepth) at.refuse("trees in trees", concat("at most ", kMaxDepth, " of them"));
  const JsonCursor children = at.member("children_spec");
  if (!at.optional("type")) {
    out.push_back(prefix.empty() ? "output" : prefix);
    return;
  }
  std::vector<std::string> keys(children.size());
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = std::to_string(i);
  if (const auto context = at.optional("context")) {
    const std::string& text = context->text();
    if (text.starts_with("[")) {
      const JsonValue names = parse_json(text, context->where(), limits_of(text.size()));
      const auto* list = names.as<JsonArray>();
      for (size_t i = 0; list && list->size() == keys.size() && i < keys.size(); ++i)
        if (const auto* key = (*list)[i].as<std::string>()) keys[i] = printable(*key, kMaxKeyBytes);
    }
  }
  for (size_t i = 0; i < keys.size(); ++i)
    leaf_names(children.at(i), prefix.empty() ? keys[i] : concat(prefix, ".", keys[i]), depth + 1, out);
}

std::vector<std::string> output_names(const JsonCursor& module, size_t count) {
  std::vector<std::string> names;
  const JsonCursor calls = module.member("module_call_graph");
  for (size_t i = 0; i < calls.size(); ++i) {
    const JsonCursor call = calls.at(i);
    const auto signature = call.optional("signature");
    if (!call.member("fqn").text().empty() || !signature) continue;
    const std::string& text = signature->member("out_spec").text();
    const std::string where = signature->where() + ".out_spec";
    const JsonValue spec = parse_json(text, where, limits_of(text.size()));
    const JsonCursor tree(spec, where);
    if (tree.size() == 2) leaf_names(tree.at(1), "", 0, names);
  }
  while (names.size() < count) names.push_back(concat("output.", names.size()));
  return names;
}

struct SignatureReader {
  const ReadGraph& read;
  const Payloads &weights, &constants;
  Program& program;

  Slot slot_of(const JsonCursor& spec) const {
    const JsonCursor argument = spec.member("arg");
    const JsonCursor name = argument.member("name");
    const auto found = read.slots.find(name.text());
    if (found == read.slots.end()) name.refuse(quote_safe(name.text()), "a value of the graph");
    return found->second;
  }
  std::string name_of(Slot slot) const {
    return slot == kNone ? "no value" : quote_safe(read.graph.values[static_cast<size_t>(slot)].name);
  }
  // A signature lists the graph's inputs and outputs in their order.
  void expect_same(const JsonCursor& spec, Slot said, Slot graph) const {
    if (said != graph) spec.refuse(name_of(said), concat(name_of(graph), ", which the graph has at this place"));
  }
  void add_state(const JsonCursor& spec, const JsonCursor& named, StateTensor::Kind kind, bool persistent, Slot input) {
    const std::string& name = named.name();
    const Slot slot = slot_of(spec);
    expect_same(spec, slot, input);
    const auto& meta = read.graph.values[static_cast<size_t>(slot)].tensor;
    if (!meta) spec.refuse(concat(quote_safe(name), " is no tensor"), "one");
    const bool in_weights = kind != StateTensor::Kind::Constant && persistent;
    program.state_inputs.emplace_back(slot, program.state.size());
    program.state.push_back(
        read_state_tensor(spec, name, kind, persistent, *meta, in_weights ? weights : constants, program.archive));
  }
  // input: of the graph, at the same place
  void add_input(const JsonCursor& at, Slot input) {
    std::string kind;
    const JsonCursor spec = at.variant(kind);
    using Kind = StateTensor::Kind;
    if (kind == "parameter") return add_state(spec, spec.member("parameter_name"), Kind::Parameter, true, input);
    if (kind == "buffer")
      return add_state(spec, spec.member("buffer_name"), Kind::Buffer, spec.member("persistent").boolean(), input);
    if (kind == "tensor_constant")
      return add_state(spec, spec.member("tensor_constant_name"), Kind::Constant, true, input);
    if (kind == "constant_input") return expect_same(spec, kNone, input);  // a number that the graph has by itself
    if (kind != "user_input") at.refuse(quote_safe(kind), "parameters, buffers, constants and tensors of the batch");
    const JsonCursor argument = spec.member("arg");
    const Argument value = read_argument(argument, read);
    const auto* tensor = std::get_if<ValueArgument>(&value);
    expect_same(spec, tensor ? tensor->slot : kNone, input);
    if (!tensor || tensor->slot == kNone) return;
    const Value& named = read.graph.values[static_cast<size_t>(tensor->slot)];
    if (!named.tensor)
      argument.refuse(concat("input ", quote_safe(named.name), " is a number"),
                      "tensors: export with the number given as a"
                      " constant of the model");
    program.inputs.push_back({named.name, tensor->slot});
  }
  // result: of the graph, at the same place
  void add_output(const JsonCursor& at, const Argument& result, const std::vector<std::string>& names, size_t& users) {
    std::string kind;
    const JsonCursor spec = at.variant(kind);
    OutputValue output;
    if (kind == "user_output" || kind == "loss_output") {
      output.name = names.at(users++);
      if (kind == "user_output")
        output.value = read_argument(spec.member("arg"), read);
      else
        output.value = ValueArgument{slot_of(spec)};
    } else if (kind == "buffer_mutation" || kind == "user_input_mutation") {
      output.kind = kind == "buffer_mutation" ? OutputValue::Kind::BufferMutation : OutputValue::Kind::InputMutation;
      output.name = spec.member(kind == "buffer_mutation" ? "buffer_name" : "user_input_name").name();
      output.value = ValueArgument{slot_of(spec)};
    } else {
      at.refuse(quote_safe(kind), "outputs of a forward pass and buffers that it writes");
    }
    const auto slot = [](const Argument& argument) {
      const auto* value = std::get_if<ValueArgument>(&argument);
      return value ? value->slot : kNone;
    };
    expect_same(spec, slot(output.value), slot(result));
    program.outputs.push_back(std::move(output));
  }
};

void expect_count(const JsonCursor& specs, size_t count, const char* what) {
  if (specs.size() != count) specs.refuse(concat(specs.size(), " ", what), concat(count, ", as the graph has"));
}

void read_ranges(const JsonCursor& document, Program& program) {
  if (const auto ranges = document.optional("range_constraints"))
    ranges->for_members([&](const std::string& symbol, const JsonCursor& at) {
      Program::Range range = {symbol, std::nullopt, std::nullopt};
      if (const auto least = at.optional("min_val")) range.min = least->integer();
      if (const auto most = at.optional("max_val")) range.max = most->integer();
      if (range.min && range.max && *range.min > *range.max)
        at.refuse(concat("from ", *range.min, " to ", *range.max), "a range that holds a number");
      if (symbol.empty() || !is_printable(symbol)) at.refuse(quote_safe(symbol), "a symbol such as s0");
      program.ranges.push_back(std::move(range));
    });
}

// Two tensors over some of the same bytes would be trained as two, and each written over the other; so would two elements
// of one.
void check_own_memory(const Program& program) {
  for (const StateTensor& t : program.state)
    if (t.kind == StateTensor::Kind::Parameter && ir::Type::tensor(t.dtype, t.sizes).bytes() > bytes_spanned(t))
      refuse(program.archive.path(), concat(quote_safe(t.name), " has elements that share memory"),
             "a parameter made of contiguous(), not of expand()");
  std::vector<const StateTensor*> order;
  for (const StateTensor& t : program.state)
    if (t.kind != StateTensor::Kind::Constant && bytes_spanned(t) > 0) order.push_back(&t);
  const auto begin = [](const StateTensor& t) { return t.offset * ir::size_in_bytes(t.dtype); };
  std::ranges::sort(order, [&](const StateTensor* a, const StateTensor* b) {
    return std::pair(a->entry, begin(*a)) < std::pair(b->entry, begin(*b));
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const StateTensor &one = *order[i - 1], &other = *order[i];
    if (one.entry == other.entry && begin(other) < bytes_spanned(one) && !is_tied(one, other))
      refuse(program.archive.path(),
             concat(quote_safe(one.name), " and ", quote_safe(other.name), " share some memory"),
             "tensors of their own, such as a clone(), or one tensor under both names");
  }
}

void check_names(const Program& program) {
  std::set<std::string> names;
  for (const StateTensor& t : program.state) {
    if (!names.insert(t.name).second)
      refuse(program.archive.path(), concat("two tensors are named ", quote_safe(t.name)),
             "a name of its own for each");
    const std::vector<std::string> parts = split(t.name, '.');
    if (parts.size() > kMaxPathParts || std::ranges::find(parts, "") != parts.end())
      refuse(program.archive.path(), concat("a tensor is named ", quote_safe(t.name), ", of ", parts.size(), " parts"),
             concat("paths such as layers.0.weight, of at most ", kMaxPathParts, " parts, none of them empty"));
  }
}

// A stride of 0, or views of one constant, could ask for any memory from a small file.
void check_bytes(const Program& program) {
  uint64_t there = kMaxRepeated, asked = 0;
  for (const ZipEntry& entry : program.archive.entries()) there += entry.bytes;
  std::set<std::pair<size_t, int64_t>> seen;  // a tensor that is tied to another takes no memory of its own
  for (const StateTensor& t : program.state) {
    if (t.kind != StateTensor::Kind::Constant && !seen.emplace(t.entry, t.offset).second) continue;
    asked += static_cast<uint64_t>(ir::Type::tensor(t.dtype, t.sizes).bytes());
    if (asked > there)
      refuse(program.archive.path(),
             concat("its tensors up to ", quote_safe(t.name), " have ", asked, " bytes, its entries ",
                    there - kMaxRepeated),
             concat("at most ", kMaxRepeated, " more than in the file; export tensors after contiguous()"));
  }
}

}  // namespace

bool is_tied(const StateTensor& a, const StateTensor& b) {
  return a.entry == b.entry && a.offset == b.offset && a.sizes == b.sizes && a.strides == b.strides &&
         a.dtype == b.dtype && a.kind == b.kind;
}

Program read_program(const std::string& path) {
  Program program{{}, ZipArchive::open(path), {}};
  const ZipArchive& archive = program.archive;
  const std::string root = root_of(archive);
  if (const ZipEntry* order = archive.find(root + "byteorder"); order && archive.read_text(*order, 16) != "little")
    refuse(path, "its tensors are big-endian", "little-endian: export it on another machine");
  const ZipEntry& model = find_model(archive, root);
  const size_t begin = root.size() + std::string_view("models/").size();
  const std::string name = model.name.substr(begin, model.name.size() - begin - std::string_view(".json").size());
  const Text text = read_json(archive, model, root.size());
  const JsonCursor document(text.json, text.file);
  const JsonCursor version = document.member("schema_version");
  if (version.member("major").integer() != kSchemaMajor)
    version.refuse(
        concat("schema ", version.member("major").integer(), ".", version.member("minor").integer()),
        concat("schema ", kSchemaMajor, ", which torch 2.11 to 2.15 write; export the model again with one of them"));
  if (const auto written = document.optional("torch_version")) program.torch_version = printable(written->text(), 100);

  const JsonCursor module = document.member("graph_module");
  const JsonCursor graph = module.member("graph");
  ReadGraph read = read_graph(graph);
  const Payloads weights = read_payloads(archive, root, "data/weights/", name + "_weights_config.json");
  const Payloads constants = read_payloads(archive, root, "data/constants/", name + "_constants_config.json");
  SignatureReader reader{read, weights, constants, program};
  const JsonCursor signature = module.member("signature");
  const JsonCursor inputs = signature.member("input_specs");
  expect_count(inputs, read.graph.inputs.size(), "inputs");
  for (size_t i = 0; i < inputs.size(); ++i) reader.add_input(inputs.at(i), read.graph.inputs[i]);
  const JsonCursor outputs = signature.member("output_specs");
  const std::vector<std::string> names = output_names(module, outputs.size());
  size_t users = 0;
  expect_count(outputs, read.graph.outputs.size(), "outputs");
  for (size_t i = 0; i < outputs.size(); ++i) reader.add_output(outputs.at(i), read.graph.outputs[i], names, users);
  read_ranges(document, program);
  check_names(program);
  check_own_memory(program);
  check_bytes(program);
  program.graph = std::move(read.graph);
  return program;
}

}  // namespace sfsdp::exported
