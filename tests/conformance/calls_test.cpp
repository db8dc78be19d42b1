// SPDX-License-Identifier: Apache-2.0
//
// Determinism, batches, dropout masks, caches: reports from other libraries, as small inputs.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <numeric>

#include "flashtile/error.hpp"
#include "support/attention_runs.hpp"

namespace flashtile::test {
namespace {

/// Processor time of all threads: what others take from the machine does not count.
double process_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// The first call of a process starts threads, reads the machine's sizes and lists what it can do.
TEST(FirstCall, TakesLittleMoreThanLaterOnes) {
  const Inputs inputs{Tensor::random(DType::kF32, {2, 256, 8, 64}, 1),
                      Tensor::random(DType::kF32, {2, 256, 8, 64}, 2),
                      Tensor::random(DType::kF32, {2, 256, 8, 64}, 3),
                      Tensor::random(DType::kF32, {2, 256, 8, 64}, 4),
                      {}};
  double seconds[6];
  for (double& of_run : seconds) {
    const double start = process_seconds();
    run(inputs, "", {});
    of_run = process_seconds() - start;
  }
  std::sort(seconds + 1, seconds + 6);
  EXPECT_LT(seconds[0] - seconds[3], 0.05);
}

// flash-attention#2244
TEST(DeterministicOption, GivesTheSameBitsInEveryRun) {
  const Tensor bias = Tensor::random(DType::kBF16, {1, 1, 1, 256}, 5);
  const Tensor sink = Tensor::random(DType::kF32, {8}, 6);
  Inputs inputs{Tensor::random(DType::kBF16, {2, 256, 8, 32}, 1),
                Tensor::random(DType::kBF16, {2, 256, 2, 32}, 2),
                Tensor::random(DType::kBF16, {2, 256, 2, 32}, 3),
                Tensor::random(DType::kBF16, {2, 256, 8, 32}, 4),
                {}};
  inputs.options.causal = true;
  inputs.options.bias = bias;
  inputs.options.sink = sink;
  inputs.options.deterministic = true;
  const std::string best = all_kernels().front();
  const Results first = run(inputs, best, {});
  for (int repeat = 0; repeat < 6; ++repeat) {
    EXPECT_EQ(differing(run(inputs, best, {}), first), "") << "run " << repeat;
  }
}

// flash-attention#2244, at its sizes
TEST(DeterministicOptionFull, GivesTheSameBitsInThirtyRuns) {
  const Tensor bias = Tensor::random(DType::kBF16, {1, 8, 1, 1024}, 5);
  const Tensor sink = Tensor::random(DType::kF32, {8}, 6);
  for (const auto& [num_heads_kv, num_runs] : {std::pair<int64_t, int>{2, 30}, {8, 3}}) {
    Inputs inputs{Tensor::random(DType::kBF16, {1, 1024, 8, 128}, 1),
                  Tensor::random(DType::kBF16, {1, 1024, num_heads_kv, 128}, 2),
                  Tensor::random(DType::kBF16, {1, 1024, num_heads_kv, 128}, 3),
                  Tensor::random(DType::kBF16, {1, 1024, 8, 128}, 4),
                  {}};
    inputs.options.causal = true;
    inputs.options.bias = bias;
    inputs.options.sink = sink;
    inputs.options.deterministic = true;
    const std::string best = all_kernels().front();
    const Results first = run(inputs, best, {});
    for (int repeat = 1; repeat < num_runs; ++repeat) {
      EXPECT_EQ(differing(run(inputs, best, {}), first), "") << "run " << repeat;
    }
  }
}

// flashinfer#2424, FlashMLA#212, flash-attention PR 2450
TEST(BatchInvariance, OfOneRequestAmongOthers) {
  for (const int64_t num_heads_kv : {8, 1}) {
    for (const int64_t seqlen_q : {1, 40}) {
      const Tensor q = Tensor::random(DType::kBF16, {32, seqlen_q, 8, 64}, 1);
      const Tensor k = Tensor::random(DType::kBF16, {32, 700, num_heads_kv, 64}, 2);
      std::vector<int64_t> lengths(32, 20);
      lengths[5] = 700;
      const Tensor used = Tensor::ints(lengths);
      Inputs batch{q, k, k, {}, {}};
      batch.options.seqused_k = used;
      batch.options.causal = true;
      const Tensor used_alone = Tensor::ints({700});
      Inputs alone = batch;
      alone.q = q.view().sliced(0, 5, 6);
      alone.k = alone.v = k.view().sliced(0, 5, 6);
      alone.options.seqused_k = used_alone;
      // The same requests from the last to the first.
      const auto reversed = [](TensorView view) {
        view.data = view.at({31, 0, 0, 0});
        view.strides[0] = -view.strides[0];
        return view;
      };
      std::reverse(lengths.begin(), lengths.end());
      const Tensor used_reversed = Tensor::ints(lengths);
      Inputs backwards{reversed(q), reversed(k), reversed(k), {}, batch.options};
      backwards.options.seqused_k = used_reversed;
      for (const std::string& implementation : all_kernels()) {
        const Results all = run(batch, implementation);
        const Results one = run(alone, implementation);
        const Results other_order = run(backwards, implementation);
        const auto rows = [](const Tensor& out, int64_t b) {
          return out.view().sliced(0, b, b + 1);
        };
        EXPECT_TRUE(same_bits(rows(all.out, 5), one.out)) << implementation;
        EXPECT_TRUE(same_bits(rows(all.lse, 5), one.lse)) << implementation;
        for (int64_t b = 0; b < 32; ++b) {
          EXPECT_TRUE(same_bits(rows(all.out, b), rows(other_order.out, 31 - b)))
              << implementation << " request " << b;
        }
      }
    }
  }
}

Tensor identity(DType dtype, int64_t size) {
  const Tensor result = Tensor::filled(dtype, {1, size, 1, size}, 0);
  for (int64_t i = 0; i < size; ++i) result.set({0, i, 0, i}, 1);
  return result;
}

// flash-attention#612, #902
TEST(DropoutMask, IsTheSameForwardAndBackwardAndWrittenOut) {
  const Tensor eye = identity(DType::kF32, 64);
  const Tensor mask(DType::kU8, {1, 1, 64, 64});
  const Tensor weights(DType::kF32, {1, 1, 64, 64});
  Inputs inputs{Tensor::random(DType::kF32, {1, 64, 1, 64}, 1),
                Tensor::random(DType::kF32, {1, 64, 1, 64}, 2),
                eye,
                eye,
                {}};
  inputs.options.dropout_p = 0.3;
  inputs.options.dropout_seed = 11;
  inputs.options.dropout_mask = mask;
  inputs.options.weights = weights;
  Inputs plain = inputs;
  plain.options = {};
  // T = round(0.3 x 65536) = 19661.
  const double gain = 65536.0 / (65536 - 19661);
  std::vector<std::vector<double>> masks;
  for (const std::string& implementation : all_implementations()) {
    const Results results = run(inputs, implementation);
    const Results undropped = run(plain, implementation);
    masks.push_back(mask.numbers());
    int64_t dropped = 0;
    for (int64_t i = 0; i < 64; ++i) {
      for (int64_t j = 0; j < 64; ++j) {
        const double out = results.out.get({0, i, 0, j});
        const bool is_kept = mask.get({0, 0, i, j}) != 0;
        dropped += is_kept ? 0 : 1;
        ASSERT_EQ(out != 0, is_kept) << implementation;
        ASSERT_NEAR(out, is_kept ? gain * undropped.out.get({0, i, 0, j}) : 0, 1e-6)
            << implementation;
        ASSERT_NEAR(results.dv.get({0, j, 0, i}), out, 1e-6) << implementation;
        ASSERT_NEAR(weights.get({0, 0, i, j}), out, 1e-6) << implementation;
      }
    }
    EXPECT_NEAR(static_cast<double>(dropped) / 4096, 0.3, 0.03) << implementation;
    EXPECT_EQ(masks.back(), masks.front()) << implementation;
  }
}

TEST(DropoutMask, OfASeedInATensorIsThatOfTheSeed) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor mask(DType::kU8, {2, 2, 70, 90});
    Inputs inputs{Tensor::random(dtype, {2, 70, 2, 64}, 1),
                  Tensor::random(dtype, {2, 90, 2, 64}, 2),
                  Tensor::random(dtype, {2, 90, 2, 64}, 3),
                  Tensor::random(dtype, {2, 70, 2, 64}, 4),
                  {}};
    inputs.options.dropout_p = 0.3;
    for (const std::string& implementation : all_implementations()) {
      for (const int64_t seed : {int64_t{11}, int64_t{-3} << 40}) {
        // Only attention_fwd has a place for the mask, and may take another kernel for it.
        inputs.options.dropout_mask = mask;
        inputs.options.dropout_seed = static_cast<uint64_t>(seed);
        inputs.options.dropout_seed_tensor = {};
        run(inputs, implementation);
        const std::vector<double> kept = mask.numbers();
        inputs.options.dropout_mask = {};
        const Results expected = run(inputs, implementation);
        inputs.options.dropout_seed = 0;
        const Tensor stored =
            Tensor::of(DType::kI64, {1}, std::vector<double>{static_cast<double>(seed)});
        inputs.options.dropout_seed_tensor = stored;
        EXPECT_EQ(differing(run(inputs, implementation), expected), "") << implementation;
        inputs.options.dropout_mask = mask;
        run(inputs, implementation);
        EXPECT_EQ(mask.numbers(), kept) << implementation;
        inputs.options.dropout_seed = 11;
        EXPECT_THROW(run(inputs, implementation), Error) << "both are given";
      }
    }
  }
}

