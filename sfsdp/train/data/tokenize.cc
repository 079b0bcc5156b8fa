// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/tokenize.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <filesystem>
#include <future>
#include <iomanip>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/cores.h"
#include "sfsdp/base/durable_file.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/fd.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/train/data/token_file.h"

namespace sfsdp::train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBatchBytes = 1 << 20;  // of documents that one thread takes at a time

// --- encoding on many threads ---

struct Batch {
  std::vector<RawDocument> documents;
  int64_t bytes_read = 0;  // of the inputs, once these documents were read
};

struct Encoded {
  std::vector<int32_t> ids;
  std::vector<size_t> ends;  // of each document in ids
  int64_t bytes_read = 0;
};

// Threads that take batches as they come; results are taken in the order of the batches. State over time: queue_ holds what
// no thread has begun, results_ what was submitted and not taken.
class EncoderPool {
 public:
  EncoderPool(const Tokenizer& tokenizer, const DocumentReader& reader, int threads)
      : tokenizer_(tokenizer), reader_(reader) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  }
  ~EncoderPool() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
      queue_.clear();
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  EncoderPool(const EncoderPool&) = delete;
  EncoderPool& operator=(const EncoderPool&) = delete;

  // Enough that no thread waits, few enough that memory stays small.
  bool is_full() const { return results_.size() >= 2 * threads_.size() + 1; }
  bool is_empty() const { return results_.empty(); }

  void submit(Batch batch) {
    std::packaged_task<Encoded()> task(
        [this, own = std::make_shared<Batch>(std::move(batch))] { return encode(*own); });
    results_.push_back(task.get_future());
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(task));
    }
    changed_.notify_one();
  }

  // The oldest.  throws: what encoding it threw
  Encoded take() {
    std::future<Encoded> result = std::move(results_.front());
    results_.pop_front();
    return result.get();
  }

 private:
  void add_part(const DocumentPart& part, std::vector<int32_t>& ids) const {
    const size_t begin = ids.size();
    tokenizer_.encode_to(part.text, SpecialTokens::Leave, ids);
    ids.insert(ids.end(), part.ids.begin(), part.ids.end());
    if (part.counts) return;
    for (int32_t& id : std::span(ids).subspan(begin)) id |= kNoTarget;
  }

  Encoded encode(Batch& batch) const {
    Encoded encoded;
    encoded.bytes_read = batch.bytes_read;
    for (RawDocument& document : batch.documents) {
      for (const DocumentPart& part : reader_.parts(std::move(document), tokenizer_.vocab_size()))
        add_part(part, encoded.ids);
      encoded.ends.push_back(encoded.ids.size());
    }
    return encoded;
  }

  void run() {
    while (true) {
      std::packaged_task<Encoded()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return ends_ || !queue_.empty(); });
        if (queue_.empty()) return;
        task = std::move(queue_.front());
        queue_.pop_front();
      }
      task();
    }
  }

  const Tokenizer& tokenizer_;
  const DocumentReader& reader_;
  std::deque<std::future<Encoded>> results_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<Encoded()>> queue_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

// --- the folder ---

// Held while a run writes into the folder; the system gives it back when the process ends.
Fd lock_folder(const std::string& folder) {
  Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
    throw UserError(concat(folder, ": ", errno == EWOULDBLOCK ? "another run writes into it" : std::strerror(errno),
                           "\n  expected a folder of this run alone; wait for the other, or give another --out"));
  return fd;
}

std::string shard_name(size_t index) {
  std::ostringstream name;
  name << std::setw(5) << std::setfill('0') << index << ".tok";
  return name.str();
}

// What decides the bytes that are written, as text: run.json, which an interrupted run leaves for the next.
std::string describe_run(const Tokenizer& tokenizer, const TokenizeOptions& options,
                         const std::vector<FileStamp>& stamps) {
  static constexpr std::array<const char*, 3> kFormats = {"by_name", "text", "jsonl"};
  static constexpr std::array<const char*, 3> kSplits = {"file", "lines", "blank_lines"};
  std::string inputs;
  for (size_t i = 0; i < options.inputs.size(); ++i)
    inputs += concat(i == 0 ? "" : ",", "\n    {\"path\": ", json_quoted(options.inputs[i]),
                     ", \"bytes\": ", stamps[i].bytes, ", \"modified_ns\": ", stamps[i].modified_ns, "}");
  return concat("{\n  \"tokenizer_hash\": \"", hex(tokenizer.hash()), "\",\n  \"format\": \"",
                kFormats[static_cast<size_t>(options.documents.format)],
                "\",\n  \"field\": ", json_quoted(options.documents.field), ",\n  \"split_on\": \"",
                kSplits[static_cast<size_t>(options.documents.split)], "\",\n",
                options.documents.masks ? "  \"loss_mask\": true,\n" : "", "  \"shard_tokens\": ", options.shard_tokens,
                ",\n  \"inputs\": [", inputs, "\n  ]\n}\n");
}

