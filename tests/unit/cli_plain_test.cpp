// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/problem_text.hpp"
#include "cpu/cpu_info.hpp"
#include "plain/dropout.hpp"
#include "plain/matrix.hpp"
#include "plain/plain.hpp"
#include "plain/product.hpp"
#include "random_numbers.hpp"
#include "random_problem.hpp"

namespace flashtile::cli {
namespace {

TEST(PlainDropout, FirstWordsAreThoseOfThePhiloxDefinition) {
  // Counter 0, key 0 gives 5F6FB709 0D893F64 4F121F81 4F730A48; columns 0, 1 take the halves of
  // word 0, columns 8, 9 those of word 1, and so on.
  const std::pair<size_t, uint32_t> kBits[] = {{0, 0xB709},  {1, 0x5F6F},  {8, 0x3F64},
                                               {9, 0x0D89},  {16, 0x1F81}, {17, 0x4F12},
                                               {24, 0x0A48}, {25, 0x4F73}};
  for (const auto& [column, bits] : kBits) {
    std::vector<uint8_t> keep(32);
    DropoutRow{0, 0, 0, bits}.keep(0, keep);
    EXPECT_EQ(keep[column], 1) << column;
    DropoutRow{0, 0, 0, bits + 1}.keep(0, keep);
    EXPECT_EQ(keep[column], 0) << column;
  }
}

TEST(PlainDropout, DropsItsShare) {
  const uint32_t threshold = 1 << 14;  // a quarter
  int kept = 0;
  std::vector<uint8_t> keep(1000);
  for (int64_t row = 0; row < 100; ++row) {
    DropoutRow{42, 7, 3, threshold}.keep(row, keep);
    for (const uint8_t k : keep) kept += k;
  }
  EXPECT_NEAR(kept / 1e5, 0.75, 0.01);
}

Matrix<float> random_matrix(int64_t rows, int64_t cols, std::string_view name) {
  Matrix<float> result(rows, cols);
  RandomNumbers random(1, name);
  for (float& value : result.all()) value = static_cast<float>(random.normal());
  return result;
}

using Multiply = void (*)(const Product&);

/// Largest difference from sums in double, over odd shapes, both layouts of a, with and without
/// accumulation.
double largest_error(Multiply multiply) {
  double worst = 0;
  for (const auto& [m, n, k] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {7, 65, 3}, {13, 130, 40}, {6, 64, 0}}) {
    const Matrix<float> a = random_matrix(m, k, "a"), b = random_matrix(k, n, "b");
    const Matrix<float> a_transposed = transposed(a);
    for (const bool is_transposed : {false, true}) {
      Matrix<float> c = random_matrix(m, n, "c");
      const Matrix<float> start = c;
      const Left<float> left{is_transposed ? a_transposed : a, is_transposed};
      std::vector<float> panel(static_cast<size_t>(k * kPanelCols));
      multiply({m, n, k, left.matrix.data(), left.row_stride(), left.col_stride(), b.data(),
                c.data(), is_transposed, panel.data()});
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          double sum = is_transposed ? static_cast<double>(start.data()[i * n + j]) : 0;
          for (int64_t p = 0; p < k; ++p) {
            sum +=
                static_cast<double>(a.data()[i * k + p]) * static_cast<double>(b.data()[p * n + j]);
          }
          worst = std::max(worst, std::abs(sum - static_cast<double>(c.data()[i * n + j])));
        }
      }
    }
  }
  return worst;
}

TEST(PlainProduct, EveryInstructionSetGivesTheSums) {
  EXPECT_LT(largest_error(scalar::multiply), 1e-5);
#if defined(__x86_64__)
  if (cpu::cpu_info().has(cpu::Isa::kAvx2)) {
    EXPECT_LT(largest_error(avx2::multiply), 1e-5);
  }
  if (cpu::cpu_info().has(cpu::Isa::kAvx512)) {
    EXPECT_LT(largest_error(avx512::multiply), 1e-5);
  }
#endif
}

TEST(PlainAttention, TwoKeysByHand) {
  // q.k = 0 and ln 3 with scale 1: weights 1/4 and 3/4; v = 8 and 4: out = 5, lse = ln 4.
  OwnedCall owned = random_call(
      parse_problem("attention_fwd:b1:hq1:sq1:sk2:d1:softmax_scale=1:lse:weights:max_logit"), 1);
  const auto set = [&](const char* name, std::vector<double> values) {
    from_numbers(values, owned.call.tensor(name));
  };
  set("q", {1});
  set("k", {0, std::log(3.0)});
  set("v", {8, 4});
  find_plain("attention_fwd")->run(owned.call, {}, {});
  EXPECT_NEAR(to_numbers(owned.call.tensor("out"))[0], 5, 1e-6);
  EXPECT_NEAR(to_numbers(owned.call.tensor("lse"))[0], std::log(4.0), 1e-6);
  EXPECT_NEAR(to_numbers(owned.call.tensor("weights"))[1], 0.75, 1e-6);
  EXPECT_NEAR(to_numbers(owned.call.tensor("max_logit"))[0], std::log(3.0), 1e-6);
}

