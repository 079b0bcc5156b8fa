// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/tokenizer/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/json.h"
#include "sfsdp/train/data/tokenizer/added_tokens.h"
#include "sfsdp/train/data/tokenizer/bpe.h"
#include "sfsdp/train/data/tokenizer/decoder.h"
#include "sfsdp/train/data/tokenizer/fields.h"
#include "sfsdp/train/data/tokenizer/normalizer.h"
#include "sfsdp/train/data/tokenizer/post_processor.h"
#include "sfsdp/train/data/tokenizer/pre_tokenizer.h"

namespace sfsdp::train {

using namespace tokenizer;

namespace {

constexpr size_t kMostFileBytes = 256 << 20, kMostConfigBytes = 64 << 20;

// What one call writes to while it runs.
struct Memory {
  MatchMemory matches;
  BpeMemory bpe;
  std::string valid, normalised;
};

// Values grow with the text, so that a short hostile file cannot ask for a lot of memory. Merges as pairs take three
// values for some 14 bytes.
JsonLimits limits_of(std::string_view text) {
  JsonLimits limits;
  limits.max_depth = 24;
  limits.max_values = std::min<size_t>(limits.max_values, 500000 + text.size() / 8);
  return limits;
}

// Words go to the model.
class Encoder : public WordSink {
 public:
  Encoder(const BpeModel& model, bool is_bytes, BpeMemory& memory, std::vector<int32_t>& ids)
      : model_(model), is_bytes_(is_bytes), memory_(memory), ids_(ids) {}
  void word(std::string_view text) override { model_.encode(text, is_bytes_, memory_, ids_); }

 private:
  const BpeModel& model_;
  bool is_bytes_;
  BpeMemory& memory_;
  std::vector<int32_t>& ids_;
};

}  // namespace

struct Tokenizer::State {
  BpeModel model;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  AddedTokens added;
  PostProcessor post_processor;
  Decoder decoder;
  std::optional<int32_t> bos, eos;
  uint64_t hash = 0;

  // Memories that no call uses at the moment. A thread takes one for a call, and gives it back.
  std::mutex mutex;
  std::vector<std::unique_ptr<Memory>> idle;

  class Loan {
   public:
    explicit Loan(State& state) : state_(state) {
      {
        const std::lock_guard lock(state_.mutex);
        if (!state_.idle.empty()) {
          memory_ = std::move(state_.idle.back());
          state_.idle.pop_back();
        }
      }
      if (!memory_) memory_ = std::make_unique<Memory>();
    }
    ~Loan() {
      const std::lock_guard lock(state_.mutex);
      state_.idle.push_back(std::move(memory_));
    }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    Memory& operator*() const { return *memory_; }

   private:
    State& state_;
    std::unique_ptr<Memory> memory_;
  };

