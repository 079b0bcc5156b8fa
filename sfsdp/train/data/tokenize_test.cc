// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/tokenize.h"
#include "sfsdp/testing/source_dir.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/testing/temporary_folder.h"
#include "sfsdp/train/data/token_file.h"

namespace sfsdp::train::tokenize_test {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryFolder;

const Tokenizer& tokenizer() {
  static const Tokenizer kTokenizer = Tokenizer::load(testing::source_dir() + "/tests/fixtures/tokenizers/llama3");
  return kTokenizer;
}

std::string gzip(const std::string& text) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

// The documents of a folder, decoded.
std::vector<std::string> documents_of(const std::string& folder) {
  const TokenFolder all = TokenFolder::load(folder);
  std::vector<std::string> documents;
  for (size_t i = 0; i < all.shards.size(); ++i) {
    const TokenFile file = all.open(i);
    file.verify();
    TokenStore store("all", {file.piece()});
    for (int64_t j = 0; j < file.documents(); ++j) {
      std::vector<int32_t> ids(static_cast<size_t>(file.document(j).size()));
      store.read(file.document(j).begin, ids, tokenizer().vocab_size());
      documents.push_back(tokenizer().decode(ids));
    }
  }
  return documents;
}

std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path().filename().string()] = {std::istreambuf_iterator<char>(file), {}};
  }
  return files;
}

