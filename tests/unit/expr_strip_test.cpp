// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "core/float_mode.hpp"
#include "unit/expr_random.hpp"
#include "unit/strip_runner.hpp"
#include "variant/expr/bounds.hpp"
#include "variant/expr/derivative.hpp"
#include "variant/expr/evaluate.hpp"
#include "variant/expr/parse.hpp"
#include "variant/expr/program.hpp"

namespace flashtile::variant {
namespace {

using testing::Data;
using testing::Generator;
using testing::random_variables;
using testing::StripInterpreter;
using testing::StripRow;

std::vector<const StripInterpreter*> interpreters() {
  std::vector<const StripInterpreter*> all = {&testing::kStripScalar};
#if defined(__x86_64__)
  const auto has_all = [](std::initializer_list<bool> features) {
    return std::ranges::all_of(features, std::identity());
  };
  if (has_all({__builtin_cpu_supports("avx2") != 0, __builtin_cpu_supports("fma") != 0})) {
    all.push_back(&testing::kStripAvx2);
  }
  if (has_all({__builtin_cpu_supports("avx512f") != 0, __builtin_cpu_supports("avx512bw") != 0,
               __builtin_cpu_supports("avx512cd") != 0, __builtin_cpu_supports("avx512dq") != 0,
               __builtin_cpu_supports("avx512vl") != 0})) {
    all.push_back(&testing::kStripAvx512);
  }
#elif defined(__aarch64__)
  all.push_back(&testing::kStripNeon);
#endif
  return all;
}

// The values of all roots over one row; floats, ints and bools as doubles.
struct Results {
  std::vector<std::vector<double>> values;
  int32_t error = 0;
};

struct Row {
  Variables at;  // k_idx: of the first key
  int64_t num_keys = 0;
  std::vector<float> score;
};

Results run(const StripInterpreter& interpreter, const Program& program, const Row& row,
            const std::vector<StripAux>& aux, const std::vector<float>& params) {
  StripRow call;
  call.program = program.view();
  call.inputs = {row.at.batch,    row.at.head,     row.at.head_kv,
                 row.at.seqlen_q, row.at.seqlen_k, row.at.query_offset,
                 row.at.leftpad,  aux.data(),      params.data()};
  const auto bytes = static_cast<size_t>(interpreter.bytes(call.program)) + 64;
  const auto memory = std::make_unique<std::byte[]>(bytes);
  std::fill_n(memory.get(), bytes, std::byte{0xff});  // NaN in every register
  const auto address = reinterpret_cast<uintptr_t>(memory.get());
  call.memory = memory.get() + (64 - address % 64) % 64;
  call.q_idx = row.at.q_idx;
  call.k_begin = row.at.k_idx;
  call.num_keys = row.num_keys;
  call.score = row.score.data();
  std::vector<std::vector<int64_t>> room(program.outputs.size());
  std::vector<void*> outputs;
  for (auto& each : room) {
    each.resize(static_cast<size_t>(row.num_keys));
    outputs.push_back(each.data());
  }
  call.outputs = outputs.data();
  interpreter.run(call);
  Results results;
  results.error = call.error;
  for (size_t r = 0; r < room.size(); ++r) {
    std::vector<double> values;
    for (int64_t n = 0; n < row.num_keys; ++n) {
      switch (program.outputs[r].type) {
        case Type::kBool:
          values.push_back(static_cast<const uint8_t*>(outputs[r])[n]);
          break;
        case Type::kInt:
          values.push_back(static_cast<double>(static_cast<const int64_t*>(outputs[r])[n]));
          break;
        case Type::kFloat:
          values.push_back(static_cast<double>(static_cast<const float*>(outputs[r])[n]));
          break;
      }
    }
    results.values.push_back(std::move(values));
  }
  return results;
}

std::vector<StripAux> strip_views(const Data& data, const Program& program) {
  std::vector<StripAux> out;
  for (const AuxSignature& aux : program.aux) out.push_back(strip_aux(data.view(aux.name)));
  return out;
}

std::vector<float> strip_params(const Data& data, const Program& program) {
  std::vector<float> out;
  for (const auto& name : program.params) {
    out.push_back(static_cast<float>(name == "u" ? data.params[0] : data.params[1]));
  }
  return out;
}

Row random_row(std::mt19937_64& random) {
  Row row;
  row.at = random_variables(random);
  row.num_keys = 1 + static_cast<int64_t>(random() % 150);
  row.at.seqlen_k = row.at.k_idx + row.num_keys + static_cast<int64_t>(random() % 5);
  for (int64_t n = 0; n < row.num_keys; ++n) {
    row.score.push_back(std::normal_distribution<float>(0, 2)(random));
  }
  return row;
}

TEST(ExprStrip, IntegersAndTruthsAgreeExactly) {
  const Data data(41);
  std::mt19937_64 random(42);
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Generator generator(seed, data, {.score = false, .large_ints = seed % 2 == 0});
    const auto mask_witness = generator.boolean(1 + static_cast<int>(seed % 4));
    const auto int_witness = generator.integer(1 + static_cast<int>(seed % 4));
    const std::vector<Expr> roots = {
        parse_mask(mask_witness.text, Data::signatures()),
        parse_mask("(" + int_witness.text + ") % 1000 > 300", Data::signatures())};
    const Program program = compile(roots);
    for (const auto* interpreter : interpreters()) {
      const Row row = random_row(random);
      const Results found =
          run(*interpreter, program, row, strip_views(data, program), strip_params(data, program));
      EXPECT_EQ(found.error, 0) << mask_witness.text;
      Variables at = row.at;
      for (int64_t n = 0; n < row.num_keys; ++n) {
        at.k_idx = row.at.k_idx + n;
        const auto lane = static_cast<size_t>(n);
        ASSERT_EQ(found.values[0][lane], mask_witness.value(at))
            << interpreter->name << ": " << mask_witness.text << " key " << at.k_idx;
        ASSERT_EQ(found.values[1][lane], int_witness.value(at) % 1000 > 300)
            << interpreter->name << ": " << int_witness.text << " key " << at.k_idx;
      }
    }
  }
}

// Scores with everything that is derived from them, in one program.
std::vector<Expr> score_roots(const Expr& score) {
  std::vector<Expr> roots = {score, derivative_score(score)};
  for (LoadSite& site : load_gradients(score)) {
    for (Expr& index : site.index) roots.push_back(std::move(index));
    roots.push_back(std::move(site.active));
    roots.push_back(std::move(site.derivative));
  }
  return roots;
}

TEST(ExprStrip, ScoresAndDerivativesAgreeWithTheEvaluator) {
  const Data data(43);
  std::mt19937_64 random(44);
  int64_t compared = 0, different = 0;
  size_t most_roots = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Generator generator(seed, data);
    const std::string text = generator.number(1 + static_cast<int>(seed % 4)).text;
    const std::vector<Expr> roots = score_roots(parse_score(text, Data::signatures()));
    most_roots = std::max(most_roots, roots.size());
    const Program program = compile(roots);
    for (const auto* interpreter : interpreters()) {
      const Row row = random_row(random);
      const Results found =
          run(*interpreter, program, row, strip_views(data, program), strip_params(data, program));
      ASSERT_EQ(found.error, 0) << text;
      for (size_t r = 0; r < roots.size(); ++r) {
        Evaluator evaluator(roots[r], data.views(roots[r]), data.param_values(roots[r]));
        const bool is_float = roots[r].nodes.back().type == Type::kFloat;
        Variables at = row.at;
        for (int64_t n = 0; n < row.num_keys; ++n) {
          at.k_idx = row.at.k_idx + n;
          at.score = static_cast<double>(row.score[static_cast<size_t>(n)]);
          const double expected = evaluator.number(at);
          // How far the value moves when the score does by some roundings: also over a branch.
          double slack = 0;
          for (const double step : {-1e-4, -1e-6, 1e-6, 1e-4}) {
            Variables moved = at;
            moved.score += step;
            slack = std::fmax(slack, std::fabs(evaluator.number(moved) - expected));
          }
          const double value = found.values[r][static_cast<size_t>(n)];
          // An index or condition is not used, and means nothing, where its site is not active.
          const double tolerance = is_float ? 1e-4 * (1 + std::fabs(expected)) + 4 * slack : slack;
          ++compared;
          different += !(std::fabs(value - expected) <= tolerance);
          ASSERT_TRUE(!is_float || std::isfinite(value)) << text;
        }
      }
    }
  }
  EXPECT_GT(most_roots, 8u);
  // Comparisons of constants that differ by a rounding may go the other way in float32.
  EXPECT_LT(different * 2000, compared) << different << " of " << compared;
}

