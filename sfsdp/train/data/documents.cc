// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/documents.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/train/data/tokenizer/tokenizer.h"

namespace sfsdp::train {
namespace {

constexpr size_t kLinePiece = 1 << 20;

bool has_json_name(const std::string& path) {
  const std::string name = InputFile::name_without_compression(path);
  constexpr std::array<std::string_view, 3> kEnds = {".jsonl", ".ndjson", ".json"};
  return std::ranges::any_of(kEnds, [&](std::string_view end) { return name.ends_with(end); });
}

// Lines of a file, without their ends. State over time: `buffer` holds what is read, of which [at, size) is not taken.
class Lines {
 public:
  explicit Lines(const std::string& path) : path_(path), file_(path) {}

  // The next line; none at the end. An end of line at the end of the file begins no further line. Valid until the next.
  std::optional<std::string_view> next() {
    size_t searched = at_;
    while (true) {
      const size_t end = buffer_.find('\n', searched);
      if (end != std::string::npos) return take(end, end + 1);
      searched = buffer_.size();
      if (!fill()) break;
      searched -= moved_;
    }
    if (at_ == buffer_.size()) return std::nullopt;
    return take(buffer_.size(), buffer_.size());
  }

  // All that is left.
  std::string rest() {
    while (fill()) {
    }
    return std::move(buffer_);
  }

  int64_t number() const { return number_; }  // of the line that was returned last, from 1
  int64_t bytes_read() const { return file_.bytes_read(); }
  FileStamp stamp() const { return file_.stamp(); }

 private:
  std::string_view take(size_t end, size_t next) {
    const std::string_view line = std::string_view(buffer_).substr(at_, end - at_);
    at_ = next;
    ++number_;
    return line;
  }

  bool fill() {
    moved_ = at_;
    buffer_.erase(0, std::exchange(at_, 0));
    const size_t size = buffer_.size();
    if (size > kMostDocumentBytes)
      throw UserError(concat(path_, ":", number_ + 1, ": a document of more than ", kMostDocumentBytes,
                             " bytes\n  expected shorter ones; cut text with --split-on lines or blank-lines"));
    buffer_.resize(size + std::max(kLinePiece, size));  // doubles, so that a long line is copied a few times only
    const size_t got = file_.read(std::span(buffer_).subspan(size));
    buffer_.resize(size + got);
    return got > 0;
  }

  std::string path_;
  InputFile file_;
  std::string buffer_;
  size_t at_ = 0, moved_ = 0;
  int64_t number_ = 0;
};

void require_unchanged(const std::string& path, const FileStamp& begin, const std::optional<FileStamp>& now) {
  if (now == begin) return;
  const std::string got = !now                        ? "is gone"
                          : now->bytes != begin.bytes ? concat("has ", now->bytes, " bytes, not ", begin.bytes)
                                                      : std::string("was written to");
  throw InputChanged(concat(path, ": changed while it was read: ", got,
                            "\n  expected a file that nobody writes; begin again once it is complete"));
}

std::string_view without_return(std::string_view line) {
  return line.ends_with('\r') ? line.substr(0, line.size() - 1) : line;
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

}  // namespace

struct DocumentReader::State {
  std::vector<std::string> inputs;
  DocumentOptions options;
  std::vector<FileStamp> stamps;            // of the inputs when the reader was made
  int64_t all_bytes = 0, bytes_before = 0;  // of the files before the open one
  size_t next_file = 0;
  bool is_json = false;
  std::optional<Lines> lines;  // of the open file

  bool is_json_file(const std::string& path) const {
    return options.format == DocumentFormat::ByName ? has_json_name(path) : options.format == DocumentFormat::JsonLines;
  }

  bool take_line(RawDocument& document) {
    while (const auto line = lines->next()) {
      if (is_blank(*line)) continue;
      document.bytes = without_return(*line);
      document.line = lines->number();
      return true;
    }
    return false;
  }

  bool take_paragraph(RawDocument& document) {
    if (!take_line(document)) return false;
    while (const auto line = lines->next()) {
      if (is_blank(*line)) break;
      document.bytes.append("\n").append(without_return(*line));
    }
    return true;
  }

  // The open file has been read to its end.
  void finish_file() {
    require_unchanged(inputs[next_file - 1], stamps[next_file - 1], lines->stamp());
    bytes_before += lines->bytes_read();
    lines.reset();
  }

  // From the open file.
  bool take(RawDocument& document) {
    document.file = static_cast<uint32_t>(next_file - 1);
    document.is_json = is_json;
    if (is_json || options.split == SplitOn::Lines) return take_line(document);
    if (options.split == SplitOn::BlankLines) return take_paragraph(document);
    document.bytes = lines->rest();
    document.line = 1;
    finish_file();
    return true;
  }
};

DocumentReader::DocumentReader(std::vector<std::string> inputs, DocumentOptions options)
    : state_(std::make_unique<State>()) {
  state_->inputs = std::move(inputs);
  state_->options = std::move(options);
  for (const std::string& path : state_->inputs)
    state_->all_bytes += state_->stamps.emplace_back(InputFile(path).stamp()).bytes;
}

DocumentReader::~DocumentReader() = default;

bool DocumentReader::next(RawDocument& document) {
  State& state = *state_;
  while (true) {
    if (state.lines) {
      if (state.take(document)) return true;
      state.finish_file();
    }
    if (state.next_file == state.inputs.size()) return false;
    const std::string& path = state.inputs[state.next_file++];
    state.lines.emplace(path);
    state.is_json = state.is_json_file(path);
  }
}

int64_t DocumentReader::bytes_read() const {
  return state_->bytes_before + (state_->lines ? state_->lines->bytes_read() : 0);
}
int64_t DocumentReader::all_bytes() const { return state_->all_bytes; }
const std::vector<FileStamp>& DocumentReader::stamps() const { return state_->stamps; }

void DocumentReader::check_unchanged() const {
  for (size_t i = 0; i < state_->inputs.size(); ++i)
    require_unchanged(state_->inputs[i], state_->stamps[i], stamp_of(state_->inputs[i]));
}

std::vector<DocumentPart> DocumentReader::parts(RawDocument document, int64_t vocab_size) const {
  replace_invalid_utf8(document.bytes, document.bytes);
  if (!document.is_json) return {{std::move(document.bytes)}};
  const std::string where = concat(state_->inputs[document.file], ":", document.line);
  return parts_of_line(parse_json(document.bytes, where), {state_->options.field, state_->options.masks, vocab_size},
                       where);
}

}  // namespace sfsdp::train
