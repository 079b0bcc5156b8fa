// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/progress_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ostream>
#include <string>
#include <utility>

namespace sfsdp::train {

ProgressLine::ProgressLine(std::ostream& terminal, std::function<int()> columns, std::function<double()> now)
    : terminal_(terminal), columns_(std::move(columns)), now_(std::move(now)) {}

void ProgressLine::show(std::string_view text) {
  const double now = now_();
  if (written_ >= 0 && now - written_ < 0.1) return;
  written_ = now;
  shown_ = true;
  const auto width = static_cast<size_t>(std::max(columns_() - 1, 0));   // the last column would wrap some terminals
  terminal_ << "\r" << text.substr(0, width) << "\033[K" << std::flush;  // erases what a longer text left
}

void ProgressLine::clear() {
  if (shown_) terminal_ << "\r\033[K" << std::flush;
  shown_ = false;
}

bool is_live_terminal(int fd) {
  const char* term = std::getenv("TERM");
  return ::isatty(fd) != 0 && !(term && std::string_view(term) == "dumb");
}

int terminal_columns(int fd) {
  winsize size = {};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace sfsdp::train