TEST(ExprStrip, InactiveLanesReadNothing) {
  // A page that nobody may touch stands for the tensors that no lane should read.
  constexpr size_t kPage = 1 << 16;
  void* page = mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  const std::vector<AuxSignature> aux = {{"t", 1, true}, {"n", 1, false}};
  const std::vector<StripAux> views = {strip_aux(TensorView(page, DType::kF32, {1000})),
                                       strip_aux(TensorView(page, DType::kI32, {1000}))};
  for (const char* text :
       {"k_idx < 0 ? t[k_idx] : 1.0", "q_idx < 0 ? t[q_idx] : 1.0", "head == 7 ? t[head] : 1.0",
        "score > 1e30 ? t[int(score)] : 1.0", "k_idx < 0 && n[k_idx] > 0 ? 2.0 : 1.0",
        "k_idx >= 0 || n[k_idx] > 0 ? 1.0 : t[0]", "k_idx < 0 ? t[n[k_idx]] : 1.0",
        "k_idx < 0 ? (q_idx < 3 ? t[0] : t[1]) : 1.0",
        "head == 7 ? exp(t[k_idx]) * t[q_idx - k_idx] : 1.0"}) {
    const Expr score = parse_score(text, aux);
    const Program program = compile(std::vector{score});
    std::vector<StripAux> bound;
    for (const AuxSignature& each : program.aux) bound.push_back(views[each.name == "t" ? 0 : 1]);
    std::mt19937_64 random(45);
    Row row = random_row(random);
    row.at.q_idx = 2;
    row.at.k_idx = 0;
    row.num_keys = 70;
    row.score.assign(70, 0.5f);
    for (const auto* interpreter : interpreters()) {
      const Results found = run(*interpreter, program, row, bound, {});
      EXPECT_EQ(found.values[0], std::vector<double>(70, 1.0)) << text;
      EXPECT_EQ(found.error, 0) << text;
    }
  }
  munmap(page, kPage);
}

