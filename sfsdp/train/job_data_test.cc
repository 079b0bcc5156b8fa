// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/job_data.h"
#include "sfsdp/testing/source_dir.h"

#include <doctest/doctest.h>

#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/testing/temporary_folder.h"
#include "sfsdp/train/data/token_file.h"
#include "sfsdp/train/data/tokenizer/tokenizer.h"

namespace sfsdp::train::job_data_test {

namespace {

std::string ids(int first, int count) {
  std::string bytes;
  for (int i = first; i < first + count; ++i) bytes += {static_cast<char>(i & 0xff), static_cast<char>(i >> 8)};
  return bytes;
}

std::vector<int64_t> tokens_of(const LoadedStep& step) {
  const std::span<const int64_t> ids = ids_of(step.micro_batches[0], 0);
  return {ids.begin(), ids.end()};
}

}  // namespace

TEST_CASE("an entry of training.sources is a weight, a dataset and a path") {
  const MixEntry entry = parse_mix_entry("0.7 tokens data/my web/*.bin");
  CHECK(entry.weight == 0.7);
  CHECK(entry.dataset == "tokens");
  CHECK(entry.path == "data/my web/*.bin");
  CHECK(parse_mix_entry(" 1\tlibtorch_headers ").path.empty());
  for (const char* wrong : {"", "tokens a", "0 tokens a", "-1 tokens a", "nan tokens a", "1 toks a", "1 mix a", "0.5"})
    CHECK_THROWS_WITH_AS(parse_mix_entry(wrong), doctest::Contains("expected a weight above 0, a dataset and its path"),
                         UserError);
}

TEST_CASE("a mix has a source for each entry, and the log says their shares") {
  const testing::TemporaryFolder folder;
  JobConfig config;
  config.training.dataset = "mix";
  config.training.seq_len = 4;
  config.training.sources = {"3 tokens " + folder.write("a.bin", ids(0, 41)), "1 libtorch_headers"};
  folder.write("x.h", "0123456789");
  Loader loader(open_job_sources(config, {256, folder.path()}), {4, 1, 0, 1});
  CHECK(describe(loader) == "Dataset " + folder.path() + "/a.bin: 41 tokens, 10 samples, 75.00 % of the samples\n" +
                                "Dataset " + folder.path() + ": 10 tokens, 2 samples, 25.00 % of the samples\n");
  const std::vector<int64_t> inputs = tokens_of(loader.next());
  CHECK(inputs.size() == 16);
  CHECK(std::vector<int64_t>(inputs.begin(), inputs.begin() + 8) == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7});
}

TEST_CASE("one dataset is one source, with the config's order, width and seed") {
  const testing::TemporaryFolder folder;
  JobConfig config;
  config.training.dataset = "tokens";
  config.training.dataset_path = folder.write("a.bin", ids(0, 41));
  config.training.seq_len = 4;
  const auto first_ids = [&] {
    Loader loader(open_job_sources(config, {256, ""}), {10, 1, 0, 1});
    std::vector<int64_t> firsts;
    const std::vector<int64_t> inputs = tokens_of(loader.next());
    for (size_t i = 0; i < inputs.size(); i += 4) firsts.push_back(inputs[i]);
    return firsts;
  };
  const auto in_order = first_ids();
  CHECK(in_order == std::vector<int64_t>{0, 4, 8, 12, 16, 20, 24, 28, 32, 36});
  config.training.shuffle = "always";
  const auto shuffled = first_ids();
  CHECK(shuffled != in_order);
  config.debug.seed = 7;
  CHECK(first_ids() != shuffled);
  config.training.token_dtype = "uint32";  // 82 bytes
  CHECK_THROWS_WITH_AS(first_ids(), doctest::Contains("no whole number of 4-byte tokens"), UserError);
}

TEST_CASE("a validation set that cannot be opened names the keys of validation") {
  const testing::TemporaryFolder folder;
  JobConfig config;
  config.validation.dataset = "tokens";
  config.validation.dataset_path = folder.write("v.bin", "abcdef");
  config.validation.seq_len = 3;
  const auto open = [&] { return open_validation_source(config, {1 << 16, ""}); };
  CHECK_THROWS_WITH_AS(open(), doctest::Contains("use a larger file or a smaller --validation.seq_len"), UserError);
  config.validation.dataset_path = folder / "none.bin";
  CHECK_THROWS_WITH_AS(open(), doctest::Contains("set --validation.dataset_path"), UserError);
}

