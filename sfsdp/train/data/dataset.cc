// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/dataset.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"

namespace sfsdp::train {

TokenDtype parse_token_dtype(std::string_view text) {
  if (text == "uint16") return TokenDtype::UInt16;
  if (text == "uint32") return TokenDtype::UInt32;
  throw UserError(concat("training.token_dtype = \"", text, "\"\n  expected uint16 or uint32"));
}

// --- samples ---

TokenDataset::TokenDataset(Source source, int64_t seq_len, int64_t vocab_size)
    : source_(std::move(source)), seq_len_(seq_len), vocab_size_(vocab_size) {
  SFSDP_CHECK(seq_len >= 1 && vocab_size >= 1, "seq_len ", seq_len, ", vocab_size ", vocab_size);
  const auto width = static_cast<int64_t>(source_.dtype);
  const auto bytes = static_cast<int64_t>(source_.bytes.size());
  if (bytes % width != 0)
    throw UserError(concat(source_.name, ": ", bytes, " bytes are no whole number of ", width,
                           "-byte tokens\n  expected a flat file of ids without a header; check training.token_dtype"));
  tokens_ = bytes / width;
  samples_ = tokens_ < 1 ? 0 : (tokens_ - 1) / seq_len;
  if (samples_ == 0)
    throw UserError(concat(source_.name, ": ", tokens_, " tokens are less than one sample\n  expected at least ",
                           seq_len + 1, " (training.seq_len + 1); use a larger file or a smaller --training.seq_len"));
}

int64_t TokenDataset::token(int64_t position) const {
  const auto width = static_cast<size_t>(source_.dtype);
  const uint8_t* bytes = source_.bytes.data() + static_cast<size_t>(position) * width;
  int64_t id = 0;
  for (size_t i = 0; i < width; ++i) id |= static_cast<int64_t>(bytes[i]) << (8 * i);  // little-endian on any host
  if (id >= vocab_size_)
    throw UserError(concat(source_.name, ": token ", id, " at position ", position, "\n  expected ids below ",
                           vocab_size_,
                           ", the model's vocab_size; check training.token_dtype, the file and the model"));
  return id;
}

void TokenDataset::read_sample(int64_t index, std::span<int32_t> ids) const {
  SFSDP_CHECK(index >= 0 && index < samples_, "sample ", index, " of ", samples_);
  SFSDP_CHECK(static_cast<int64_t>(ids.size()) == seq_len_ + 1, ids.size(), " ids for seq_len ", seq_len_);
  const int64_t place = source_.order.empty() ? index : source_.order[static_cast<size_t>(index)];
  for (int64_t i = 0; i <= seq_len_; ++i)
    ids[static_cast<size_t>(i)] = static_cast<int32_t>(token(place * seq_len_ + i));
}

double unigram_entropy(std::span<const int64_t> counts) {
  const auto all = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  double entropy = 0;
  for (const int64_t count : counts)
    if (count > 0) entropy -= static_cast<double>(count) / all * std::log(static_cast<double>(count) / all);
  return entropy;
}

int64_t sample_of_step(int64_t step, int64_t j, int64_t global_batch, int64_t num_samples) {
  SFSDP_CHECK(step >= 1 && j >= 0 && j < global_batch && num_samples >= 1, "step ", step, ", j ", j, " of ",
              global_batch);
  return ((step - 1) * global_batch + j) % num_samples;
}

std::optional<std::string> wrap_notice(const TokenDataset& dataset, int64_t step, int64_t global_batch) {
  // Samples read before this step and with it, as if the file had no end.
  const int64_t before = (step - 1) * global_batch;
  if (before > dataset.size() || before + global_batch <= dataset.size()) return std::nullopt;
  return concat("dataset ", dataset.name(), ": all ", dataset.size(), " samples are read at step ", step,
                "; they are read again from sample 0");
}

// --- opening ---

namespace {

[[noreturn]] void fail_to_read(const std::string& path, const std::string& why, std::string_view expected) {
  throw UserError(concat(path.empty() ? "training.dataset_path" : path, ": ", why, "\n  expected ", expected,
                         "; set --training.dataset_path"));
}

// Maps a file; the pages are shared by all ranks of a host.
TokenDataset::Source map_file(const std::string& path, TokenDtype dtype) {
  constexpr std::string_view kExpected = "a flat file of little-endian token ids";
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail_to_read(path, std::strerror(errno), kExpected);
  struct stat status {};
  const bool is_file = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  const auto size = static_cast<size_t>(is_file ? status.st_size : 0);
  void* memory = size == 0 ? MAP_FAILED : ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  const int error = errno;
  ::close(fd);
  if (!is_file) fail_to_read(path, "not a file", kExpected);
  if (size == 0) fail_to_read(path, "an empty file", kExpected);
  if (memory == MAP_FAILED) fail_to_read(path, std::strerror(error), kExpected);
  std::shared_ptr<const void> owner(memory, [size](const void* p) { ::munmap(const_cast<void*>(p), size); });
  return {path, std::move(owner), {static_cast<const uint8_t*>(memory), size}, dtype, {}};
}

std::vector<std::string> list_headers(const std::string& folder) {
  constexpr std::string_view kExpected = "a folder with *.h or *.hpp files, as LibTorch's include";
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<std::string> relative;
  fs::recursive_directory_iterator files(folder, error);
  for (; !error && files != fs::recursive_directory_iterator(); files.increment(error)) {
    const std::string extension = files->path().extension().string();
    std::error_code ignored;  // a dangling link is no header
    if ((extension == ".h" || extension == ".hpp") && files->is_regular_file(ignored))
      relative.push_back(files->path().lexically_relative(folder).generic_string());
  }
  if (error) fail_to_read(folder, error.message(), kExpected);
  if (relative.empty()) fail_to_read(folder, "no headers below this folder", kExpected);
  std::sort(relative.begin(), relative.end());  // a folder's own order differs from machine to machine
  return relative;
}

std::vector<uint8_t> read_headers(const std::string& folder, int64_t max_bytes) {
  std::vector<uint8_t> bytes;
  for (const std::string& name : list_headers(folder)) {
    const std::filesystem::path path = std::filesystem::path(folder) / name;
    std::ifstream file(path, std::ios::binary);
    if (!file) fail_to_read(path.string(), "cannot read this header", "headers that can be read");
    bytes.insert(bytes.end(), std::istreambuf_iterator<char>(file), {});
    if (max_bytes > 0 && static_cast<int64_t>(bytes.size()) >= max_bytes) {
      bytes.resize(static_cast<size_t>(max_bytes));
      break;
    }
  }
  return bytes;
}

// splitmix64: std::shuffle gives another order with every standard library.
uint64_t next_random(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

std::vector<int64_t> shuffled(int64_t n, uint64_t seed) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[next_random(seed) % i]);
  return order;
}

TokenDataset open_headers(const DatasetOptions& options) {
  if (options.path.empty()) fail_to_read("", "no folder for libtorch_headers", "LibTorch's include folder");
  const auto bytes = std::make_shared<const std::vector<uint8_t>>(read_headers(options.path, options.max_bytes));
  TokenDataset::Source source{options.path, bytes, *bytes, TokenDtype::UInt8, {}};
  // A folder's neighbouring samples are much alike (thousands of generated headers), so file order trains badly.
  const int64_t samples = (static_cast<int64_t>(bytes->size()) - 1) / options.seq_len;
  if (samples > 0) source.order = shuffled(samples, options.seed);
  return TokenDataset(std::move(source), options.seq_len, 256);
}

}  // namespace

TokenDataset open_dataset(const DatasetOptions& options) {
  SFSDP_CHECK(options.seq_len >= 1, "seq_len ", options.seq_len);
  if (options.name == "libtorch_headers") return open_headers(options);
  if (options.name != "tokens")
    throw UserError(concat("training.dataset = \"", options.name, "\"\n  expected tokens or libtorch_headers"));
  if (options.path.empty()) fail_to_read("", "no file for dataset tokens", "a flat file of little-endian token ids");
  return TokenDataset(map_file(options.path, options.token_dtype), options.seq_len, options.vocab_size);
}

}  // namespace sfsdp::train
