// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/job_data.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/train/config/config_fields.h"
#include "sfsdp/train/config/config_resolve.h"
#include "sfsdp/train/data/data_files.h"
#include "sfsdp/train/data/dataset.h"
#include "sfsdp/train/data/input_file.h"
#include "sfsdp/train/data/tensor_source.h"
#include "sfsdp/train/data/token_cache.h"
#include "sfsdp/train/data/token_file.h"
#include "sfsdp/train/data/tokenize.h"
#include "sfsdp/train/data/tokenizer/tokenizer.h"

namespace sfsdp::train {

namespace {

Shuffle parse_shuffle(const std::string& text) {
  if (text == "always") return Shuffle::Always;
  return text == "never" ? Shuffle::Never : Shuffle::Default;
}

// The word up to the next blank, which is taken away from `text`.
std::string take_word(std::string_view& text) {
  text = trim(text);
  const size_t end = std::min(text.find_first_of(" \t"), text.size());
  const std::string word(text.substr(0, end));
  text = trim(text.substr(end));
  return word;
}

// BOS and EOS of the tokenizer in model.hf_assets_path, which must be the one that made the ids.
DocumentFrame frame_of(const JobConfig& config, const std::string& dataset, uint64_t tokenizer_hash) {
  const auto& t = config.training;
  if (!t.add_bos && !t.add_eos) return {};
  const std::string path = config.model.hf_assets_path, file = path + "/tokenizer.json";
  constexpr std::string_view kCure = "or train without: --training.no_add_bos --training.no_add_eos";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored))
    throw UserError(concat(dataset, ": its documents get BOS and EOS, but there is no ", file,
                           "\n  expected the tokenizer that made the ids; set --model.hf_assets_path, ", kCure));
  const Tokenizer tokenizer = Tokenizer::load(file);
  if (tokenizer.hash() != tokenizer_hash)
    throw UserError(concat(dataset, ": made by another tokenizer than ", file,
                           "\n  expected the one that made the ids; set --model.hf_assets_path, ", kCure));
  if (t.add_eos && !tokenizer.eos())
    throw UserError(concat(path,
                           "/tokenizer_config.json: no eos_token\n  expected one, as nothing else ends a document;"
                           " add it, or train without: --training.no_add_eos"));
  return {t.add_bos ? tokenizer.bos() : std::nullopt, t.add_eos ? tokenizer.eos() : std::nullopt};
}

bool is_json(const std::string& dataset) {
  return dataset == "jsonl" || dataset == "c4" || dataset == "c4_test" || dataset == "c4_validation";
}
bool is_text(const std::string& dataset) { return dataset == "text" || is_json(dataset); }

// A folder of token files made of a text dataset, below dump_folder.
std::string tokens_of_text(const JobConfig& config, const std::string& dataset, const std::string& path,
                           const std::function<void(const std::string&)>& say) {
  TokenizeOptions tokenize;
  tokenize.documents.format = is_json(dataset) ? DocumentFormat::JsonLines : DocumentFormat::Text;
  const std::vector<std::string> ends =
      is_json(dataset) ? StringList{".jsonl", ".ndjson", ".json"} : StringList{".txt", ".md"};
  const auto accepts = [&](const std::string& name) {
    const std::string plain = InputFile::name_without_compression(name);
    return std::ranges::any_of(ends, [&](const std::string& end) { return plain.ends_with(end); });
  };
  tokenize.inputs = data_files(
      path, accepts,
      concat("a file, a pattern, or a folder with *", join(ends, ", *"), ", also with .gz or .zst after it"));
  const Tokenizer tokenizer = Tokenizer::load(config.model.hf_assets_path);
  tokenize.documents.masks = config.training.loss_mask && is_json(dataset);
  const std::string recipe = concat(hex(tokenizer.hash()), is_json(dataset) ? " jsonl " : " text ",
                                    tokenize.documents.masks ? kMaskedTokenFileVersion : kTokenFileVersion);
  return cached_tokens({config.job.dump_folder + "/tokens", tokenize.inputs, recipe}, [&](const std::string& folder) {
    tokenize.out = folder;
    auto last = std::chrono::steady_clock::now();
    const auto tell = [&](const TokenizeProgress& progress, std::string_view state) {
      if (say)
        say(concat("Dataset ", path, ": ", state, ' ', with_commas(progress.tokens), " tokens of ",
                   with_commas(progress.documents), " documents into ", folder));
    };
    const TokenizeProgress done = tokenize_files(tokenizer, tokenize, [&](const TokenizeProgress& progress) {
      const auto now = std::chrono::steady_clock::now();
      if (now - last < std::chrono::seconds(10)) return;
      last = now;
      tell(progress, concat("tokenizing, ", 100 * progress.bytes / std::max<int64_t>(1, progress.all_bytes), " %,"));
    });
    tell(done, "tokenized");
  });
}