TEST(PlainAttention, GradientsByFiniteDifferences) {
  const std::string options =
      ":b1:hq2:hkv1:sq3:sk4:d3:dv2:f64:softcap=3:causal:alibi_slopes[hq]:bias[1,1,sq,sk]:sink:"
      "score='score * gain[head]':aux.gain[hq]";
  OwnedCall backward = random_call(parse_problem("attention_bwd" + options), 3);
  find_plain("attention_bwd")->run(backward.call, {}, {});
  OwnedCall forward = random_call(parse_problem("attention_fwd" + options), 3);
  const std::vector<double> dout = to_numbers(backward.call.tensor("dout"));
  const auto loss = [&] {
    find_plain("attention_fwd")->run(forward.call, {}, {});
    const std::vector<double> out = to_numbers(forward.call.tensor("out"));
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
    return sum;
  };
  for (const std::string name : {"q", "k", "v", "bias", "sink", "alibi_slopes", "aux.gain"}) {
    const TensorView input = forward.call.tensor(name);
    const std::vector<double> values = to_numbers(input);
    const std::vector<double> gradient =
        to_numbers(backward.call.tensor(name == "aux.gain" ? "daux.gain" : "d" + name));
    // Inputs that are stored in float32 need wider steps, and give coarser differences.
    const bool is_double = input.dtype == DType::kF64;
    const double step = is_double ? 1e-5 : 0x1p-8;
    for (size_t i = 0; i < values.size(); ++i) {
      std::vector<double> moved = values;
      moved[i] = values[i] + step;
      from_numbers(moved, input);
      const double above = loss();
      const double high = to_numbers(input)[i];
      moved[i] = values[i] - step;
      from_numbers(moved, input);
      const double slope = (above - loss()) / (high - to_numbers(input)[i]);
      from_numbers(values, input);
      EXPECT_NEAR(slope, gradient[i], is_double ? 1e-7 : 1e-3) << name << " " << i;
    }
  }
}

TEST(PlainAttention, SampledRowsAreThoseOfTheWhole) {
  const ProblemText problem = parse_problem("attention_fwd:b2:hq2:sq50:sk60:d8:causal:lse");
  const OwnedCall whole = random_call(problem, 5), sample = random_call(problem, 5);
  const PlainConfig config{PlainMode::kPlain, 7};
  find_plain("attention_fwd")->run(whole.call, {}, {});
  find_plain("attention_fwd")->run(sample.call, config, {});
  const TensorView a = whole.call.tensor("out"), b = sample.call.tensor("out");
  int num_sampled = 0;
  for (int64_t i = 0; i < 50; ++i) {
    const double got = number_at(b, b.strides[1] * i);
    if (is_plain_row(config, i, 50)) {
      EXPECT_EQ(got, number_at(a, a.strides[1] * i));
      ++num_sampled;
    } else {
      EXPECT_TRUE(std::isnan(got));
    }
  }
  EXPECT_GE(num_sampled, 7);
  EXPECT_LE(num_sampled, 10);
}

TEST(PlainAttention, OperationsCountVisiblePairs) {
  const auto operations = [](const std::string& text) {
    const OwnedCall owned = random_call(parse_problem(text), 1);
    return count_operations(owned.call).value();
  };
  // 2 (d + dv) for each visible pair; backward 2 (3 d + 2 dv).
  EXPECT_DOUBLE_EQ(operations("attention_fwd:b2:hq3:sq5:sk7:d4:dv2"), 2 * 6 * 2 * 3 * 35.0);
  EXPECT_DOUBLE_EQ(operations("attention_fwd:b1:hq1:sq4:d4:causal"), 2 * 8 * 10.0);
  EXPECT_DOUBLE_EQ(operations("attention_fwd:b1:hq1:sq4:d4:mask='k_idx <= q_idx'"), 2 * 8 * 10.0);
  EXPECT_DOUBLE_EQ(operations("attention_fwd:b1:hq1:sq9:d1:window_left=1:window_right=0"),
                   2 * 2 * 17.0);
  EXPECT_DOUBLE_EQ(operations("attention_bwd:b1:hq2:sq5:sk7:d4:dv2"), 2 * 16 * 2 * 35.0);
}

}  // namespace
}  // namespace flashtile::cli
