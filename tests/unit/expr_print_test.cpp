// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "unit/expr_random.hpp"
#include "variant/expr/derivative.hpp"
#include "variant/expr/evaluate.hpp"
#include "variant/expr/parse.hpp"
#include "variant/expr/print.hpp"
#include "variant/expr/substitute.hpp"

namespace flashtile::variant {
namespace {

using testing::Data;
using testing::Generator;
using testing::random_variables;

std::string again(const std::string& text) {
  return print(parse_score(text, Data::signatures()), PrintStyle::kText);
}

TEST(ExprPrint, TextIsWhatOneWouldWrite) {
  EXPECT_EQ(again("score+0.01*( q_idx-k_idx )"), "score + (q_idx - k_idx) * 0.01");
  EXPECT_EQ(again("20.0 * tanh(score / 20.0)"), "tanh(score / 20.0) * 20.0");
  EXPECT_EQ(again("score > 0 ? sqrt(score + 1.0) - 1.0 : score > -1.0 ? 2 * score : score - 1.0"),
            "score > 0.0 ? sqrt(score + 1.0) - 1.0 : score > -1.0 ? score * 2.0 : score - 1.0");
  EXPECT_EQ(again("score - f[head] * abs(q_idx + seqlen_k - seqlen_q - k_idx)"),
            "score - f[head] * abs(q_idx + seqlen_k - seqlen_q - k_idx)");
  EXPECT_EQ(again("(1 - (2 - score)) * -(3 / (score / score))"),
            "(1.0 - (2.0 - score)) * -(3.0 / (score / score))");
  EXPECT_EQ(again("(q_idx < 3 || k_idx > 2) && !(score < 1.0) ? score : 0.5"),
            "(q_idx < 3 || k_idx > 2) && !(score < 1.0) ? score : 0.5");
  EXPECT_EQ(again("score + (q_idx - 5 & 3 | k_idx << 2)"), "score + (q_idx - 5 & 3 | k_idx << 2)");
  EXPECT_EQ(again("param.u * max(float(q_idx), score) + 1e300 + 0.1"),
            "param.u * max(float(q_idx), score) + 1e+300 + 0.1");
  EXPECT_EQ(again("score + (-9223372036854775807 - 1) / q_idx"),
            "score + (-9223372036854775807 - 1) / q_idx");
  EXPECT_EQ(again("score + 1.0 / 0 - 0.0 / 0"), "score + (1.0 / 0.0) - (0.0 / 0.0)");
  EXPECT_EQ(print(parse_mask("1", {})), "1");
  EXPECT_EQ(print(parse_mask("k_idx - k_idx", {})), "0");
}

TEST(ExprPrint, TextParsesBackToTheSameExpression) {
  const Data data(61);
  const auto aux = Data::signatures();
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    Generator generator(seed, data, {.nonfinite = true, .large_ints = true});
    const int depth = 1 + static_cast<int>(seed % 5);
    const Expr score = parse_score(generator.number(depth).text, aux);
    ASSERT_TRUE(parse_score(print(score), aux) == score) << print(score);
    Generator mask_generator(seed, data, {.score = false, .large_ints = true});
    const Expr mask = parse_mask(mask_generator.boolean(depth).text, aux);
    ASSERT_TRUE(parse_mask(print(mask), aux) == mask) << print(mask);
    const Expr derivative = derivative_score(score);
    if (derivative.nodes.size() < 60) {
      ASSERT_TRUE(parse_score(print(derivative), aux) == derivative) << print(derivative);
    }
  }
}

// What the header promises to device text, for plain C++.
constexpr const char* kPrelude = R"(
typedef float Float;
typedef long long Int;
typedef bool Bool;
static Float abs(Float x) { return __builtin_fabsf(x); }
static Int abs(Int x) { return x < 0 ? (Int)(0 - (unsigned long long)x) : x; }
static Float min(Float a, Float b) { return a != a || a < b ? a : b; }
static Float max(Float a, Float b) { return a != a || a > b ? a : b; }
static Int min(Int a, Int b) { return a < b ? a : b; }
static Int max(Int a, Int b) { return a > b ? a : b; }
static Int int_div(Int a, Int b) { return b == 0 ? 0 : b == -1 ? -a : a / b; }
static Int int_mod(Int a, Int b) { return b == 0 || b == -1 ? 0 : a % b; }
static Int floor_mod(Int a, Int b) {
  Int r = int_mod(a, b);
  return r && (r < 0) != (b < 0) ? r + b : r;
}
static Int floor_div(Int a, Int b) { return int_div(a - floor_mod(a, b), b); }
static Int shift_left(Int a, Int b) { return (Int)((unsigned long long)a << (b & 63)); }
static Int shift_right(Int a, Int b) { return a >> (b & 63); }
static Float exp(Float x) { return __builtin_expf(x); }
static Float log(Float x) { return __builtin_logf(x); }
static Float log2(Float x) { return __builtin_log2f(x); }
static Float tanh(Float x) { return __builtin_tanhf(x); }
static Float sigmoid(Float x) { return 1 / (1 + __builtin_expf(-x)); }
static Float sqrt(Float x) { return __builtin_sqrtf(x); }
static Float sin(Float x) { return __builtin_sinf(x); }
static Float cos(Float x) { return __builtin_cosf(x); }
static Float floor(Float x) { return __builtin_floorf(x); }
static Float pow(Float x, Float y) { return __builtin_powf(x, y); }
static Float fmod(Float x, Float y) { return __builtin_fmodf(x, y); }
static Float infinity() { return __builtin_inff(); }
static Float not_a_number() { return __builtin_nanf(""); }
static bool logical_not(bool a) { return !a; }
static bool logical_and(bool a, bool b) { return a & b; }
static bool logical_or(bool a, bool b) { return a | b; }
static Int to_int(Float x) { return x != x ? 0 : (Int)x; }
static Int to_int(bool x) { return x; }
static Float to_float(Int x) { return (Float)x; }
static Float to_float(bool x) { return x; }
template <typename T> static T select(bool c, T a, T b) { return c ? a : b; }
struct Call {
  float score; long long batch, head, head_kv, q_idx, k_idx, seqlen_q, seqlen_k, query_offset;
  float param_u, param_w;
  const void* data;
  float (*f)(const void*, Int);
  float (*g)(const void*, Int, Int);
  Int (*i)(const void*, Int);
  Int (*j)(const void*, Int);
};
#define aux_f(active, a) (active ? call.f(call.data, a) : infinity())
#define aux_g(active, a, b) (active ? call.g(call.data, a, b) : infinity())
#define aux_i(active, a) (active ? call.i(call.data, a) : Int(1) << 40)
#define aux_j(active, a) (active ? call.j(call.data, a) : Int(1) << 40)
#define VARIABLES \
  const Float score = call.score, param_u = call.param_u, param_w = call.param_w; \
  const Int batch = call.batch, head = call.head, head_kv = call.head_kv, q_idx = call.q_idx, \
            k_idx = call.k_idx, seqlen_q = call.seqlen_q, seqlen_k = call.seqlen_k, \
            query_offset = call.query_offset; \
  (void)score, (void)param_u, (void)param_w, (void)batch, (void)head, (void)head_kv, (void)q_idx, \
      (void)k_idx, (void)seqlen_q, (void)seqlen_k, (void)query_offset;
)";