std::string error_of(const TokenizeOptions& options) {
  try {
    tokenize_files(tokenizer(), options);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

// Many short documents, in JSON lines.
std::string many_lines(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i)
    lines += concat("{\"id\": ", i, ", \"text\": \"document ", i * i, " says\\n that\"}\n");
  return lines;
}

TEST_CASE("documents come from JSON lines, text, gzip and zstd, in the order of the inputs") {
  const TemporaryFolder folder;
  const std::string lines =
      "{\"text\": \"one\\n\\u00e9\", \"more\": [1]}\n\n  \r\n{\"text\": \"\"}\r\n{\"text\": \"no end\"}";
  const std::vector<std::string> inputs = {
      folder.write("a.jsonl", lines), folder.write("b.txt", "all\n\nof it\n"), folder.write("c.jsonl.gz", gzip(lines)),
      folder.write("d.ndjson.zst", zstd(lines)), folder.write("e.txt.gz", gzip("first ") + gzip("second"))};
  tokenize_files(tokenizer(), {.inputs = inputs, .out = folder / "out"});
  const std::vector<std::string> three = {"one\n\u00e9", "", "no end"};
  std::vector<std::string> expected = three;
  expected.emplace_back("all\n\nof it\n");
  for (int i = 0; i < 2; ++i) expected.insert(expected.end(), three.begin(), three.end());
  expected.emplace_back("first second");
  CHECK(documents_of(folder / "out") == expected);
}

TEST_CASE("text is cut at lines or at blank lines; the format and the field may be given") {
  const TemporaryFolder folder;
  const std::string text = folder.write("a.txt", "one\r\ntwo\n\n \nthree\n");
  tokenize_files(tokenizer(), {.inputs = {text}, .out = folder / "lines", .documents = {.split = SplitOn::Lines}});
  CHECK(documents_of(folder / "lines") == std::vector<std::string>{"one", "two", "three"});
  tokenize_files(tokenizer(), {.inputs = {text}, .out = folder / "blank", .documents = {.split = SplitOn::BlankLines}});
  CHECK(documents_of(folder / "blank") == std::vector<std::string>{"one\ntwo", "three"});
  const std::string odd = folder.write("odd", "{\"body\": \"x\"}\n");
  tokenize_files(tokenizer(), {.inputs = {odd},
                               .out = folder / "odd_out",
                               .documents = {.format = DocumentFormat::JsonLines, .field = "body"}});
  CHECK(documents_of(folder / "odd_out") == std::vector<std::string>{"x"});
}

TEST_CASE("bytes that are not UTF-8 become U+FFFD, in text and in JSON") {
  const TemporaryFolder folder;
  const std::vector<std::string> inputs = {folder.write("a.txt", "a\xff z"),
                                           folder.write("b.jsonl", "{\"text\": \"a\xff z\"}")};
  tokenize_files(tokenizer(), {.inputs = inputs, .out = folder / "out"});
  CHECK(documents_of(folder / "out") == std::vector<std::string>{"a\ufffd z", "a\ufffd z"});
}

TEST_CASE("what is written does not depend on the number of threads, and the ids are encode()'s") {
  const TemporaryFolder folder;
  const std::string input = folder.write("a.jsonl", many_lines(30000));  // several batches
  tokenize_files(tokenizer(), {.inputs = {input}, .out = folder / "one", .shard_tokens = 50000, .threads = 1});
  tokenize_files(tokenizer(), {.inputs = {input}, .out = folder / "four", .shard_tokens = 50000, .threads = 4});
  CHECK(files_of(folder / "one") == files_of(folder / "four"));
  const std::vector<std::string> documents = documents_of(folder / "four");
  REQUIRE(documents.size() == 30000);
  CHECK(documents[12345] == concat("document ", 12345 * 12345, " says\n that"));
  CHECK(TokenFolder::load(folder / "four").shards.size() > 3);
}

TEST_CASE("a run that stopped anywhere is taken up, and its files are those of one that did not") {
  const TemporaryFolder folder;
  const std::string input = folder.write("a.jsonl.gz", gzip(many_lines(2000)));
  const TokenizeOptions options = {.inputs = {input}, .out = folder / "out", .shard_tokens = 3000, .threads = 2};
  tokenize_files(tokenizer(), options);
  const auto whole = files_of(folder / "out");
  const size_t shards = TokenFolder::load(folder / "out").shards.size();
  REQUIRE(shards > 5);
  for (size_t kept = 0; kept <= shards; ++kept) {
    fs::remove(folder / "out/dataset.json");
    for (const auto& [name, bytes] : whole)
      if (name.ends_with(".tok") && std::stoul(name) >= kept) fs::remove(folder / ("out/" + name));
    folder.write("out/00003.tok.tmp", "half of a shard");
    const TokenizeProgress progress = tokenize_files(tokenizer(), options);
    CHECK((progress.resumed_documents > 0) == (kept > 0));
    CHECK(files_of(folder / "out") == whole);
  }
  CHECK(tokenize_files(tokenizer(), options).was_complete);
  fs::remove(folder / "out/dataset.json");
  std::string damaged = whole.at("00002.tok");
  damaged[500] ^= 1;
  folder.write("out/00002.tok", damaged);
  CHECK(error_of(options).find("00002.tok: ") != std::string::npos);
}

TEST_CASE("inputs that change while they are read are an error, and nothing of them is left") {
  const TemporaryFolder folder;
  const std::string lines = many_lines(4000), others = many_lines(8000).substr(0, lines.size());
  const std::string input = folder / "a.jsonl", last = folder.write("b.jsonl", many_lines(10));
  const TokenizeOptions options = {.inputs = {input, last}, .out = folder / "out", .shard_tokens = 3000, .threads = 1};
  // The first report comes before the first byte is read, the last after all of them but before dataset.json.
  const auto error_if = [&](const std::function<void()>& change, bool at_the_end) {
    folder.write("a.jsonl", lines);
    fs::last_write_time(input, fs::file_time_type::clock::now() - std::chrono::hours(1));
    bool changed = false;
    try {
      tokenize_files(tokenizer(), options, [&](const TokenizeProgress& progress) {
        if (!changed && (!at_the_end || progress.documents == 4010)) {
          changed = true;
          change();
        }
      });
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const std::vector<std::pair<std::string, std::function<void()>>> changes = {
      {"bytes, not", [&] { fs::resize_file(input, lines.size() / 10); }},
      {"bytes, not", [&] { std::ofstream(input, std::ios::app) << lines; }},
      {"was written to", [&] { std::ofstream(input, std::ios::in | std::ios::out) << std::string(lines.size(), 'x'); }},
      {"was written to",
       [&] { fs::rename(folder.write("new", others + std::string(lines.size() - others.size(), '\n')), input); }},
      {"is gone", [&] { fs::remove(input); }},
  };
  for (const auto& [text, change] : changes)
    for (const bool at_the_end : {false, true}) {
      if (text == "is gone" && !at_the_end) continue;  // it cannot be opened
      const std::string error = error_if(change, at_the_end);
      CAPTURE(at_the_end);
      CHECK(error.find("a.jsonl: changed while it was read: ") != std::string::npos);
      CHECK(error.find(text) != std::string::npos);
      CHECK(files_of(folder / "out").empty());
    }
  folder.write("a.jsonl", lines);
  tokenize_files(tokenizer(), options);
  CHECK(documents_of(folder / "out").size() == 4010);
}

TEST_CASE("a folder of another run, and one that is being written, are refused") {
  const TemporaryFolder folder;
  const std::string input = folder.write("a.jsonl", many_lines(10));
  TokenizeOptions options = {.inputs = {input}, .out = folder / "out"};
  tokenize_files(tokenizer(), options);
  options.documents.field = "id";
  CHECK(error_of(options).find("begun by another run, with \"field\": \"text\"") != std::string::npos);
  options.documents.field = "text";
  folder.write("a.jsonl", many_lines(11));
  CHECK(error_of(options).find("begun by another run, with {\"path\"") != std::string::npos);
  folder.write("foreign/00000.tok", "x");
  options.out = folder / "foreign";
  CHECK(error_of(options).find("holds 00000.tok of another run") != std::string::npos);
  fs::create_directory(folder / "busy");
  const int fd = ::open((folder / "busy").c_str(), O_RDONLY | O_DIRECTORY);
  REQUIRE(::flock(fd, LOCK_EX) == 0);
  options.out = folder / "busy";
  CHECK(error_of(options).find("another run writes into it") != std::string::npos);
  ::close(fd);
}

TEST_CASE("inputs that cannot be read are named, with the line") {
  const TemporaryFolder folder;
  const auto error_with = [&](const std::string& name, const std::string& bytes) {
    fs::remove_all(folder / "out");
    return error_of({.inputs = {folder.write(name, bytes)}, .out = folder / "out"});
  };
  CHECK(error_with("a.jsonl", "{\"text\": \"x\"}\n\n{\"text\": }\n").find("a.jsonl:3: invalid JSON") !=
        std::string::npos);
  CHECK(error_with("b.jsonl", "{\"txt\": \"x\"}\n").find("b.jsonl:1: no member \"text\"") != std::string::npos);
  CHECK(error_with("c.jsonl", "{\"text\": 7}\n").find("c.jsonl:1: \"text\" is 7") != std::string::npos);
  CHECK(error_with("d.jsonl", "[]\n").find("d.jsonl:1: no member") != std::string::npos);
  CHECK(error_with("e.jsonl", "\n\n").find("no documents") != std::string::npos);
  const std::string packed = gzip(many_lines(500)), squeezed = zstd(many_lines(500));
  CHECK(error_with("f.jsonl.gz", packed.substr(0, packed.size() - 9)).find("ends in the middle") != std::string::npos);
  CHECK(error_with("g.jsonl.zst", squeezed.substr(0, squeezed.size() / 2)).find("ends in the middle") !=
        std::string::npos);
  CHECK(error_with("h.jsonl.gz", "no gzip at all").find("damaged gzip data") != std::string::npos);
  CHECK(error_with("i.jsonl.zst", "no zstd at all").find("damaged zstd data") != std::string::npos);
  std::string flipped = packed;
  flipped[flipped.size() / 2] ^= 1;
  CHECK(error_with("j.jsonl.gz", flipped).find("j.jsonl.gz") != std::string::npos);
  CHECK(error_of({.inputs = {folder / "none"}, .out = folder / "out"}).find("No such file") != std::string::npos);
}

}  // namespace
}  // namespace sfsdp::train::tokenize_test
