// SPDX-License-Identifier: BSD-3-Clause
// Documents of files: a line of JSON each, or text that is cut or whole; plain, gzip or zstd by the end of the name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/train/data/document_parts.h"
#include "sfsdp/train/data/input_file.h"

namespace sfsdp::train {

enum class DocumentFormat : uint8_t {
  ByName,
  Text,
  JsonLines
};                                                         // by name: *.jsonl, *.ndjson and *.json are JSON lines
enum class SplitOn : uint8_t { File, Lines, BlankLines };  // where a text file is cut

struct DocumentOptions {
  DocumentFormat format = DocumentFormat::ByName;
  std::string field = "text";     // of a JSON line
  SplitOn split = SplitOn::File;  // of text
  bool masks = false;             // JSON lines may say which ids the loss counts; token files then hold it
};

inline constexpr size_t kMostDocumentBytes = size_t{1} << 30;

// An input that another process writes while it is read.
class InputChanged : public UserError {
 public:
  using UserError::UserError;
};

// A document as it stands in its file: a JSON line is not yet parsed, so that many threads can do that.
struct RawDocument {
  std::string bytes;
  uint32_t file = 0;  // which input
  int64_t line = 0;   // of its first line, from 1
  bool is_json = false;
};

// The documents of all inputs in order. Empty lines are none, except that an empty text file is one empty document.
class DocumentReader {
 public:
  DocumentReader(std::vector<std::string> inputs, DocumentOptions options);
  ~DocumentReader();
  DocumentReader(const DocumentReader&) = delete;
  DocumentReader& operator=(const DocumentReader&) = delete;

  //   throws: UserError naming a file that cannot be read or is cut off, a document above kMostDocumentBytes; InputChanged
  bool next(RawDocument& document);
  // Read so far of the files as they are on disk, and in all.
  int64_t bytes_read() const;
  int64_t all_bytes() const;

  // One for each input, as the constructor saw it.
  const std::vector<FileStamp>& stamps() const;
  //   throws: InputChanged, naming the first input that no longer is as the constructor saw it
  void check_unchanged() const;

  // What a document is made of: a text, or what a JSON line says. May be called by any thread.
  //   vocab_size: the tokenizer's, whose ids a line may hold
  //   throws: UserError naming file and line of one that is no JSON, or as parts_of_line
  std::vector<DocumentPart> parts(RawDocument document, int64_t vocab_size) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sfsdp::train