// flash-attention#612, #902
TEST(DropoutMask, OfAlmostNoProbabilityDropsNothing) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor eye = identity(dtype, 64);
    Inputs inputs{Tensor::random(dtype, {1, 64, 1, 64}, 1),
                  Tensor::random(dtype, {1, 64, 1, 64}, 2),
                  eye,
                  eye,
                  {}};
    for (const std::string& implementation : all_implementations()) {
      inputs.options.dropout_p = 0;
      const Results without = run(inputs, implementation);
      inputs.options.dropout_p = 1e-16;
      EXPECT_EQ(differing(run(inputs, implementation), without), "") << implementation;
    }
  }
}

/// The first words of Philox4x32-7 with key 0 and counter 0 are 5F6FB709 0D893F64 4F121F81
/// 4F730A48: column j of row 0 takes word (j mod 32) / 8, low half first, of counter j mod 8 / 2.
TEST(DropoutMask, FollowsThePublishedGenerator) {
  const uint32_t words[] = {0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48};
  const Tensor mask(DType::kU8, {1, 1, 1, 32});
  const Tensor q = Tensor::random(DType::kF32, {1, 1, 1, 4}, 1);
  const Tensor k = Tensor::random(DType::kF32, {1, 32, 1, 4}, 2);
  for (const double p : {0.05, 0.2, 0.31, 0.5, 0.71}) {
    Inputs inputs{q, k, k, {}, {}};
    inputs.options.dropout_p = p;
    inputs.options.dropout_mask = mask;
    for (const std::string& implementation : all_implementations()) {
      run(inputs, implementation);
      for (int64_t w = 0; w < 4; ++w) {
        const uint32_t word = words[w];
        EXPECT_EQ(mask.get({0, 0, 0, 8 * w}) != 0, (word & 0xFFFF) >= p * 65536)
            << implementation << " p " << p;
        EXPECT_EQ(mask.get({0, 0, 0, 8 * w + 1}) != 0, (word >> 16) >= p * 65536)
            << implementation << " p " << p;
      }
    }
  }
}

