// SPDX-License-Identifier: BSD-3-Clause
// `sfsdp tokenize IN... --tokenizer F --out DIR`.
#include "sfsdp/train/data/tokenize.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <ostream>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/tools/commands.h"
#include "sfsdp/tools/tokenizer.h"
#include "sfsdp/train/data/tokenizer/tokenizer.h"

namespace sfsdp::tools {

std::string progress_line(const train::TokenizeProgress& progress, double seconds, int64_t tokens_before,
                          int64_t bytes_before) {
  const double share =
      progress.all_bytes == 0 ? 1 : static_cast<double>(progress.bytes) / static_cast<double>(progress.all_bytes);
  constexpr int kWidth = 24;
  const auto full = static_cast<size_t>(std::clamp(static_cast<int>(share * kWidth), 0, kWidth));
  std::string line = concat("[", std::string(full, '#'), std::string(kWidth - full, '.'), "] ",
                            with_commas(100 * share, 1), " %  ", with_commas(progress.tokens), " tokens");
  const auto done = static_cast<double>(progress.bytes - bytes_before);
  if (seconds < 0.5 || done <= 0) return line;
  const auto tokens = static_cast<double>(progress.tokens - tokens_before);
  const auto left =
      static_cast<int64_t>(std::ceil(seconds * static_cast<double>(progress.all_bytes - progress.bytes) / done));
  const auto two = [](int64_t number) { return concat(number < 10 ? "0" : "", number); };
  line += concat("  ", with_commas(tokens / seconds / 1e6, 2), " M/s  ETA ");
  if (left >= 3600) line += concat(left / 3600, ":", two(left / 60 % 60), ":", two(left % 60));
  if (left < 3600) line += concat(left / 60, ":", two(left % 60));
  return line;
}

namespace {

using Clock = std::chrono::steady_clock;

// One line of a terminal, written over and over. State over time: the time of the last line, and where this call began.
class ProgressBar {
 public:
  ProgressBar(std::ostream& err, bool is_shown) : err_(err), is_shown_(is_shown) {}

  void show(const train::TokenizeProgress& progress) {
    if (!is_shown_) return;
    const auto now = Clock::now();
    if (!begun_) {  // what an earlier call did says nothing on how fast this one is
      begun_ = true;
      tokens_ = progress.tokens;
      bytes_ = progress.bytes;
    }
    if (now - last_ < std::chrono::milliseconds(200)) return;
    last_ = now;
    err_ << '\r' << progress_line(progress, std::chrono::duration<double>(now - start_).count(), tokens_, bytes_)
         << "\x1b[K" << std::flush;
  }
  ~ProgressBar() {
    if (is_shown_ && begun_) err_ << "\r\x1b[K" << std::flush;
  }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

 private:
  std::ostream& err_;
  bool is_shown_;
  bool begun_ = false;
  int64_t tokens_ = 0, bytes_ = 0;
  Clock::time_point start_ = Clock::now(), last_;
};

train::TokenizeOptions tokenizer_options(const Request& request) {
  if (request.own.operands.empty())
    throw UserError("no inputs\n  expected files, as in: sfsdp tokenize a.jsonl b.txt.gz");
  for (const char* name : {"tokenizer", "out"})
    if (request.get(name).empty())
      throw UserError(concat("--", name, " is missing\n  expected --tokenizer FILE --out DIR"));
  train::TokenizeOptions options;
  options.inputs = request.own.operands;
  options.out = request.get("out");
  const std::string format = choice_of(request, "format", {"auto", "text", "jsonl"});
  options.documents.format = format == "text"    ? train::DocumentFormat::Text
                             : format == "jsonl" ? train::DocumentFormat::JsonLines
                                                 : train::DocumentFormat::ByName;
  const std::string split = choice_of(request, "split-on", {"file", "lines", "blank-lines"});
  options.documents.split = split == "lines"         ? train::SplitOn::Lines
                            : split == "blank-lines" ? train::SplitOn::BlankLines
                                                     : train::SplitOn::File;
  options.documents.field = request.get("field", options.documents.field);
  options.documents.masks = request.has("loss-mask");
  options.threads = static_cast<int>(number_of("--threads", request.get("threads", "0"), 0, 1024));
  options.shard_tokens = number_of("--shard-tokens", request.get("shard-tokens", std::to_string(options.shard_tokens)),
                                   1, int64_t{1} << 40);
  return options;
}

}  // namespace

int run_tokenize(const Request& request, std::ostream& out, std::ostream& err) {
  const train::TokenizeOptions options = tokenizer_options(request);
  const auto tokenizer = train::Tokenizer::load(request.get("tokenizer"));
  const auto start = Clock::now();
  train::TokenizeProgress done;
  {
    ProgressBar bar(err, ::isatty(STDERR_FILENO) != 0);
    done = train::tokenize_files(tokenizer, options, [&](const auto& progress) { bar.show(progress); });
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  out << options.out << ": " << with_commas(done.tokens) << " tokens in " << with_commas(done.documents)
      << " documents";
  if (done.was_complete)
    out << ", complete before";
  else if (done.resumed_documents > 0)
    out << ", of which " << with_commas(done.resumed_documents) << " documents were there";
  out << "; " << with_commas(seconds, 1) << " s\n";
  return 0;
}

}  // namespace sfsdp::tools
