// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/tokenizer.h"
#include "sfsdp/testing/source_dir.h"

#include <doctest/doctest.h>

#include <sstream>

#include "sfsdp/base/error.h"

namespace sfsdp::tools::tokenizer_test {
namespace {

const train::Tokenizer& tokenizer() {
  static const train::Tokenizer kTokenizer =
      train::Tokenizer::load(testing::source_dir() + "/tests/fixtures/tokenizers/llama3");
  return kTokenizer;
}

std::string convert(const std::string& in, bool encodes, bool special = false) {
  std::istringstream from(in);
  std::ostringstream to;
  convert_lines(tokenizer(), encodes, special, from, to);
  return to.str();
}

std::string error_of(const std::string& in, bool encodes) {
  try {
    convert(in, encodes);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("tokenizer: lines of JSON go to ids and back, control characters and quotes too") {
  const std::string text = R"({"text": "a \"b\" \\ \u0000\u000a\u007f é <|eot_id|>"})";
  const std::string ids = convert(text + "\n\n" + text + "\r\n", true);
  CHECK(ids.substr(0, ids.size() / 2) == ids.substr(ids.size() / 2));
  CHECK(convert(ids.substr(0, ids.size() / 2), false, true) == text + "\n");
  CHECK(convert(ids.substr(0, ids.size() / 2), false) ==
        std::string(R"({"text": "a \"b\" \\ \u0000\u000a\u007f é "})") + "\n");
  CHECK(convert("{\"text\": \"\"}\n", true) == "{\"ids\": []}\n");
  CHECK(convert("{\"text\": \"\"}\n", true, true) ==
        "{\"ids\": [500]}\n");  // <|begin_of_text|>, as expected.json has it
}

TEST_CASE("tokenizer: a line that cannot be taken is named") {
  CHECK(error_of("{\"text\": \"a\"}\n{\"text\": 1}\n", true).find("standard input:2: ") == 0);
  CHECK(error_of("{\"text\"\n", true).find("standard input:1: invalid JSON") == 0);
  CHECK(error_of("{\"ids\": [1]}\n", true).find("expected {\"text\"") != std::string::npos);
  CHECK(
      error_of("{\"ids\": [1, 505]}\n", false).find("standard input:1: id 505\n  expected a whole number below 505") ==
      0);
  CHECK(error_of("{\"ids\": [-1]}\n", false).find("id -1") != std::string::npos);
}

TEST_CASE("tokenize: the progress line has share, tokens, speed and the time left") {
  train::TokenizeProgress progress;
  progress.bytes = 300;
  progress.all_bytes = 1000;
  progress.tokens = 5'000'000;
  CHECK(progress_line(progress, 2.0, 1'000'000, 100) ==
        "[#######.................] 30.0 %  5,000,000 tokens  2.00 M/s  ETA 0:07");
  CHECK(progress_line(progress, 2000.0, 1'000'000, 100).ends_with("ETA 1:56:40"));
  CHECK(progress_line(progress, 0.1, 0, 0) == "[#######.................] 30.0 %  5,000,000 tokens");
}

}  // namespace
}  // namespace sfsdp::tools::tokenizer_test
