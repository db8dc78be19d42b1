// SPDX-License-Identifier: Apache-2.0
//
// A batch without sequences reads nothing, also of tensors whose one line would stand for all.
#include <gtest/gtest.h>

#include "flashtile/error.hpp"
#include "support/attention_runs.hpp"

namespace flashtile::test {
namespace {

/// A tensor without memory: reading any of it is a fault.
TensorView nowhere(DType dtype, std::initializer_list<int64_t> shape) {
  return {nullptr, dtype, shape};
}

/// Block lists whose lines are those of no sequence, or one for every sequence, of which there are
/// none.
void add_lists(int64_t count_lines, int64_t index_lines, const Tensor& counts,
               const Tensor& indices, AttentionOptions* options) {
  options->block_rows = options->block_cols = 4;
  options->block_counts =
      count_lines == 0 ? nowhere(DType::kI32, {0, 1, 2}) : TensorView(counts.view());
  options->block_indices =
      index_lines == 0 ? nowhere(DType::kI32, {0, 1, 2, 1}) : TensorView(indices.view());
}

class EmptyBatch : public testing::TestWithParam<std::pair<int64_t, int64_t>> {};

TEST_P(EmptyBatch, OfUnpackedSequencesReadsNoBlockLists) {
  const Tensor counts = Tensor::of(DType::kI32, {1, 1, 2}, std::vector<double>{1, 1});
  const Tensor indices = Tensor::of(DType::kI32, {1, 1, 2, 1}, std::vector<double>{0, 1});
  const TensorView x = nowhere(DType::kF32, {0, 8, 2, 16});
  const TensorView lse = nowhere(DType::kF32, {0, 2, 8});
  AttentionOptions options;
  add_lists(GetParam().first, GetParam().second, counts, indices, &options);
  for (const std::string& implementation : all_implementations()) {
    Context context;
    context.implementation = implementation;
    EXPECT_NO_THROW(attention_fwd(x, x, x, x, lse, options, context)) << implementation;
    EXPECT_NO_THROW(attention_bwd(x, x, x, x, x, lse, x, x, x, options, context)) << implementation;
  }
}

TEST_P(EmptyBatch, OfPackedSequencesCoversNoRow) {
  const Tensor counts = Tensor::of(DType::kI32, {1, 1, 2}, std::vector<double>{1, 1});
  const Tensor indices = Tensor::of(DType::kI32, {1, 1, 2, 1}, std::vector<double>{0, 1});
  const Tensor cu_seqlens = Tensor::ints({0});
  const Tensor x = Tensor::random(DType::kF32, {5, 2, 16}, 1);
  Inputs inputs{x, x, x, x, {}};
  inputs.options.cu_seqlens_q = inputs.options.cu_seqlens_k = cu_seqlens;
  add_lists(GetParam().first, GetParam().second, counts, indices, &inputs.options);
  for (const std::string& implementation : all_implementations()) {
    const Results results = run(inputs, implementation);
    for (const Tensor* zeros : {&results.out, &results.dq, &results.dk, &results.dv}) {
      for (const double value : zeros->numbers()) EXPECT_EQ(value, 0) << implementation;
    }
    for (const double value : results.lse.numbers()) EXPECT_EQ(value, -kInf) << implementation;
  }
}

INSTANTIATE_TEST_SUITE_P(Lines, EmptyBatch,
                         testing::Values(std::pair{0, 0}, std::pair{0, 1}, std::pair{1, 0},
                                         std::pair{1, 1}),
                         [](const auto& test) {
                           return "Counts" + std::to_string(test.param.first) + "Indices" +
                                  std::to_string(test.param.second);
                         });

TEST(EmptyBatchOnAGpu, LaunchesNoKernelThatReadsBlockLists) {
  Context context;
  context.arch = "sm_90a";
  for (const std::string op : {"attention_fwd", "attention_bwd"}) {
    const std::string rest =
        ":sq8:hq2:d64:f16:block_counts[1,1,2]:block_indices[b,1,2,1]:block_rows=4:block_cols=4";
    EXPECT_NE(explain(op + ":b1" + rest, context).plan.find("attention_prepare"),
              std::string::npos);
    EXPECT_EQ(explain(op + ":b0" + rest, context).plan.find("attention_prepare"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace flashtile::test
