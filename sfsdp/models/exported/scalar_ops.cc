// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/models/exported/scalar_ops.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"

namespace sfsdp::models {
namespace {

using Arguments = std::vector<c10::IValue>;

double real(const c10::IValue& v) {
  return v.isInt() ? static_cast<double>(v.toInt()) : v.isBool() ? static_cast<double>(v.toBool()) : v.toDouble();
}
bool whole(const c10::IValue& v) { return v.isInt() || v.isBool(); }
int64_t integer(const c10::IValue& v) { return v.isBool() ? int64_t{v.toBool()} : v.toInt(); }
bool truth(const c10::IValue& v) { return real(v) != 0; }

[[noreturn]] void overflow() {
  throw UserError("a size of the exported graph does not fit 64 bits\n  expected a batch of smaller sizes");
}
[[noreturn]] void divided_by_zero() {
  throw UserError("the exported graph divides a size by 0\n  expected a batch of the sizes that it was exported for");
}

int64_t to_int(double value) {
  if (!(std::abs(value) < 9.2e18)) overflow();
  return static_cast<int64_t>(value);
}

// Whole where both are, else in doubles.
template <class Whole, class Real>
c10::IValue arithmetic(const Arguments& a, Whole on_whole, Real on_real) {
  if (!whole(a[0]) || !whole(a[1])) return on_real(real(a[0]), real(a[1]));
  int64_t result = 0;
  if (on_whole(integer(a[0]), integer(a[1]), &result)) overflow();
  return result;
}

int64_t floor_divide(int64_t a, int64_t b) {
  if (b == 0) divided_by_zero();
  if (b == -1) {  // the one quotient that does not fit
    int64_t negated = 0;
    if (__builtin_sub_overflow(int64_t{0}, a, &negated)) overflow();
    return negated;
  }
  const int64_t quotient = a / b;
  return quotient * b != a && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

int64_t power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) overflow();
    if (result == 0 || result == 1) break;
    if (i > 128) break;  // of -1 alone
  }
  return base == -1 ? (exponent % 2 == 0 ? 1 : -1) : result;
}

template <class Compare>
std::function<c10::IValue(const Arguments&)> compare(Compare compare) {
  return [compare](const Arguments& a) -> c10::IValue {
    return whole(a[0]) && whole(a[1]) ? compare(integer(a[0]), integer(a[1])) : compare(real(a[0]), real(a[1]));
  };
}

struct Operator {
  size_t arguments = 0;
  std::function<c10::IValue(const Arguments&)> run;
};

