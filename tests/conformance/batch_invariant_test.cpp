// SPDX-License-Identifier: Apache-2.0
//
// With `batch_invariant` the bits of a row depend on its query and the keys that it sees alone.
#include <gtest/gtest.h>

#include "support/attention_runs.hpp"

namespace flashtile::test {
namespace {

constexpr int64_t kLength = 333, kHeads = 4, kHeadsKv = 2, kDim = 40;

/// Row i of out and lse, of one sequence, is row 0 of `one`.
void expect_row(const Results& all, int64_t batch, int64_t i, const Results& one,
                const std::string& name) {
  const auto out = all.out.view().sliced(0, batch, batch + 1).sliced(1, i, i + 1);
  const auto lse = all.lse.view().sliced(0, batch, batch + 1).sliced(2, i, i + 1);
  EXPECT_TRUE(same_bits(out, one.out)) << name << ", row " << i;
  EXPECT_TRUE(same_bits(lse, one.lse)) << name << ", row " << i;
}

/// Two sequences; some scores of some rows rise by 100 and more from block to block, so that rows
/// of one tile take different ways through the softmax.
Inputs prefill(DType dtype) {
  Inputs inputs;
  inputs.q = Tensor::random(dtype, {2, kLength, kHeads, kDim}, 1);
  inputs.k = Tensor::random(dtype, {2, kLength, kHeadsKv, kDim}, 2);
  inputs.v = Tensor::random(dtype, {2, kLength, kHeadsKv, kDim}, 3);
  for (int64_t i = 7; i < kLength; i += 50) {
    for (int64_t d = 0; d < kDim; ++d) inputs.q.set({1, i, 1, d}, 20);
  }
  for (const int64_t j : {130, 140, 300}) {
    for (int64_t d = 0; d < kDim; ++d) inputs.k.set({1, j, 0, d}, static_cast<double>(j) / 100);
  }
  inputs.options.causal = true;
  inputs.options.batch_invariant = true;
  return inputs;
}

TEST(BatchInvariant, TokenByTokenIsOnePrefill) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Inputs whole = prefill(dtype);
    for (const std::string& kernel : all_kernels()) {
      const Results all = run(whole, kernel);
      const Tensor k(dtype, {1, kLength + 20, kHeadsKv, kDim});
      const Tensor v(dtype, {1, kLength + 20, kHeadsKv, kDim});
      // A prompt of 290 tokens, then one token a call.
      for (int64_t begin = 0, end = 290; begin < kLength; begin = end, ++end) {
        Inputs step{copy_of(whole.q.view().sliced(0, 1, 2).sliced(1, begin, end)), k, v, {}, {}};
        const Tensor used = Tensor::ints({static_cast<int>(begin)});
        const Tensor k_new = copy_of(whole.k.view().sliced(0, 1, 2).sliced(1, begin, end));
        const Tensor v_new = copy_of(whole.v.view().sliced(0, 1, 2).sliced(1, begin, end));
        step.options = whole.options;
        step.options.seqused_k = used;
        step.options.k_new = k_new;
        step.options.v_new = v_new;
        const Results result = run(step, kernel);
        if (end - begin == 1) expect_row(all, 1, begin, result, kernel);
      }
    }
  }
}

TEST(BatchInvariant, RowsDoNotDependOnTheOthersOfACall) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    Inputs whole = prefill(dtype);
    const Tensor slopes = Tensor::random(DType::kF32, {kHeads}, 9);
    for (const char* rule : {"causal", "window", "slopes", "softcap"}) {
      const std::string name = rule;
      if (name == "window") whole.options.window_left = 45;
      if (name == "slopes") whole.options.alibi_slopes = slopes;
      if (name == "softcap") whole.options.softcap = 12;
      for (const std::string& kernel : all_kernels()) {
        const Results all = run(whole, kernel);
        for (const int64_t i : {0, 7, 48, 95, 157, 160, 307, 332}) {
          Inputs row = whole;
          row.q = copy_of(whole.q.view().sliced(0, 1, 2).sliced(1, i, i + 1));
          row.k = copy_of(whole.k.view().sliced(0, 1, 2).sliced(1, 0, i + 1));
          row.v = copy_of(whole.v.view().sliced(0, 1, 2).sliced(1, 0, i + 1));
          expect_row(all, 1, i, run(row, kernel), kernel + name);
        }
      }
    }
  }
}

TEST(BatchInvariant, GradientsDoNotDependOnOtherSequences) {
  Inputs both = prefill(DType::kBF16);
  both.dout = Tensor::random(DType::kBF16, {2, kLength, kHeads, kDim}, 4);
  for (const std::string& kernel : all_kernels()) {
    const Results all = run(both, kernel);
    Inputs one = both;
    one.q = copy_of(both.q.view().sliced(0, 1, 2));
    one.k = copy_of(both.k.view().sliced(0, 1, 2));
    one.v = copy_of(both.v.view().sliced(0, 1, 2));
    one.dout = copy_of(both.dout.view().sliced(0, 1, 2));
    const Results result = run(one, kernel);
    for (const auto& [name, gradient] : result.by_name()) {
      const Tensor expected = all.by_name().at(name);
      EXPECT_TRUE(same_bits(expected.view().sliced(0, 1, 2), gradient)) << kernel << name;
    }
  }
}

}  // namespace
}  // namespace flashtile::test
