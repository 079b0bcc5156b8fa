// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/kernels/attention.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "sfsdp/base/half.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/kernels/family.h"
#include "sfsdp/kernels/of_op.h"

namespace sfsdp::kernels::attention_test {
namespace {

// [batch, heads, rows, width], in memory [batch, rows, heads, width] as models have it, with a gap after each row.
struct Tensor {
  int64_t heads, rows, width;
  bool half;
  std::vector<float> wide;
  std::vector<uint16_t> narrow;

  Tensor(int64_t batch, int64_t h, int64_t r, int64_t w, bool is_half) : heads(h), rows(r), width(w), half(is_half) {
    const auto count = static_cast<size_t>(batch * rows * row());
    half ? narrow.resize(count) : wide.resize(count);
  }
  int64_t row() const { return heads * width + 16; }
  Heads view() {
    void* data = half ? static_cast<void*>(narrow.data()) : wide.data();
    return {data, rows * row(), width, row()};
  }
  size_t at(int64_t b, int64_t h, int64_t r, int64_t i) const {
    return static_cast<size_t>((b * rows + r) * row() + h * width + i);
  }
  double get(int64_t b, int64_t h, int64_t r, int64_t i) const {
    return half ? from_bf16(narrow[at(b, h, r, i)]) : wide[at(b, h, r, i)];
  }
  void fill(std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (float& x : wide) x = normal(random);
    for (uint16_t& x : narrow) x = to_bf16(normal(random));
  }
};

struct Case {
  AttentionShape shape;
  std::vector<int64_t> documents;               // [batch, keys]
  std::vector<ir::PositionRun> positions = {};  // of the queries of a part

  int64_t position(int64_t query) const {
    for (const ir::PositionRun& run : positions) {
      if (query < run.count) return run.first + query;
      query -= run.count;
    }
    return query;
  }
};

struct Data {
  Tensor query, key, value, out, grad_out, grad_query, grad_key, grad_value;
  std::vector<float> log_sum;

