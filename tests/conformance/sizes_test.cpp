// SPDX-License-Identifier: Apache-2.0
//
// Layout, alignment and size: reports from other libraries. Memory that nobody writes is mapped,
// not used, so that offsets of more than 2^31 elements cost nothing.
#include <gtest/gtest.h>

#include "support/attention_runs.hpp"
#include "support/guarded_memory.hpp"
#include "tensors.hpp"

namespace flashtile::test {
namespace {

TensorView strided(const TensorView& memory, std::initializer_list<int64_t> shape,
                   std::initializer_list<int64_t> strides) {
  return {memory.data, memory.dtype, std::span(shape.begin(), shape.size()),
          std::span(strides.begin(), strides.size())};
}

void expect_bits_of_copies(const Inputs& inputs) {
  Inputs plain = inputs;
  plain.q = copy_of(inputs.q);
  plain.k = copy_of(inputs.k);
  plain.v = copy_of(inputs.v);
  if (inputs.dout) plain.dout = copy_of(inputs.dout);
  for (const std::string& implementation : all_implementations()) {
    EXPECT_EQ(differing(run(inputs, implementation), run(plain, implementation)), "")
        << implementation;
  }
}

// pytorch PR 187506
TEST(Layout, MayHaveTheHeadDimOutermost) {
  const Tensor memory = Tensor::random(DType::kF32, {3, 2, 4, 33, 50}, 1);  // (B, H, D, S) each
  const auto part = [&](int64_t n) {
    return strided(memory.view().sliced(0, n, n + 1), {2, 50, 4, 33},
                   {4 * 33 * 50, 1, 33 * 50, 50});
  };
  expect_bits_of_copies({part(0), part(1), part(2), part(0), {}});
}

// pytorch#181133, ROCm/pytorch#3230, FlagGems#5896
TEST(Layout, MayDifferForValuesAlone) {
  const Tensor small = Tensor::random(DType::kF32, {84, 3, 3, 64}, 1);
  const TensorView permuted = small.view().transposed(1, 2);
  expect_bits_of_copies({permuted, permuted, permuted, permuted, {}});
  const Tensor q = Tensor::random(DType::kBF16, {1, 62, 16, 128}, 2);
  const Tensor v = Tensor::random(DType::kBF16, {1, 128, 16, 62}, 3);
  expect_bits_of_copies({q, q, v.view().transposed(1, 3), q, {}});
}

// flash-attention#355
TEST(Layout, OfIncomingGradientsIsFree) {
  const Tensor q = Tensor::random(DType::kF16, {2, 32, 4, 128}, 1);
  const Tensor k = Tensor::random(DType::kF16, {2, 32, 1, 128}, 2);
  const Tensor dout = Tensor::random(DType::kF16, {2, 4, 32, 128}, 3);
  expect_bits_of_copies({q, k, k, dout.view().transposed(1, 2), {}});
  const Tensor one = Tensor::filled(DType::kF16, {1}, 0.5);
  expect_bits_of_copies({q, k, k, strided(one, {2, 32, 4, 128}, {0, 0, 0, 0}), {}});
}

// xformers#683, #813; pytorch PR 114173
TEST(Layout, OfABiasMayBeOdd) {
  const Tensor q = Tensor::random(DType::kF16, {2, 16, 2, 32}, 1);
  const Tensor k = Tensor::random(DType::kF16, {2, 43, 2, 32}, 2);
  const Tensor buffer = Tensor::random(DType::kF16, {1 + 2 * 2 * 16 * 43}, 3);
  const Tensor dbias_buffer(DType::kF16, {1 + 2 * 2 * 16 * 43});
  Inputs inputs{q, k, k, q, {}};
  const TensorView shifted = buffer.view().sliced(0, 1, buffer.view().shape[0]);
  for (const TensorView& bias : {strided(buffer, {2, 2, 16, 43}, {2 * 16 * 43, 16 * 43, 43, 1}),
                                 strided(shifted, {2, 2, 16, 43}, {2 * 16 * 43, 16 * 43, 43, 1}),
                                 strided(shifted, {1, 1, 16, 43}, {0, 0, 43, 1}),
                                 strided(shifted, {2, 2, 16, 43}, {1, 2, 43 * 4, 4})}) {
    inputs.options.bias = bias;
    expect_all_conform(inputs);
  }
}

// vllm-project/flash-attention PR 185
TEST(Layout, MayBeSlicesOfPackedProjections) {
  const int64_t row = 3 * 4 * 24;
  const Tensor buffer = Tensor::random(DType::kBF16, {1 + 70 * row}, 1);
  for (const int64_t shift : {0, 1}) {
    const TensorView start = buffer.view().sliced(0, shift, buffer.view().shape[0]);
    const auto part = [&](int64_t n) {
      return strided(start.sliced(0, n * 4 * 24, start.shape[0]), {1, 70, 4, 24}, {0, row, 24, 1});
    };
    const Tensor dout = Tensor::random(DType::kBF16, {1, 70, 4, 24}, 2);
    expect_bits_of_copies({part(0), part(1), part(2), dout, {}});
  }
}

/// Memory of that many elements, zero and not yet there.
class LazyMemory {
 public:
  LazyMemory(DType dtype, int64_t count)
      : memory_(static_cast<size_t>(count * dtype_bytes(dtype)), Placement::kStartsAtGuard,
                GuardedMemory::Fill::kLazyZero),
        view_(memory_.data(), dtype, {count}) {}
  const TensorView& view() const { return view_; }