// The first line in which two texts differ, of each.
std::pair<std::string, std::string> first_difference(const std::string& left, const std::string& right) {
  const auto lines = split(left, '\n'), others = split(right, '\n');
  size_t at = 0;
  while (at < lines.size() && at < others.size() && lines[at] == others[at]) ++at;
  const auto line = [&](const std::vector<std::string>& all) {
    return at < all.size() ? std::string(trim(all[at])) : std::string("nothing");
  };
  return {line(lines), line(others)};
}

// One call: takes over what is there, then goes on with it.
class Run {
 public:
  Run(const Tokenizer& tokenizer, const TokenizeOptions& options,
      const std::function<void(const TokenizeProgress&)>& tell)
      : tokenizer_(tokenizer), options_(options), tell_(tell), reader_(options.inputs, options.documents) {}

  TokenizeProgress run() {
    progress_.all_bytes = reader_.all_bytes();
    begin_folder();
    if (TokenFolder::is_token_folder(options_.out)) {
      const TokenFolder folder = TokenFolder::load(options_.out);
      progress_.documents = progress_.resumed_documents = folder.documents;
      progress_.tokens = folder.tokens;
      progress_.bytes = progress_.all_bytes;
      progress_.was_complete = true;
      return progress_;
    }
    try {
      make_shards();
    } catch (const InputChanged&) {
      discard_shards();
      throw;
    }
    write_manifest();
    progress_.bytes = progress_.all_bytes;
    tell();
    return progress_;
  }

 private:
  std::string path_of(const std::string& name) const { return (fs::path(options_.out) / name).string(); }

  // A folder of this very run, or an empty one that becomes it.
  void begin_folder() {
    std::error_code error;
    fs::create_directories(options_.out, error);
    if (error)
      throw UserError(
          concat(options_.out, ": ", error.message(), "\n  expected a folder that can be made and written"));
    lock_ = lock_folder(options_.out);
    const std::string mine = describe_run(tokenizer_, options_, reader_.stamps()), file = path_of("run.json");
    if (fs::exists(file)) {
      const std::string theirs = read_text_file(file, 256 << 20);
      if (theirs == mine) return remove_unfinished();
      const auto [old_line, new_line] = first_difference(theirs, mine);
      throw UserError(concat(options_.out, ": begun by another run, with ", old_line, "\n  expected ", new_line,
                             "; give another --out, or remove this folder"));
    }
    for (const auto& entry : fs::directory_iterator(options_.out))
      if (entry.path().extension() == ".tok" || entry.path().filename() == "dataset.json")
        throw UserError(concat(options_.out, ": holds ", entry.path().filename().string(),
                               " of another run\n  expected an empty folder, or one that this command has begun"));
    write_atomically(file, mine);
  }

  void remove_unfinished() const {
    for (const auto& entry : fs::directory_iterator(options_.out))
      if (entry.path().string().ends_with(".tmp")) fs::remove(entry.path());
  }

  void make_shards() {
    try {
      take_over_shards();
      skip_documents();
      encode_the_rest();
    } catch (const UserError&) {
      reader_.check_unchanged();  // a change may look like a damaged line
      throw;
    }
    reader_.check_unchanged();
  }

  // They may hold a mix of old and new: the next call begins anew. run.json goes first, as shards without it are refused.
  void discard_shards() {
    writer_.reset();
    fs::remove(path_of("run.json"));
    for (const auto& entry : fs::directory_iterator(options_.out))
      if (entry.path().extension() == ".tok") fs::remove(entry.path());
  }

  void take_over_shards() {
    while (fs::exists(path_of(shard_name(shards_.size())))) {
      const TokenFile file = TokenFile::open(path_of(shard_name(shards_.size())));
      const TokenFileHeader& header = file.header();
      if (header.first_document != static_cast<uint64_t>(progress_.documents) ||
          header.tokenizer_hash != tokenizer_.hash() ||
          header.vocab_size != static_cast<uint64_t>(tokenizer_.vocab_size()) ||
          header.masked != options_.documents.masks)
        throw UserError(concat(file.path(), ": not the shard of this run\n  expected document ", progress_.documents,
                               " first, of this tokenizer; remove the folder ", options_.out));
      file.verify();
      shards_.push_back({shard_name(shards_.size()), file.tokens(), file.documents(), header.content_hash});
      progress_.documents += file.documents();
      progress_.tokens += file.tokens();
    }
    progress_.resumed_documents = progress_.documents;
  }