uint64_t seed_of(const JobConfig& config) { return static_cast<uint64_t>(config.debug.seed.value_or(0)); }

DatasetOptions options_of(const JobConfig& config, const std::string& dataset, const std::string& path,
                          const JobDataOptions& job) {
  DatasetOptions options;
  options.name = dataset;
  options.path = path;
  if (dataset == "libtorch_headers") {
    if (path.empty()) options.path = job.include_folder;
  } else if (is_text(dataset)) {
    options.name = "tokens";
    options.path = tokens_of_text(config, dataset, path, job.say);
  }
  options.vocab_size = job.vocab_size;
  options.fixed_vocab = config.model.name == "exported";
  options.token_dtype = parse_token_dtype(config.training.token_dtype);
  options.max_bytes = config.training.dataset_max_bytes;
  options.seed = seed_of(config);
  options.masked = config.training.loss_mask;
  options.apart = config.training.document_mask;
  options.frame = [&config](const std::string& name, uint64_t hash) { return frame_of(config, name, hash); };
  return options;
}

}  // namespace

MixEntry parse_mix_entry(const std::string& text) {
  std::string_view rest = text;
  const auto weight = parse_double(take_word(rest));
  MixEntry entry{weight.value_or(0), take_word(rest), std::string(rest)};
  const bool known = is_text(entry.dataset) || entry.dataset == "tokens" || entry.dataset == "libtorch_headers";
  if (!weight || !(*weight > 0) || !known)
    throw UserError(concat("training.sources holds ", json_quoted(text),
                           "\n  expected a weight above 0, a dataset and its path, such as \"0.7 tokens data/web\""));
  return entry;
}

std::vector<WeightedSource> open_job_sources(const JobConfig& config, const JobDataOptions& job) {
  const auto& t = config.training;
  std::vector<MixEntry> entries;
  if (t.dataset == "mix")
    for (const std::string& text : t.sources) entries.push_back(parse_mix_entry(text));
  else
    entries.push_back({1, t.dataset, t.dataset_path.value_or("")});
  std::vector<WeightedSource> sources;
  for (const MixEntry& entry : entries) {
    if (entry.dataset == "tensors") {
      sources.emplace_back(TensorSource(entry.path, {t.shuffle != "never", seed_of(config)}), entry.weight);
      continue;
    }
    DatasetOptions options = options_of(config, entry.dataset, entry.path, job);
    options.seq_len = t.seq_len;
    options.shuffle = parse_shuffle(t.shuffle);
    sources.emplace_back(open_dataset(options), entry.weight);
  }
  return sources;
}

std::vector<SampleTensor> sample_layout(const JobConfig& config) {
  const auto& t = config.training;
  if (t.dataset == "tensors") return TensorSource(t.dataset_path.value_or(""), {}).layout();
  return token_layout(t.seq_len, counts_targets(t), t.document_mask);
}

// What readers say of training's keys is here about those of validation, where it has its own.
std::shared_ptr<Samples> open_validation_source(const JobConfig& config, const JobDataOptions& job) {
  const auto& v = config.validation;
  try {
    if (v.dataset == "tensors")
      return std::make_shared<TensorSource>(v.dataset_path.value_or(""), TensorSourceOptions{false});
    DatasetOptions options = options_of(config, v.dataset, v.dataset_path.value_or(""), job);
    options.seq_len = v.seq_len;
    options.shuffle = Shuffle::Never;
    return std::make_shared<SampleSource>(open_dataset(options));
  } catch (const UserError& error) {
    std::string text = error.what();
    for (const char* key : {"dataset_path", "seq_len"})
      for (size_t at = 0; (at = text.find(concat("training.", key), at)) != std::string::npos;)
        text.replace(at, std::string_view("training").size(), "validation");
    throw UserError(text);
  }
}

bool validation_is_due(const Validation& validation, int64_t step, int64_t tokens_per_step) {
  if (!validation.enable) return false;
  if (step == 1) return true;
  if (!validation.freq_tokens) return step % validation.freq == 0;
  return step * tokens_per_step / *validation.freq_tokens > (step - 1) * tokens_per_step / *validation.freq_tokens;
}

std::string describe(const Loader& loader) {
  double all = 0;
  for (const WeightedSource& s : loader.sources()) all += s.weight;
  std::string text;
  for (const auto& [source, weight] : loader.sources()) {
    text += concat("Dataset ", source->name(), ": ", source->describe());
    if (loader.sources().size() > 1) text += concat(", ", with_commas(100 * weight / all, 2), " % of the samples");
    text += "\n";
  }
  return text;
}

}  // namespace sfsdp::train
