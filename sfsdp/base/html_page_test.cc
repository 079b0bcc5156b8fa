// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/html_page.h"

#include <doctest/doctest.h>

namespace sfsdp {

TEST_CASE("no text of the data can end the script that holds it") {
  CHECK(fill_page("<script>const data =\n/*DATA*/;</script>", R"(["</script><!-- <script>"])") ==
        "<script>const data =\n[\"\\u003c/script>\\u003c!-- \\u003cscript>\"];</script>");
}

TEST_CASE("data that holds the page's own mark goes in once") {
  CHECK(fill_page("a /*DATA*/ b", "[\"/*DATA*/\"]") == "a [\"/*DATA*/\"] b");
}

}  // namespace sfsdp