  void skip_documents() {
    RawDocument document;
    for (int64_t i = 0; i < progress_.resumed_documents; ++i)
      if (!reader_.next(document))
        throw UserError(concat(options_.out, ": has ", progress_.resumed_documents, " documents, the inputs ", i,
                               "\n  expected inputs that have not changed; remove the folder"));
    progress_.bytes = reader_.bytes_read();
    tell();
  }

  bool read_batch(Batch& batch) {
    size_t bytes = 0;
    RawDocument document;
    while (bytes < kBatchBytes && reader_.next(document)) {
      bytes += document.bytes.size() + sizeof document;
      batch.documents.push_back(std::move(document));
    }
    batch.bytes_read = reader_.bytes_read();
    return !batch.documents.empty();
  }

  void encode_the_rest() {
    EncoderPool pool(tokenizer_, reader_, options_.threads > 0 ? options_.threads : static_cast<int>(usable_cores()));
    bool more = true;
    while (true) {
      while (more && !pool.is_full()) {
        Batch batch;
        more = read_batch(batch);
        if (more) pool.submit(std::move(batch));
      }
      if (pool.is_empty()) break;
      const Encoded encoded = pool.take();
      add(encoded);
      progress_.bytes = encoded.bytes_read;
      tell();
    }
    if (writer_) finish_shard();
  }

  void add(const Encoded& encoded) {
    size_t begin = 0;
    for (const size_t end : encoded.ends) {
      if (!writer_)
        writer_.emplace(path_of(shard_name(shards_.size())), static_cast<uint64_t>(tokenizer_.vocab_size()),
                        tokenizer_.hash(), static_cast<uint64_t>(progress_.documents), options_.documents.masks);
      writer_->add(std::span(encoded.ids).subspan(begin, end - begin));
      ++progress_.documents;
      progress_.tokens += static_cast<int64_t>(end - begin);
      begin = end;
      if (writer_->tokens() >= options_.shard_tokens) finish_shard();
    }
  }

  void finish_shard() {
    const TokenFileHeader header = writer_->finish();
    shards_.push_back({shard_name(shards_.size()), static_cast<int64_t>(header.tokens),
                       static_cast<int64_t>(header.documents), header.content_hash});
    writer_.reset();
  }

  void write_manifest() {
    if (progress_.documents == 0)
      throw UserError(
          concat(options_.inputs.front(), ": no documents in the inputs\n  expected at least one line or text"));
    const auto id = [](std::optional<int32_t> token) { return token ? std::to_string(*token) : "null"; };
    std::string text =
        concat("{\n  \"version\": ", options_.documents.masks ? kMaskedTokenFileVersion : kTokenFileVersion,
               ",\n  \"tokens\": ", progress_.tokens, ",\n  \"documents\": ", progress_.documents,
               ",\n  \"vocab_size\": ", tokenizer_.vocab_size(), ",\n  \"bos\": ", id(tokenizer_.bos()),
               ",\n  \"eos\": ", id(tokenizer_.eos()), ",\n  \"tokenizer_hash\": \"", hex(tokenizer_.hash()),
               "\",\n  \"shards\": [");
    for (size_t i = 0; i < shards_.size(); ++i)
      text += concat(i == 0 ? "" : ",", "\n    {\"file\": \"", shards_[i].file, "\", \"tokens\": ", shards_[i].tokens,
                     ", \"documents\": ", shards_[i].documents, ", \"content_hash\": \"", hex(shards_[i].content_hash),
                     "\"}");
    write_atomically(path_of("dataset.json"), text + "\n  ]\n}\n");
  }

  void tell() const {
    if (tell_) tell_(progress_);
  }

  const Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  const std::function<void(const TokenizeProgress&)>& tell_;
  DocumentReader reader_;
  Fd lock_;
  std::vector<TokenFolder::Shard> shards_;
  std::optional<TokenFileWriter> writer_;
  TokenizeProgress progress_;
};

}  // namespace

TokenizeProgress tokenize_files(const Tokenizer& tokenizer, const TokenizeOptions& options,
                                const std::function<void(const TokenizeProgress&)>& progress) {
  SFSDP_CHECK(!options.inputs.empty() && options.shard_tokens > 0, options.inputs.size(), " inputs");
  return Run(tokenizer, options, progress).run();
}

}  // namespace sfsdp::train
