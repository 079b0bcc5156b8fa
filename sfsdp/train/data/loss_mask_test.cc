// SPDX-License-Identifier: BSD-3-Clause
// Which targets the loss counts: from lines of JSON to samples.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/testing/source_dir.h"
#include "sfsdp/testing/temporary_folder.h"
#include "sfsdp/train/data/dataset.h"
#include "sfsdp/train/data/loader.h"
#include "sfsdp/train/data/token_file.h"
#include "sfsdp/train/data/tokenize.h"
#include "sfsdp/train/data/validation.h"

namespace sfsdp::train::loss_mask_test {
namespace {

using testing::TemporaryFolder;
using Ids = std::vector<int32_t>;
using Wide = std::vector<int64_t>;

constexpr int32_t no(int32_t id) { return id | kNoTarget; }  // an id that does not count

const Tokenizer& tokenizer() {
  static const Tokenizer kTokenizer = Tokenizer::load(testing::source_dir() + "/tests/fixtures/tokenizers/llama3");
  return kTokenizer;
}

Ids encoded(const std::string& text, bool counts) {
  Ids ids;
  tokenizer().encode_to(text, SpecialTokens::Leave, ids);
  if (!counts)
    for (int32_t& id : ids) id = no(id);
  return ids;
}

Ids joined(Ids first, const Ids& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

TokenizeOptions options_of(const TemporaryFolder& folder, const std::string& lines) {
  TokenizeOptions options = {.inputs = {folder.write("a.jsonl", lines)}, .out = folder / "out"};
  options.documents.masks = true;
  return options;
}

std::vector<Ids> documents_of(const std::string& folder) {
  const TokenFolder all = TokenFolder::load(folder);
  std::vector<Ids> documents;
  for (size_t i = 0; i < all.shards.size(); ++i) {
    const TokenFile file = all.open(i);
    file.verify();
    TokenStore store("all", {file.piece()});
    for (int64_t j = 0; j < file.documents(); ++j) {
      Ids& ids = documents.emplace_back(static_cast<size_t>(file.document(j).size()));
      store.read(file.document(j).begin, ids, tokenizer().vocab_size());
    }
  }
  return documents;
}

TEST_CASE("lines are prompt and completion, tokenized apart, ids and mask, or text that counts as a whole") {
  REQUIRE(encoded("one two", true) != joined(encoded("one ", true), encoded("two", true)));
  const TemporaryFolder folder;
  tokenize_files(tokenizer(), options_of(folder, R"({"prompt": "one ", "completion": "two"})"
                                                 "\n"
                                                 R"({"tokens": [5, 6, 7, 8], "mask": [0, 1, 1, 0], "more": {}})"
                                                 "\n"
                                                 R"({"text": "one two"})"
                                                 "\n"
                                                 R"({"completion": "answer", "prompt": ""})"
                                                 "\n"
                                                 R"({"tokens": [], "mask": []})"
                                                 "\n"));
  const std::vector<Ids> expected = {joined(encoded("one ", false), encoded("two", true)),
                                     {no(5), 6, 7, no(8)},
                                     encoded("one two", true),
                                     encoded("answer", true),
                                     {}};
  CHECK(documents_of(folder / "out") == expected);
  CHECK(TokenFolder::load(folder / "out").masked);
}

TEST_CASE("a line that is no document with a mask is refused by file, line and member") {
  const auto refused = [](const std::string& line, const std::string& with) {
    const TemporaryFolder folder;
    CAPTURE(line);
    CHECK_THROWS_WITH_AS(tokenize_files(tokenizer(), options_of(folder, "{\"text\": \"x\"}\n" + line)),
                         doctest::Contains(concat("a.jsonl:2: ", with).c_str()), UserError);
  };
  refused(R"({})", "no document\n  expected one of {\"text\": \"...\"}, {\"prompt\"");
  refused(R"([1])", "no document");
  refused(R"({"text": "a", "prompt": "b", "completion": "c"})", "more than one document");
  refused(R"({"prompt": "b", "completion": "c", "tokens": [1], "mask": [1]})", "more than one document");
  refused(R"({"text": 1})", "\"text\" is 1");
  refused(R"({"prompt": "b"})", "no member \"completion\"");
  refused(R"({"completion": "b"})", "no member \"prompt\"");
  refused(R"({"prompt": ["b"], "completion": "c"})", "\"prompt\" is");
  refused(R"({"prompt": "b", "completion": null})", "\"completion\" is null");
  refused(R"({"prompt": "b", "completion": ""})", "\"completion\" is empty");
  refused(R"({"tokens": [1]})", "no member \"mask\"");
  refused(R"({"mask": [1]})", "no member \"tokens\"");
  refused(R"({"tokens": "1", "mask": [1]})", "\"tokens\" is \"1\"");
  refused(R"({"tokens": [1], "mask": 1})", "\"mask\" is 1");
  refused(R"({"tokens": [1, 2], "mask": [1]})", "\"tokens\" has 2 members, \"mask\" 1");
  refused(R"({"tokens": [1, -2], "mask": [1, 1]})", "\"tokens\"[1] is -2\n  expected an id of the tokenizer, below");
  refused(R"({"tokens": [1, 2.5], "mask": [1, 1]})", "\"tokens\"[1] is 2.5");
  refused(concat("{\"tokens\": [", tokenizer().vocab_size(), "], \"mask\": [1]}"), "\"tokens\"[0] is");
  refused(R"({"tokens": [18446744073709551615], "mask": [1]})", "\"tokens\"[0] is");
  refused(R"({"tokens": [1, 2], "mask": [1, 2]})", "\"mask\"[1] is 2\n  expected 0 or 1");
  refused(R"({"tokens": [1, 2], "mask": [1, true]})", "\"mask\"[1] is true");
  refused(R"({"tokens": [1, 2], "mask": [1, -1]})", "\"mask\"[1] is -1");
  refused(R"({"tokens": [1, 2], "mask": [1, 0.5]})", "\"mask\"[1] is 0.5");
}

TEST_CASE("without masks a line of prompt and completion is refused, with the cure") {
  const TemporaryFolder folder;
  TokenizeOptions options = options_of(folder, R"({"prompt": "a", "completion": "b"})");
  options.documents.masks = false;
  CHECK_THROWS_WITH_AS(tokenize_files(tokenizer(), options), doctest::Contains("training.loss_mask of a run"),
                       UserError);
}

TEST_CASE("token files with masks are made again to the same bytes after a stop, and not from files without") {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 400; ++i)
    lines += concat("{\"prompt\": \"what is ", i, "?\", \"completion\": \"that is ", i * i, "\"}\n");
  TokenizeOptions options = options_of(folder, lines);
  options.shard_tokens = 1000;
  tokenize_files(tokenizer(), options);
  const auto files = [&] {
    std::map<std::string, std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(options.out)) {
      std::ifstream file(entry.path(), std::ios::binary);
      all[entry.path().filename().string()] = {std::istreambuf_iterator<char>(file), {}};
    }
    return all;
  };
  const auto whole = files();
  REQUIRE(whole.size() > 4);
  std::filesystem::remove(options.out + "/dataset.json");
  std::filesystem::remove(options.out + "/00002.tok");
  CHECK(tokenize_files(tokenizer(), options).resumed_documents > 0);
  CHECK(files() == whole);
  options.documents.masks = false;
  CHECK_THROWS_WITH_AS(tokenize_files(tokenizer(), options), doctest::Contains("begun by another run"), UserError);
}

std::string write_documents(const TemporaryFolder& folder, const std::vector<Ids>& documents, bool masked = true,
                            const std::string& name = "a.tok") {
  TokenFileWriter writer(folder / name, 500, 7, 0, masked);
  for (const Ids& document : documents) writer.add(document);
  writer.finish();
  return folder / name;
}

DatasetOptions dataset_of(const std::string& path, int64_t seq_len) {
  DatasetOptions options = {.path = path, .seq_len = seq_len, .vocab_size = 500, .shuffle = Shuffle::Never};
  options.frame = [](const std::string&, uint64_t) { return DocumentFrame{1, 2}; };
  options.masked = true;
  return options;
}

struct Sample {
  Wide tokens, targets, labels;
};
Sample sample_of(Samples& source, int64_t index) {
  MicroBatch batch(source.layout());
  source.append(index, batch.tensors);
  const auto part = [&](size_t tensor) { return Wide(ids_of(batch, tensor).begin(), ids_of(batch, tensor).end()); };
  return {part(0), part(1), part(2)};
}

TEST_CASE("documents that are apart: positions begin anew with each and with the sample, and no target begins one") {
  const TemporaryFolder folder;
  const std::string path = write_documents(folder, {{10, 11, 12}, {13}, {}, {14, 15}}, /*masked=*/false);
  const Ids row = {1, 10, 11, 12, 2, 1, 13, 2, 1, 14, 15, 2};
  const Wide whole = {0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3};  // positions in documents, BOS and EOS too
  for (size_t seq_len = 1; seq_len < row.size(); ++seq_len) {
    CAPTURE(seq_len);
    DatasetOptions options = dataset_of(path, static_cast<int64_t>(seq_len));
    options.masked = false;
    options.apart = true;
    SampleSource source = open_dataset(options);
    REQUIRE(source.layout().size() == 4);
    CHECK(source.layout()[3].name == "positions");
    for (int64_t s = 0; s < source.size(); ++s) {
      const size_t first = static_cast<size_t>(s) * seq_len;
      MicroBatch batch(source.layout());
      source.append(s, batch.tensors);
      for (size_t i = 0; i < seq_len; ++i) {
        const size_t at = first + i;
        const auto position = static_cast<size_t>(whole[at]);
        CHECK(ids_of(batch, 0)[i] == row[at]);
        CHECK(ids_of(batch, 1)[i] == (whole[at + 1] == 0 ? kIgnoredTarget : row[at + 1]));
        CHECK(ids_of(batch, 3)[i] == static_cast<int64_t>(std::min(position, i)));
      }
    }
  }
  const std::string flat = folder.write("flat.bin", std::string(64, '\1'));
  DatasetOptions options = dataset_of(flat, 4);
  options.apart = true;
  CHECK_THROWS_WITH_AS(open_dataset(options), doctest::Contains("does not say where documents end"), UserError);
}

TEST_CASE(
    "masks are packed with their ids over borders of documents and samples; BOS never counts, EOS as the id before") {
  const TemporaryFolder folder;
  const std::string path = write_documents(folder, {{no(10), no(11), 12}, {no(13)}, {}, {14, no(15)}, {no(16), 17}});
  const Ids row = {no(1), no(10), no(11), 12, 2, no(1), no(13), no(2), no(1), 14, no(15), no(2), no(1), no(16), 17, 2};
  const auto size = static_cast<int64_t>(row.size());
  for (int64_t seq_len = 1; seq_len < size; ++seq_len) {
    CAPTURE(seq_len);
    SampleSource source = open_dataset(dataset_of(path, seq_len));
    for (int64_t s = 0; s < source.size(); ++s) {
      const Sample sample = sample_of(source, s);
      for (int64_t j = 0; j < seq_len; ++j) {
        const auto at = static_cast<size_t>(j);
        const int32_t here = row[static_cast<size_t>(s * seq_len + j)],
                      next = row[static_cast<size_t>(s * seq_len + j + 1)];
        CHECK(sample.tokens[at] == (here & ~kNoTarget));
        CHECK(sample.labels[at] == (here < 0 ? -100 : here));
        CHECK(sample.targets[at] == (next < 0 ? -100 : next));
      }
    }
  }
}

TEST_CASE("data without masks counts as a whole, and masks that no key asks for are refused") {
  const TemporaryFolder folder;
  const std::string path = write_documents(folder, {{10, 11}, {12}}, false, "whole.tok");
  SampleSource source = open_dataset(dataset_of(path, 6));
  CHECK(sample_of(source, 0).targets == Wide{10, 11, 2, 1, 12, 2});
  CHECK(sample_of(source, 0).labels == Wide{1, 10, 11, 2, 1, 12});
  DatasetOptions plain = dataset_of(write_documents(folder, {{no(10), 11}}), 2);
  plain.masked = false;
  CHECK_THROWS_WITH_AS(open_dataset(plain), doctest::Contains("expected --training.loss_mask"), UserError);
  plain.path = path;
  CHECK(open_dataset(plain).layout().size() == 2);
}

TEST_CASE("another mask is other data: its state is refused") {
  const TemporaryFolder folder;
  const auto content = [&](const Ids& document) {
    return open_dataset(dataset_of(write_documents(folder, {document}), 2)).content();
  };
  CHECK(content({no(10), 11, 12}) != content({no(10), no(11), 12}));
  CHECK(content({no(10), 11, 12}) == content({no(10), 11, 12}));
}

// Odd ids do not count, so that each target says whether its mask came with it.
std::string odd_documents(const TemporaryFolder& folder) {
  std::vector<Ids> documents;
  for (int32_t d = 0, id = 10; d < 40; ++d) {
    Ids& document = documents.emplace_back();
    for (int32_t i = 0; i < d * 7 % 11; ++i, id = 10 + (id - 9) % 480) document.push_back(id % 2 == 0 ? id : no(id));
  }
  return write_documents(folder, documents);
}

TEST_CASE("ranks and runs that go on read the same masks, in an order shuffled anew each epoch") {
  const TemporaryFolder folder;
  DatasetOptions options = dataset_of(odd_documents(folder), 3);
  options.shuffle = Shuffle::Default;
  constexpr int64_t kGlobal = 6, kSteps = 25;  // two epochs and more
  const auto step_rows = [&](int64_t ranks, int64_t micro, int64_t from, LoaderState* state) {
    std::vector<Wide> steps(kSteps);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      std::vector<WeightedSource> sources;
      sources.emplace_back(open_dataset(options), 1.0);
      Loader loader(std::move(sources), {kGlobal / ranks / micro, micro, rank, ranks});
      if (from > 0) loader.restore(*state);
      for (int64_t k = from; k < kSteps; ++k) {
        const LoadedStep step = loader.next();
        Wide& all = steps[static_cast<size_t>(k)];
        all.resize(static_cast<size_t>(kGlobal * 3));
        for (int64_t m = 0; m < micro; ++m) {
          const auto ids = ids_of(step.micro_batches[static_cast<size_t>(m)], 1);
          std::ranges::copy(ids, all.begin() + (m * ranks + rank) * static_cast<int64_t>(ids.size()));
        }
        if (state && from == 0 && k == 9) *state = loader.state();
      }
    }
    return steps;
  };
  LoaderState after_ten;
  const auto one = step_rows(1, 1, 0, &after_ten);
  int64_t counted = 0, ignored = 0;
  for (const Wide& targets : one)
    for (const int64_t target : targets) {
      CHECK((target == -100 || target % 2 == 0));
      ++(target == -100 ? ignored : counted);
    }
  CHECK(counted > 100);
  CHECK(ignored > 100);
  CHECK(step_rows(2, 1, 0, nullptr) == one);
  CHECK(step_rows(3, 2, 0, nullptr) == one);
  const auto rest = step_rows(3, 1, 10, &after_ten);
  for (size_t k = 10; k < one.size(); ++k) CHECK(rest[k] == one[k]);
}

