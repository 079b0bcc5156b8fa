// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/html_page.h"

#include <doctest/doctest.h>

#include <limits>

namespace sfsdp::html_page_test {

TEST_CASE("no text of the data can end the script that holds it, or be taken for a place of the frame") {
  const std::string page = html_page("<main></main>", R"(["</script><!-- <script>", "/*DATA*/", "<!--PAGE-->"])");
  CHECK(page.find(
            "const data =\n[\"\\u003c/script>\\u003c!-- \\u003cscript>\", \"/*DATA*/\", \"\\u003c!--PAGE-->\"];\n") !=
        std::string::npos);
  CHECK(page.ends_with("</script>\n<main></main>\n</body>\n</html>\n"));
}

TEST_CASE("numbers of a page keep seven digits, or all of a whole one") {
  CHECK(page_number(1.23456789) == "1.234568");
  CHECK(page_number(123456789012.0) == "123456789012");
  CHECK(page_number(-0.5e-9) == "-5e-10");
  CHECK(page_number(std::numeric_limits<double>::infinity()) == "null");
}

TEST_CASE("texts of a page are numbered as they come") {
  PageStrings strings;
  CHECK(strings.add("b") == 0);
  CHECK(strings.add("a\"") == 1);
  CHECK(strings.add("b") == 0);
  CHECK(strings.json() == "[\"b\",\n\"a\\\"\"]");
}

}  // namespace sfsdp::html_page_test
