// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/progress_line.h"

#include <doctest/doctest.h>

#include <sstream>

namespace sfsdp::train::progress_line_test {

TEST_CASE("a progress line writes over itself, ten times a second at most, and goes before anything else") {
  std::ostringstream terminal;
  double clock = 0;
  {
    ProgressLine line(
        terminal, [] { return 80; }, [&] { return clock; });
    line.clear();
    CHECK(terminal.str().empty());
    line.show("step 1/10");
    CHECK(terminal.str() == "\rstep 1/10\033[K");
    clock = 0.05;
    line.show("step 2/10");
    CHECK(terminal.str() == "\rstep 1/10\033[K");
    clock = 0.15;
    line.show("step 3/10");
    CHECK(terminal.str() == "\rstep 1/10\033[K\rstep 3/10\033[K");
    line.clear();
    line.clear();
    CHECK(terminal.str() == "\rstep 1/10\033[K\rstep 3/10\033[K\r\033[K");
    terminal.str("");
    clock = 1;
    line.show("step 9/10");
  }
  CHECK(terminal.str() == "\rstep 9/10\033[K\r\033[K");  // nothing is left of it after the run
}

TEST_CASE("a text as wide as the terminal is cut, so that it does not wrap") {
  std::ostringstream terminal;
  double clock = 0;
  ProgressLine line(
      terminal, [] { return 10; }, [&] { return clock; });
  line.show("0123456789");
  CHECK(terminal.str() == "\r012345678\033[K");
}

}  // namespace sfsdp::train::progress_line_test