TEST_CASE("documents get the BOS and EOS of the tokenizer that made their ids, and of no other") {
  const testing::TemporaryFolder folder;
  JobConfig config;
  config.model.hf_assets_path = folder / "llama3";
  folder.write("llama3/tokenizer.json",
               read_text_file(testing::source_dir() + "/tests/fixtures/tokenizers/llama3/tokenizer.json", 1 << 20));
  folder.write("llama3/tokenizer_config.json",
               R"({"bos_token": "<|begin_of_text|>", "eos_token": {"content": "<|end_of_text|>"}})");
  const Tokenizer tokenizer = Tokenizer::load(config.model.hf_assets_path);
  const int32_t bos = tokenizer.token_to_id("<|begin_of_text|>").value(),
                eos = tokenizer.token_to_id("<|end_of_text|>").value();
  const auto write = [&](uint64_t hash) {
    TokenFileWriter writer(folder / "t.tok", static_cast<uint64_t>(tokenizer.vocab_size()), hash, 0);
    writer.add(std::vector<int32_t>{5, 6});
    writer.add(std::vector<int32_t>{7});
    writer.finish();
    return folder / "t.tok";
  };
  config.training.dataset = "tokens";
  config.training.dataset_path = write(tokenizer.hash());
  config.training.shuffle = "never";
  config.training.seq_len = 2;
  const auto row = [&] {
    Loader loader(open_job_sources(config, {tokenizer.vocab_size(), ""}), {1, 1, 0, 1});
    std::vector<int64_t> ids = tokens_of(loader.next());
    const std::vector<int64_t> more = tokens_of(loader.next());
    ids.insert(ids.end(), more.begin(), more.end());
    return ids;
  };
  CHECK(row() == std::vector<int64_t>{bos, 5, 6, eos});
  config.training.add_bos = false;
  CHECK(row() == std::vector<int64_t>{5, 6, eos, 7});
  config.training.dataset_path = write(tokenizer.hash() + 1);
  CHECK_THROWS_WITH_AS(row(), doctest::Contains("made by another tokenizer than"), UserError);
  config.training.dataset_path = write(tokenizer.hash());
  folder.write("llama3/tokenizer_config.json", "{}");
  CHECK_THROWS_WITH_AS(row(), doctest::Contains("no eos_token"), UserError);
  config.model.hf_assets_path = folder.path();
  CHECK_THROWS_WITH_AS(row(), doctest::Contains(("there is no " + folder.path() + "/tokenizer.json").c_str()),
                       UserError);
  folder.write("tokenizer.json", "");  // is not read
  config.training.add_eos = false;
  config.training.seq_len = 1;
  CHECK(row() == std::vector<int64_t>{5, 6});
}

TEST_CASE("text and JSON lines are tokenized once, and what is read are the tokenizer's ids in the files' order") {
  const testing::TemporaryFolder folder;
  JobConfig config;
  config.model.hf_assets_path = testing::source_dir() + "/tests/fixtures/tokenizers/llama3";
  config.job.dump_folder = folder / "out";
  const Tokenizer tokenizer = Tokenizer::load(config.model.hf_assets_path);
  std::vector<int64_t> expected;
  for (const char* text : {"The first one.", "the second", "and a third, longer one"})
    for (const int32_t id : tokenizer.encode(text)) expected.push_back(id);
  folder.write("text/b/2.txt", "the second");
  folder.write("text/a.txt", "The first one.");
  folder.write("text/c.md", "and a third, longer one");
  folder.write("text/image.png", "no text");
  folder.write("json/1.jsonl", "{\"text\": \"The first one.\"}\n{\"text\": \"the second\"}\n");
  folder.write("json/2.json", "{\"url\": \"x\", \"text\": \"and a third, longer one\"}\n");
  config.training.add_bos = config.training.add_eos = false;
  config.training.shuffle = "never";
  config.training.seq_len = static_cast<int64_t>(expected.size()) - 1;
  for (const auto& [dataset, path] :
       {std::pair<std::string, std::string>{"jsonl", "json"}, {"c4", "json"}, {"text", "text"}}) {
    CAPTURE(dataset);
    config.training.dataset = dataset;
    config.training.dataset_path = folder / path;
    std::vector<std::string> said;
    const JobDataOptions options = {tokenizer.vocab_size(), "", [&](const std::string& line) { said.push_back(line); }};
    for (const size_t times : {1, 1}) {  // the second start finds the files
      Loader loader(open_job_sources(config, options), {1, 1, 0, 1});
      const LoadedStep step = loader.next();
      std::vector<int64_t> row = tokens_of(step);
      row.push_back(ids_of(step.micro_batches[0], 1).back());
      CHECK(row == expected);
      CHECK(said.size() == (dataset == "c4" ? 0 : times));  // c4 is jsonl
    }
  }
  folder.write("json/2.json", "{\"text\": 3}\n");
  config.training.dataset_path = folder / "json";
  config.training.dataset = "jsonl";
  CHECK_THROWS_WITH_AS(open_job_sources(config, {tokenizer.vocab_size(), ""}), doctest::Contains("2.json"), UserError);
  config.training.dataset = "text";
  CHECK_THROWS_WITH_AS(open_job_sources(config, {tokenizer.vocab_size(), ""}),
                       doctest::Contains("no such file below this folder"), UserError);
}

TEST_CASE("validation reads its own set in the files' order, at its own length") {
  const testing::TemporaryFolder folder;
  JobConfig config;
  config.training.shuffle = "always";
  config.training.seq_len = 4;
  config.validation = {.dataset = "tokens", .dataset_path = folder.write("v.bin", ids(100, 21)), .seq_len = 5};
  const auto source = open_validation_source(config, {256, ""});
  CHECK(source->size() == 4);
  MicroBatch batch(source->layout());
  source->append(1, batch.tensors);
  CHECK(std::ranges::equal(ids_of(batch, 0), std::vector<int64_t>{105, 106, 107, 108, 109}));
  CHECK(std::ranges::equal(ids_of(batch, 1), std::vector<int64_t>{106, 107, 108, 109, 110}));
}

TEST_CASE("validation is due after step 1, then every freq steps or freq_tokens tokens") {
  const auto due = [](const Validation& validation) {
    std::vector<int64_t> steps;
    for (int64_t k = 1; k <= 12; ++k)
      if (validation_is_due(validation, k, 100)) steps.push_back(k);
    return steps;
  };
  CHECK(due({.enable = false, .freq = 1}).empty());
  CHECK(due({.enable = true, .freq = 4}) == std::vector<int64_t>{1, 4, 8, 12});
  CHECK(due({.enable = true, .freq = 4, .freq_tokens = 250}) == std::vector<int64_t>{1, 3, 5, 8, 10});
  CHECK(due({.enable = true, .freq = 4, .freq_tokens = 30}).size() == 12);
}

}  // namespace sfsdp::train::job_data_test
