// SPDX-License-Identifier: Apache-2.0
//
// Keys and values of i8 and e4m3, with scales by head, sequence, line or page.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/attention_runs.hpp"
#include "support/problem_cases.hpp"

namespace flashtile::test {
namespace {

// Decoding and packed blocks; lengths that end inside tiles and splits, dims inside vectors.
const std::vector<std::string> kTexts = {
    ":b2:hq4:hkv2:sq1:sk1301:d64:k.i8:v.i8:k_scale:v_scale:bf16",
    ":b2:hq4:hkv2:sq1:sk700:d40:dv23:k.e4m3:v.e4m3:k_scale[b,hkv]:v_scale[b,hkv]:causal:f16",
    ":b1:hq8:hkv2:sq2:sk600:d32:k.i8:v.i8:k_scale:causal:sink:max_logit",
    ":b1:hq4:hkv2:sq1:sk300:d64:dv40:k.i8:v.i8:k_scale:v_scale:bf16",
    ":b1:hq7:hkv1:sq1:sk300:d40:dv96:k.e4m3:v.e4m3:k_scale:v_scale:batch_invariant:bf16",
    ":b2:hq4:hkv4:sq70:sk300:d64:k.i8:v.i8:k_scale:v_scale[b,hkv]:causal:bf16",
    ":b2:hq4:hkv2:sq40:sk200:d33:dv17:k.e4m3:v.e4m3:k_scale[b,hkv]:v_scale",
    ":b2:hq4:hkv2:sq20:sk200:d32:k.e4m3:v.e4m3:window_left=50:softcap=5:bf16",
    ":b3:hq4:hkv2:sq1:sk640:d32:block_table:page_size=16:k_scale[np,hkv]:v_scale[np,hkv]:"
    "seqused_k={640,17,300}:k.i8:v.i8:bf16",
    ":b2:hq4:hkv2:sq30:sk320:d32:block_table:page_size=16:k_scale[np,hkv]:v_scale:k.e4m3:v.e4m3",
    ":b2:hq4:hkv2:sq1:sk600:d32:lines5:cache_batch_idx:k_scale[lines,hkv]:v_scale[lines,hkv]:"
    "seqused_k={600,33}:k.i8:v.i8:f16",
    ":b2:hq4:hkv2:sq2:sk100:d32:block_table:page_size=16:sn2:k_new:v_new:rotary_cos:rotary_sin:rp8:"
    "seqused_k={40,97}:k_scale[np,hkv]:v_scale:k.e4m3:v.e4m3:causal:bf16",
    ":hq4:hkv2:d16:cu_seqlens_q={0,3,40}:cu_seqlens_k={0,70,200}:k_scale[b,hkv]:v_scale:k.i8:v.i8",
};

class QuantisedKeys : public testing::TestWithParam<ProblemParam> {};
TEST_P(QuantisedKeys, AgreeWithReference) {
  const std::string& text = GetParam().text;
  if (text.find("batch_invariant") != std::string::npos &&
      test_context().device.type != DeviceType::kCpu) {
    GTEST_SKIP() << "GPUs refuse batch_invariant";
  }
  expect_problem_conforms(text);
}
INSTANTIATE_TEST_SUITE_P(Texts, QuantisedKeys, testing::ValuesIn(forward_only(kTexts)),
                         [](const auto& test) { return test_name(test.param.text); });

/// The reference itself: stored numbers times scales in f64 give the same.
TEST(QuantisedKeysMeaning, IsTheirProductWithTheScale) {
  for (const DType dtype : {DType::kI8, DType::kE4M3}) {
    Inputs stored;
    stored.q = Tensor::random(DType::kF64, {2, 3, 4, 16}, 1);
    stored.k = Tensor::random(dtype, {2, 20, 2, 16}, 2, 20);
    stored.v = Tensor::random(dtype, {2, 20, 2, 16}, 3, 20);
    const Tensor k_scale = Tensor::of(DType::kF32, {2}, std::vector<double>{0.03125, -0.01});
    const Tensor v_scale =
        Tensor::of(DType::kF32, {2, 2}, std::vector<double>{0.5, 2, 0.0625, 0.1});
    Inputs wide{stored.q, stored.k.copy(DType::kF64), stored.v.copy(DType::kF64), {}, {}};
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t j = 0; j < 20; ++j) {
        for (int64_t h = 0; h < 2; ++h) {
          for (int64_t d = 0; d < 16; ++d) {
            wide.k.set({b, j, h, d}, wide.k.get({b, j, h, d}) * k_scale.get({h}));
            wide.v.set({b, j, h, d}, wide.v.get({b, j, h, d}) * v_scale.get({b, h}));
          }
        }
      }
    }
    stored.options.k_scale = k_scale;
    stored.options.v_scale = v_scale;
    const Results a = run(stored, "reference");
    const Results b = run(wide, "reference");
    EXPECT_LE(max_difference(a.out, b.out), 1e-12);
    EXPECT_LE(max_difference(a.lse, b.lse), 1e-5);  // float32
  }
}

