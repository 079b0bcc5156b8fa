// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/safetensors.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/testing/temporary_folder.h"
#include "sfsdp/testing/tensor_bytes.h"

namespace sfsdp::train::safetensors_test {

namespace {

namespace fs = std::filesystem;
using testing::bytes_of;

std::string length_prefix(uint64_t length) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[static_cast<size_t>(i)] = static_cast<char>(length >> (8 * i) & 0xff);
  return bytes;
}

std::string file_of(const std::string& header, const std::string& data = "") {
  return length_prefix(header.size()) + header + data;
}

std::string floats(const std::vector<float>& values) {
  std::string bytes(values.size() * 4, '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// "a": 4 bytes per size, from `begin`.
std::string entry(const std::string& name, int begin, int end, const std::string& shape,
                  const std::string& dtype = "F32") {
  return concat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":", shape, ",\"data_offsets\":[", begin, ",", end,
                "]}");
}

std::string message_of(const std::string& path) {
  try {
    SafetensorsFile::open(path);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

std::string checkpoint_message(const std::string& dir) {
  try {
    SafetensorsCheckpoint::open(dir);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("safetensors: the format's own vectors are read") {
  const testing::TemporaryFolder folder;
  SUBCASE("no tensors") {
    const std::string bytes = file_of("{}      ");
    CHECK(bytes[0] == 8);
    CHECK(SafetensorsFile::open(folder.write("f", bytes)).tensors().empty());
  }
  SUBCASE("[1, 2, 3]") {
    const std::string header = R"({"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}})";
    CHECK(header.size() == 64);
    const auto file = SafetensorsFile::open(folder.write("f", file_of(header, floats({0, 1, 2, 3, 4, 5}))));
    REQUIRE(file.tensors().size() == 1);
    const TensorView* tensor = file.find("attn.0");
    REQUIRE(tensor);
    CHECK(tensor->dtype == ir::DType::f32);
    CHECK(tensor->shape == std::vector<int64_t>{1, 2, 3});
    float last = 0;
    REQUIRE(tensor->bytes == 24);
    tensor->read(20, std::as_writable_bytes(std::span(&last, 1)));
    CHECK(last == 5);
    CHECK(file.find("attn.1") == nullptr);
  }
  SUBCASE("[1, 1, 2, 3], padded to 72") {
    const std::string header = R"({"attn0":{"dtype":"F32","shape":[1,1,2,3],"data_offsets":[0,24]}})"
                               "       ";
    CHECK(header.size() == 72);
    const auto file = SafetensorsFile::open(folder.write("f", file_of(header, floats({0, 1, 2, 3, 4, 5}))));
    CHECK(file.tensors().at(0).shape == std::vector<int64_t>{1, 1, 2, 3});
  }
}

TEST_CASE(
    "safetensors: any part of a tensor can be read, and a file cut off meanwhile is an error, in one page or in many") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.write(
      "f", file_of("{" + entry("a", 0, 8, "[2]") + "," + entry("b", 8, 20, "[3]") + "}", floats({0, 1, 2, 3, 4})));
  SafetensorsFile opened = SafetensorsFile::open(path);
  const SafetensorsFile file = std::move(opened);  // views hold on
  const TensorView& b = *file.find("b");
  std::vector<float> values(2);
  b.read(4, std::as_writable_bytes(std::span(values)));
  CHECK(values == std::vector<float>{3, 4});
  b.read(0, std::as_writable_bytes(std::span(values)));
  CHECK(values == std::vector<float>{2, 3});
  CHECK_THROWS_AS(b.read(8, std::as_writable_bytes(std::span(values))), InternalError);
  fs::resize_file(path, fs::file_size(path) - 1);
  CHECK_THROWS_WITH_AS(b.read(4, std::as_writable_bytes(std::span(values))),
                       doctest::Contains("tensor \"b\": its file has become shorter"), UserError);
  fs::resize_file(path, 0);
  CHECK_THROWS_WITH_AS(bytes_of(*file.find("a")), doctest::Contains("tensor \"a\": its file has become shorter"),
                       UserError);
}

TEST_CASE("safetensors: empty tensors, rank 0, metadata and entries out of order are legal") {
  const testing::TemporaryFolder folder;
  const std::string header = "{" + entry("late", 4, 12, "[2]") + ",\"__metadata__\":{\"format\":\"pt\"}," +
                             entry("scalar", 0, 4, "[]") + "," + entry("empty", 4, 4, "[0,3]") + "," +
                             entry("\\u00e9\\n", 12, 14, "[1]", "BF16") + "}";
  SafetensorsFile first = SafetensorsFile::open(folder.write("f", file_of(header, std::string(14, '\1'))));
  const SafetensorsFile file = std::move(first);  // views outlive the move
  REQUIRE(file.tensors().size() == 4);
  CHECK(file.tensors()[0].name == "scalar");
  CHECK(file.tensors()[1].name == "empty");
  CHECK(file.tensors()[2].name == "late");
  CHECK(file.find("scalar")->shape.empty());
  CHECK(file.find("empty")->bytes == 0);
  CHECK(file.find("\xc3\xa9\n")->dtype == ir::DType::bf16);
  CHECK(bytes_of(*file.find("late"))[7] == std::byte{1});
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
}

TEST_CASE("safetensors: every dtype of ours has a name and a size that agree with the format") {
  const testing::TemporaryFolder folder;
  for (const auto dtype :
       {ir::DType::f64, ir::DType::f32, ir::DType::bf16, ir::DType::f16, ir::DType::f8e4m3, ir::DType::f8e5m2,
        ir::DType::c64, ir::DType::i64, ir::DType::i32, ir::DType::i16, ir::DType::i8, ir::DType::u8, ir::DType::b1}) {
    const std::string name(safetensors_name(dtype));
    CAPTURE(name);
    CHECK(dtype_of_safetensors(name) == dtype);
    const int bytes = static_cast<int>(ir::size_in_bytes(dtype)) * 3;
    const auto file = SafetensorsFile::open(folder.write(
        name, file_of("{" + entry("t", 0, bytes, "[3]", name) + "}", std::string(static_cast<size_t>(bytes), '\0'))));
    CHECK(file.find("t")->dtype == dtype);
  }
  CHECK(safetensors_name(ir::DType::f8e4m3) == "F8_E4M3");
}

TEST_CASE("safetensors: a dtype of the format that we lack can be listed, not used") {
  const testing::TemporaryFolder folder;
  const auto file = SafetensorsFile::open(folder.write(
      "f", file_of("{" + entry("half", 0, 1, "[2]", "F4") + "," + entry("u", 1, 5, "[2]", "U16") + "}", "12345")));
  CHECK(file.find("half")->dtype == std::nullopt);
  CHECK(file.find("u")->dtype_name == "U16");
  CHECK(file.find("u")->dtype == std::nullopt);
}

struct Malformed {
  const char* what;
  std::string bytes;
  const char* says;
};

void expect_refused(const std::vector<Malformed>& cases) {
  const testing::TemporaryFolder folder;
  for (const Malformed& bad : cases) {
    CAPTURE(std::string(bad.what));
    const std::string path = folder.write("bad.safetensors", bad.bytes);
    const std::string message = message_of(path);
    CAPTURE(message);
    CHECK(contains(message, path));
    CHECK(contains(message, bad.says));
    CHECK(message.size() < 600);
  }
}

const std::string kGood = "{" + entry("a", 0, 4, "[1]") + "}";

TEST_CASE("safetensors: a header that cannot be read is refused, naming the file and the reason") {
  expect_refused({
      {"nothing", "", "at least 8 bytes"},
      {"seven bytes", "1234567", "at least 8 bytes"},
      {"header above the cap", length_prefix(100000001) + std::string(64, ' '), "at most 100000000"},
      {"length of all ones", std::string(8, '\xff') + kGood, "at most 100000000"},
      {"header past the end", length_prefix(kGood.size() + 5) + kGood + "1234", "cut off"},
      {"empty header", length_prefix(0) + "1234", "empty header"},
      {"not UTF-8", file_of("{\"\xff\":1}"), "UTF-8"},
      {"overlong UTF-8", file_of("{\"\xc0\x80\":1}"), "UTF-8"},
      {"UTF-8 surrogate", file_of("{\"\xed\xa0\x80\":1}"), "UTF-8"},
      {"leading blank", file_of(" " + kGood, "1234"), "expected a {"},
      {"byte order mark", file_of("\xef\xbb\xbf" + kGood, "1234"), "expected a {"},
      {"an array", file_of("[]"), "expected a {"},
      {"padding of line ends", file_of(kGood + "\n", "1234"), "only blanks"},
      {"padding of NULs", file_of(kGood + std::string(1, '\0'), "1234"), "only blanks"},
      {"hidden after a NUL", file_of(kGood + std::string(1, '\0') + "}", "1234"), "control byte"},
      {"two documents", file_of("{}{}"), "invalid JSON"},
      {"cut JSON", file_of("{\"a\":{}"), "invalid JSON"},
      {"trailing comma", file_of("{\"a\":{},}"), "invalid JSON"},
      {"comment", file_of("{/* */}"), "invalid JSON"},
      {"lone surrogate escape", file_of("{\"\\ud800\":{}}"), "invalid JSON"},
  });
}

TEST_CASE("safetensors: tensors that the header describes wrongly are refused") {
  const std::string bad_dtype = "{" + entry("a", 0, 4, "[1]", "F33") + "}";
  expect_refused({
      {"same tensor twice", file_of("{" + entry("a", 0, 4, "[1]") + "," + entry("a", 4, 8, "[1]") + "}", "12345678"),
       "twice"},
      {"same tensor twice, escaped",
       file_of("{" + entry("a", 0, 4, "[1]") + "," + entry("\\u0061", 4, 8, "[1]") + "}", "12345678"), "twice"},
      {"same key twice",
       file_of("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "1234"), "twice"},
      {"metadata twice", file_of("{\"__metadata__\":{},\"__metadata__\":{}}"), "twice"},
      {"metadata of numbers", file_of("{\"__metadata__\":{\"a\":1}}"), "a string"},
      {"metadata no object", file_of("{\"__metadata__\":[]}"), "object of strings"},
      {"entry no object", file_of("{\"a\":1}"), "an object with dtype"},
      {"entry without shape", file_of("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,0]}}"), "key is missing"},
      {"unknown key", file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0],\"x\":1}}"), "the key"},
      {"unknown dtype", file_of(bad_dtype, "1234"), "dtype \"F33\""},
      {"dtype in lower case", file_of("{" + entry("a", 0, 4, "[1]", "f32") + "}", "1234"), "dtype \"f32\""},
      {"dtype a number", file_of("{\"a\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,4]}}", "1234"), "dtype 1"},
  });
}

TEST_CASE("safetensors: shapes that cannot be are refused") {
  const auto shape = [](const std::string& text) { return file_of("{" + entry("a", 0, 4, text) + "}", "1234"); };
  std::string wide = "[1";
  for (int i = 0; i < 64; ++i) wide += ",1";
  expect_refused({
      {"shape a number", shape("1"), "array of sizes"},
      {"negative size", shape("[-1]"), "unsigned"},
      {"minus zero", shape("[-0]"), "unsigned"},
      {"fractional size", shape("[1.0]"), "unsigned"},
      {"size above 64 bits", shape("[18446744073709551616]"), "unsigned"},
      {"size above 63 bits", shape("[9223372036854775808]"), "2^63"},
      {"text for a size", shape("[\"1\"]"), "unsigned"},
      {"nested shape", shape("[[1]]"), "too deep"},
      {"rank 65", shape(wide + "]"), "at most 64"},
      {"product overflows", shape("[4294967296,4294967296]"), "overflows"},
      {"product overflows before a zero", shape("[4294967296,4294967296,0]"), "overflows"},
      {"bits overflow", shape("[2305843009213693952]"), "overflows"},
      {"shape larger than the bytes", shape("[2]"), "8, by dtype"},
      {"shape smaller than the bytes", shape("[0]"), "0, by dtype"},
      {"half a byte", file_of("{" + entry("a", 0, 1, "[3]", "F4") + "}", "1"), "whole number"},
  });
}

TEST_CASE("safetensors: bytes that do not fit the tensors are refused") {
  const auto offsets = [](const std::string& text) {
    return file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" + text + "}}", "1234");
  };
  expect_refused({
      {"offsets no array", offsets("4"), "[begin, end]"},
      {"one offset", offsets("[0]"), "[begin, end]"},
      {"three offsets", offsets("[0,4,4]"), "[begin, end]"},
      {"negative offset", offsets("[-4,0]"), "unsigned"},
      {"end before begin", file_of("{" + entry("e", 0, 4, "[1]") + "," + entry("f", 4, 0, "[1]") + "}", "1234"),
       "not before"},
      {"huge end", offsets("[0,18446744073709551615]"), "by dtype"},
      {"does not begin at 0", file_of("{" + entry("a", 4, 8, "[1]") + "}", "12345678"), "expected 0"},
      {"gap", file_of("{" + entry("a", 0, 4, "[1]") + "," + entry("b", 8, 12, "[1]") + "}", std::string(12, '1')),
       "expected 4"},
      {"overlap", file_of("{" + entry("a", 0, 8, "[2]") + "," + entry("b", 4, 8, "[1]") + "}", std::string(8, '1')),
       "expected 8"},
      {"same bytes twice", file_of("{" + entry("a", 0, 4, "[1]") + "," + entry("b", 0, 4, "[1]") + "}", "1234"),
       "expected 4"},
      {"one byte too few", file_of(kGood, "123"), "3 bytes of data"},
      {"one byte too many", file_of(kGood, "12345"), "5 bytes of data"},
      {"data without tensors", file_of("{}", "1"), "1 bytes of data"},
      {"long name", file_of("{" + entry(std::string(4097, 'n'), 0, 4, "[1]") + "}", "1234"), "at most 4096"},
      {"deep nesting", file_of("{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}"), "too deep"},
  });
}