TEST_CASE("validation is the mean over the targets that count, on any number of ranks") {
  const TemporaryFolder folder;
  const DatasetOptions options = dataset_of(odd_documents(folder), 3);
  const auto loss_of = [](int64_t target) { return static_cast<double>(target * target); };
  SampleSource all = open_dataset(options);
  double sum = 0;
  int64_t expected = 0;
  for (int64_t s = 0; s < all.size(); ++s)
    for (const int64_t target : sample_of(all, s).targets)
      if (target != -100) sum += loss_of(target), ++expected;
  for (const int64_t ranks : {1, 2, 3})
    for (const int64_t local : {1, 2, 5}) {
      CAPTURE(ranks);
      CAPTURE(local);
      std::vector<double> sums(1000, 0);
      std::vector<int64_t> counts(1000, 0);
      for (int64_t rank = 0; rank < ranks; ++rank) {  // what all ranks' rows of each batch are
        SampleSource source = open_dataset(options);
        size_t batch = 0;
        const auto add = [&](const MicroBatch& rows) {
          for (const int64_t target : ids_of(rows, 1))
            if (target != -100) sums[batch] += loss_of(target), ++counts[batch];
          ++batch;
          return int64_t{1} << 20;
        };
        validate(
            source, {local, rank, ranks, -1}, [](const MicroBatch&) { return 0.0; }, add);
      }
      size_t batch = 0;
      const auto count = [&](const MicroBatch&) { return counts[batch++]; };
      const auto evaluate = [&](const MicroBatch&) {
        CHECK(counts[batch - 1] > 0);  // a mean over none is not asked for
        return sums[batch - 1] / static_cast<double>(counts[batch - 1]);
      };
      const ValidationResult result = validate(all, {local, 0, ranks, -1}, evaluate, count);
      CHECK(result.loss == doctest::Approx(sum / static_cast<double>(expected)).epsilon(1e-12));
      CHECK(result.tokens == expected);
    }
  const auto none = [](const MicroBatch&) { return int64_t{0}; };
  CHECK_THROWS_WITH_AS(validate(
                           all, {1, 0, 1, -1}, [](const MicroBatch&) { return 1.0; }, none),
                       doctest::Contains("the loss counts no target of"), UserError);
}

TEST_CASE("a token file with masks is of version 3, four bytes wide, its top bits the mask") {
  const TemporaryFolder folder;
  std::ifstream file(write_documents(folder, {{5, no(6)}}), std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  using namespace std::string_literals;
  CHECK(bytes.substr(0, 16) == "SFSDPTOK\3\0\0\0\4\0\0\0"s);
  CHECK(bytes.substr(64, 8) == "\5\0\0\0\6\0\0\x80"s);
  bytes[12] = 2;
  CHECK_THROWS_WITH_AS(TokenFile::open(folder.write("b.tok", bytes)),
                       doctest::Contains("2 bytes per id\n  expected 4, as it has masks"), UserError);
  bytes[12] = 4;
  bytes[8] = 2;  // the mask would be a part of the ids
  CHECK_THROWS_WITH_AS(TokenFile::open(folder.write("b.tok", bytes)), doctest::Contains("hash"), UserError);
}

}  // namespace
}  // namespace sfsdp::train::loss_mask_test
