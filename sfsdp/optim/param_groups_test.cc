// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/optim/param_groups.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "sfsdp/base/error.h"

namespace sfsdp::param_groups_test {
namespace {

TEST_CASE("a pattern is of the whole path: * is any text, ? one character, all else itself") {
  CHECK(matches("*norm*", "layers.0.attention_norm.weight"));
  CHECK(matches("*norm*", "norm.weight"));
  CHECK(matches("*.bias", "h.0.attn.c_attn.bias"));
  CHECK(matches("layers.*.wq.weight", "layers.12.attention.wq.weight"));
  CHECK(matches("layers.?.wq", "layers.3.wq"));
  CHECK(matches("*", "x"));
  CHECK(matches("a*b*c", "aXbXbYc"));  // the first star takes more once the second fails
  CHECK(matches("a**", "a"));
  CHECK(matches("", ""));
  CHECK_FALSE(matches("", "a"));
  CHECK_FALSE(matches("norm", "norm.weight"));
  CHECK_FALSE(matches("*bias", "bias.weight"));
  CHECK_FALSE(matches("layers.?.wq", "layers.12.wq"));
  CHECK_FALSE(matches("a?", "a"));
  CHECK_FALSE(matches("[ab]", "a"));
  CHECK_FALSE(matches("*a*a*a*a*a*a*a*a*a*a*a*a*b", std::string(2000, 'a')));  // no exponential search
}

TEST_CASE("each number is that of the first group that matches and has it") {
  const std::vector<ParamGroup> groups = {
      {"*norm*", 0.0, std::nullopt}, {"layers.0.*", std::nullopt, 0.5}, {"layers.*", 0.25, 0.125}};
  const auto is = [&](const char* path, double decay, double factor) {
    const ParamNumbers numbers = numbers_of(path, groups, 0.75);
    CHECK(numbers.weight_decay == decay);
    CHECK(numbers.lr_factor == factor);
  };
  is("output.weight", 0.75, 1);
  is("norm.weight", 0, 1);
  is("layers.0.norm.weight", 0, 0.5);
  is("layers.0.wq.weight", 0.25, 0.5);
  is("layers.1.wq.weight", 0.25, 0.125);
}

TEST_CASE("a pattern that matches nothing is refused with what it may have meant; numbers are checked") {
  const std::vector<std::string> paths = {"tok_embeddings.weight", "layers.0.attention_norm.weight",
                                          "layers.1.attention_norm.weight", "layers.0.wq.bias", "norm.weight"};
  const auto error_of = [&](const ParamGroup& group) -> std::string {
    try {
      check_groups({&group, 1});
      check_matches({&group, 1}, paths);
      return "";
    } catch (const UserError& error) {
      return error.what();
    }
  };
  CHECK(error_of({"*bias", 0.0, {}}).empty());
  CHECK(error_of({"*nrom*", 0.0, {}}) ==
        "compile: ParamGroup::pattern = *nrom* matches no parameter\n  expected the path of a parameter, where * stands"
        " for any text, such as tok_embeddings.weight; did you mean *norm*?");
  CHECK(
      error_of({"layers.*.atention_norm.weight", 0.0, {}}).ends_with("; did you mean layers.*.attention_norm.weight?"));
  CHECK(error_of({"bias", 0.0, {}}).ends_with("; did you mean *bias*?"));
  CHECK(error_of({"frobnicator", 0.0, {}}).ends_with("such as tok_embeddings.weight"));
  CHECK(error_of({"*bias", -1.0, {}}).starts_with("compile: ParamGroup::weight_decay = -1\n"));
  CHECK(error_of({"*bias", {}, std::nan("")}).starts_with("compile: ParamGroup::lr_factor = nan\n"));
}

TEST_CASE("a number that no parameter takes, as groups before it have another, is refused by name") {
  const std::vector<std::string> paths = {"layers.0.norm.weight", "norm.weight", "output.weight"};
  const auto factor = [](const char* pattern, double f) { return ParamGroup{pattern, {}, f}; };
  const auto check = [&](const std::vector<ParamGroup>& groups) { check_matches(groups, paths); };
  CHECK_THROWS_WITH_AS(check({factor("*norm*", 2), factor("*norm*", 3)}),
                       "ParamGroup::lr_factor = 3 of *norm* holds for no parameter: each that it matches takes 2 from"
                       " *norm*, which stands before it\n  expected a pattern that matches others too; put narrow"
                       " patterns before wide ones",
                       UserError);
  CHECK_THROWS_AS(check({factor("*norm*", 2), factor("norm.*", 3)}), UserError);
  CHECK_THROWS_WITH_AS(check({factor("layers.*", 2), factor("norm*", 3), factor("*norm*", 4)}),
                       doctest::Contains("ParamGroup::lr_factor = 4 of *norm* holds"), UserError);  // by two together
  CHECK_NOTHROW(check({factor("norm.*", 3), factor("*norm*", 2)}));
  CHECK_NOTHROW(check({factor("*norm*", 2), factor("*", 1)}));
  CHECK_NOTHROW(check({{"*norm*", 0.0, {}}, {"*norm.weight", 0.0, {}}}));  // said twice, and so it is
  CHECK_NOTHROW(check({{"*norm*", 0.0, {}}, factor("*norm*", 3)}));        // another number
}

}  // namespace
}  // namespace sfsdp::param_groups_test
