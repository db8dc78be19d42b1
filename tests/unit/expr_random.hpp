// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "flashtile/tensor.hpp"
#include "variant/expr/evaluate.hpp"
#include "variant/expr/expr.hpp"

/// Random expressions: a text, and beside it a closure that says what it means without any code of
/// the library. Every aux index is in range wherever it is executed; a closure that would read
/// outside counts it in `Data::bad_reads`.
namespace flashtile::variant::testing {

__extension__ typedef __int128 Int128;

/// The aux tensors of all random expressions, with strides that are not the contiguous ones.
struct Data {
  static constexpr int64_t kF = 7, kG0 = 5, kG1 = 6, kI = 9;
  std::vector<float> f;    // (kF), stride 2
  std::vector<double> g;   // (kG0, kG1), transposed in memory
  std::vector<int32_t> i;  // (kI), reversed
  std::vector<int64_t> j;  // (kI)
  std::vector<double> params{0.75, -2.5};
  mutable int bad_reads = 0;

  explicit Data(uint64_t seed) : f(kF * 2), g(kG0 * kG1), i(kI), j(kI) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> real(-2, 2);
    for (float& x : f) x = static_cast<float>(real(random));
    for (double& x : g) x = static_cast<double>(static_cast<float>(real(random)));
    for (int32_t& x : i) x = static_cast<int32_t>(random() % 21) - 10;
    for (int64_t& x : j) x = static_cast<int64_t>(random() % 5);
  }

  static std::vector<AuxSignature> signatures() {
    return {{"f", 1, true}, {"g", 2, true}, {"i", 1, false}, {"j", 1, false}};
  }

  TensorView view(const std::string& name) const {
    using V = std::vector<int64_t>;
    if (name == "f") return TensorView(f.data(), DType::kF32, V{kF}, V{2});
    if (name == "g") return TensorView(g.data(), DType::kF64, V{kG0, kG1}, V{1, kG0});
    if (name == "i") return TensorView(i.data() + kI - 1, DType::kI32, V{kI}, V{-1});
    return TensorView(j.data(), DType::kI64, V{kI}, V{1});
  }

  std::vector<TensorView> views(const Expr& expr) const {
    std::vector<TensorView> out;
    for (const AuxSignature& aux : expr.aux) out.push_back(view(aux.name));
    return out;
  }

  std::vector<double> param_values(const Expr& expr) const {
    std::vector<double> out;
    for (const std::string& name : expr.params) out.push_back(name == "u" ? params[0] : params[1]);
    return out;
  }

  bool inside(int64_t index, int64_t size) const {
    if (index >= 0 && index < size) return true;
    ++bad_reads;
    return false;
  }
  double read_f(int64_t a) const {
    return inside(a, kF) ? static_cast<double>(f[static_cast<size_t>(2 * a)]) : 0;
  }
  double read_g(int64_t a, int64_t b) const {
    return inside(a, kG0) && inside(b, kG1) ? g[static_cast<size_t>(a + kG0 * b)] : 0;
  }
  int64_t read_i(int64_t a) const { return inside(a, kI) ? i[static_cast<size_t>(kI - 1 - a)] : 0; }
  int64_t read_j(int64_t a) const { return inside(a, kI) ? j[static_cast<size_t>(a)] : 0; }
};

template <typename T>
struct Random {
  std::string text;
  std::function<T(const Variables&)> value;
};
using RandomFloat = Random<double>;
using RandomInt = Random<int64_t>;
using RandomBool = Random<bool>;

struct RandomOptions {
  bool score = true;        // may read the score
  bool nonfinite = false;   // may give NaN and infinities
  bool large_ints = false;  // shifts, products of indices
  bool loads = true;
};

class Generator {
 public:
  Generator(uint64_t seed, const Data& data, RandomOptions options = {})
      : random_(seed), data_(data), options_(options) {}