/// Two pages of 16 slots for one sequence: `largest` keys in use are the most that can be; one more
/// is an error of this text.
void expect_largest_length(Inputs inputs, int largest, const char* fault) {
  const Tensor table = Tensor::of(DType::kI32, {1, 2}, std::vector<double>{1, 0});
  inputs.options.block_table = table;
  for (const int length : {largest, largest + 1}) {
    const Tensor used = Tensor::ints({length});
    inputs.options.seqused_k = used;
    for (const std::string& implementation : all_implementations()) {
      try {
        run(inputs, implementation);
        EXPECT_EQ(length, largest) << implementation;
      } catch (const Error& error) {
        EXPECT_EQ(length, largest + 1) << error.what();
        EXPECT_STREQ(error.what(), fault);
      }
    }
  }
}

// flash-attention PR 2711
TEST(BlockTable, LengthBeyondItIsAnErrorThatNamesBoth) {
  const Tensor q = Tensor::random(DType::kF32, {1, 1, 2, 16}, 1);
  const Tensor pool = Tensor::random(DType::kF32, {2, 16, 2, 16}, 2);
  expect_largest_length({q, pool, pool, {}, {}}, 32,
                        "attention_fwd: seqused_k[0] is 33, expected 0 to 32 (stored keys of the "
                        "sequence)");
}

