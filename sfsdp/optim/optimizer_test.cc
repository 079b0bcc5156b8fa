// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/optim/optimizer.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "sfsdp/base/error.h"

namespace sfsdp::optimizer_test {
namespace {

// "AdamW::lr = -1", or "" where nothing is refused.
std::string refused(const Optimizer& optimizer) {
  try {
    check_optimizer(optimizer);
    return "";
  } catch (const UserError& error) {
    const std::string text = error.what();
    const size_t begin = text.find(": ") + 2;
    return text.substr(begin, text.find('\n') - begin);
  }
}

TEST_CASE("what would train nonsense is refused by the field's name") {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  CHECK(refused(AdamW{}).empty());
  CHECK(refused(AdamW{.lr = 0, .beta1 = 0, .beta2 = 0, .weight_decay = 0}).empty());
  CHECK(refused(AdamW{.lr = -1, .beta1 = 2}) == "AdamW::lr = -1");
  CHECK(refused(AdamW{.lr = nan}) == "AdamW::lr = nan");
  CHECK(refused(AdamW{.lr = infinity}) == "AdamW::lr = inf");
  CHECK(refused(AdamW{.beta1 = 2}) == "AdamW::beta1 = 2");
  CHECK(refused(AdamW{.beta1 = -0.5}) == "AdamW::beta1 = -0.5");
  CHECK(refused(AdamW{.beta2 = 1}) == "AdamW::beta2 = 1");
  CHECK(refused(AdamW{.eps = 0}) == "AdamW::eps = 0");
  CHECK(refused(AdamW{.eps = -1e-8}) == "AdamW::eps = -1e-08");
  CHECK(refused(AdamW{.weight_decay = -0.5}) == "AdamW::weight_decay = -0.5");
  CHECK(refused(Adam{}).empty());
  CHECK(refused(Adam{.beta2 = 1}) == "Adam::beta2 = 1");
  CHECK(refused(SGD{}).empty());
  CHECK(refused(SGD{.lr = -1}) == "SGD::lr = -1");
  CHECK(refused(SGD{.momentum = 1}) == "SGD::momentum = 1");
  CHECK(refused(SGD{.weight_decay = nan}) == "SGD::weight_decay = nan");
  CHECK(refused(SGD{.groups = {{"*", infinity, {}}}}) == "ParamGroup::weight_decay = inf");
}

}  // namespace
}  // namespace sfsdp::optimizer_test