  int64_t pick(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  RandomInt integer(int depth) {
    if (depth <= 0) return int_leaf();
    const RandomInt a = integer(depth - 1);
    switch (pick(options_.large_ints ? 17 : 13)) {
      case 0:
      case 1:
        return combine(a, " + ", integer(depth - 1),
                       [](int64_t x, int64_t y) { return static_cast<int64_t>(Int128{x} + y); });
      case 2:
      case 3:
        return combine(a, " - ", integer(depth - 1),
                       [](int64_t x, int64_t y) { return static_cast<int64_t>(Int128{x} - y); });
      case 4:
        return combine(a, " / ", small(), [](int64_t x, int64_t y) { return y == 0 ? 0 : x / y; });
      case 5:
        return combine(a, " % ", small(), [](int64_t x, int64_t y) { return y == 0 ? 0 : x % y; });
      case 6:
        return call("floordiv", a, small(), [](int64_t x, int64_t y) {
          if (y == 0) return int64_t{0};
          return x / y - (x % y != 0 && (x < 0) != (y < 0) ? 1 : 0);
        });
      case 7:
        return call("floormod", a, small(),
                    [](int64_t x, int64_t y) { return y == 0 ? 0 : ((x % y) + y) % y; });
      case 8:
        return call("min", a, integer(depth - 1),
                    [](int64_t x, int64_t y) { return x < y ? x : y; });
      case 9:
        return call("max", a, integer(depth - 1),
                    [](int64_t x, int64_t y) { return x < y ? y : x; });
      case 10: {
        const RandomBool c = boolean(depth - 1);
        const RandomInt b = integer(depth - 1);
        return {"(" + c.text + " ? " + a.text + " : " + b.text + ")",
                [=](const Variables& v) { return c.value(v) ? a.value(v) : b.value(v); }};
      }
      case 11:
        return {"abs(" + a.text + ")", [=](const Variables& v) {
                  const int64_t x = a.value(v);
                  return static_cast<int64_t>(x < 0 ? -Int128{x} : Int128{x});
                }};
      case 12:
        return options_.loads ? int_load(depth) : a;
      case 13:
        return combine(a, " * ", small(),
                       [](int64_t x, int64_t y) { return static_cast<int64_t>(Int128{x} * y); });
      case 14:
        return combine(a, " << ", small_positive(), [](int64_t x, int64_t y) {
          return static_cast<int64_t>(Int128{x} * (int64_t{1} << y));
        });
      case 15:
        return combine(a, " & ", integer(depth - 1), [](int64_t x, int64_t y) { return x & y; });
      default:
        return combine(a, " ^ ", small(), [](int64_t x, int64_t y) { return x ^ y; });
    }
  }

  RandomFloat number(int depth) {
    if (depth <= 0) return float_leaf();
    const RandomFloat a = number(depth - 1);
    switch (pick(options_.nonfinite ? 20 : 16)) {
      case 0:
      case 1:
        return combine(a, " + ", number(depth - 1), [](double x, double y) { return x + y; });
      case 2:
        return combine(a, " - ", number(depth - 1), [](double x, double y) { return x - y; });
      case 3:
      case 4:
        return combine(a, " * ", number(depth - 1), [](double x, double y) { return x * y; });
      case 5:
        return function("tanh", a, [](double x) { return std::tanh(x); });
      case 6:
        return function("sin", a, [](double x) { return std::sin(x); });
      case 7:
        return function("sigmoid", a, [](double x) { return 1 / (1 + std::exp(-x)); });
      case 8:
        return {"(" + a.text + " / (abs(" + a.text + ") + 1.5))",
                [=](const Variables& v) { return a.value(v) / (std::fabs(a.value(v)) + 1.5); }};
      case 9:
        return {"log(1.25 + abs(" + a.text + "))",
                [=](const Variables& v) { return std::log(1.25 + std::fabs(a.value(v))); }};
      case 10: {
        const RandomBool c = boolean(depth - 1);
        const RandomFloat b = number(depth - 1);
        return {"(" + c.text + " ? " + a.text + " : " + b.text + ")",
                [=](const Variables& v) { return c.value(v) ? a.value(v) : b.value(v); }};
      }
      case 11:
        return call("max", a, number(depth - 1), [](double x, double y) {
          return std::isnan(x) || std::isnan(y) ? NAN : std::fmax(x, y);
        });
      case 12:
        return call("min", a, number(depth - 1), [](double x, double y) {
          return std::isnan(x) || std::isnan(y) ? NAN : std::fmin(x, y);
        });
      case 13:
        return function("cos", a, [](double x) { return std::cos(x); });
      case 14:
        return {"exp(-abs(" + a.text + "))",
                [=](const Variables& v) { return std::exp(-std::fabs(a.value(v))); }};
      case 15:
        return {"pow(1.5 + abs(" + a.text + "), 0.5)",
                [=](const Variables& v) { return std::pow(1.5 + std::fabs(a.value(v)), 0.5); }};
      case 16:
        return function("sqrt", a, [](double x) { return std::sqrt(x); });
      case 17:
        return function("log", a, [](double x) { return std::log(x); });
      case 18:
        return combine(a, " / ", number(depth - 1), [](double x, double y) { return x / y; });
      default:
        return combine(a, " % ", number(depth - 1),
                       [](double x, double y) { return std::fmod(x, y); });
    }
  }

  RandomBool boolean(int depth) {
    switch (pick(depth <= 0 ? 3 : 9)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return comparison(integer(depth - 1), integer(depth - 1));
      case 4:
        return options_.score ? comparison(number(depth - 1), number(depth - 1))
                              : comparison(integer(depth - 1), integer(depth - 1));
      case 5: {
        const RandomBool a = boolean(depth - 1);
        return {"!" + a.text, [=](const Variables& v) { return !a.value(v); }};
      }
      case 6: {
        const RandomBool a = boolean(depth - 1), b = boolean(depth - 1);
        return {"(" + a.text + " || " + b.text + ")",
                [=](const Variables& v) { return a.value(v) || b.value(v); }};
      }
      default: {
        const RandomBool a = boolean(depth - 1), b = boolean(depth - 1);
        return {"(" + a.text + " && " + b.text + ")",
                [=](const Variables& v) { return a.value(v) && b.value(v); }};
      }
    }
  }

 private:
  template <typename T, typename F>
  static Random<T> combine(const Random<T>& a, const std::string& op, const Random<T>& b, F f) {
    return {"(" + a.text + op + b.text + ")",
            [=](const Variables& v) { return static_cast<T>(f(a.value(v), b.value(v))); }};
  }
  template <typename T, typename F>
  static Random<T> call(const std::string& name, const Random<T>& a, const Random<T>& b, F f) {
    return {name + "(" + a.text + ", " + b.text + ")",
            [=](const Variables& v) { return static_cast<T>(f(a.value(v), b.value(v))); }};
  }
  template <typename F>
  static RandomFloat function(const std::string& name, const RandomFloat& a, F f) {
    return {name + "(" + a.text + ")", [=](const Variables& v) { return f(a.value(v)); }};
  }
  template <typename T>
  RandomBool comparison(const Random<T>& a, const Random<T>& b) {
    static const char* const kOps[] = {" == ", " != ", " < ", " <= ", " > ", " >= "};
    const int64_t op = pick(6);
    return {"(" + a.text + kOps[op] + b.text + ")", [=](const Variables& v) {
              const T x = a.value(v), y = b.value(v);
              switch (op) {
                case 0:
                  return x == y;
                case 1:
                  return x != y;
                case 2:
                  return x < y;
                case 3:
                  return x <= y;
                case 4:
                  return x > y;
                default:
                  return x >= y;
              }
            }};
  }

  RandomInt small() {
    static constexpr int64_t kValues[] = {2, 3, 4, 5, 7, -2, -3, 1, 0};
    const int64_t value = kValues[pick(9)];
    return {value < 0 ? "(" + std::to_string(value) + ")" : std::to_string(value),
            [=](const Variables&) { return value; }};
  }
  RandomInt small_positive() {
    const int64_t value = pick(5);
    return {std::to_string(value), [=](const Variables&) { return value; }};
  }

  RandomInt int_leaf() {
    static constexpr struct {
      const char* name;
      int64_t Variables::*member;
    } kNames[] = {{"q_idx", &Variables::q_idx},       {"k_idx", &Variables::k_idx},
                  {"q_idx", &Variables::q_idx},       {"k_idx", &Variables::k_idx},
                  {"head", &Variables::head},         {"batch", &Variables::batch},
                  {"head_kv", &Variables::head_kv},   {"seqlen_q", &Variables::seqlen_q},
                  {"seqlen_k", &Variables::seqlen_k}, {"query_offset", &Variables::query_offset}};
    const int64_t n = pick(13);
    if (n < 10) {
      const auto leaf = kNames[n];
      return {leaf.name, [=](const Variables& v) { return v.*leaf.member; }};
    }
    const int64_t value = pick(12);
    return {std::to_string(value), [=](const Variables&) { return value; }};
  }

  RandomFloat float_leaf() {
    switch (pick(options_.loads ? 8 : 5)) {
      case 0:
      case 1:
        if (options_.score) return {"score", [](const Variables& v) { return v.score; }};
        return {"float(q_idx)", [](const Variables& v) { return static_cast<double>(v.q_idx); }};
      case 2: {
        const int64_t value = pick(17) - 8;
        const std::string text = std::to_string(static_cast<double>(value) * 0.25);
        return {value < 0 ? "(" + text + ")" : text,
                [=](const Variables&) { return static_cast<double>(value) * 0.25; }};
      }
      case 3: {
        const RandomInt i = int_leaf();
        return {"float(" + i.text + ")",
                [=](const Variables& v) { return static_cast<double>(i.value(v)); }};
      }
      case 4: {
        const bool u = pick(2) == 0;
        const double value = data_.params[u ? 0 : 1];
        return {u ? "param.u" : "param.w", [=](const Variables&) { return value; }};
      }
      default:
        return float_load();
    }
  }

  // An index that is in range everywhere.
  RandomInt index(int depth, int64_t size) {
    const RandomInt a = integer(depth);
    return {"floormod(" + a.text + ", " + std::to_string(size) + ")",
            [=](const Variables& v) { return ((a.value(v) % size) + size) % size; }};
  }

  RandomFloat float_load() {
    const Data* data = &data_;
    if (pick(3) == 0) {  // guarded: out of range where the branch is not taken
      const RandomInt a = integer(1);
      const std::string size = std::to_string(Data::kF);
      return {"(0 <= " + a.text + " && " + a.text + " < " + size + " ? f[" + a.text + "] : 0.5)",
              [=](const Variables& v) {
                const int64_t at = a.value(v);
                return at >= 0 && at < Data::kF ? data->read_f(at) : 0.5;
              }};
    }
    if (pick(2) == 0) {
      const RandomInt a = index(1, Data::kF);
      return {"f[" + a.text + "]", [=](const Variables& v) { return data->read_f(a.value(v)); }};
    }
    const RandomInt a = index(1, Data::kG0), b = index(0, Data::kG1);
    return {"g[" + a.text + ", " + b.text + "]",
            [=](const Variables& v) { return data->read_g(a.value(v), b.value(v)); }};
  }

  RandomInt int_load(int depth) {
    const Data* data = &data_;
    const RandomInt a = index(depth - 1, Data::kI);
    if (pick(2) == 0) {
      return {"i[" + a.text + "]", [=](const Variables& v) { return data->read_i(a.value(v)); }};
    }
    return {"j[" + a.text + "]", [=](const Variables& v) { return data->read_j(a.value(v)); }};
  }

  std::mt19937_64 random_;
  const Data& data_;
  RandomOptions options_;
};

/// Values as they occur: indices inside the lengths, the score from a bell of width 2.
inline Variables random_variables(std::mt19937_64& random) {
  Variables v;
  v.seqlen_q = static_cast<int64_t>(random() % 12) + 1;
  v.seqlen_k = static_cast<int64_t>(random() % 12) + 1;
  v.q_idx = static_cast<int64_t>(random() % static_cast<uint64_t>(v.seqlen_q));
  v.k_idx = static_cast<int64_t>(random() % static_cast<uint64_t>(v.seqlen_k));
  v.batch = static_cast<int64_t>(random() % 3);
  v.head = static_cast<int64_t>(random() % 4);
  v.head_kv = v.head / 2;
  v.query_offset = v.seqlen_k - v.seqlen_q;
  v.score = std::normal_distribution<double>(0, 2)(random);
  return v;
}

}  // namespace flashtile::variant::testing