// flash-attention PR 2711: one more appended to all slots that there are
TEST(BlockTable, IsFullAfterItsLastSlot) {
  const Tensor q = Tensor::random(DType::kF32, {1, 1, 2, 16}, 1);
  const Tensor pool = Tensor::random(DType::kF32, {2, 16, 2, 16}, 2);
  const Tensor values = Tensor::random(DType::kF32, {2, 16, 2, 16}, 3);
  Inputs inputs{q, pool, values, {}, {}};
  inputs.options.k_new = inputs.options.v_new = q;
  expect_largest_length(inputs, 31,
                        "attention_fwd: seqused_k[0] is 32 and there are 1 new keys, expected at "
                        "most 32 together, the slots of a sequence");
}

// pytorch/torchtitan#3235, flash-attention#1417
TEST(GrowingCache, GivesTheSameBitsWholeAndSliced) {
  const Tensor q = Tensor::random(DType::kBF16, {1, 1, 4, 32}, 1);
  const Tensor k = Tensor::random(DType::kBF16, {1, 1024, 2, 32}, 2);
  const Tensor v = Tensor::random(DType::kBF16, {1, 1024, 2, 32}, 3);
  const int64_t paged_shape[] = {64, 16, 2, 32};
  const TensorView k_pages(k.view().data, DType::kBF16, paged_shape);
  const TensorView v_pages(v.view().data, DType::kBF16, paged_shape);
  std::vector<double> numbers(64);
  std::iota(numbers.begin(), numbers.end(), 0);
  const Tensor table = Tensor::of(DType::kI32, {1, 64}, numbers);
  // 500 steps, and those on which the keys become two splits.
  for (int length = 1; length <= 540; ++length) {
    const Tensor used = Tensor::ints({length});
    Inputs paged{q, k_pages, v_pages, {}, {}};
    paged.options.block_table = table;
    paged.options.seqused_k = used;
    Inputs whole{q, k, v, {}, {}};
    whole.options.seqused_k = used;
    const Inputs sliced{q, k.view().sliced(1, 0, length), v.view().sliced(1, 0, length), {}, {}};
    for (const std::string& implementation : all_implementations()) {
      const Results results = run(sliced, implementation);
      for (const double x : results.out.numbers()) {
        ASSERT_TRUE(std::isfinite(x)) << implementation << " length " << length;
      }
      EXPECT_EQ(differing(run(paged, implementation), results), "")
          << implementation << " length " << length;
      EXPECT_EQ(differing(run(whole, implementation), results), "")
          << implementation << " length " << length;
    }
  }
}

}  // namespace
}  // namespace flashtile::test