  explicit Data(const AttentionShape& s)
      : query(s.batch, s.heads, s.queries, s.width, s.dtype == ir::DType::bf16),
        key(s.batch, s.groups, s.keys, s.width, query.half),
        value(key),
        out(query),
        grad_out(query),
        grad_query(query),
        grad_key(key),
        grad_value(key),
        log_sum(static_cast<size_t>(s.batch * s.heads * s.queries)) {
    std::mt19937 random(1);
    for (Tensor* t : {&query, &key, &value, &grad_out}) t->fill(random);
  }
  Attention attention(const Case& given) {
    const AttentionShape& s = given.shape;
    Attention attention = whole(s, given.documents);
    std::ranges::copy(given.positions, attention.positions);
    return attention;
  }
  Attention whole(const AttentionShape& s, const std::vector<int64_t>& documents) {
    return {s,
            query.view(),
            key.view(),
            value.view(),
            documents.empty() ? nullptr : documents.data(),
            out.view(),
            {log_sum.data(), s.heads * s.queries, 1, s.heads},
            grad_out.view(),
            grad_query.view(),
            grad_key.view(),
            grad_value.view()};
  }
};

double& of(std::vector<double>& t, const AttentionShape& s, int64_t heads, int64_t b, int64_t h, int64_t r, int64_t i) {
  const int64_t rows = static_cast<int64_t>(t.size()) / (s.batch * heads * s.width);
  return t[static_cast<size_t>(((b * heads + h) * rows + r) * s.width + i)];
}

// In float64, as the formulas have it.
struct Expected {
  std::vector<double> out, log_sum, grad_query, grad_key, grad_value;
};
Expected expected(const Case& given, const Data& d) {
  const AttentionShape& s = given.shape;
  const auto per_query = static_cast<size_t>(s.batch * s.heads * s.queries);
  const auto per_key = static_cast<size_t>(s.batch * s.groups * s.keys * s.width);
  Expected e;
  e.out.resize(per_query * static_cast<size_t>(s.width));
  e.grad_query = e.out;
  e.log_sum.resize(per_query);
  e.grad_key.resize(per_key);
  e.grad_value.resize(per_key);
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h)
      for (int64_t q = 0; q < s.queries; ++q) {
        const int64_t g = h / (s.heads / s.groups);
        std::vector<double> p(static_cast<size_t>(s.keys)), slope(p);
        double most = -std::numeric_limits<double>::infinity(), sum = 0, delta = 0;
        for (int64_t k = 0; k < s.keys; ++k) {
          double score = 0;
          for (int64_t i = 0; i < s.width; ++i) score += d.query.get(b, h, q, i) * d.key.get(b, g, k, i);
          const auto document = [&](int64_t at) { return given.documents[static_cast<size_t>(b * s.keys + at)]; };
          const int64_t at = given.position(q);
          const bool hidden = (s.causal && k > at) || (!given.documents.empty() && document(at) != document(k));
          p[static_cast<size_t>(k)] = hidden ? -std::numeric_limits<double>::infinity() : score * s.scale;
          most = std::max(most, p[static_cast<size_t>(k)]);
        }
        for (double& x : p) sum += x = std::exp(x - most);
        for (double& x : p) x /= sum;
        e.log_sum[static_cast<size_t>((b * s.queries + q) * s.heads + h)] = most + std::log(sum);
        for (int64_t i = 0; i < s.width; ++i) {
          double& out = of(e.out, s, s.heads, b, h, q, i);
          for (int64_t k = 0; k < s.keys; ++k) out += p[static_cast<size_t>(k)] * d.value.get(b, g, k, i);
          delta += out * d.grad_out.get(b, h, q, i);
        }
        for (int64_t k = 0; k < s.keys; ++k) {
          const double weight = p[static_cast<size_t>(k)];
          double grad = 0;
          for (int64_t i = 0; i < s.width; ++i) grad += d.grad_out.get(b, h, q, i) * d.value.get(b, g, k, i);
          const double change = weight * (grad - delta) * s.scale;
          for (int64_t i = 0; i < s.width; ++i) {
            of(e.grad_value, s, s.groups, b, g, k, i) += weight * d.grad_out.get(b, h, q, i);
            of(e.grad_key, s, s.groups, b, g, k, i) += change * d.query.get(b, h, q, i);
            of(e.grad_query, s, s.heads, b, h, q, i) += change * d.key.get(b, g, k, i);
          }
        }
      }
  return e;
}

// Root mean square of the difference, of that of the expected values.
double error(const Tensor& got, std::vector<double>& expected, const AttentionShape& s) {
  double off = 0, size = 0;
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < got.heads; ++h)
      for (int64_t r = 0; r < got.rows; ++r)
        for (int64_t i = 0; i < s.width; ++i) {
          const double e = of(expected, s, got.heads, b, h, r, i), g = got.get(b, h, r, i);
          off += (g - e) * (g - e);
          size += e * e;
        }
  return std::sqrt(off / size);
}

std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const auto dtype : {ir::DType::f32, ir::DType::bf16})
    for (const bool causal : {false, true})
      for (const int64_t width : {16, 48, 64, 80, 128}) {
        const float scale = 1 / std::sqrt(static_cast<float>(width));
        cases.push_back({{2, 2, 2, 70, 70, width, causal, scale, dtype}, {}});
        cases.push_back({{1, 6, 2, 129, 129, width, causal, scale, dtype}, {}});
        if (!causal) cases.push_back({{1, 2, 1, 3, 130, width, causal, scale, dtype}, {}});
        if (!causal) cases.push_back({{1, 1, 1, 64, 1, width, causal, scale, dtype}, {}});
      }
  Case packed = {{2, 4, 2, 200, 200, 32, true, 0.2F, ir::DType::f32}, {}};
  for (int64_t i = 0; i < 400; ++i) packed.documents.push_back(i % 200 < 30 ? 5 : i % 200 < 140 ? 8 : 9 + i / 200);
  cases.push_back(packed);
  const std::vector<int64_t> blocks = packed.documents;  // of which a tile of queries sees no key of most
  for (size_t i = 0; i < packed.documents.size(); ++i) packed.documents[i] = static_cast<int64_t>(i * 7 % 3) - 1;
  packed.shape.dtype = ir::DType::bf16;
  cases.push_back(packed);  // documents that come again, in no order
  // Parts of those 200 positions: within one tile of keys and over several, at the start, in the middle and at the end.
  for (const auto dtype : {ir::DType::f32, ir::DType::bf16})
    for (const auto& positions : std::vector<std::vector<ir::PositionRun>>{
             {{0, 50}, {150, 50}}, {{50, 25}, {125, 25}}, {{64, 70}, {136, 64}}, {{0, 100}}, {{3, 130}}, {{199, 1}}})
      for (const auto& documents : {std::vector<int64_t>(), packed.documents, blocks}) {
        Case part = {packed.shape, documents, positions};
        part.shape.dtype = dtype;
        part.shape.is_part = true;
        part.shape.queries = 0;
        for (const ir::PositionRun& run : positions) part.shape.queries += run.count;
        cases.push_back(part);
      }
  return cases;
}