std::map<std::string, Operator, std::less<>> make_operators() {
  std::map<std::string, Operator, std::less<>> all;
  all["_operator.add"] = {2, [](const Arguments& a) {
                            return arithmetic(
                                a, [](int64_t x, int64_t y, int64_t* r) { return __builtin_add_overflow(x, y, r); },
                                [](double x, double y) { return x + y; });
                          }};
  all["_operator.sub"] = {2, [](const Arguments& a) {
                            return arithmetic(
                                a, [](int64_t x, int64_t y, int64_t* r) { return __builtin_sub_overflow(x, y, r); },
                                [](double x, double y) { return x - y; });
                          }};
  all["_operator.mul"] = {2, [](const Arguments& a) {
                            return arithmetic(
                                a, [](int64_t x, int64_t y, int64_t* r) { return __builtin_mul_overflow(x, y, r); },
                                [](double x, double y) { return x * y; });
                          }};
  all["_operator.floordiv"] = {2, [](const Arguments& a) -> c10::IValue {
                                 if (whole(a[0]) && whole(a[1])) return floor_divide(integer(a[0]), integer(a[1]));
                                 if (real(a[1]) == 0) divided_by_zero();
                                 return std::floor(real(a[0]) / real(a[1]));
                               }};
  all["_operator.mod"] = {2, [](const Arguments& a) -> c10::IValue {
                            const int64_t x = integer(a[0]), y = integer(a[1]);
                            if (y == 0) divided_by_zero();
                            return y == -1 ? 0 : x - floor_divide(x, y) * y;
                          }};
  all["_operator.truediv"] = {2, [](const Arguments& a) -> c10::IValue {
                                if (real(a[1]) == 0) divided_by_zero();
                                return real(a[0]) / real(a[1]);
                              }};
  all["_operator.pow"] = {2, [](const Arguments& a) -> c10::IValue {
                            if (whole(a[0]) && whole(a[1]) && integer(a[1]) >= 0)
                              return power(integer(a[0]), integer(a[1]));
                            return std::pow(real(a[0]), real(a[1]));
                          }};
  all["_operator.neg"] = {1, [](const Arguments& a) -> c10::IValue {
                            if (!whole(a[0])) return -real(a[0]);
                            return floor_divide(integer(a[0]), -1);
                          }};
  all["_operator.eq"] = {2, compare([](auto x, auto y) { return x == y; })};
  all["_operator.ne"] = {2, compare([](auto x, auto y) { return x != y; })};
  all["_operator.lt"] = {2, compare([](auto x, auto y) { return x < y; })};
  all["_operator.le"] = {2, compare([](auto x, auto y) { return x <= y; })};
  all["_operator.gt"] = {2, compare([](auto x, auto y) { return x > y; })};
  all["_operator.ge"] = {2, compare([](auto x, auto y) { return x >= y; })};
  all["_operator.and_"] = {2, [](const Arguments& a) -> c10::IValue { return truth(a[0]) && truth(a[1]); }};
  all["_operator.or_"] = {2, [](const Arguments& a) -> c10::IValue { return truth(a[0]) || truth(a[1]); }};
  all["torch.sym_not"] = {1, [](const Arguments& a) -> c10::IValue { return !truth(a[0]); }};
  all["torch.sym_max"] = {2, [](const Arguments& a) { return real(a[0]) >= real(a[1]) ? a[0] : a[1]; }};
  all["torch.sym_min"] = {2, [](const Arguments& a) { return real(a[0]) <= real(a[1]) ? a[0] : a[1]; }};
  all["torch.sym_float"] = {1, [](const Arguments& a) -> c10::IValue { return real(a[0]); }};
  all["torch.sym_int"] = {1, [](const Arguments& a) -> c10::IValue { return to_int(std::trunc(real(a[0]))); }};
  all["torch.sym_ite"] = {3, [](const Arguments& a) { return truth(a[0]) ? a[1] : a[2]; }};
  all["math.ceil"] = {1, [](const Arguments& a) -> c10::IValue { return to_int(std::ceil(real(a[0]))); }};
  all["math.floor"] = {1, [](const Arguments& a) -> c10::IValue { return to_int(std::floor(real(a[0]))); }};
  all["math.trunc"] = {1, [](const Arguments& a) -> c10::IValue { return to_int(std::trunc(real(a[0]))); }};
  all["torch._sym_sqrt"] = {1, [](const Arguments& a) -> c10::IValue { return std::sqrt(real(a[0])); }};
  return all;
}

const std::map<std::string, Operator, std::less<>>& operators() {
  static const std::map<std::string, Operator, std::less<>> all = make_operators();
  return all;
}

}  // namespace

bool is_scalar_op(const std::string& target) { return operators().contains(target); }

c10::IValue scalar_op(const std::string& target, const std::vector<c10::IValue>& arguments) {
  const Operator& op = operators().at(target);
  const auto number = [](const c10::IValue& v) { return v.isInt() || v.isDouble() || v.isBool(); };
  if (arguments.size() != op.arguments || !std::ranges::all_of(arguments, number))
    throw UserError(concat(target, " of ", arguments.size(), " arguments\n  expected ", op.arguments, " numbers"));
  return op.run(arguments);
}

}  // namespace sfsdp::models