struct Call {
  float score;
  int64_t batch, head, head_kv, q_idx, k_idx, seqlen_q, seqlen_k, query_offset;
  float param_u, param_w;
  const Data* data;
  float (*f)(const Data*, int64_t);
  float (*g)(const Data*, int64_t, int64_t);
  int64_t (*i)(const Data*, int64_t);
  int64_t (*j)(const Data*, int64_t);
};

Call make_call(const Data& data, const Variables& at) {
  return {static_cast<float>(at.score),
          at.batch,
          at.head,
          at.head_kv,
          at.q_idx,
          at.k_idx,
          at.seqlen_q,
          at.seqlen_k,
          at.query_offset,
          static_cast<float>(data.params[0]),
          static_cast<float>(data.params[1]),
          &data,
          [](const Data* d, int64_t a) { return static_cast<float>(d->read_f(a)); },
          [](const Data* d, int64_t a, int64_t b) { return static_cast<float>(d->read_g(a, b)); },
          [](const Data* d, int64_t a) { return d->read_i(a); },
          [](const Data* d, int64_t a) { return d->read_j(a); }};
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(ExprPrint, SplitTextReadsOnceForAQueryAndOnceForAKey) {
  const std::vector<AuxSignature> aux = {{"ids", 1, false}, {"all", 0, false}};
  const SplitText split =
      print_split(parse_mask("ids[q_idx + 1] == ids[k_idx] && k_idx % 3 != head % 2", aux));
  EXPECT_EQ(count_of(split.row, "aux_ids("), 1);
  EXPECT_EQ(count_of(split.column, "aux_ids("), 1);
  EXPECT_EQ(count_of(split.pair, "aux_ids("), 0);
  // The head may differ from row to row of a tile: it is none of the key's.
  EXPECT_EQ(count_of(split.row, "int_mod("), 1);
  EXPECT_EQ(count_of(split.column, "int_mod("), 1);
  EXPECT_EQ(count_of(split.pair, "int_mod("), 0);
  EXPECT_EQ(count_of(split.pair, "row.v"), 2);
  EXPECT_EQ(count_of(split.pair, "column.v"), 2);

  const SplitText of_key = print_split(parse_mask("k_idx % 3 != seqlen_k - 1", aux));
  EXPECT_EQ(of_key.row_values.size(), 0u);
  EXPECT_EQ(of_key.column_values.size(), 1u);
  // What all pairs share is read with the row, and guards stay with what they guard.
  const SplitText guarded = print_split(parse_mask("k_idx > all && ids[q_idx] > 2", aux));
  EXPECT_EQ(count_of(guarded.row, "aux_all("), 1);
  EXPECT_EQ(count_of(guarded.column, "aux_"), 0);
  EXPECT_EQ(count_of(guarded.pair, "aux_ids("), 1);
}

TEST(ExprPrint, DeviceTextCompilesAndMeansTheSame) {
#if defined(__aarch64__)
  const char* const check = "c++ -dumpmachine 2> /dev/null | grep -q '^aarch64'";
#else
  const char* const check = "c++ -dumpmachine 2> /dev/null | grep -q '^x86_64'";
#endif
  if (std::system(check) != 0) GTEST_SKIP() << "no compiler for this machine";
  const Data data(62);
  constexpr uint64_t kCount = 60;
  std::vector<Expr> scores;
  std::string code = kPrelude;
  for (uint64_t seed = 0; seed < kCount; ++seed) {
    Generator generator(seed, data);
    scores.push_back(
        parse_score(generator.number(2 + static_cast<int>(seed % 3)).text, Data::signatures()));
    const std::string name = std::to_string(seed);
    code += "static Float score" + name + "(const Call& call) {\nVARIABLES\n" +
            print(scores.back(), PrintStyle::kDevice) + "}\n";
    code += "extern \"C\" void both" + name + "(const Call& call, Float& out0, Float& out1) {\n" +
            "VARIABLES\n" +
            print_device(std::vector{scores.back(), derivative_score(scores.back())}) +
            "if (out0 == out0 && out0 != score" + name + "(call)) out0 = infinity();\n}\n";
  }
  const auto folder =
      std::filesystem::temp_directory_path() / ("flashtile_print_" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  std::ofstream(folder / "code.cpp") << code;
  const std::string command = "c++ -std=c++17 -w -O0 -fno-builtin -shared -fPIC -o '" +
                              (folder / "code.so").string() + "' '" +
                              (folder / "code.cpp").string() + "' -lm";
  ASSERT_EQ(std::system(command.c_str()), 0);
  void* library = dlopen((folder / "code.so").c_str(), RTLD_NOW);
  ASSERT_NE(library, nullptr) << dlerror();
  std::mt19937_64 random(63);
  int compared = 0, different = 0;
  for (uint64_t seed = 0; seed < kCount; ++seed) {
    using Function = void(const Call&, float&, float&);
    auto* function =
        reinterpret_cast<Function*>(dlsym(library, ("both" + std::to_string(seed)).c_str()));
    ASSERT_NE(function, nullptr);
    const Expr& score = scores[seed];
    const Expr derivative = derivative_score(score);
    Evaluator value(score, data.views(score), data.param_values(score));
    Evaluator slope(derivative, data.views(derivative), data.param_values(derivative));
    for (int n = 0; n < 50; ++n) {
      Variables at = random_variables(random);
      at.score = static_cast<double>(static_cast<float>(at.score));
      float out0 = 0, out1 = 0;
      (*function)(make_call(data, at), out0, out1);
      const auto is_close = [](float found, double expected) {
        return std::fabs(static_cast<double>(found) - expected) <= 1e-3 * (1 + std::fabs(expected));
      };
      ++compared;
      different += !is_close(out0, value.number(at)) || !is_close(out1, slope.number(at));
    }
  }
  dlclose(library);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(data.bad_reads, 0);  // inactive loads read nothing
  // A comparison may go the other way in float32.
  EXPECT_LE(different * 200, compared);
}

}  // namespace
}  // namespace flashtile::variant
