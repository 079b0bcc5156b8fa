// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/dataset.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/train/data/data_files.h"
#include "sfsdp/train/data/token_file.h"

namespace sfsdp::train {

namespace fs = std::filesystem;

double unigram_entropy(std::span<const int64_t> counts) {
  const auto all = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  double entropy = 0;
  for (const int64_t count : counts)
    if (count > 0) entropy -= static_cast<double>(count) / all * std::log(static_cast<double>(count) / all);
  return entropy;
}

std::string wrap_notice(const Samples& source, int64_t step) {
  return concat("dataset ", source.name(), ": all ", source.size(), " samples are read at step ", step,
                "; they are read again from sample 0");
}

namespace {

// --- tokens ---

constexpr std::string_view kTokenFiles =
    "a file of token ids, a folder of *.bin files or of sfsdp tokenize, or a pattern such as data/*.bin";

// Files side by side, as one row of ids.
struct OpenedTokens {
  std::vector<TokenPiece> pieces;
  std::vector<int64_t> borders = {0};  // of documents, if with_borders
  size_t with_borders = 0;             // pieces that say where their documents end
  std::optional<uint64_t> tokenizer_hash;
};

std::string vocabulary_of_at_least(uint64_t ids, const DatasetOptions& options) {
  return concat("\n  expected a vocabulary of at least ", ids, "; ",
                options.fixed_vocab ? "export the model with one, or take data of its tokenizer"
                                    : concat("set --model.args.vocab_size ", ids));
}

void add_token_file(OpenedTokens& all, const TokenFile& file, const DatasetOptions& options) {
  const TokenFileHeader& header = file.header();
  if (static_cast<int64_t>(header.vocab_size) > options.vocab_size)
    throw UserError(concat(file.path(), ": has ids up to ", header.vocab_size - 1, ", the model a vocabulary of ",
                           options.vocab_size, vocabulary_of_at_least(header.vocab_size, options)));
  if (all.tokenizer_hash && all.tokenizer_hash != header.tokenizer_hash)
    throw UserError(concat(file.path(), ": made by another tokenizer than ", all.pieces.back().file,
                           "\n  expected one tokenizer for all files; run sfsdp tokenize again"));
  all.tokenizer_hash = header.tokenizer_hash;
  if (header.masked && !options.masked)
    throw UserError(
        concat(file.path(), ": says which of its ids the loss counts",
               "\n  expected --training.loss_mask with it; to train on prompts too, make token files of the whole"
               " texts"));
  const int64_t begin = all.borders.back();
  for (int64_t d = 0; d < file.documents(); ++d) all.borders.push_back(begin + file.document(d).end);
  ++all.with_borders;
  all.pieces.push_back(file.piece());
}

OpenedTokens open_all(const DatasetOptions& options) {
  OpenedTokens all;
  std::error_code ignored;
  if (TokenFolder::is_token_folder(options.path)) {
    const TokenFolder folder = TokenFolder::load(options.path);
    for (size_t i = 0; i < folder.shards.size(); ++i) add_token_file(all, folder.open(i), options);
    return all;
  }
  if (fs::exists(fs::path(options.path) / "00000.tok", ignored))
    TokenFolder::load(options.path);  // says that sfsdp tokenize has not finished
  for (const std::string& file : data_files(
           options.path, [](const auto& name) { return name.ends_with(".bin"); }, kTokenFiles))
    if (TokenFile::is_token_file(file))
      add_token_file(all, TokenFile::open(file), options);
    else
      all.pieces.push_back(find_tokens(file, options.token_dtype));
  if (all.with_borders > 0 && all.with_borders < all.pieces.size())
    throw UserError(concat(options.path, ": holds token files of sfsdp and others\n",
                           "  expected one kind, as only the former have documents; make them sources of a mix"));
  return all;
}

[[noreturn]] void refuse_apart(const std::string& path) {
  throw UserError(concat("training.document_mask = true, but ", path, " does not say where documents end",
                         "\n  expected texts, JSON lines, or token files of sfsdp tokenize"));
}

SampleSource open_tokens(const DatasetOptions& options) {
  OpenedTokens all = open_all(options);
  SampleOptions samples = {options.seq_len, options.vocab_size, SampleOrder::File, options.seed};
  samples.masked = options.masked || options.apart;
  samples.apart = options.apart;
  if (options.apart && all.with_borders == 0) refuse_apart(options.path);
  if (all.with_borders == 0) {
    all.borders.clear();
    if (options.shuffle == Shuffle::Always) samples.order = SampleOrder::Samples;
  } else {
    if (options.shuffle != Shuffle::Never) samples.order = SampleOrder::Documents;
    const DocumentFrame frame = options.frame ? options.frame(options.path, *all.tokenizer_hash) : DocumentFrame{};
    samples.bos = frame.bos;
    samples.eos = frame.eos;
  }
  return {TokenStore(options.path, std::move(all.pieces), std::move(all.borders)), samples};
}

// --- libtorch_headers ---

std::vector<std::string> list_headers(const std::string& folder) {
  constexpr std::string_view kExpected = "a folder with *.h or *.hpp files, as LibTorch's include";
  std::error_code error;
  std::vector<std::string> relative;
  fs::recursive_directory_iterator files(folder, error);
  for (; !error && files != fs::recursive_directory_iterator(); files.increment(error)) {
    const std::string extension = files->path().extension().string();
    std::error_code ignored;  // a dangling link is no header
    if ((extension == ".h" || extension == ".hpp") && files->is_regular_file(ignored))
      relative.push_back(files->path().lexically_relative(folder).generic_string());
  }
  if (error) fail_to_read_data(folder, error.message(), kExpected);
  if (relative.empty()) fail_to_read_data(folder, "no headers below this folder", kExpected);
  std::sort(relative.begin(), relative.end());  // a folder's own order differs from machine to machine
  return relative;
}

std::vector<uint8_t> read_headers(const std::string& folder, int64_t max_bytes) {
  std::vector<uint8_t> bytes;
  for (const std::string& name : list_headers(folder)) {
    const fs::path path = fs::path(folder) / name;
    std::ifstream file(path, std::ios::binary);
    if (!file) fail_to_read_data(path.string(), "cannot read this header", "headers that can be read");
    bytes.insert(bytes.end(), std::istreambuf_iterator<char>(file), {});
    if (max_bytes > 0 && static_cast<int64_t>(bytes.size()) >= max_bytes) {
      bytes.resize(static_cast<size_t>(max_bytes));
      break;
    }
  }
  return bytes;
}

SampleSource open_headers(const DatasetOptions& options) {
  if (options.path.empty()) fail_to_read_data("", "no folder for libtorch_headers", "LibTorch's include folder");
  if (options.vocab_size < kByteVocab)
    throw UserError(concat("dataset libtorch_headers has ids up to ", kByteVocab - 1, ", the model a vocabulary of ",
                           options.vocab_size, vocabulary_of_at_least(kByteVocab, options)));
  if (options.apart) refuse_apart(options.path);
  // A folder's neighbouring samples are much alike (thousands of generated headers), so file order trains badly.
  const SampleOrder order = options.shuffle == Shuffle::Never    ? SampleOrder::File
                            : options.shuffle == Shuffle::Always ? SampleOrder::Samples
                                                                 : SampleOrder::Once;
  return {TokenStore(options.path, read_headers(options.path, options.max_bytes)),
          {options.seq_len, options.vocab_size, order, options.seed, {}, {}, options.masked}};
}

}  // namespace

SampleSource open_dataset(const DatasetOptions& options) {
  SFSDP_CHECK(options.seq_len >= 1, "seq_len ", options.seq_len);
  if (options.name == "libtorch_headers") return open_headers(options);
  if (options.name == "tokens") return open_tokens(options);
  throw UserError(concat("training.dataset = \"", options.name, "\"\n  expected tokens or libtorch_headers"));
}

}  // namespace sfsdp::train
