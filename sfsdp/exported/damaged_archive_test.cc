// SPDX-License-Identifier: BSD-3-Clause
// Damaged and hostile archives, each with the whole text of its refusal: a table of fields of the JSON times kinds of damage,
// rows of their own for what a number or a name means, and zip files whose numbers disagree.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <span>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/exported/describe.h"
#include "sfsdp/exported/program.h"
#include "sfsdp/testing/damaged_archive.h"
#include "sfsdp/testing/zip_bytes.h"

namespace sfsdp::exported::damaged_archive_test {
namespace {

using testing::refusal_of;
using testing::ZipParts;

const ZipParts& good_parts() {
  static const ZipParts parts = testing::exported_parts("shared");
  return parts;
}

constexpr const char *kModel = "models/model.json", *kWeights = "data/weights/model_weights_config.json",
                     *kConstants = "data/constants/model_constants_config.json";

std::string& part_of(ZipParts& parts, const std::string& name) {
  const auto part = std::ranges::find(parts, "shared/" + name, &std::pair<std::string, std::string>::first);
  REQUIRE(part != parts.end());
  return part->second;
}

// The fixture with another value at a place of one of its JSON files; "": without that member.
std::string archive_with(const std::string& file, const std::string& pointer, const std::string& value) {
  ZipParts parts = good_parts();
  std::string& text = part_of(parts, file);
  text = testing::json_with(text, pointer, value);
  return testing::zip_of(parts);
}

// Names in braces stand for others.
std::string expand(std::string text) {
  static constexpr std::pair<const char*, const char*> kNames[] = {
      {"{mix}", "/config/mix/tensor_meta"},
      {"{lifted}", "/config/lifted_tensor_0/tensor_meta"},
      {"{graph}", "/graph_module/graph"},
      {"{node}", "/graph_module/graph/nodes/0"},
      {"{signature}", "/graph_module/signature"},
      {"{specs}", "/graph_module/signature/input_specs"},
      {"{parameter}", "/graph_module/signature/input_specs/0/parameter"},
      {"{beyond}", R"("mix" reaches beyond the 512 bytes of "shared/data/weights/weight_2")"},
      {"{lifted values}", R"("lifted_tensor_0" reaches beyond the 32 bytes of "shared/data/constants/tensor_0")"},
      {"{other type}", R"("mix" has another type in the graph than among the weights)"}};
  for (const auto& [name, meaning] : kNames)
    if (const size_t at = text.find(name); at != std::string::npos) text.replace(at, std::string(name).size(), meaning);
  return text;
}

// ---- fields times damage --------------------------------------------------------------------------------------------

enum class Kind { Integer, Real, Boolean, Text, Name, Array, Object, Union };

struct Field {
  std::string file, pointer;
  Kind kind;
  enum Need { Required, MayLack } need = Required;
};

// "/graph_module/nodes/0/target" -> "graph_module.nodes[0].target"
std::string place_of_pointer(const std::string& pointer) {
  std::string place;
  const std::vector<std::string> parts = split(pointer, '/');
  for (size_t i = 1; i < parts.size(); ++i) {
    const bool index = !parts[i].empty() && std::ranges::all_of(parts[i], [](char c) { return c >= '0' && c <= '9'; });
    place += index ? concat("[", parts[i], "]") : concat(place.empty() ? "" : ".", parts[i]);
  }
  return place;
}

std::vector<Field> fields() {
  struct FieldRow {
    const char *file, *pointer;
    Kind kind;
    Field::Need need = Field::Required;
  };
  static constexpr FieldRow kRows[] = {
      {kModel, "/schema_version/major", Kind::Integer},
      {kModel, "/range_constraints/s23/min_val", Kind::Integer, Field::MayLack},
      {kModel, "/range_constraints/s23/max_val", Kind::Integer, Field::MayLack},
      {kModel, "{graph}/nodes/5/inputs/1/arg/as_int", Kind::Integer},
      {kModel, "{graph}/nodes/0/target", Kind::Name},
      {kModel, "{graph}/nodes/0/inputs/0/name", Kind::Text},
      {kModel, "{graph}/nodes/0/inputs/0/arg/as_tensor/name", Kind::Text},
      {kModel, "{graph}/nodes/0/outputs/0/as_tensor/name", Kind::Name},
      {kModel, "{graph}/nodes/5/outputs/0/as_tensors/1/name", Kind::Name},
      {kModel, "{graph}/inputs/0/as_tensor/name", Kind::Name},
      {kModel, "{graph}/outputs/0/as_tensor/name", Kind::Text},
      {kModel, "{graph}/nodes/0/metadata/nn_module_stack", Kind::Text, Field::MayLack},
      {kModel, "{graph}/nodes/0/metadata/stack_trace", Kind::Text, Field::MayLack},
      {kModel, "{signature}/input_specs/0/parameter/parameter_name", Kind::Name},
      {kModel, "{signature}/input_specs/0/parameter/arg/name", Kind::Text},
      {kModel, "{signature}/input_specs/5/tensor_constant/tensor_constant_name", Kind::Name},
      {kModel, "{signature}/output_specs/0/user_output/arg/as_tensor/name", Kind::Text},
      {kModel, "/graph_module/module_call_graph/0/fqn", Kind::Text},
      {kModel, "/graph_module/module_call_graph/0/signature/out_spec", Kind::Text},
      {kModel, "/torch_version", Kind::Text, Field::MayLack},
      {kModel, "{graph}/nodes/2/inputs/1/arg/as_float", Kind::Real},
      {kModel, "{graph}/nodes/2/inputs/2/arg/as_bool", Kind::Boolean},
      {kModel, "/graph_module", Kind::Object},
      {kModel, "/schema_version", Kind::Object},
      {kModel, "{graph}", Kind::Object},
      {kModel, "{graph}/tensor_values", Kind::Object},
      {kModel, "{graph}/nodes/0/metadata", Kind::Object},
      {kModel, "{signature}", Kind::Object},
      {kModel, "{signature}/input_specs/0/parameter", Kind::Object},
      {kModel, "{graph}/inputs", Kind::Array},
      {kModel, "{graph}/outputs", Kind::Array},
      {kModel, "{graph}/nodes", Kind::Array},
      {kModel, "{graph}/nodes/0/inputs", Kind::Array},
      {kModel, "{graph}/nodes/0/outputs", Kind::Array},
      {kModel, "{graph}/nodes/5/outputs/0/as_tensors", Kind::Array},
      {kModel, "{signature}/input_specs", Kind::Array},
      {kModel, "{signature}/output_specs", Kind::Array},
      {kModel, "/graph_module/module_call_graph", Kind::Array},
      {kModel, "{graph}/nodes/0/inputs/0/arg", Kind::Union},
      {kModel, "{graph}/inputs/0", Kind::Union},
      {kModel, "{graph}/outputs/0", Kind::Union},
      {kModel, "{signature}/input_specs/0", Kind::Union},
      {kModel, "{signature}/output_specs/0", Kind::Union},
      {kWeights, "/config", Kind::Object},
      {kWeights, "/config/mix/path_name", Kind::Text},
      {kWeights, "/config/mix/use_pickle", Kind::Boolean},
      {kConstants, "/config", Kind::Object},
      {kConstants, "/config/lifted_tensor_0/path_name", Kind::Text},
      {kConstants, "/config/lifted_tensor_0/use_pickle", Kind::Boolean},
  };
  std::vector<Field> all;
  for (const FieldRow& row : kRows) all.push_back({row.file, expand(row.pointer), row.kind, row.need});
  for (const auto& [file, tensor] : {std::pair{kModel, "{graph}/tensor_values/p_mix"}, std::pair{kWeights, "{mix}"},
                                     std::pair{kConstants, "{lifted}"}}) {
    const std::string meta = expand(tensor);
    for (const char* number : {"/dtype", "/layout", "/sizes/0/as_int", "/strides/0/as_int", "/storage_offset/as_int"})
      all.push_back({file, meta + number, Kind::Integer});
    all.push_back({file, meta + "/requires_grad", Kind::Boolean});
    all.push_back({file, meta + "/sizes", Kind::Array});
    all.push_back({file, meta + "/strides", Kind::Array});
    all.push_back({file, meta + "/sizes/0", Kind::Union});
  }
  return all;
}

// What each kind of field refuses: a value, and how the refusal calls it.
std::vector<std::pair<std::string, std::string>> wrong_values(Kind kind) {
  const std::pair<std::string, std::string> null = {"null", "null"}, yes = {"true", "true"}, real = {"1.5", "1.5"},
                                            number = {"7", "7"}, text = {R"("x")", R"("x")"},
                                            array = {"[1]", "an array"}, object = {R"({"a": 1})", "an object"},
                                            large = {"9223372036854775808", "9223372036854775808"},
                                            huge = {"99999999999999999999", "1e+20"};
  switch (kind) {
    case Kind::Integer: return {null, yes, real, text, array, object, large, huge};
    case Kind::Real: return {null, yes, text, array, object};
    case Kind::Boolean: return {null, number, text, array, object};
    case Kind::Text: return {null, yes, number, array, object};
    case Kind::Name: return {null, yes, number, array, object};
    case Kind::Array: return {null, yes, number, text, object};
    case Kind::Object:
    case Kind::Union: return {null, yes, number, text, array};
  }
  return {};
}

const char* expected_of(Kind kind) {
  switch (kind) {
    case Kind::Integer: return "a whole number below 2^63";
    case Kind::Real: return "a number";
    case Kind::Boolean: return "true or false";
    case Kind::Text:
    case Kind::Name: return "a text";
    case Kind::Array: return "an array";
    case Kind::Object:
    case Kind::Union: return "an object";
  }
  return "";
}

TEST_CASE(
    "each field of an exported archive with a value of another kind is refused by its place, with what is expected") {
  CHECK(refusal_of(testing::zip_of(good_parts())).empty());
  int rows = 0;
  const auto expect = [&](const Field& field, const std::string& value, const std::string& got,
                          const std::string& expected) {
    ++rows;
    CAPTURE(field.pointer);
    CAPTURE(value);
    CHECK(refusal_of(archive_with(field.file, field.pointer, value)) ==
          concat(field.file, ": ", place_of_pointer(field.pointer), ": ", got, "\n  expected ", expected));
  };
  for (const Field& field : fields()) {
    for (const auto& [value, got] : wrong_values(field.kind))
      if (field.need == Field::Required || value != "null") expect(field, value, got, expected_of(field.kind));
    if (field.kind == Kind::Union) {
      expect(field, "{}", "0 members", "one, which says what it is");
      expect(field, R"({"as_int": 1, "as_none": true})", "2 members", "one, which says what it is");
    }
    if (field.kind == Kind::Name) {
      const std::string expected = "a name of 1 to 1000 bytes without control characters";
      expect(field, R"("")", "\"\" of 0 bytes", expected);
      expect(field, R"("a\u001b[31m")", R"("a\x1b[31m" of 6 bytes)", expected);
      expect(field, R"("a\u202eb")", R"("a\xe2\x80\xaeb" of 5 bytes)", expected);
      expect(field, '"' + std::string(1001, 'a') + '"', concat('"', std::string(120, 'a'), "...\" of 1001 bytes"),
             expected);
    }
    const std::string& pointer = field.pointer;
    const std::string last = pointer.substr(pointer.rfind('/') + 1), outer = pointer.substr(0, pointer.rfind('/'));
    const bool in_union = last.starts_with("as_"), item = last == "0";
    if (field.need == Field::MayLack || in_union || item || last == "parameter") continue;
    ++rows;
    CAPTURE(pointer);
    const std::string place = place_of_pointer(outer);
    CHECK(refusal_of(archive_with(field.file, pointer, "")) == concat(field.file, ": ", place,
                                                                      place.empty() ? "" : ": ", "no member ", last,
                                                                      "\n  expected an object that has it"));
  }
  CHECK(rows > 350);
}

// ---- what a value means ---------------------------------------------------------------------------------------------

// pointer, refused: names in braces as `expand` knows them.
struct Row {
  const char *file, *pointer, *value, *refused;
};

void expect_refused(std::span<const Row> rows) {
  for (const Row& row : rows) {
    CAPTURE(row.pointer);
    CAPTURE(row.value);
    const std::string got = refusal_of(archive_with(row.file, expand(row.pointer), row.value));
    CAPTURE(got);
    CHECK(got.find(expand(row.refused)) != std::string::npos);
  }
}

TEST_CASE("sizes, strides and offsets of an archive that no file of it has are refused") {
  static constexpr Row kRows[] = {
      {kWeights, "{mix}/storage_offset/as_int", "-1", "{beyond}\n  expected sizes, strides and an offset within them"},
      {kWeights, "{mix}/storage_offset/as_int", "1", "{beyond}\n  expected sizes, strides and an offset within them"},
      {kWeights, "{mix}/storage_offset/as_int", "9223372036854775807",
       "{beyond}\n  expected sizes, strides and an offset within them"},
      {kWeights, "{mix}/storage_offset/as_int", "-9223372036854775808",
       "{beyond}\n  expected sizes, strides and an offset within them"},
      {kWeights, "{mix}/storage_offset/as_int", "1152921504606846976",
       "{beyond}\n  expected sizes, strides and an offset within them"},
      {kWeights, "{mix}/storage_offset", R"({"as_expr": {"expr_str": "s23", "hint": {"as_int": 0}}})",
       R"("mix" has a size that varies, "s23")"},
      {kWeights, "{mix}/strides/0/as_int", "-1", "a size or stride of -1\n  expected 0 or more"},
      {kWeights, "{mix}/strides/0/as_int", "2", "{beyond}"},
      {kWeights, "{mix}/strides/1/as_int", "17", "{beyond}"},
      {kWeights, "{mix}/strides/1/as_int", "4611686018427387904", "{beyond}"},
      {kWeights, "{mix}/strides/1/as_int", "9223372036854775807", "{beyond}"},
      {kWeights, "{mix}/strides/0/as_int", "0", R"("mix" has elements that share memory)"},
      {kWeights, "{mix}/sizes/0/as_int", "-16", "a size or stride of -16\n  expected 0 or more"},
      {kWeights, "{mix}/sizes/0/as_int", "17", "{other type}"},
      {kWeights, "{mix}/sizes/0/as_int", "9223372036854775807", "{other type}"},
      {kWeights, "{mix}/sizes", "[]", "0 sizes, 2 strides\n  expected as many"},
      {kWeights, "{mix}/strides", R"([{"as_int": 1}])", "2 sizes, 1 strides\n  expected as many"},
      {kWeights, "{mix}/sizes/0", R"({"as_expr": {"expr_str": "s23"}})", "has a size that varies"},
      {kWeights, "{mix}/sizes/0", R"({"as_expr": {"expr_str": ""}})", "\"\" of 0 bytes\n  expected a name"},
      {kWeights, "{mix}/sizes/0", R"({"as_expr": {}})", "no member expr_str"},
      {kWeights, "{mix}/sizes/0", R"({"as_expr": {"expr_str": "s0", "hint": {"as_int": "x"}}})",
       "expected a whole number"},
      {kWeights, "{mix}/sizes/0", R"({"as_\u001b[31m": 1})", R"("as_\x1b[31m")"},
      {kWeights, "{mix}/dtype", "8", "{other type}"},
      {kWeights, "{mix}/dtype", "0", "dtype 0\n  expected a number of torch/_export/serde/schema.py"},
      {kWeights, "{mix}/dtype", "-1", "dtype -1\n  expected a number of"},
      {kWeights, "{mix}/dtype", "14", "dtype 14\n  expected a number of"},
      {kWeights, "{mix}/dtype", "9", "dtype COMPLEXHALF\n  expected float"},
      {kWeights, "{mix}/dtype", "11", "dtype COMPLEXDOUBLE"},
      {kWeights, "{mix}/dtype", "28", "dtype UINT16"},
      {kWeights, "{mix}/dtype", "31", "dtype FLOAT8E4M3FNUZ"},
      {kWeights, "{mix}/dtype", "33", "dtype FLOAT8E8M0FNU"},
      {kWeights, "{mix}/dtype", "9223372036854775807", "dtype 9223372036854775807"},
      {kWeights, "{mix}/layout", "0", "layout 0\n  expected 7, a dense tensor"},
      {kWeights, "{mix}/layout", "-7", "layout -7"},
      {kConstants, "{lifted}/storage_offset/as_int", "9223372036854775807", "{lifted values}"},
      {kConstants, "{lifted}/storage_offset/as_int", "1", "{lifted values}"},
      {kConstants, "{lifted}/strides/0/as_int", "2", "{lifted values}"},
      {kConstants, "{lifted}/dtype", "8", R"("lifted_tensor_0" has another type)"},
      {kModel, "{graph}/tensor_values/p_mix/sizes/0/as_int", "-1", "a size or stride of -1"},
      {kModel, "{graph}/tensor_values/p_mix/strides/0/as_int", "-1", "a size or stride of -1"},
      {kModel, "{graph}/tensor_values/p_mix/sizes/0/as_int", "8", "{other type}"},
      {kModel, "{graph}/tensor_values/p_mix/dtype", "5", "{other type}"},
  };
  expect_refused(kRows);
  const std::string sizes = concat("[", join(std::vector<std::string>(65, R"({"as_int": 1})"), ","), "]");
  const Row many = {kModel, "{graph}/tensor_values/p_mix/sizes", sizes.c_str(), "65 dimensions\n  expected at most 64"};
  expect_refused({&many, 1});
}

TEST_CASE("names, kinds and graphs of an archive that lead nowhere, or back, are refused") {
  static constexpr Row kRows[] = {
      {kModel, "/schema_version/major", "7",
       "schema_version: schema 7.20\n  expected schema 8, which torch 2.11 to 2.15 write"},
      {kModel, "/schema_version/major", "9223372036854775807", "schema 9223372036854775807.20"},
      {kModel, "/range_constraints/s23/min_val", "65",
       "range_constraints.s23: from 65 to 64\n  expected a range that holds a number"},
      {kModel, "/range_constraints", R"({"s\u0007": {"min_val": 1, "max_val": 2}})", R"("s\x07")"},
      {kModel, "{node}/inputs/0/arg/as_tensor/name", R"("lost")", R"(reads "lost", which is not there yet)"},
      {kModel, "{node}/inputs/0/arg/as_tensor/name", R"("linear")", R"(reads "linear", which is not there yet)"},
      {kModel, "{node}/inputs/0/arg/as_tensor/name", R"("embedding")", R"(reads "embedding", which is not there yet)"},
      {kModel, "{node}/inputs/0/arg/as_tensor/name", R"("\u001b[2J")", R"(reads "\x1b[2J", which is not there yet)"},
      {kModel, "{node}/inputs/0/arg", R"({"as_custom_obj": {"name": "x"}})", R"(an argument of kind "as_custom_obj")"},
      {kModel, "{node}/inputs/0/arg", R"({"as_\u001b": 1})", R"(an argument of kind "as_\x1b")"},
      {kModel, "{node}/inputs/0/arg", R"({"as_memory_format": 0})", "memory format 0\n  expected 1 to 4"},
      {kModel, "{node}/inputs/0/arg", R"({"as_memory_format": 5})", "memory format 5"},
      {kModel, "{node}/inputs/0/arg", R"({"as_layout": 2})", "layout 2"},
      {kModel, "{node}/inputs/0/arg", R"({"as_scalar_type": 99})", "dtype 99"},
      {kModel, "{node}/inputs/0/arg", R"({"as_ints": [1, "2"]})", "as_ints[1]: \"2\"\n  expected a whole number"},
      {kModel, "{node}/inputs/0/arg", R"({"as_bools": [1]})", "as_bools[0]: 1\n  expected true or false"},
      {kModel, "{node}/inputs/0/arg", R"({"as_floats": ["inf"]})", "as_floats[0]: \"inf\"\n  expected a number"},
      {kModel, "{node}/inputs/0/arg", R"({"as_strings": [1]})", "as_strings[0]: 1\n  expected a text"},
      {kModel, "{node}/inputs/0/arg", R"({"as_complex": {"real": 1}})", "no member imag"},
      {kModel, "{node}/inputs/0/arg", R"({"as_tensors": [{"name": "lost"}]})", "as_tensors[0].name: reads \"lost\""},
      {kModel, "{node}/inputs/0/arg", R"({"as_optional_tensor": {"as_int": 1}})", R"("as_int")"},
      {kModel, "{node}/inputs/0/arg", R"({"as_sym_int": {"as_text": 1}})", R"("as_text")"},
      {kModel, "{node}/inputs/0/arg", R"({"as_sym_int": {"as_name": "s99"}})", R"(reads "s99")"},
      {kModel, "{node}/inputs/0/arg", R"({"as_sym_ints": [{"as_float": 1.5}]})", "no whole number"},
      {kModel, "{node}/inputs/0/arg", R"({"as_graph": {"name": "g"}})", "no member graph"},
      {kModel, "{node}/inputs/0/arg",
       R"({"as_graph": {"name": "g", "graph": {"inputs": [], "outputs": [{"as_tensor": {"name": "p_mix"}}], "nodes": [], "tensor_values": {}}}})",
       R"(reads "p_mix", which is not there yet)"},
      {kModel, "{node}/outputs/0/as_tensor/name", R"("p_mix")", R"(makes "p_mix", which is there already)"},
      {kModel, "{node}/outputs/0/as_tensor/name", R"("lost")", R"(value "lost" has no type)"},
      {kModel, "{node}/outputs/0", R"({"as_graph": {"name": "g"}})", R"("as_graph")"},
      {kModel, "{graph}/inputs/0", R"({"as_tensors": [{"name": "p_frozen"}]})",
       "a list\n  expected one tensor or number"},
      {kModel, "{graph}/inputs/1/as_tensor/name", R"("p_frozen")", R"(makes "p_frozen", which is there already)"},
      {kModel, "{graph}/tensor_values", R"({"a": 1, "a": 2})", "key \"a\" twice in one object"},
  };
  expect_refused(kRows);
  std::string deep;
  for (int i = 0; i < 10; ++i)
    deep = concat(R"({"as_graph": {"name": "g", "graph": {"inputs": [], "outputs": [)", deep,
                  R"(], "nodes": [], "tensor_values": {}}}})");
  const Row row = {kModel, "{node}/inputs/0/arg", deep.c_str(), "graphs in graphs\n  expected at most 8"};
  expect_refused({&row, 1});
}

TEST_CASE("a signature of an archive that is not its graph's, and values that are not there, are refused") {
  static constexpr Row kRows[] = {
      {kModel, "{graph}/outputs", "[]", "output_specs: 3 outputs\n  expected 0, as the graph has"},
      {kModel, "{graph}/outputs/0/as_tensor/name", R"("getitem")", R"("mse_loss"
  expected "getitem", which the graph has at this place)"},
      {kModel, "{specs}", "[]", "input_specs: 0 inputs\n  expected 8, as the graph has"},
      {kModel, "{specs}/1", R"({"parameter": {"arg": {"name": "p_frozen"}, "parameter_name": "frozen"}})",
       R"("p_frozen"
  expected "p_unused", which the graph has at this place)"},
      {kModel, "{specs}/6", R"({"user_input": {"arg": {"as_optional_tensor": {"as_none": true}}}})",
       "no value\n  expected \"ids\""},
      {kModel, "{specs}/6", R"({"user_input": {"arg": {"as_none": true}}})", "no value\n  expected \"ids\""},
      {kModel, "{specs}/6", R"({"constant_input": {"name": "ids", "value": {"as_int": 1}}})",
       "no value\n  expected \"ids\""},
      {kModel, "{specs}/6", R"({"custom_obj": {"arg": {"name": "ids"}}})", R"("custom_obj")"},
      {kModel, "{specs}/6", R"({"token": {"arg": {"name": "ids"}}})", R"("token")"},
      {kModel, "{specs}/7", R"({"user_input": {"arg": {"as_tensor": {"name": "ids"}}}})", R"("ids"
  expected "target")"},
      {kModel, "{parameter}/arg/name", R"("lost")", R"("lost"
  expected a value of the graph)"},
      {kModel, "{parameter}/parameter_name", R"("thawed")", R"("thawed" has no values in the archive)"},
      {kModel, "{parameter}/parameter_name", R"("mix")", R"("mix" has another type)"},
      {kModel, "{specs}/4/parameter/parameter_name", R"("table.weight")", R"(two tensors are named "table.weight")"},
      {kModel, "{signature}/output_specs/0", R"({"token": {"arg": {"name": "x"}}})", R"("token")"},
      {kModel, "{signature}/output_specs/0/user_output/arg/as_tensor/name", R"("tanh")", R"("tanh"
  expected "mse_loss")"},
      {kModel, "/graph_module/module_call_graph/0/signature/out_spec", R"("[1, [[[")",
       "out_spec: invalid JSON near byte"},
      {kModel, "/graph_module/module_call_graph/0/signature/out_spec", R"("{}")", "an object\n  expected an array"},
      {kWeights, "/config/mix/path_name", R"("weight_9")", R"("mix": no entry "shared/data/weights/weight_9")"},
      {kWeights, "/config/mix/path_name", R"("../../../etc/passwd")",
       R"(no entry "shared/data/weights/../../../etc/passwd")"},
      {kWeights, "/config/mix/path_name", R"("/etc/passwd")", R"(no entry "shared/data/weights//etc/passwd")"},
      {kWeights, "/config/mix/path_name", R"("")", R"(no entry "shared/data/weights/")"},
      {kWeights, "/config/mix/path_name", R"("weight_0")", R"("mix" reaches beyond the 32 bytes)"},
      {kWeights, "/config/mix/path_name", R"("weight_3")", "share some memory\n  expected tensors of their own"},
      {kWeights, "/config/mix/path_name", R"("model_weights_config.json")",
       "has its values in \"shared/data/weights/model_weights_config.json\""},
      {kWeights, "/config/mix/use_pickle", "true",
       "a pickle\n  expected plain tensors: pickles run code and are never read"},
      {kWeights, "/config/frozen", "", R"("frozen" has no values in the archive)"},
      {kConstants, "/config/lifted_tensor_0", "", R"("lifted_tensor_0" has no values in the archive)"},
  };
  expect_refused(kRows);
  const std::string spec = concat('"', std::string(100, '['), '"');
  const Row row = {kModel, "/graph_module/module_call_graph/0/signature/out_spec", spec.c_str(), "nested too deep"};
  expect_refused({&row, 1});
}

// A tensor of another name, in the signature and among the weights.
std::string renamed(const std::string& name) {
  ZipParts parts = good_parts();
  for (const char* file : {kModel, kWeights}) {
    std::string& text = part_of(parts, file);
    for (const std::string before : {R"("parameter_name": "frozen")", R"({"frozen")"})
      if (const size_t at = text.find(before); at != std::string::npos)
        text.replace(at + before.size() - 8, 8, json_quoted(name));
  }
  return testing::zip_of(parts);
}

TEST_CASE("a tensor of an archive whose name is no path of modules is refused") {
  std::string deep = "a";
  for (int i = 0; i < 300; ++i) deep += ".a";
  CHECK(refusal_of(renamed("thawed")).empty());
  CHECK(refusal_of(renamed("größe.重み")).empty());
  for (const char* name : {".", "a.", ".a", "a..b"})
    CHECK(refusal_of(renamed(name)).find(concat("a tensor is named \"", name, "\", of ")) == 0);
  CHECK(refusal_of(renamed(deep)).find("of 301 parts\n  expected paths such as layers.0.weight, of at most 64 parts") !=
        std::string::npos);
  CHECK(refusal_of(renamed("a\nb")).find("expected a name of 1 to 1000 bytes without control characters") !=
        std::string::npos);
}

TEST_CASE("an archive whose tensors ask for more memory than its file has is refused") {
  // A buffer of 2^26 elements out of one, as expand() makes it: 256 MiB.
  ZipParts parts = testing::exported_parts("decoder");
  for (auto& [name, text] : parts) {
    const std::string tensor = name == "decoder/models/model.json" ? "/graph_module/graph/tensor_values/b_inv_freq"
                               : name.ends_with("constants_config.json") ? "/config/inv_freq/tensor_meta"
                                                                         : "";
    if (tensor.empty()) continue;
    text = testing::json_with(text, tensor + "/sizes/0/as_int", "67108864");
    text = testing::json_with(text, tensor + "/strides/0/as_int", "0");
  }
  const std::string got = refusal_of(testing::zip_of(parts));
  CAPTURE(got);
  CHECK(got.find("its tensors up to \"inv_freq\" have 268") == 0);
  CHECK(got.find("expected at most 67108864 more than in the file; export tensors after contiguous()") !=
        std::string::npos);
}

TEST_CASE("JSON of an archive that is none, or too much of it, is refused before it takes memory") {
  const auto with = [](const std::string& file, const std::string& text) {
    ZipParts parts = good_parts();
    part_of(parts, file) = text;
    return refusal_of(testing::zip_of(parts));
  };
  for (const std::string file : {kModel, kWeights, kConstants}) {
    CHECK(with(file, "") == concat(file, ": invalid JSON near byte 1, at \"\"\n  expected a JSON document"));
    CHECK(with(file, "{}x").find(file + ": invalid JSON near byte 3") == 0);
    CHECK(with(file, "[1e400]").find(file + ": invalid JSON near byte") == 0);
    CHECK(with(file, "[NaN]").find(file + ": invalid JSON near byte") == 0);
    CHECK(with(file, "\xff{}") == file + ": the JSON text is not UTF-8\n  expected valid UTF-8");
    CHECK(with(file, std::string("{}\0", 3)).find(file + ": control byte 0") == 0);
    CHECK(with(file, "\xef\xbb\xbf{}").find(file + ": starts with a byte order mark") == 0);
    CHECK(with(file, R"({"a": 1, "a": 2})").find(file + ": key \"a\" twice in one object") == 0);
    CHECK(with(file, "[\"\\ud800\"]").find(file + ": invalid JSON near byte") == 0);
    CHECK(with(file, std::string(5000, '[')).find(file + ": nested too deep\n  expected at most 64 levels") == 0);
    std::string zeros = "[0";
    for (int i = 0; i < 100'000; ++i) zeros += ",0";
    CHECK(with(file, zeros + "]").find(file + ": more values than we read\n  expected at most 51") == 0);
    CHECK(with(file, "[]").find(file + ": an array\n  expected an object") == 0);
  }
}

TEST_CASE("what an archive says of things that we do not read changes nothing") {
  const auto description = [](const std::string& bytes) {
    const std::string path = testing::temporary_archive("archive.pt2");
    std::ofstream(path, std::ios::binary) << bytes;
    std::string text = describe(read_program(path));
    std::filesystem::remove(path);
    return text;
  };
  const std::string good = description(testing::zip_of(good_parts()));
  for (const auto& [file, pointer] : std::vector<std::pair<const char*, const char*>>{
           {kModel, "/opset_version"},
           {kModel, "/verifiers"},
           {kModel, "/guards_code"},
           {kModel, "{node}/name"},
           {kModel, "{node}/is_hop_single_tensor_return"},
           {kModel, "{node}/inputs/0/kind"},
           {kModel, "{node}/metadata/torch_fn"},
           {kModel, "{graph}/sym_int_values"},
           {kModel, "{graph}/sym_bool_values"},
           {kModel, "{graph}/sym_float_values"},
           {kModel, "{graph}/custom_obj_values"},
           {kModel, "{graph}/is_single_tensor_return"},
           {kModel, "{graph}/tensor_values/p_mix/device"},
           {kModel, "/graph_module/module_call_graph/1/signature"},
           {kModel, "/graph_module/module_call_graph/0/signature/in_spec"},
           {kModel, "/graph_module/module_call_graph/0/signature/forward_arg_names"},
           {kWeights, "/config/mix/is_param"},
           {kWeights, "{mix}/device"},
           {kConstants, "/config/lifted_tensor_0/is_param"}})
    for (const char* value : {"", "null", "-1", R"("\u001b[31m")", R"([{"as_tensor": {}}])"}) {
      CAPTURE(pointer);
      CAPTURE(value);
      CHECK(description(archive_with(file, expand(pointer), value)) == good);
    }
}

}  // namespace
}  // namespace sfsdp::exported::damaged_archive_test
