// SPDX-License-Identifier: Apache-2.0
//
// Packed sequences, some of them empty: reports from other libraries, as small inputs.
#include <gtest/gtest.h>

#include "flashtile/error.hpp"
#include "support/attention_runs.hpp"

namespace flashtile::test {
namespace {

/// Packed inputs; the offsets stay alive with the object.
struct Packed {
  Packed(DType dtype, std::initializer_list<int> cu_q, std::initializer_list<int> cu_k,
         int64_t num_heads, int64_t num_heads_kv, int64_t head_dim, double size = 1)
      : cu_seqlens_q(Tensor::ints(cu_q)), cu_seqlens_k(Tensor::ints(cu_k)) {
    const int64_t total_q = *(cu_q.end() - 1);
    const int64_t total_k = *(cu_k.end() - 1);
    inputs.q = Tensor::random(dtype, {total_q, num_heads, head_dim}, 1, size);
    inputs.k = Tensor::random(dtype, {total_k, num_heads_kv, head_dim}, 2, size);
    inputs.v = Tensor::random(dtype, {total_k, num_heads_kv, head_dim}, 3, size);
    inputs.dout = Tensor::filled(dtype, {total_q, num_heads, head_dim}, 1);
    inputs.options.cu_seqlens_q = cu_seqlens_q;
    inputs.options.cu_seqlens_k = cu_seqlens_k;
  }
  Tensor cu_seqlens_q, cu_seqlens_k;
  Inputs inputs;
};

/// A tensor whose dimension `dim`, of size 1, is there `times` times.
TensorView repeated(const TensorView& tensor, int dim, int64_t times) {
  TensorView view = tensor;
  view.shape[static_cast<size_t>(dim)] = times;
  view.strides[static_cast<size_t>(dim)] = 0;
  return view;
}

// flash-attention#1537
TEST(PackedSequences, OfOneQueryAndEmptyOnesWithGroupedHeads) {
  Packed packed(DType::kBF16, {0, 1, 1, 2}, {0, 3, 3, 8}, 9, 3, 64);
  packed.inputs.options.causal = true;
  packed.inputs.options.softmax_scale = 1;
  expect_all_conform(packed.inputs);
}

// flash-attention#443
TEST(PackedSequences, OfManyQueriesAndOneKeyHaveGradients) {
  Packed packed(DType::kF16, {0, 76, 110, 256}, {0, 1, 2, 3}, 1, 1, 32, 3);
  packed.inputs.options.causal = true;
  expect_all_conform(packed.inputs);
  for (const std::string& implementation : all_implementations()) {
    const Results results = run(packed.inputs, implementation);
    for (const double x : results.dq.numbers()) ASSERT_NEAR(x, 0, 0.1) << implementation;
    for (const double x : results.dk.numbers()) ASSERT_NEAR(x, 0, 0.1) << implementation;
    // Only the last query of each sequence sees its key, with weight 1.
    for (const double x : results.dv.numbers()) ASSERT_EQ(x, 1) << implementation;
    for (int64_t i = 0; i < 256; ++i) {
      const bool is_last = i == 75 || i == 109 || i == 255;
      ASSERT_EQ(results.lse.get({0, i}) != -kInf, is_last) << implementation << " " << i;
    }
  }
}

// flash-attention#1254
TEST(PackedSequencesFull, WithoutQueriesBeforeALongOneComeToAnEnd) {
  const Packed packed(DType::kBF16, {0, 0, 0, 1023}, {0, 0, 1, 2046}, 1, 1, 128);
  for (const std::string& implementation : all_kernels()) {
    // All heads of the report for the best one, which takes seconds less than the others.
    const int64_t num_heads = implementation == all_kernels().front() ? 32 : 2;
    Inputs inputs = packed.inputs;
    inputs.q = repeated(inputs.q, 1, num_heads);
    inputs.k = repeated(inputs.k, 1, num_heads);
    inputs.v = repeated(inputs.v, 1, num_heads);
    inputs.dout = repeated(inputs.dout, 1, num_heads);
    const Results results = run(inputs, implementation, {});
    for (int64_t n = 0; n < num_heads * 128; ++n) {
      EXPECT_EQ(results.dk.get({0, n / 128, n % 128}), 0) << implementation;
      EXPECT_EQ(results.dv.get({0, n / 128, n % 128}), 0) << implementation;
    }
    for (const auto& [name, tensor] : results.by_name()) {
      for (const double x : tensor.numbers()) {
        ASSERT_TRUE(std::isfinite(x)) << name << " of " << implementation;
      }
    }
  }
}

// flash-attention#1254
TEST(PackedSequences, BeyondTheirTensorAreAnError) {
  const Tensor row = Tensor::filled(DType::kBF16, {1, 32, 128}, 1);
  const Tensor cu_seqlens_q = Tensor::ints({0, 0, 0, 1023});
  const Tensor cu_seqlens_k = Tensor::ints({0, 0, 1, 2046});
  const TensorView keys = repeated(row, 0, 2045);
  Inputs inputs{repeated(row, 0, 1023), keys, keys, {}, {}};
  inputs.options.cu_seqlens_q = cu_seqlens_q;
  inputs.options.cu_seqlens_k = cu_seqlens_k;
  for (const std::string& implementation : all_implementations()) {
    try {
      run(inputs, implementation);
      ADD_FAILURE() << implementation;
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(),
                   "attention_fwd: cu_seqlens_k ends at 2046, but the packed tensor has 2045 rows");
    }
  }
}

// flash-attention PR 2470
TEST(UnpackedSequences, MayHaveNoKey) {
  const Tensor q = Tensor::random(DType::kF32, {2, 5, 4, 8}, 1);
  const Tensor no_key(DType::kF32, {2, 0, 2, 8});
  for (const bool is_causal : {false, true}) {
    Inputs inputs{q, no_key, no_key, q, {}};
    inputs.options.causal = is_causal;
    for (const std::string& implementation : all_implementations()) {
      const Results results = run(inputs, implementation);
      for (const double x : results.out.numbers()) EXPECT_EQ(x, 0) << implementation;
      for (const double x : results.dq.numbers()) EXPECT_EQ(x, 0) << implementation;
      for (const double x : results.lse.numbers()) EXPECT_EQ(x, -kInf) << implementation;
    }
  }
}

// flash-attention PR 2470
TEST(PackedSequences, MayAllBeEmpty) {
  for (const bool is_causal : {false, true}) {
    Packed no_keys(DType::kF32, {0, 3, 5}, {0, 0, 0}, 4, 2, 8);
    Packed no_queries(DType::kF32, {0, 0, 0}, {0, 3, 5}, 4, 2, 8);
    Packed nothing(DType::kF32, {0, 0, 0}, {0, 0, 0}, 4, 2, 8);
    Packed no_sequences(DType::kF32, {0}, {0}, 4, 2, 8);
    for (Packed* packed : {&no_keys, &no_queries, &nothing, &no_sequences}) {
      packed->inputs.options.causal = is_causal;
    }
    for (const std::string& implementation : all_implementations()) {
      const Results results = run(no_keys.inputs, implementation);
      for (const double x : results.out.numbers()) EXPECT_EQ(x, 0) << implementation;
      for (const double x : results.dq.numbers()) EXPECT_EQ(x, 0) << implementation;
      for (const double x : results.lse.numbers()) EXPECT_EQ(x, -kInf) << implementation;
      const Results keys = run(no_queries.inputs, implementation);
      for (const double x : keys.dk.numbers()) EXPECT_EQ(x, 0) << implementation;
      for (const double x : keys.dv.numbers()) EXPECT_EQ(x, 0) << implementation;
      EXPECT_NO_THROW(run(nothing.inputs, implementation)) << implementation;
      EXPECT_NO_THROW(run(no_sequences.inputs, implementation)) << implementation;
    }
  }
}

TEST(PackedSequences, HaveTheBitsOfSeparateOnes) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Packed packed(dtype, {0, 33, 33, 100}, {0, 140, 145, 345}, 4, 2, 24);
    packed.inputs.options.causal = true;
    packed.inputs.options.window_left = 90;
    packed.inputs.options.softcap = 4;
    for (const std::string& implementation : all_implementations()) {
      const Results all =
          run({packed.inputs.q, packed.inputs.k, packed.inputs.v, {}, packed.inputs.options},
              implementation);
      for (int64_t b = 0; b < 3; ++b) {
        const auto rows = [&](const TensorView& tensor, const Tensor& cu) {
          TensorView part = tensor.sliced(0, static_cast<int64_t>(cu.get({b})),
                                          static_cast<int64_t>(cu.get({b + 1})));
          const int64_t shape[] = {1, part.shape[0], part.shape[1], part.shape[2]};
          const int64_t strides[] = {0, part.strides[0], part.strides[1], part.strides[2]};
          return TensorView(part.data, part.dtype, shape, strides);
        };
        Inputs one{rows(packed.inputs.q, packed.cu_seqlens_q),
                   rows(packed.inputs.k, packed.cu_seqlens_k),
                   rows(packed.inputs.v, packed.cu_seqlens_k),
                   {},
                   packed.inputs.options};
        one.options.cu_seqlens_q = one.options.cu_seqlens_k = {};
        const Results single = run(one, implementation);
        EXPECT_TRUE(same_bits(single.out, rows(all.out, packed.cu_seqlens_q)))
            << implementation << " sequence " << b;
      }
    }
  }
}

}  // namespace
}  // namespace flashtile::test
