// SPDX-License-Identifier: BSD-3-Clause
// A file of token ids: flat, llm.c's, sfsdp's with borders of documents.
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/train/data/dataset.h"
#include "sfsdp/train/data/token_file.h"
#include "target.h"

namespace sfsdp::fuzz {
namespace {

constexpr int32_t kVocab = 80000, kBos = kVocab - 2, kEos = kVocab - 1;

void read(std::string_view bytes) {
  train::DatasetOptions options = {.path = as_file(bytes), .seq_len = 3, .vocab_size = kVocab};
  options.frame = [](const std::string&, uint64_t) { return train::DocumentFrame{kBos, kEos}; };
  options.shuffle = bytes.size() % 2 ? train::Shuffle::Default : train::Shuffle::Always;
  train::SampleSource source = train::open_dataset(options);
  SFSDP_CHECK(source.num_tokens() <= 3 * static_cast<int64_t>(bytes.size()), source.num_tokens(), " tokens");
  std::vector<int32_t> ids(4);
  for (int64_t i = 0; i < source.size(); i += 1 + source.size() / 1000) {
    source.read(i + source.size(), ids);  // of the second epoch
    for (const int32_t id : ids) SFSDP_CHECK(id >= 0 && id < kVocab, "id ", id);
  }
}

std::string numbers(const std::vector<uint32_t>& values, size_t width) {
  std::string bytes;
  for (const uint32_t value : values) bytes.append(reinterpret_cast<const char*>(&value), width);
  return bytes;
}

std::string llmc(uint32_t magic, uint32_t version, const std::vector<uint32_t>& ids, size_t width) {
  std::vector<uint32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = static_cast<uint32_t>(ids.size());
  return numbers(header, 4) + numbers(ids, width);
}

std::string token_file(uint64_t vocab) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() / concat("sfsdp_fuzz_", ::getpid(), ".tok");
  train::TokenFileWriter writer(path.string(), vocab, 7, 0);
  for (const std::vector<int32_t>& document : {std::vector<int32_t>{1, 2, 3}, {}, {4}, {5, 6, 7, 8, 9, 10}})
    writer.add(document);
  writer.finish();
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::filesystem::remove(path);
  return bytes;
}

std::vector<std::string> seeds() {
  const std::vector<uint32_t> ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  return {numbers(ids, 2), llmc(20240520, 1, ids, 2), llmc(20240801, 7, ids, 4), token_file(100), token_file(70000)};
}

SFSDP_FUZZ_TARGET(tokens, read, seeds)

}  // namespace
}  // namespace sfsdp::fuzz