TEST(ExprStrip, LoadsThatDecideAboutEachOtherAreReadInTheRightOrder) {
  // Under p, f decides whether i is read; else i decides whether f is. One load of each would have
  // to wait for the other.
  const std::vector<AuxSignature> aux = {{"a", 1, false}, {"b", 1, false}};
  const std::string text =
      "k_idx % 2 == 0 ? (a[k_idx] >= 0 ? b[a[k_idx]] : 7) : (b[k_idx] >= 0 ? a[b[k_idx]] : 9)";
  std::mt19937_64 random(46);
  std::vector<int32_t> a(80), b(80);
  for (auto* values : {&a, &b}) {
    for (auto& x : *values) x = static_cast<int32_t>(random() % 160) - 80;
  }
  const Expr score = parse_score(text, aux);
  const Program program = compile(std::vector{score});
  std::vector<StripAux> bound;
  for (const AuxSignature& each : program.aux) {
    bound.push_back(strip_aux(TensorView((each.name == "a" ? a : b).data(), DType::kI32, {80})));
  }
  Row row;
  row.num_keys = 80;
  row.score.assign(80, 0.0f);
  for (const auto* interpreter : interpreters()) {
    const Results found = run(*interpreter, program, row, bound, {});
    EXPECT_EQ(found.error, 0);
    for (size_t k = 0; k < 80; ++k) {
      const auto at = [](const std::vector<int32_t>& t, int32_t n) {
        return t.at(static_cast<size_t>(n));
      };
      const int32_t expected =
          k % 2 == 0 ? (a[k] >= 0 ? at(b, a[k]) : 7) : (b[k] >= 0 ? at(a, b[k]) : 9);
      EXPECT_EQ(found.values[0][k], expected) << interpreter->name << " " << k;
    }
  }
}

TEST(ExprStrip, IndexOutOfRangeSetsTheErrorAndReadsTheNearest) {
  const std::vector<float> t = {10, 20, 30};
  const std::vector<AuxSignature> aux = {{"t", 1, true}};
  const Program program = compile(std::vector{parse_score("t[k_idx - 1]", aux)});
  const std::vector<StripAux> bound = {strip_aux(TensorView(t.data(), DType::kF32, {3}))};
  for (const auto* interpreter : interpreters()) {
    Row row;
    row.at.k_idx = 1;
    row.num_keys = 3;
    row.score.assign(3, 0.0f);
    Results found = run(*interpreter, program, row, bound, {});
    EXPECT_EQ(found.error, 0);  // lanes past the third are no keys
    EXPECT_EQ(found.values[0], (std::vector<double>{10, 20, 30}));
    row.at.k_idx = 0;
    row.num_keys = 5;
    row.score.assign(5, 0.0f);
    found = run(*interpreter, program, row, bound, {});
    EXPECT_EQ(found.error, 1);
    EXPECT_EQ(found.values[0], (std::vector<double>{10, 10, 20, 30, 30}));
    // A tensor without elements.
    found =
        run(*interpreter, program, row, {strip_aux(TensorView(t.data(), DType::kF32, {0}))}, {});
    EXPECT_EQ(found.error, 1);
    EXPECT_EQ(found.values[0], std::vector<double>(5, 0.0));
  }
}