TEST_CASE("safetensors: what is no regular file is refused without waiting for it") {
  const testing::TemporaryFolder folder;
  CHECK(contains(message_of(folder.path() + "/none"), "cannot be opened"));
  CHECK(contains(message_of(folder.path()), "no regular file"));
  REQUIRE(::mkfifo((folder.path() + "/fifo").c_str(), 0600) == 0);
  CHECK(contains(message_of(folder.path() + "/fifo"), "no regular file"));
}

TEST_CASE("safetensors: 2000 mutations of a good file open or are refused") {
  const testing::TemporaryFolder folder;
  const std::string good =
      file_of("{\"__metadata__\":{\"format\":\"pt\"}," + entry("layers.0.w", 0, 24, "[2,3]") + "," +
                  entry("b", 24, 28, "[2]", "BF16") + "," + entry("e", 28, 28, "[0]") + "}  ",
              std::string(28, '\x3f'));
  REQUIRE(SafetensorsFile::open(folder.write("good", good)).tensors().size() == 3);
  std::mt19937_64 random(20251121);
  const auto below = [&](size_t limit) { return static_cast<size_t>(random() % limit); };
  static constexpr char kLikely[] = "{}[]\":,0123456789-.eE \\ntu\0\x7f\xff\xc3";
  int opened = 0;
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = good;
    for (size_t edits = 1 + below(3); edits > 0; --edits) {
      const size_t at = below(bytes.size());
      switch (below(4)) {
        case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8))); break;
        case 1: bytes.insert(at, 1, kLikely[below(sizeof kLikely)]); break;
        case 2: bytes.erase(at, 1 + below(4)); break;
        default: bytes[at] = kLikely[below(sizeof kLikely)]; break;
      }
    }
    // half of them with a length that fits, or nearly all would fall at the first rules
    if (bytes.size() > 36 && below(2) == 0) bytes.replace(0, 8, length_prefix(bytes.size() - 36));
    CAPTURE(round);
    try {
      const auto file = SafetensorsFile::open(folder.write("fuzzed", bytes));
      size_t total = 0;
      unsigned sum = 0;
      for (const TensorView& tensor : file.tensors()) {
        total += tensor.bytes;
        for (const std::byte byte : bytes_of(tensor)) sum += static_cast<unsigned>(byte);  // every byte can be read
        CHECK(file.find(tensor.name) == &tensor);
      }
      CHECK(total <= bytes.size());
      CHECK(sum <= 255 * total);
      ++opened;
    } catch (const UserError&) {
      ++refused;
    }
  }
  CHECK(opened + refused == 2000);
  CHECK(opened > 50);  // flips in the data and in names are legal
  CHECK(refused > 500);
}