/// A NaN that nobody sees is not read, one that somebody sees comes through.
TEST(QuantisedKeysMeaning, NanOfE4m3) {
  for (const int64_t seqlen_q : {2, 40}) {
    Inputs inputs;
    inputs.q = Tensor::random(DType::kBF16, {1, seqlen_q, 2, 64}, 1);
    inputs.k = Tensor::random(DType::kE4M3, {1, 200, 2, 64}, 2);
    inputs.v = Tensor::random(DType::kE4M3, {1, 200, 2, 64}, 3);
    inputs.options.causal = true;
    inputs.options.window_left = 100;
    for (const std::string& kernel : all_kernels()) {
      inputs.v.set({0, 20, 0, 5}, 1);
      const Results expected = run(inputs, kernel);
      inputs.v.set({0, 20, 0, 5}, kNan);
      EXPECT_EQ(differing(run(inputs, kernel), expected), "") << kernel;
    }
    for (const std::string& kernel : all_kernels()) {
      inputs.v.set({0, 150, 0, 5}, kNan);
      EXPECT_TRUE(std::isnan(run(inputs, kernel).out.get({0, 0, 0, 5}))) << kernel;
    }
  }
}

/// New keys are stored as quotients by the scale of their head, to the nearest and within range.
TEST(QuantisedKeysMeaning, NewKeysAreDividedByTheScale) {
  const Tensor scale = Tensor::of(DType::kF32, {2}, std::vector<double>{0.25, 0.015625});
  const Tensor used = Tensor::ints({5});
  for (const DType dtype : {DType::kI8, DType::kE4M3}) {
    Inputs inputs;
    inputs.q = Tensor::random(DType::kBF16, {1, 2, 4, 16}, 1);
    inputs.k = Tensor::random(dtype, {1, 9, 2, 16}, 2, 20);
    inputs.v = Tensor::random(dtype, {1, 9, 2, 16}, 3, 20);
    const Tensor k_new = Tensor::random(DType::kBF16, {1, 2, 2, 16}, 4, 8);
    const Tensor v_new = Tensor::random(DType::kBF16, {1, 2, 2, 16}, 5, 8);
    k_new.set({0, 1, 0, 3}, 1e30);
    inputs.options.k_scale = inputs.options.v_scale = scale;
    inputs.options.seqused_k = used;
    inputs.options.k_new = k_new;
    inputs.options.v_new = v_new;
    inputs.options.causal = true;
    const double largest = dtype == DType::kI8 ? 127 : 448;
    const Tensor before = inputs.k.copy();
    run(inputs, "reference");
    for (int64_t n = 0; n < 2; ++n) {
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t d = 0; d < 16; ++d) {
          const double wanted =
              std::clamp(v_new.get({0, n, h, d}) / scale.get({h}), -largest - 1, largest);
          const double step = dtype == DType::kI8 ? 1 : std::max(0x1p-9, std::abs(wanted) / 8);
          EXPECT_NEAR(inputs.v.get({0, 5 + n, h, d}), wanted, step / 2) << dtype_name(dtype);
        }
      }
    }
    EXPECT_EQ(inputs.k.get({0, 6, 0, 3}), largest);
    EXPECT_TRUE(same_bits(inputs.k.view().sliced(1, 0, 5), before.view().sliced(1, 0, 5)));
    EXPECT_TRUE(same_bits(inputs.k.view().sliced(1, 7, 9), before.view().sliced(1, 7, 9)));
  }
}

