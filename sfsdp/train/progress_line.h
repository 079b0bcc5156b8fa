// SPDX-License-Identifier: BSD-3-Clause
// The last line of a terminal, written over as a run goes on.
#pragma once

#include <functional>
#include <iosfwd>
#include <string_view>

namespace sfsdp::train {

// Hidden, then shown and written over, hidden again by clear() before anything else is written to the terminal.
class ProgressLine {
 public:
  //   columns: of the terminal now; a longer text is cut, as a line that wraps could not be written over
  //   now: seconds of a steady clock
  ProgressLine(std::ostream& terminal, std::function<int()> columns, std::function<double()> now);
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Nothing where the line was written less than 0.1 s ago: steps of a millisecond must not wait for a terminal.
  //   text: printable ASCII
  void show(std::string_view text);
  void clear();

 private:
  std::ostream& terminal_;
  std::function<int()> columns_;
  std::function<double()> now_;
  bool shown_ = false;
  double written_ = -1;  // when it was last written; below 0: never
};

// Whether file descriptor `fd` is a terminal that takes the control characters that this needs.
bool is_live_terminal(int fd);
// How wide the terminal `fd` is; 80 where it does not say.
int terminal_columns(int fd);

}  // namespace sfsdp::train
