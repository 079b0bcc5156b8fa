// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/optim/own_loss.h"

#include <doctest/doctest.h>

#include <string>

#include "sfsdp/ir/parser.h"

namespace sfsdp::step::own_loss_test {

TEST_CASE("a rank's own mean is its share of the sum, times the ranks") {
  for (const std::string reduction : {"%loss = all_reduce %share axis=dp : f32[]",
                                      "%start = all_reduce.start %share axis=dp : async f32[]\n"
                                      "%loss = wait %start : f32[]"}) {
    const ir::Graph graph = ir::parse_or_throw(
        "graph mesh [dp=4] view local\n"
        "%x = input name=batch.0 : f32[] own(dp)\n"
        "clip:\n"
        "%share = mul_scalar %x value=0.25 : f32[]\n" +
        reduction + "\nreturn %loss\n");
    const OwnLoss loss = own_loss(graph, 4);
    CHECK(loss.sum->name() == "share");
    CHECK(loss.count == nullptr);
    CHECK(loss.factor == 4);
  }
}

TEST_CASE("a rank's own sum stands over its own count") {
  const ir::Graph graph = ir::parse_or_throw(R"(graph mesh [dp=2] view local
    %x = input name=batch.0 : f32[] own(dp)
    %n = input name=batch.1 : f64[] own(dp)
  clip:
    %n.all = all_reduce %n axis=dp : f64[]
    %x.start = all_reduce.start %x axis=dp : async f32[]
    %x.all = wait %x.start : f32[]
    %loss = div %x.all, %n.all : f64[]
    return %loss
  )");
  const OwnLoss loss = own_loss(graph, 2);
  CHECK(loss.sum->name() == "x");
  CHECK(loss.count->name() == "n");
}

TEST_CASE("one rank's own loss is the loss") {
  const ir::Graph graph = ir::parse_or_throw(R"(graph mesh [dp=1] view local
    %x = input name=batch.0 : f32[]
  loss:
    %loss = mul_scalar %x value=0.5 : f32[]
    return %loss
  )");
  CHECK(own_loss(graph, 1).sum->name() == "loss");
  CHECK(own_loss(graph, 1).factor == 1);
}

}  // namespace sfsdp::step::own_loss_test