void run_units(const Family& family, const Attention& attention, const std::vector<int32_t>& documents) {
  const AttentionShape& s = attention.shape;
  const auto floats = static_cast<size_t>(scratch_floats(s, true)) + 16;
  std::vector<float> scratch(floats);
  float* aligned = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64 / sizeof(float);
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t g = 0; g < s.groups; ++g) {
      const AttentionUnit unit = {&attention, b, g, documents.empty() ? nullptr : documents.data() + b * s.keys,
                                  aligned};
      family.attend(unit);
      family.attend_backward(unit);
    }
}

TEST_CASE("attention: results and gradients of float64, on every family of processors that this one is of") {
  for (const Case& given : cases()) {
    CAPTURE(given.shape.width);
    CAPTURE(given.shape.queries);
    CAPTURE(given.shape.causal);
    CAPTURE(ir::to_string(given.shape.dtype));
    REQUIRE(can_attend(given.shape));
    const bool half = given.shape.dtype == ir::DType::bf16;
    for (const Family& family : families()) {
      CAPTURE(family.name);
      Data d(given.shape);
      const Attention attention = d.attention(given);
      run_units(family, attention, {given.documents.begin(), given.documents.end()});
      Expected e = expected(given, d);
      // In bf16 the last rounding alone: 2^-9 at most, 2^-9 / sqrt(3) in the mean; backward reads a result that was rounded.
      // A result rounded to bfloat16 is off by 1.1e-3; this family rounds the weights too, as LibTorch does.
      const bool rounds_weights = std::string_view(family.name) == "avx512bf16";
      const double bar = !half ? 1e-6 : rounds_weights ? 2.8e-3 : 2e-3;
      CHECK(error(d.out, e.out, given.shape) < bar);
      CHECK(error(d.grad_value, e.grad_value, given.shape) < bar);
      if (given.shape.keys > 1) CHECK(error(d.grad_query, e.grad_query, given.shape) < 2 * bar);
      if (given.shape.keys > 1) CHECK(error(d.grad_key, e.grad_key, given.shape) < 2 * bar);
      for (size_t i = 0; i < e.log_sum.size(); ++i) REQUIRE(std::abs(d.log_sum[i] - e.log_sum[i]) < 4e-6);
    }
  }
}

TEST_CASE("attention: units may be computed in parts, and by themselves have the same bits") {
  Case given = {{2, 4, 2, 100, 100, 32, true, 0.2F, ir::DType::f32}, {}};
  for (int64_t i = 0; i < 200; ++i) given.documents.push_back(i / 40);
  Data whole(given.shape), parts(given.shape);
  const Attention all = whole.attention(given), some = parts.attention(given);
  attend(all, 0, 4);
  attend_backward(all, 0, 4);
  for (int64_t i = 4; i-- > 0;) attend(some, i, i + 1);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{3, 4}, {0, 3}}) attend_backward(some, begin, end);
  CHECK(whole.out.wide == parts.out.wide);
  CHECK(whole.grad_key.wide == parts.grad_key.wide);
  CHECK(whole.grad_query.wide == parts.grad_query.wide);
}

TEST_CASE("attention: a part of all queries has the bits of the whole, one of some their results") {
  const Case given = {{2, 4, 2, 200, 200, 32, true, 0.2F, ir::DType::f32}, {}};
  Case all = given, late = given;
  all.shape.is_part = late.shape.is_part = true;
  all.positions = {{0, 200}};
  late.shape.queries = 72;
  late.positions = {{128, 72}};
  Data whole(given.shape), as_part(given.shape), of_late(late.shape);
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t r = 0; r < 72; ++r)
      std::copy_n(whole.query.wide.data() + whole.query.at(b, 0, 128 + r, 0), whole.query.row(),
                  of_late.query.wide.data() + of_late.query.at(b, 0, r, 0));
  of_late.key = whole.key;
  of_late.value = whole.value;
  attend(whole.attention(given), 0, 4);
  attend_backward(whole.attention(given), 0, 4);
  attend(as_part.attention(all), 0, 4);
  attend_backward(as_part.attention(all), 0, 4);
  CHECK(whole.out.wide == as_part.out.wide);
  CHECK(whole.log_sum == as_part.log_sum);
  for (const auto grad : {&Data::grad_query, &Data::grad_key, &Data::grad_value})
    CHECK((whole.*grad).wide == (as_part.*grad).wide);
  attend(of_late.attention(late), 0, 4);  // begins with a tile, as the whole does there
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t r = 0; r < 72; ++r)
      for (int64_t i = 0; i < 32; ++i) REQUIRE(of_late.out.get(b, 3, r, i) == whole.out.get(b, 3, 128 + r, i));
}

