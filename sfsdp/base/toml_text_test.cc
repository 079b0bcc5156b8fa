// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/toml_text.h"

#include <doctest/doctest.h>

#include "sfsdp/base/error.h"

namespace sfsdp::toml_text_test {

TEST_CASE("toml: characters above ASCII stand in quotes and comments, in all of TOML's quotes") {
  for (const char* text : {
           "\xef\xbb\xbfname = 1  # 2 × 3, it's \"\n[\"é\"]\n'ü' = 'a\\'  # é\n",
           "a = \"é \\\" é \\\\\" # é\nb = \"\"\"é\n\"\" é\\\"\"\"é\"\"\"\"\" # é",
           "c = '''é ' '' \\''' # é\nd = \"\"\ne = '' # é",
           "",
           "open = \"é\\",
       })
    CHECK_NOTHROW(check_toml_characters(text, "job.toml"));
}

TEST_CASE("toml: elsewhere they are refused by line") {
  for (const char* line : {"efficien × 2 = 1", "é = 1", "a = 1\xc2\xa0", "a = \"x\" é", "a = '\\' é '",
                           "a = \"\\\\\" é", "a = \"\"\"x\"\"\"\" é", "a = ''''''é", "\xef\xbb\xbf"})
    CHECK_THROWS_WITH_AS(check_toml_characters(std::string("# é\n\n") + line, "job.toml"),
                         "job.toml:3: a character that is not ASCII\n  expected those in quotes and comments only",
                         UserError);
}

}  // namespace sfsdp::toml_text_test