TEST(ExprStrip, ReadsEveryDtype) {
  const std::vector<double> f64 = {0, 0.5, -3};
  const std::vector<uint16_t> f16 = {0x0001, 0xc100, 0x7c00};   // 2^-24, -2.5, infinity
  const std::vector<uint16_t> bf16 = {0x0001, 0x4049, 0xff80};  // 2^-133, 3.140625, -infinity
  const std::vector<int32_t> i32 = {-7, 8, 1 << 30};
  const std::vector<int64_t> i64 = {-7, 8, int64_t{1} << 40};
  const auto read = [](const StripInterpreter& interpreter, const TensorView& view, bool is_float) {
    const std::vector<AuxSignature> aux = {{"t", 1, is_float}};
    const Program program = compile(std::vector{parse_score("t[k_idx]", aux)});
    Row row;
    row.num_keys = 3;
    row.score.assign(3, 0.0f);
    return run(interpreter, program, row, {strip_aux(view)}, {}).values[0];
  };
  using V = std::vector<double>;
  for (const auto* each : interpreters()) {
    EXPECT_EQ(read(*each, TensorView(f64.data(), DType::kF64, {3}), true), (V{0, 0.5, -3}));
    {
      const KernelFloatMode mode;  // what is subnormal in 16 bits counts
      EXPECT_EQ(read(*each, TensorView(f16.data(), DType::kF16, {3}), true),
                (V{0x1p-24, -2.5, INFINITY}));
    }
    EXPECT_EQ(read(*each, TensorView(bf16.data(), DType::kBF16, {3}), true),
              (V{0x1p-133, 3.140625, -INFINITY}));
    EXPECT_EQ(read(*each, TensorView(i32.data(), DType::kI32, {3}), false), (V{-7, 8, 0x1p30}));
    EXPECT_EQ(read(*each, TensorView(i64.data(), DType::kI64, {3}), false), (V{-7, 8, 0x1p40}));
  }
}

// The error in units in the last place of float32.
double ulps(float found, double exact) {
  const auto nearest = static_cast<float>(exact);
  if (std::isnan(exact)) return std::isnan(found) ? 0 : 1e9;
  if (std::isinf(nearest) || std::isinf(found)) {
    return found == nearest ? 0 : std::fabs(exact) > 3.4e38 ? 1 : 1e9;
  }
  int exponent = 0;
  std::frexp(std::fmax(std::fabs(exact), 0x1p-126), &exponent);
  return std::fabs(static_cast<double>(found) - exact) / std::ldexp(1.0, exponent - 24);
}