TEST(QuantisedKeysBits, ThreadsPagesAndBatchesDoNotMatter) {
  Inputs inputs;
  inputs.q = Tensor::random(DType::kBF16, {2, 1, 4, 64}, 1);
  inputs.k = Tensor::random(DType::kI8, {2, 640, 2, 64}, 2, 20);
  inputs.v = Tensor::random(DType::kI8, {2, 640, 2, 64}, 3, 20);
  const Tensor scale = Tensor::of(DType::kF32, {2}, std::vector<double>{0.05, 0.02});
  inputs.options.k_scale = scale;
  inputs.options.v_scale = scale;
  // The same memory as pages of 64, in their order.
  const Tensor table(DType::kI32, {2, 10});
  for (int64_t n = 0; n < 20; ++n) table.set({n / 10, n % 10}, static_cast<double>(n));
  for (const std::string& kernel : all_kernels()) {
    const Results expected = run(inputs, kernel);
    Context context;
    context.max_workers = 7;
    EXPECT_EQ(differing(run(inputs, kernel, context), expected), "") << kernel;
    Inputs pages = inputs;
    const int64_t shape[] = {20, 64, 2, 64};
    const TensorView k(inputs.k.view().data, DType::kI8, shape);
    const TensorView v(inputs.v.view().data, DType::kI8, shape);
    pages.k = Tensor(k);
    pages.v = Tensor(v);
    pages.options.block_table = table;
    EXPECT_EQ(differing(run(pages, kernel), expected), "") << kernel;
    Inputs last = inputs;
    last.q = copy_of(inputs.q.view().sliced(0, 1, 2));
    last.k = Tensor(inputs.k.view().sliced(0, 1, 2));
    last.v = Tensor(inputs.v.view().sliced(0, 1, 2));
    const Results alone = run(last, kernel);
    EXPECT_TRUE(same_bits(expected.out.view().sliced(0, 1, 2), alone.out)) << kernel;
  }
}

/// What an Inputs-less call says that is wrong.
std::string fault_of(const Inputs& inputs) {
  try {
    run(inputs, all_kernels().front());
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(QuantisedKeysRefused, WhatHasNoMeaning) {
  Inputs valid;
  valid.q = Tensor::random(DType::kF32, {2, 3, 4, 8}, 1);
  valid.k = Tensor::random(DType::kI8, {2, 20, 2, 8}, 2, 20);
  valid.v = Tensor::random(DType::kI8, {2, 20, 2, 8}, 3, 20);
  EXPECT_EQ(fault_of(valid), "");
  const Tensor scale = Tensor::filled(DType::kF32, {2}, 0.1);

  Inputs inputs = valid;
  inputs.v = Tensor::random(DType::kE4M3, {2, 20, 2, 8}, 3);
  EXPECT_EQ(fault_of(inputs), "attention_fwd: dtype of v is e4m3, expected that of k (i8)");

  inputs = valid;
  inputs.k = Tensor::random(DType::kF32, {2, 20, 2, 8}, 2);
  inputs.v = Tensor::random(DType::kF32, {2, 20, 2, 8}, 3);
  inputs.options.k_scale = scale;
  EXPECT_EQ(fault_of(inputs), "attention_fwd: k_scale is given, but k is f32, expected i8 or e4m3");

  inputs = valid;
  const Tensor per_key = Tensor::filled(DType::kF32, {2, 20}, 0.1);
  inputs.options.v_scale = per_key;
  EXPECT_NE(fault_of(inputs).find("v_scale"), std::string::npos);

  inputs = valid;
  const Tensor used = Tensor::ints({3, 4});
  const Tensor k_new = Tensor::random(DType::kI8, {2, 1, 2, 8}, 4, 20);
  inputs.options.seqused_k = used;
  inputs.options.k_new = inputs.options.v_new = k_new;
  EXPECT_EQ(fault_of(inputs), "attention_fwd: dtype of k_new is i8, expected that of q (f32)");

  inputs = valid;
  inputs.dout = Tensor::random(DType::kF32, {2, 3, 4, 8}, 5);
  EXPECT_EQ(fault_of(inputs), "attention_bwd: dtype of k is i8, expected that of q (f32)");
}

}  // namespace
}  // namespace flashtile::test
