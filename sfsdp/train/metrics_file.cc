// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/metrics_file.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::train {
namespace {

// The step that a line is of, from its first bytes; nothing for a line that json_line did not write.
std::optional<int64_t> step_of(std::string_view head) {
  constexpr std::string_view kBegin = "{\"step\": ";
  if (!head.starts_with(kBegin)) return std::nullopt;
  head.remove_prefix(kBegin.size());
  return parse_int(head.substr(0, head.find_first_not_of("0123456789")));
}

// Bytes up to the first line of a step after `last_step`, or up to the end of the last whole line. Reads a piece at a time
// and keeps the first bytes of a line alone, so that a line may have any length.
int64_t bytes_up_to(const std::string& path, int64_t last_step) {
  std::ifstream file(path, std::ios::binary);
  std::array<char, 1 << 16> piece = {};
  std::string head;
  int64_t line_begin = 0, piece_begin = 0;
  while (file.read(piece.data(), piece.size()), file.gcount() > 0) {
    std::string_view rest(piece.data(), static_cast<size_t>(file.gcount()));
    for (int64_t at = piece_begin; !rest.empty();) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      head += rest.substr(0, std::min(end, 64 - std::min<size_t>(head.size(), 64)));
      at += static_cast<int64_t>(end);
      rest.remove_prefix(end);
      if (rest.empty()) break;
      rest.remove_prefix(1);
      if (step_of(head).value_or(0) > last_step) return line_begin;
      line_begin = ++at;
      head.clear();
    }
    piece_begin += file.gcount();
  }
  return line_begin;
}

// Devices have no end to read up to (/dev/full), and nothing that is written can be cut off again.
void expect_file(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    throw UserError(concat(path,
                           ": is no regular file\n  expected one, as a run that goes on cuts off what it writes "
                           "again; remove it, or set --job.dump_folder"));
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, int64_t last_step, Say say) : file_(path, std::move(say)) {
  expect_file(path);
  file_.truncate(last_step > 0 ? bytes_up_to(path, last_step) : 0);
}

std::string move_aside(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (const auto bytes = fs::file_size(folder + "/metrics.jsonl", error); error || bytes == 0) return "";
  const auto numbered = [&](const char* name, int64_t n) { return concat(folder, "/", name, ".", n, ".jsonl"); };
  int64_t n = 1;
  while (fs::exists(numbered("metrics", n), error) || fs::exists(numbered("run", n), error)) ++n;
  for (const char* name : {"run", "metrics"}) {  // metrics.jsonl last: it says that there is something to move
    const std::string old = concat(folder, "/", name, ".jsonl");
    if (!fs::exists(old, error)) continue;
    fs::rename(old, numbered(name, n), error);
    if (error)
      throw UserError(concat(old, ": cannot be renamed to ", numbered(name, n), ": ", error.message(),
                             "\n  expected a folder that can be written; set --job.dump_folder"));
  }
  return numbered("metrics", n);
}

}  // namespace sfsdp::train