TEST_CASE("attention: a part whose queries have no position, or one beyond the keys, is refused") {
  Case given = {{1, 1, 1, 8, 20, 16, true, 1, ir::DType::f32}, {}, {{0, 4}, {16, 4}}};
  given.shape.is_part = true;
  Data d(given.shape);
  attend(d.attention(given), 0, 1);
  for (const auto& wrong : std::vector<std::vector<ir::PositionRun>>{
           {{0, 4}, {17, 4}}, {{0, 4}, {16, 3}}, {{-1, 4}, {16, 4}}, {{0, 9}, {16, -1}}, {}}) {
    given.positions = wrong;
    CHECK_THROWS(attend(d.attention(given), 0, 1));
    CHECK_THROWS(attend_backward(d.attention(given), 0, 1));
  }
}

TEST_CASE("attention: a nan or an infinite score makes the results of its query nan, and no other's") {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const Family& family : families()) {
      CAPTURE(family.name);
      const Case given = {{1, 1, 1, 80, 80, 16, true, 0.25F, ir::DType::f32}, {}};
      Data d(given.shape);
      d.query.wide[d.query.at(0, 0, 70, 3)] = bad;
      run_units(family, d.attention(given), {});
      for (int64_t q = 0; q < 80; ++q) {
        CAPTURE(q);
        REQUIRE(std::isnan(d.out.get(0, 0, q, 0)) == (q == 70));
        REQUIRE(std::isnan(d.grad_query.get(0, 0, q, 0)) == (q == 70));
      }
      CHECK(std::isnan(d.grad_key.get(0, 0, 70, 0)));
    }
}

TEST_CASE("attention: what it does not compute, it says") {
  const AttentionShape fine = {1, 2, 1, 8, 8, 16, true, 1, ir::DType::f32};
  const auto with = [&](auto change) {
    AttentionShape s = fine;
    change(s);
    return can_attend(s);
  };
  CHECK(can_attend(fine));
  CHECK_FALSE(with([](AttentionShape& s) { s.width = 24; }));
  CHECK_FALSE(with([](AttentionShape& s) { s.width = 272; }));
  CHECK_FALSE(with([](AttentionShape& s) { s.keys = 9; }));
  CHECK(with([](AttentionShape& s) { s.keys = 9, s.is_part = true; }));
  CHECK_FALSE(with([](AttentionShape& s) { s.keys = 7, s.is_part = true; }));
  CHECK_FALSE(with([](AttentionShape& s) { s.is_part = true, s.causal = false; }));
  CHECK_FALSE(with([](AttentionShape& s) { s.scale = -1; }));
  CHECK_FALSE(with([](AttentionShape& s) { s.dtype = ir::DType::f64; }));
  CHECK_FALSE(with([](AttentionShape& s) { s.heads = 3, s.groups = 2; }));
}

TEST_CASE("attention of an op: a scale may be a whole number, queries may be a part, which only axis= makes them") {
  const auto shape_of = [](const std::string& attrs) {
    const ir::Graph graph = ir::parse_or_throw(
        "graph mesh [cp=2] view local\n  %q = input name=q : f32[1, 2, 32, 16]\n  %k = input name=k : f32[1, 2, 64, "
        "16]\n"
        "fwd:\n  %o, %l = sdpa %q, %k, %k, none " +
        attrs + " : f32[1, 2, 32, 16], f32[1, 2, 32]\n");
    return attention_of(*graph.find_value("o")->producer());
  };
  CHECK(shape_of("scale=2").value().scale == 2);
  CHECK(shape_of("scale=0.5").value().scale == 0.5F);
  CHECK(shape_of("").value().scale == 0.25F);
  CHECK(shape_of("axis=cp is_causal=true").value().is_part);
  CHECK_FALSE(shape_of("is_causal=true"));
}

}  // namespace
}  // namespace sfsdp::kernels::attention_test