TEST(ExprStrip, FunctionsAreCloseInFloat32) {
  struct Case {
    const char* text;
    double (*exact)(double);
    double limit;
  };
  const Case cases[] = {
      {"exp(score)", [](double x) { return std::exp(x); }, 2},
      {"log(score)", [](double x) { return std::log(x); }, 2},
      {"log2(score)", [](double x) { return std::log2(x); }, 2.5},
      {"tanh(score)", [](double x) { return std::tanh(x); }, 2},
      {"sigmoid(score)", [](double x) { return 1 / (1 + std::exp(-x)); }, 3},
      {"sin(score)", [](double x) { return std::sin(x); }, 2},
      {"cos(score)", [](double x) { return std::cos(x); }, 2},
      {"sqrt(score)", [](double x) { return std::sqrt(x); }, 0.51},
      {"floor(score)", [](double x) { return std::floor(x); }, 0},
      {"pow(score, 1.7)", [](double x) { return std::pow(x, static_cast<double>(1.7f)); }, 1.1},
      {"score % 0.75", [](double x) { return std::fmod(x, 0.75); }, 0},
      {"float(int(score))",
       [](double x) {
         if (std::isnan(x)) return 0.0;
         return std::trunc(std::fmax(std::fmin(x, 0x1p63), -0x1p63));
       },
       0},
  };
  Row row;
  std::mt19937_64 random(47);
  for (const float x :
       {0.0f,        -0.0f,       1.0f,     -1.0f,   INFINITY,    -INFINITY,   NAN,
        1e-45f,      -1e-45f,     1e-38f,   3.4e38f, -3.4e38f,    88.72f,      88.73f,
        -87.4f,      -103.9f,     -104.1f,  0.625f,  0.70710678f, 1.41421356f, 9.5f,
        3.14159265f, 1.57079633f, 99999.0f, 1e5f,    100001.0f,   -2e6f,       1e20f,
        16777217.0f, 9.2e18f,     9.3e18f,  -9.3e18f}) {
    row.score.push_back(x);
  }
  for (int n = 0; n < 30000; ++n) {
    const double scale = std::exp2(static_cast<double>(random() % 40) - 22);
    row.score.push_back(static_cast<float>(std::normal_distribution<double>(0, scale)(random)));
    // Around multiples of pi / 2 and around 1.
    row.score.push_back(static_cast<float>(static_cast<double>(random() % 60000) * M_PI_2));
    row.score.push_back(1 + std::normal_distribution<float>(0, 1e-3f)(random));
    row.score.push_back(std::uniform_real_distribution<float>(-104, 89)(random));
  }
  row.num_keys = static_cast<int64_t>(row.score.size());
  for (const Case& each : cases) {
    const Program program = compile(std::vector{parse_score(each.text, {})});
    for (const auto* interpreter : interpreters()) {
      const Results found = run(*interpreter, program, row, {}, {});
      double worst = 0;
      float worst_at = 0;
      for (size_t n = 0; n < row.score.size(); ++n) {
        const double exact = each.exact(static_cast<double>(row.score[n]));
        const double error = ulps(static_cast<float>(found.values[0][n]), exact);
        if (error > worst) {
          worst = error;
          worst_at = row.score[n];
        }
      }
      EXPECT_LE(worst, each.limit)
          << each.text << " on " << interpreter->name << " at " << worst_at;
    }
  }
}

TEST(ExprStrip, WorkIsDoneAsRarelyAsItsInputsChange) {
  const Data data(48);
  const Expr score =
      parse_score("score * f[head] + sin(0.3 * q_idx) * cos(0.2 * k_idx) - log2(1.0 + k_idx)",
                  Data::signatures());
  const Program program = compile(std::vector{score});
  const auto count = [&](Rank rank, Op op) {
    const auto place = static_cast<size_t>(rank);
    int found = 0;
    for (int32_t n = place == 0 ? 0 : program.ends[place - 1]; n < program.ends[place]; ++n) {
      const auto& step = program.instructions[static_cast<size_t>(n)];
      found += step.op == op && !step.is_broadcast;
    }
    return found;
  };
  EXPECT_EQ(count(Rank::kTile, Op::kLoad), 1);
  EXPECT_EQ(count(Rank::kRow, Op::kSin), 1);
  EXPECT_EQ(count(Rank::kColumn, Op::kCos), 1);
  EXPECT_EQ(count(Rank::kColumn, Op::kLog2), 1);
  EXPECT_EQ(program.ends[3] - program.ends[2], 5);  // score, *, *, +, -
}

TEST(ExprStrip, BoundsHoldForFloat32) {
  const Data data(49);
  std::mt19937_64 random(50);
  int decided = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Generator generator(seed, data, {.nonfinite = true});
    std::string text = generator.boolean(3).text;
    for (size_t at = text.find("score"); at != std::string::npos; at = text.find("score")) {
      text.replace(at, 5, "(0.3 * q_idx - 0.2 * k_idx)");
    }
    const Expr mask = parse_mask(text, Data::signatures());
    const Program program = compile(std::vector{mask});
    Bounds bounds(mask, data.views(mask), data.param_values(mask));
    Row row = random_row(random);
    row.at.k_idx = 0;
    for (row.at.q_idx = 0; row.at.q_idx < 4; ++row.at.q_idx) {
      const auto found = run(testing::kStripScalar, program, row, strip_views(data, program),
                             strip_params(data, program));
      for (int64_t k = 0; k + 3 <= row.num_keys; k += 3) {
        const Truth truth = bounds.over(row.at, row.at.q_idx, row.at.q_idx + 1, k, k + 3);
        if (truth == Truth::kMaybe) continue;
        ++decided;
        for (int64_t n = k; n < k + 3; ++n) {
          ASSERT_EQ(found.values[0][static_cast<size_t>(n)], truth == Truth::kTrue) << text;
        }
      }
    }
  }
  EXPECT_GT(decided, 5000);
}

}  // namespace
}  // namespace flashtile::variant
