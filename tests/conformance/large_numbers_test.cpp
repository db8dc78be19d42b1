// SPDX-License-Identifier: Apache-2.0
//
// Numbers at the ends of what their types hold: scalars that float32 does not hold, windows that
// are longer than anything.
#include <gtest/gtest.h>

#include "flashtile/error.hpp"
#include "support/attention_runs.hpp"

namespace flashtile::test {
namespace {

Inputs small_inputs() {
  return {Tensor::random(DType::kF32, {1, 20, 2, 16}, 1),
          Tensor::random(DType::kF32, {1, 30, 1, 16}, 2),
          Tensor::random(DType::kF32, {1, 30, 1, 16}, 3),
          Tensor::random(DType::kF32, {1, 20, 2, 16}, 4),
          {}};
}

/// Kernels refuse the options and say why; the reference gives what `same` gives.
void expect_reference_alone(const AttentionOptions& options, const std::string& reason,
                            const AttentionOptions& same) {
  Inputs inputs = small_inputs();
  inputs.options = same;
  const Results expected = run(inputs, "reference");
  inputs.options = options;
  const Results results = run(inputs, "");
  const auto named = results.by_name();
  for (const auto& [name, tensor] : expected.by_name()) {
    EXPECT_LE(max_difference(named.at(name), tensor), 1e-6) << name << ": " << reason;
  }
  for (const std::string& implementation : all_kernels()) {
    try {
      run(inputs, implementation);
      ADD_FAILURE() << implementation << ": " << reason;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    }
  }
}

TEST(ScalarsBeyondFloat, AreLeftToTheReference) {
  AttentionOptions options;
  options.softcap = 1e39;  // s stays s
  expect_reference_alone(options, "softcap is 1e+39; computes in float32, which takes up to 2^127",
                         {});
  options.softcap.reset();
  options.params = {{"x", 1e39}, {"y", 1e39}};
  options.score = "score * (param.x / param.y)";
  expect_reference_alone(options, "param.x is 1e+39; computes in float32", {});
  options.params.clear();
  options.score = "score * (1e39 / max(1e39, score))";
  expect_reference_alone(options, "a number of an expression is 1e+39; computes in float32", {});
  options.score.clear();
  options.mask = "k_idx < 1e39";
  expect_reference_alone(options, "a number of an expression is 1e+39; computes in float32", {});
}

TEST(ScalarsBeyondFloat, MayBeTheScale) {
  // Queries of 0 weigh all keys alike, whatever the scale.
  Inputs inputs = small_inputs();
  inputs.q = Tensor::filled(DType::kF32, {1, 20, 2, 16}, 0);
  for (const double scale : {1e39, -1e39, 1e300}) {
    inputs.options.softmax_scale = scale;
    const Results results = run(inputs, "");
    for (int64_t d = 0; d < 16; ++d) {
      double mean = 0;
      for (int64_t j = 0; j < 30; ++j) mean += inputs.v.get({0, j, 0, d}) / 30;
      EXPECT_NEAR(results.out.get({0, 7, 1, d}), mean, 1e-6) << scale;
    }
    for (const std::string& implementation : all_kernels()) {
      EXPECT_THROW(run(inputs, implementation), Error) << implementation;
    }
  }
}

TEST(ScalarsBeyondFloat, BeginAt2To127) {
  for (const std::string& implementation : all_kernels()) {
    Inputs inputs = small_inputs();
    inputs.q = Tensor::filled(DType::kF32, {1, 20, 2, 16}, 0);
    inputs.options.softmax_scale = 1.7e38;
    const Results results = run(inputs, implementation);
    for (const auto& [name, tensor] : results.by_name()) {
      if (name == "dq") continue;  // the scale times what is not 0
      for (const double x : tensor.numbers()) EXPECT_TRUE(std::isfinite(x)) << name;
    }
    inputs.options.softmax_scale = 1.71e38;
    EXPECT_THROW(run(inputs, implementation), Error) << implementation;
  }
}

TEST(ScalarsBeyondFloat, AreNoInfinitiesOfATextNorWholeNumbers) {
  Inputs inputs = small_inputs();
  inputs.options.score = "k_idx < 3 ? score : -1.0 / 0.0";
  inputs.options.mask = "k_idx < 9223372036854775807";
  Inputs masked = small_inputs();
  masked.options.mask = "k_idx < 3";
  const Results expected = run(masked, "reference");
  for (const std::string& implementation : all_kernels()) {
    const Results results = run(inputs, implementation);
    EXPECT_LE(max_difference(results.out, expected.out), 1e-5) << implementation;
  }
}

TEST(LargestInteger, IsNoBoundOfWindowsChunksAndBlocks) {
  for (const int64_t largest : {INT64_MAX, INT64_MAX - 1, int64_t{1} << 62}) {
    const Inputs plain = small_inputs();
    Inputs window = plain;
    window.options.window_left = window.options.window_right = largest;
    Inputs causal = plain;
    causal.options.causal = true;
    Inputs causal_window = causal;
    causal_window.options.window_left = largest;
    Inputs chunk = plain;
    chunk.options.attention_chunk = largest;
    const Tensor counts = Tensor::of(DType::kI32, {1, 1, 1}, std::vector<double>{1});
    const Tensor indices = Tensor::of(DType::kI32, {1, 1, 1, 1}, std::vector<double>{0});
    Inputs blocks = plain;
    blocks.options.block_counts = counts;
    blocks.options.block_indices = indices;
    blocks.options.block_rows = blocks.options.block_cols = largest;
    for (const std::string& implementation : all_implementations()) {
      const Results all = run(plain, implementation);
      EXPECT_EQ(differing(run(window, implementation), all), "") << implementation;
      EXPECT_EQ(differing(run(chunk, implementation), all), "") << implementation;
      EXPECT_EQ(differing(run(blocks, implementation), all), "") << implementation;
      EXPECT_EQ(differing(run(causal_window, implementation), run(causal, implementation)), "")
          << implementation;
    }
  }
}

}  // namespace
}  // namespace flashtile::test
