// SPDX-License-Identifier: BSD-3-Clause
// Expected numbers are worked out by hand.
#include "sfsdp/ir/sequence_order.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/interp/interpreter.h"

namespace sfsdp::ir::sequence_order_test {
namespace {

using Runs = std::vector<PositionRun>;
using Order = std::vector<int64_t>;

TEST_CASE(
    "sequence order: in natural order a rank has the next part, balanced one from the front and one from the end") {
  CHECK(positions_of_rank({12, 1, false}, 0) == Runs{{0, 12}});
  CHECK(positions_of_rank({12, 3, false}, 0) == Runs{{0, 4}});
  CHECK(positions_of_rank({12, 3, false}, 2) == Runs{{8, 4}});
  CHECK(positions_of_rank({12, 3, true}, 0) == Runs{{0, 2}, {10, 2}});
  CHECK(positions_of_rank({12, 3, true}, 1) == Runs{{2, 2}, {8, 2}});
  CHECK(positions_of_rank({12, 3, true}, 2) == Runs{{4, 4}});  // two chunks that touch
  CHECK(positions_of_rank({12, 1, true}, 0) == Runs{{0, 12}});
  CHECK(chunk_order(1) == Order{0, 1});
  CHECK(chunk_order(2) == Order{0, 3, 1, 2});
  CHECK(chunk_order(4) == Order{0, 7, 1, 6, 2, 5, 3, 4});
}

TEST_CASE("sequence order: the ranks' rows one after the other are the chunks in their order; each sees as many keys") {
  for (const int64_t ranks : {1, 2, 3, 4, 7}) {
    const SequenceCut cut = {6 * ranks, ranks, true};
    Order rows, chunks;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      int64_t seen = 0;
      for (const PositionRun& run : positions_of_rank(cut, rank))
        for (int64_t i = 0; i < run.count; ++i) rows.push_back(run.first + i), seen += run.first + i + 1;
      CHECK(seen == 3 * (6 * ranks + 1));  // of T queries that see 1 to T keys, 6 whose mean is (T + 1) / 2
    }
    for (const int64_t chunk : chunk_order(ranks))
      for (int64_t i = 0; i < 3; ++i) chunks.push_back(3 * chunk + i);
    CHECK(rows == chunks);
  }
}

TEST_CASE("sequence order: a rank that there is not, and chunks of several lengths, are refused") {
  CHECK_THROWS(positions_of_rank({12, 3, false}, 3));
  CHECK_THROWS(positions_of_rank({12, 3, false}, -1));
  CHECK_THROWS(positions_of_rank({9, 3, true}, 0));
  CHECK_THROWS(positions_of_rank({10, 3, false}, 0));
}

// Attention of %q [1, 2, rows, 1] over keys [1, 1, length, 1].
std::string step(int64_t ranks, int64_t rows, int64_t length, const std::string& attrs, const char* fourth = "none") {
  const std::string q = concat("f32[1, 2, ", rows, ", 1]"), k = concat("f32[1, 1, ", length, ", 1]"),
                    sums = concat("f32[1, 2, ", rows, "]");
  return concat("graph mesh [cp=", ranks, "] view local\n  %q = input name=q : ", q, "\n  %k = input name=k : ", k,
                "\n  %v = input name=v : ", k, "\n  %g = input name=g : ", q, "\n  %d = input name=d : i64[1, ", length,
                "]\n  %m = input name=m : f32[", rows, ", ", length, "]\nfwd:\n  %o, %l = sdpa %q, %k, %v, ", fourth,
                ' ', attrs, " : ", q, ", ", sums, "\nbwd:\n  %gq, %gk, %gv = sdpa_backward %g, %q, %k, %v, %o, %l, ",
                fourth, ' ', attrs, " : ", q, ", ", k, ", ", k, "\n  return %o, %l, %gv\n");
}

// A query of zeros sees what it sees alike: %o is the mean of the values, which are their positions; %l is the logarithm of how many.
struct Seen {
  std::vector<double> mean, count;  // of the first head's queries, in the order of the ranks
  std::vector<double> grad_values;  // of gradients of 1, over all ranks
};
Seen seen(int64_t ranks, int64_t length, const std::string& attrs, const char* fourth = "none") {
  const Graph graph =
      parse_or_throw(step(ranks, length / ranks, length, concat("axis=cp is_causal=true", attrs), fourth));
  verify_or_throw(graph);
  const auto array = [](std::vector<int64_t> shape, double value) {
    interp::Array a = interp::Array::zeros(DType::f32, std::move(shape));
    a.data.assign(a.data.size(), value);
    return a;
  };
  const std::vector<int64_t> q = {1, 2, length / ranks, 1}, k = {1, 1, length, 1};
  interp::Array values = array(k, 0), documents = {DType::i64, {1, length}, {}};
  for (int64_t i = 0; i < length; ++i) {
    values.data[static_cast<size_t>(i)] = static_cast<double>(i);
    documents.data.push_back(i < 3 ? 7 : 8);
  }
  const interp::Inputs inputs = {{"q", array(q, 0)},   {"k", array(k, 1)}, {"v", values},
                                 {"g", array(q, 0.5)}, {"d", documents},   {"m", array({length / ranks, length}, 0)}};
  Seen all;
  all.grad_values.assign(static_cast<size_t>(length), 0);
  for (const auto& rank : interp::run(graph, std::vector<interp::Inputs>(static_cast<size_t>(ranks), inputs)).ranks) {
    const auto rows = static_cast<size_t>(length / ranks);
    for (size_t i = 0; i < rows; ++i) {
      all.mean.push_back(rank.outputs[0].data[i]);
      all.count.push_back(std::exp(rank.outputs[1].data[i]));
    }
    for (size_t j = 0; j < all.grad_values.size(); ++j) all.grad_values[j] += rank.outputs[2].data[j];
  }
  return all;
}

void expect_numbers(const std::vector<double>& got, const std::vector<double>& expected) {
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-6));
}