 private:
  GuardedMemory memory_;
  TensorView view_;
};

constexpr int64_t kFar = int64_t{1} << 31;

/// A copy of a tensor in lazy memory with a distance of 2^31 elements in its first dimension.
class FarTensor {
 public:
  explicit FarTensor(const TensorView& source) : FarTensor(source, 0) {}
  FarTensor(const TensorView& source, int dim)
      : memory_(source.dtype,
                kFar * (source.shape[static_cast<size_t>(dim)] - 1) + source.numel()) {
    view_ = TensorView(memory_.view().data, source.dtype, cli::shape_of(source));
    view_.strides[static_cast<size_t>(dim)] = kFar;
    cli::from_numbers(cli::to_numbers(source), view_);
  }
  const TensorView& view() const { return view_; }

 private:
  LazyMemory memory_;
  TensorView view_;
};

// flash-attention#2611
TEST(Offsets, OfGradientsMayPassTwoToThe31) {
  const Tensor q = Tensor::random(DType::kF16, {5, 1, 16}, 1);
  const Tensor dout = Tensor::random(DType::kF16, {5, 1, 16}, 2);
  const Tensor cu_seqlens = Tensor::ints({0, 2, 5});
  const LazyMemory memory(DType::kF16, 4 * (int64_t{1} << 29) + 16);
  const TensorView far = strided(memory.view(), {5, 1, 16}, {int64_t{1} << 29, 16, 1});
  cli::from_numbers(dout.numbers(), far);
  Inputs inputs{q, q, q, far, {}};
  inputs.options.cu_seqlens_q = cu_seqlens;
  inputs.options.cu_seqlens_k = cu_seqlens;
  Inputs plain = inputs;
  plain.dout = dout;
  for (const std::string& implementation : all_implementations()) {
    EXPECT_EQ(differing(run(inputs, implementation), run(plain, implementation)), "")
        << implementation;
  }
}

// pytorch#190857, vllm#50427
TEST(Offsets, OfEveryTensorMayPassTwoToThe31) {
  const Tensor q = Tensor::random(DType::kBF16, {2, 4, 2, 16}, 1);
  const Tensor k = Tensor::random(DType::kBF16, {2, 70, 2, 16}, 2);
  const Tensor v = Tensor::random(DType::kBF16, {2, 70, 2, 16}, 3);
  const Tensor dout = Tensor::random(DType::kBF16, {2, 4, 2, 16}, 4);
  const Tensor bias = Tensor::random(DType::kBF16, {2, 2, 4, 70}, 5);
  const FarTensor far_q(q), far_k(k), far_v(v), far_dout(dout), far_bias(bias);
  Inputs plain{q, k, v, dout, {}};
  plain.options.bias = bias;
  for (const std::string& implementation : all_implementations()) {
    const Results expected = run(plain, implementation);
    // Places for results, far apart as well.
    const FarTensor out(expected.out), lse(expected.lse), dq(q), dk(k), dv(v), dbias(bias);
    for (const FarTensor* place : {&out, &lse, &dq, &dk, &dv, &dbias}) cli::poison(place->view());
    AttentionOptions options;
    options.bias = far_bias.view();
    Context context = one_worker();
    context.implementation = implementation;
    attention_fwd(far_q.view(), far_k.view(), far_v.view(), out.view(), lse.view(), options,
                  context);
    options.dbias = dbias.view();
    attention_bwd(far_dout.view(), far_q.view(), far_k.view(), far_v.view(), out.view(), lse.view(),
                  dq.view(), dk.view(), dv.view(), options, context);
    EXPECT_TRUE(same_bits(out.view(), expected.out)) << implementation;
    EXPECT_TRUE(same_bits(lse.view(), expected.lse)) << implementation;
    EXPECT_TRUE(same_bits(dq.view(), expected.dq)) << implementation;
    EXPECT_TRUE(same_bits(dk.view(), expected.dk)) << implementation;
    EXPECT_TRUE(same_bits(dv.view(), expected.dv)) << implementation;
    EXPECT_TRUE(same_bits(dbias.view(), expected.dbias)) << implementation;
  }
}

TEST(Offsets, OfRowsAndHeadsMayPassTwoToThe31) {
  const Tensor q = Tensor::random(DType::kBF16, {1, 3, 2, 16}, 1);
  const Tensor k = Tensor::random(DType::kBF16, {1, 3, 2, 16}, 2);
  for (const int dim : {1, 2, 3}) {
    const int64_t size = dim == 3 ? 2 : 16;
    const TensorView narrow_q = q.view().sliced(3, 0, size);
    const TensorView narrow_k = k.view().sliced(3, 0, size);
    const Tensor plain_q = copy_of(narrow_q), plain_k = copy_of(narrow_k);
    const FarTensor far_q(plain_q, dim), far_k(plain_k, dim);
    for (const std::string& implementation : all_implementations()) {
      const Results far =
          run({far_q.view(), far_k.view(), far_k.view(), far_q.view(), {}}, implementation);
      const Results near = run({plain_q, plain_k, plain_k, plain_q, {}}, implementation);
      EXPECT_EQ(differing(far, near), "") << implementation << " dimension " << dim;
    }
  }
}

// pytorch#190857, vllm#50427
TEST(Offsets, OfPagesMayPassTwoToThe31) {
  const Tensor q = Tensor::random(DType::kF16, {1, 2, 2, 16}, 1);
  const Tensor pool = Tensor::random(DType::kF16, {4, 16, 2, 16}, 2);
  const FarTensor far(pool);
  const Tensor table = Tensor::of(DType::kI32, {1, 3}, std::vector<double>{3, 0, 2});
  const Tensor used = Tensor::ints({45});
  Inputs plain{q, pool, pool, {}, {}};
  plain.options.block_table = table;
  plain.options.seqused_k = used;
  Inputs distant = plain;
  distant.k = distant.v = far.view();
  for (const std::string& implementation : all_implementations()) {
    EXPECT_EQ(differing(run(distant, implementation), run(plain, implementation)), "")
        << implementation;
  }
}

// pytorch#190857, sglang#20389: the last of 700 sequences that take turns in memory, row by row
TEST(Offsets, OfTheRowsOfOneSequenceMayPassTwoToThe31) {
  constexpr int64_t kBatch = 700, kKeys = 24000, kDim = 128;
  const Tensor q = Tensor::random(DType::kF16, {1, 1, 1, kDim}, 1);
  const Tensor k = Tensor::random(DType::kF16, {1, kKeys, 1, kDim}, 2);
  const LazyMemory memory(DType::kF16, kKeys * kBatch * kDim);
  const TensorView last = memory.view().sliced(0, (kBatch - 1) * kDim, kKeys * kBatch * kDim);
  const TensorView far = strided(last, {1, kKeys, 1, kDim}, {kDim, kBatch * kDim, kDim, 1});
  ASSERT_GT((kKeys - 1) * kBatch * kDim, kFar);
  cli::from_numbers(k.numbers(), far);
  for (const std::string& implementation : all_implementations()) {
    EXPECT_EQ(differing(run({q, far, far, {}, {}}, implementation),
                        run({q, k, k, {}, {}}, implementation)),
              "")
        << implementation;
  }
}

/// As many sequences as a report has, each 16 elements behind the one before in the same memory.
TensorView overlapping(const Tensor& memory, std::initializer_list<int64_t> shape) {
  TensorView view(memory.view().data, memory.view().dtype, std::span(shape.begin(), shape.size()));
  view.strides[0] = 16;
  return view;
}

/// Counts are the launchers' business, which all instruction sets share: the best one will do.
/// Some sequences are judged, each as a call of its own.
void expect_sampled_sequences(const TensorView& x, std::initializer_list<int64_t> sampled) {
  const Results all = run({x, x, x, x, {}}, all_kernels().front(), {});
  for (const int64_t b : sampled) {
    const auto one = [b](const TensorView& tensor) { return tensor.sliced(0, b, b + 1); };
    const TensorView x_one = one(x);
    Results results;
    results.out = one(all.out);
    results.lse = one(all.lse);
    results.dq = one(all.dq);
    results.dk = one(all.dk);
    results.dv = one(all.dv);
    EXPECT_EQ(Truth({x_one, x_one, x_one, x_one, {}}).fault_of(results), "") << "sequence " << b;
  }
}

// pytorch#142228, #146704; xformers#845
TEST(CountsFull, OfSequencesMayPassTwoToThe16) {
  const Tensor memory = Tensor::random(DType::kF32, {16 * 100000 + 160}, 1);
  expect_sampled_sequences(overlapping(memory, {100000, 10, 1, 16}), {0, 65535, 65536, 99999});
}

// pytorch#142228, #146704; xformers#845
TEST(CountsFull, OfSequencesTimesHeadsMayPassTwoToThe16) {
  const Tensor memory = Tensor::random(DType::kF16, {16 * 65536 + 4 * 8 * 64}, 2);
  expect_sampled_sequences(overlapping(memory, {65536, 4, 8, 64}), {0, 8191, 8192, 65535});
}

TEST(CountsFull, OfHeadsMayPassTwoToThe16) {
  const Tensor q = Tensor::random(DType::kF32, {1, 2, 70000, 4}, 1);
  const Tensor k = Tensor::random(DType::kF32, {1, 3, 35000, 4}, 2);
  const std::string best = all_kernels().front();
  const Results results = run({q, k, k, q, {}}, best, {});
  for (const int64_t h : {0, 65535, 65536, 69998}) {
    const int64_t first = h / 2 * 2;  // both heads of a group
    const TensorView q_one = q.view().sliced(2, first, first + 2);
    const TensorView k_one = k.view().sliced(2, first / 2, first / 2 + 1);
    const Results single = run({q_one, k_one, k_one, q_one, {}}, best);
    const TensorView out = results.out.view().sliced(2, first, first + 2);
    const TensorView dk = results.dk.view().sliced(2, first / 2, first / 2 + 1);
    EXPECT_TRUE(same_bits(single.out, out)) << "head " << h;
    EXPECT_LT(max_difference(single.dk, dk), 1e-5) << "head " << h;
  }
}

}  // namespace
}  // namespace flashtile::test