TEST_CASE("safetensors: a checkpoint is one file or an index with its files") {
  const testing::TemporaryFolder folder;
  const std::string one = file_of("{" + entry("a", 0, 4, "[1]") + "}", floats({1}));
  SUBCASE("one file") {
    folder.write("model.safetensors", one);
    const auto checkpoint = SafetensorsCheckpoint::open(folder.path());
    CHECK(checkpoint.names() == std::vector<std::string>{"a"});
    CHECK(checkpoint.at("a").bytes == 4);
    CHECK(checkpoint.find("b") == nullptr);
    CHECK_THROWS_AS(checkpoint.at("b"), UserError);
  }
  SUBCASE("two files and an index; what it does not list is not seen") {
    folder.write("m-1.safetensors", one);
    folder.write("m-2.safetensors",
                 file_of("{" + entry("b", 0, 8, "[2]") + "," + entry("unlisted", 8, 8, "[0]") + "}", floats({2, 3})));
    for (const char* total :
         {R"("metadata":{"total_size":12},)", R"("metadata":{"total_size":12.0},)", R"("metadata":{},)", ""}) {
      folder.write("model.safetensors.index.json",
                   concat("{", total, R"("weight_map":{"b":"m-2.safetensors","a":"m-1.safetensors"}})"));
      SafetensorsCheckpoint opened = SafetensorsCheckpoint::open(folder.path());
      const SafetensorsCheckpoint checkpoint = std::move(opened);
      CHECK(checkpoint.names() == std::vector<std::string>{"a", "b"});
      CHECK(checkpoint.files().size() == 2);
      CHECK(checkpoint.find("unlisted") == nullptr);
      CHECK(checkpoint.file_of("b") == folder.path() + "/m-2.safetensors");
      float last = 0;
      checkpoint.at("b").read(4, std::as_writable_bytes(std::span(&last, 1)));
      CHECK(last == 3);
    }
  }
  SUBCASE("a file may be a link, as in the cache of huggingface_hub") {
    fs::create_symlink(folder.write("blob", one), folder.path() + "/model.safetensors");
    CHECK(SafetensorsCheckpoint::open(folder.path()).find("a") != nullptr);
  }
}