TEST_CASE("attention of a part: each query sees the keys up to its position, of its document") {
  // Two heads have gradients of 0.5 each: key j has the sum over queries p >= j of 1 / (p + 1).
  const std::vector<double> of_values = {1 + 1. / 2 + 1. / 3 + 1. / 4, 1. / 2 + 1. / 3 + 1. / 4, 1. / 3 + 1. / 4,
                                         1. / 4};
  for (const int64_t ranks : {1, 2, 4}) {
    const Seen natural = seen(ranks, 4, "");
    expect_numbers(natural.mean, {0, 0.5, 1, 1.5});
    expect_numbers(natural.count, {1, 2, 3, 4});
    expect_numbers(natural.grad_values, of_values);
  }
  const Seen balanced = seen(2, 4, " balanced=true");
  expect_numbers(balanced.mean, {0, 1.5, 0.5, 1});
  expect_numbers(balanced.count, {1, 4, 2, 3});
  expect_numbers(balanced.grad_values, of_values);
  // Positions 0, 5, 1, 4, 2, 3; the second document begins at 3.
  const Seen documents = seen(3, 6, " balanced=true documents=true", "%d");
  expect_numbers(documents.mean, {0, 4, 0.5, 3.5, 1, 3});
  expect_numbers(documents.count, {1, 3, 2, 2, 3, 1});
}

TEST_CASE("attention to one rank's keys: what does not fit the axis is refused, forward and backward") {
  const auto refused = [](const std::string& text, const std::string& part) {
    testing::expect_diagnostic(text, concat("sdpa %o ", part));
    testing::expect_diagnostic(text, concat("sdpa_backward %gq ", part));
  };
  verify_or_throw(parse_or_throw(step(2, 4, 4, "axis=cp balanced=true is_causal=true shift=1")));
  refused(step(2, 4, 4, "axis=cp is_causal=true shift=2"), "has shift=2 over 2 ranks");
  refused(step(2, 4, 4, "axis=cp is_causal=true shift=-1"), "has shift=-1 over 2 ranks");
  refused(step(2, 4, 8, "axis=cp is_causal=true shift=1"), "has 4 queries and 8 keys over 2 ranks");
  refused(step(1, 4, 4, "is_causal=true shift=1"), "has shift=");
  refused(step(2, 4, 4, "axis=cp shift=1"), "has axis= without is_causal=true");
  refused(step(2, 4, 4, "axis=cp is_causal=true shift=1", "%m"), "has axis= and a mask");
  // Documents of one rank's keys, where those of the sequence are needed.
  testing::expect_diagnostic(step(2, 4, 4, "axis=cp documents=true is_causal=true shift=1", "%d"), "the documents");
}

TEST_CASE("attention of a part: what does not fit the axis is refused, forward and backward") {
  const auto refused = [](const std::string& text, const std::string& part) {
    testing::expect_diagnostic(text, concat("sdpa %o ", part));
    testing::expect_diagnostic(text, concat("sdpa_backward %gq ", part));
  };
  verify_or_throw(parse_or_throw(step(2, 4, 8, "axis=cp balanced=true is_causal=true")));
  verify_or_throw(parse_or_throw(step(2, 4, 8, "axis=cp document_tokens=3 documents=true is_causal=true", "%d")));
  testing::expect_diagnostic(step(2, 4, 8, "axis=ep is_causal=true"), "ep");
  refused(step(2, 4, 8, "axis=cp"), "has axis= without is_causal=true");
  refused(step(2, 4, 8, "axis=cp is_causal=true", "%m"), "has axis= and a mask");
  refused(step(2, 4, 4, "axis=cp is_causal=true"), "has 4 queries and 4 keys over 2 ranks");
  refused(step(3, 4, 8, "axis=cp is_causal=true"), "has 4 queries and 8 keys over 3 ranks");
  refused(step(3, 2, 8, "axis=cp is_causal=true"), "has 2 queries and 8 keys over 3 ranks");
  refused(step(2, 3, 6, "axis=cp balanced=true is_causal=true"), "has balanced=true and 3 queries");
  refused(step(1, 4, 4, "balanced=true is_causal=true"), "has balanced=true");
  refused(step(2, 4, 8, "documents=true is_causal=true", "%d"), "has 4 queries and 8 keys");
  // documents of the rank's queries alone
  std::string own = step(2, 4, 8, "axis=cp documents=true is_causal=true", "%d");
  own.replace(own.find("i64[1, 8]"), 9, "i64[1, 4]");
  testing::expect_diagnostic(own, "the documents");
}

}  // namespace
}  // namespace sfsdp::ir::sequence_order_test