  void read(const Field& root) {
    root.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                     "post_processor", "decoder", "model"});
    if (const auto version = root.find("version"); version && version->text() != "1.0") version->refuse("\"1.0\"");
    for (const char* key : {"truncation", "padding"})
      if (const auto member = root.find(key)) member->refuse("null: ids are neither cut off nor filled up here");
    model = BpeModel::parse(root.at("model"));
    if (const auto member = root.find("normalizer")) normalizer = Normalizer::parse(*member);
    if (const auto member = root.find("pre_tokenizer")) pre_tokenizer = PreTokenizer::parse(*member);
    added = AddedTokens::parse(root.find("added_tokens"), model, normalizer);
    if (const auto member = root.find("post_processor")) post_processor = PostProcessor::parse(*member, vocab_size());
    if (const auto member = root.find("decoder")) decoder = Decoder::parse(*member);
  }

  // bos_token, eos_token: a text, an object with its content, or null.
  std::optional<int32_t> named_token(const Field& config, const char* key) const {
    const auto member = config.find(key);
    if (!member) return std::nullopt;
    const Field content = member->value().as<JsonObject>() ? member->at("content") : *member;
    const auto id = token_to_id(content.text());
    if (!id) content.refuse("a token of tokenizer.json");
    return id;
  }

  std::optional<int32_t> token_to_id(std::string_view token) const {
    const auto id = added.find(token);
    return id ? id : model.find(token);
  }

  int64_t vocab_size() const { return std::max(model.largest_id(), added.largest_id()) + int64_t{1}; }

  void encode(std::string_view text, Memory& memory, std::vector<int32_t>& ids) const {
    Encoder encoder(model, pre_tokenizer.gives_bytes(), memory.bpe, ids);
    if (added.is_empty(false)) return encode_piece(text, memory, encoder, ids);
    for (const AddedTokens::Piece& piece : added.cut(text, false, memory.matches)) {
      if (piece.id >= 0)
        ids.push_back(piece.id);
      else
        encode_piece(piece.text, memory, encoder, ids);
    }
  }

  // Text between added tokens that are looked for as they are written.
  void encode_piece(std::string_view text, Memory& memory, Encoder& encoder, std::vector<int32_t>& ids) const {
    if (!normalizer.is_empty()) {
      memory.normalised.assign(text);
      normalizer.apply(memory.normalised, memory.matches);
      text = memory.normalised;
    }
    if (added.is_empty(true)) return pre_tokenizer.cut(text, memory.matches, encoder);
    for (const AddedTokens::Piece& piece : added.cut(text, true, memory.matches)) {
      if (piece.id >= 0)
        ids.push_back(piece.id);
      else
        pre_tokenizer.cut(piece.text, memory.matches, encoder);
    }
  }
};

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::parse(std::string_view tokenizer_json, std::string_view tokenizer_config_json,
                           const std::string& name) {
  auto state = std::make_unique<State>();
  {
    const JsonValue json = parse_json(tokenizer_json, name, limits_of(tokenizer_json));
    state->read(Field(json, name, ""));
  }
  ContentHash hash;
  hash.add(tokenizer_json);
  state->hash = hash.value();
  if (!tokenizer_config_json.empty()) {
    const std::string config_name = "tokenizer_config.json beside " + name;
    const JsonValue json = parse_json(tokenizer_config_json, config_name, limits_of(tokenizer_config_json));
    const Field config(json, config_name, "");
    state->bos = state->named_token(config, "bos_token");
    state->eos = state->named_token(config, "eos_token");
  }
  return Tokenizer(std::move(state));
}

Tokenizer Tokenizer::load(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path file = fs::is_directory(path, ignored) ? fs::path(path) / "tokenizer.json" : fs::path(path);
  const fs::path config = file.parent_path() / "tokenizer_config.json";
  const bool has_config = fs::exists(config, ignored);
  return parse(read_text_file(file.string(), kMostFileBytes),
               has_config ? read_text_file(config.string(), kMostConfigBytes) : "", file.string());
}

void Tokenizer::encode_to(std::string_view text, SpecialTokens special, std::vector<int32_t>& ids) const {
  const State::Loan loan(*state_);
  Memory& memory = *loan;
  if (replace_invalid_utf8(text, memory.valid)) text = memory.valid;
  const bool adds = special == SpecialTokens::Add;
  const PostProcessor& around = state_->post_processor;
  if (adds) ids.insert(ids.end(), around.before.begin(), around.before.end());
  state_->encode(text, memory, ids);
  if (adds) ids.insert(ids.end(), around.after.begin(), around.after.end());
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, SpecialTokens special) const {
  std::vector<int32_t> ids;
  encode_to(text, special, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, SpecialTokens special) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    const std::string* token = state_->added.token(id);
    if (!token) token = state_->model.token(id);
    if (!token) throw UserError(concat("id ", id, "\n  expected the id of a token, below ", vocab_size()));
    if (special == SpecialTokens::Skip && state_->added.is_special(*token)) continue;
    tokens.push_back(*token);
  }
  const State::Loan loan(*state_);
  return state_->decoder.decode(std::move(tokens), (*loan).matches);
}

int64_t Tokenizer::vocab_size() const { return state_->vocab_size(); }
std::optional<int32_t> Tokenizer::bos() const { return state_->bos; }
std::optional<int32_t> Tokenizer::eos() const { return state_->eos; }
std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const { return state_->token_to_id(token); }
uint64_t Tokenizer::hash() const { return state_->hash; }

}  // namespace sfsdp::train