TEST_CASE("safetensors: a checkpoint that is not whole, or leaves its folder, is refused") {
  const testing::TemporaryFolder folder;
  folder.write("x", file_of("{" + entry("a", 0, 4, "[1]") + "}", floats({1})));
  folder.write("y", file_of("{" + entry("a", 0, 4, "[1]") + "," + entry("b", 4, 8, "[1]") + "}", floats({1, 2})));
  folder.write("cut", file_of("{" + entry("c", 0, 4, "[1]") + "}", "123"));
  fs::create_directory(folder.path() + "/sub");
  CHECK(contains(checkpoint_message(folder.path()), "no checkpoint"));
  CHECK(contains(checkpoint_message(folder.path() + "/nowhere"), "no checkpoint"));
  const struct {
    const char* index;
    const char* says;
  } cases[] = {
      {"", "invalid JSON"},
      {"[]", "no weight_map"},
      {"{}", "no weight_map"},
      {R"({"weight_map":[]})", "weight_map is an array"},
      {R"({"weight_map":{"a":1}})", "a file name"},
      {R"({"weight_map":{"a":""}})", "same folder"},
      {R"({"weight_map":{"a":"."}})", "same folder"},
      {R"({"weight_map":{"a":".."}})", "same folder"},
      {R"({"weight_map":{"a":"../x"}})", "same folder"},
      {R"({"weight_map":{"a":"/etc/passwd"}})", "same folder"},
      {R"({"weight_map":{"a":"sub/x"}})", "same folder"},
      {R"({"weight_map":{"a":"sub\\x"}})", "same folder"},
      {R"({"weight_map":{"a":"x\u0000y"}})", "same folder"},
      {R"({"weight_map":{"a":"sub"}})", "no regular file"},
      {R"({"weight_map":{"a":"missing"}})", "cannot be opened"},
      {R"({"weight_map":{"c":"cut"}})", "3 bytes of data"},
      {R"({"weight_map":{"b":"x"}})", "tensor \"b\" is not in \"x\""},
      {R"({"weight_map":{"a":"x","a":"y"}})", "twice"},
      {R"({"weight_map":{"a":"x","b":"y"}})", "and in"},
      {R"({"metadata":{"total_size":5},"weight_map":{"a":"x"}})", "total_size is 5"},
      {R"({"metadata":{"total_size":-4},"weight_map":{"a":"x"}})", "total_size is -4"},
      {R"({"metadata":{"total_size":4.5},"weight_map":{"a":"x"}})", "total_size is 4.5"},
      {R"({"metadata":{"total_size":1e300},"weight_map":{"a":"x"}})", "total_size is"},
  };
  for (const auto& bad : cases) {
    CAPTURE(std::string(bad.index));
    folder.write("model.safetensors.index.json", bad.index);
    const std::string message = checkpoint_message(folder.path());
    CAPTURE(message);
    CHECK(contains(message, folder.path()));
    CHECK(contains(message, bad.says));
  }
  folder.write("model.safetensors.index.json", R"({"weight_map":{"a":"x"}})");
  CHECK(checkpoint_message(folder.path()) == "");
  folder.write("model.safetensors", file_of("{}"));
  CHECK(contains(checkpoint_message(folder.path()), "out of date"));
}

}  // namespace sfsdp::train::safetensors_test
