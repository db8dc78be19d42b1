// SPDX-License-Identifier: Apache-2.0
//
// Few queries against long caches.
#include <gtest/gtest.h>

#include <numeric>

#include "core/problem_text.hpp"
#include "flashtile/explain.hpp"
#include "support/attention_runs.hpp"
#include "support/problem_cases.hpp"

namespace flashtile::test {
namespace {

bool is_decode(const std::string& text) {
  return explain(text).plan.find(": decode, ") != std::string::npos;
}

// Lengths cross splits of 512 keys and end inside tiles of 64.
const std::vector<std::string> kTexts = {
    ":b2:hq4:hkv4:sq1:sk1301:d64",
    ":b2:hq4:hkv4:sq1:sk1301:d64:bf16",
    ":b2:hq4:hkv2:sq1:sk1301:d128:f16",
    ":b2:hq8:hkv2:sq1:sk1100:d64:seqused_k={1100,513}:bf16",
    ":b1:hq6:hkv2:sq5:sk1100:d40:dv23:causal",
    ":b1:hq4:hkv4:sq16:sk700:d16:causal:bf16",
    ":b1:hq14:hkv2:sq2:sk700:d17:dv9:causal:f16",
    ":b3:hq4:hkv2:sq1:sk600:d32:seqused_k={0,600,1}:sink:max_logit",
    ":b2:hq4:hkv2:sq3:sk1300:d32:window_left=600:window_right=0:softcap=5:bf16",
    ":b2:hq4:hkv2:sq3:sk1300:d32:window_left=20:sink",
    ":b2:hq4:hkv2:sq3:sk1300:d32:alibi_slopes[b,hq]:causal:f16",
    ":b2:hq4:hkv2:sq3:sk700:d32:bias[1,hq,1,sk]:sink:causal:bf16",
    ":b2:hq4:hkv2:sq3:sk700:d32:attention_chunk=100:leftpad_k={100,3}",
    ":b2:hq4:hkv2:sq3:sk700:d32:dropout_p=0.3:dropout_seed=7:causal:bf16",
    ":b1:hq4:hkv2:sq3:sk700:d32:block_rows=2:block_cols=50:block_counts[1,hq,2]:"
    "block_indices[1,hq,2,14]",
    ":b3:hq4:hkv2:sq1:sk1400:d32:block_table:page_size=16:seqused_k={1400,17,640}:causal:bf16",
    ":hq4:hkv2:sk1200:d32:block_table:page_size=3:cu_seqlens_q={0,1,4,4}:"
    "seqused_k={1200,1000,17}:causal:f16",
    ":b2:hq4:hkv2:sq2:sk600:d32:lines5:cache_batch_idx:seqused_k={600,33}:out.f32:bf16",
    ":b2:hq8:hkv4:sq2:sk1300:d80:dv96:causal:softcap=9:batch_invariant:bf16",
};

class AttentionDecode : public testing::TestWithParam<ProblemParam> {};
TEST_P(AttentionDecode, AgreesWithReference) {
  const std::string& text = GetParam().text;
  if (text.find("batch_invariant") != std::string::npos &&
      test_context().device.type != DeviceType::kCpu) {
    GTEST_SKIP() << "GPUs refuse batch_invariant";
  }
  for (const std::string& kernel : all_kernels()) EXPECT_TRUE(is_decode(text + "@" + kernel));
  expect_problem_conforms(text);
}
INSTANTIATE_TEST_SUITE_P(Texts, AttentionDecode, testing::ValuesIn(forward_only(kTexts)),
                         [](const auto& test) { return test_name(test.param.text); });

TEST(AttentionDecodePlan, LeavesOtherProblemsToPackedBlocks) {
  const std::string kernel = "@" + all_kernels().front();
  for (const char* text :
       {"attention_fwd:sq17:sk900:d64", "attention_fwd:hq64:hkv2:sk900:d64",
        "attention_fwd:sk900:d64:mask='k_idx % 3'", "attention_fwd:sk900:d64:score='score + 1.0'",
        "attention_fwd:sk900:d64:weights"}) {
    EXPECT_FALSE(is_decode(text + kernel)) << text;
  }
}

constexpr int64_t kLength = 1301, kHeads = 4, kHeadsKv = 2, kDim = 40;

/// Lines in their order: keys that are stored so have no backward, and lse is as welcome as not.
struct Cache {
  Tensor q, k, v;
  Tensor lines;

  Inputs inputs() const {
    Inputs inputs{q, k, v, {}, {}};
    inputs.options.cache_batch_idx = lines;
    return inputs;
  }
};

Cache make_cache(DType dtype, int64_t batch_size, int64_t seqlen_q) {
  std::vector<int64_t> lines(static_cast<size_t>(batch_size));
  std::iota(lines.begin(), lines.end(), 0);
  return {Tensor::random(dtype, {batch_size, seqlen_q, kHeads, kDim}, 1),
          Tensor::random(dtype, {batch_size, kLength, kHeadsKv, kDim}, 2),
          Tensor::random(dtype, {batch_size, kLength, kHeadsKv, kDim}, 3), Tensor::ints(lines)};
}

/// The same keys in pages, handed out from the last to the first; other slots hold NaN.
Tensor paged(const Tensor& keys, int64_t page_size, Tensor* table) {
  const int64_t batch_size = keys.view().shape[0];
  const int64_t pages = (kLength + page_size - 1) / page_size;
  Tensor result(keys.view().dtype, {batch_size * pages, page_size, kHeadsKv, kDim});
  *table = Tensor(DType::kI32, {batch_size, pages});
  for (int64_t b = 0; b < batch_size; ++b) {
    for (int64_t n = 0; n < pages; ++n) {
      table->set({b, n}, static_cast<double>((b + 1) * pages - 1 - n));
    }
    for (int64_t j = 0; j < kLength; ++j) {
      const int64_t page = (b + 1) * pages - 1 - j / page_size;
      for (int64_t h = 0; h < kHeadsKv; ++h) {
        for (int64_t d = 0; d < kDim; ++d) {
          result.set({page, j % page_size, h, d}, keys.get({b, j, h, d}));
        }
      }
    }
  }
  return result;
}

TEST(AttentionDecodeBits, PagesDoNotMatter) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Cache cache = make_cache(dtype, 2, 2);
    const Tensor lengths = Tensor::ints({kLength, 700});
    for (const int64_t page_size : {1, 16, 300}) {
      Tensor table;
      const Tensor k = paged(cache.k, page_size, &table);
      const Tensor v = paged(cache.v, page_size, &table);
      for (const std::string& kernel : all_kernels()) {
        Inputs contiguous = cache.inputs();
        contiguous.options.seqused_k = lengths;
        contiguous.options.causal = true;
        Inputs pages = contiguous;
        pages.k = k;
        pages.v = v;
        pages.options.cache_batch_idx = {};
        pages.options.block_table = table;
        EXPECT_EQ(differing(run(pages, kernel), run(contiguous, kernel)), "")
            << kernel << ", pages of " << page_size;
      }
    }
  }
}

TEST(AttentionDecodeBits, OtherSequencesDoNotMatter) {
  const Cache cache = make_cache(DType::kBF16, 5, 1);
  const Tensor lengths = Tensor::ints({3, kLength, 0, 512, 513});
  const Tensor alone = Tensor::ints({kLength});
  const Tensor first = Tensor::ints({0});
  for (const std::string& kernel : all_kernels()) {
    Inputs batch = cache.inputs();
    batch.options.seqused_k = lengths;
    const Results all = run(batch, kernel);
    Inputs one{copy_of(cache.q.view().sliced(0, 1, 2)),
               copy_of(cache.k.view().sliced(0, 1, 2)),
               copy_of(cache.v.view().sliced(0, 1, 2)),
               {},
               {}};
    one.options.seqused_k = alone;
    one.options.cache_batch_idx = first;
    const Results single = run(one, kernel);
    EXPECT_TRUE(same_bits(all.out.view().sliced(0, 1, 2), single.out)) << kernel;
    EXPECT_TRUE(same_bits(all.lse.view().sliced(0, 1, 2), single.lse)) << kernel;
  }
}

TEST(AttentionDecodeBits, ThreadsAndLayoutDoNotMatter) {
  const Cache cache = make_cache(DType::kF16, 2, 3);
  // (batch, heads, seqlen, head_dim) in memory: heads lie apart.
  Tensor k(DType::kF16, {2, kHeadsKv, kLength, kDim});
  Tensor v(DType::kF16, {2, kHeadsKv, kLength, kDim});
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < kHeadsKv; ++h) {
      for (int64_t j = 0; j < kLength; ++j) {
        for (int64_t d = 0; d < kDim; ++d) {
          k.set({b, h, j, d}, cache.k.get({b, j, h, d}));
          v.set({b, h, j, d}, cache.v.get({b, j, h, d}));
        }
      }
    }
  }
  for (const std::string& kernel : all_kernels()) {
    Inputs inputs = cache.inputs();
    Context context;
    context.max_workers = 1;
    const Results expected = run(inputs, kernel, context);
    for (const int workers : {2, 7}) {
      context.max_workers = workers;
      EXPECT_EQ(differing(run(inputs, kernel, context), expected), "") << kernel << workers;
    }
    inputs.k = Tensor(k.view().transposed(1, 2));
    inputs.v = Tensor(v.view().transposed(1, 2));
    EXPECT_EQ(differing(run(inputs, kernel), expected), "") << kernel;
  }
}

TEST(AttentionDecodeValues, NanBehindTheWindowIsNotRead) {
  for (const std::string& kernel : all_kernels()) {
    const Cache cache = make_cache(DType::kF32, 1, 2);
    Inputs inputs = cache.inputs();
    inputs.options.causal = true;
    inputs.options.window_left = 70;
    const Results expected = run(inputs, kernel);
    // Query 0 has position kLength - 2.
    for (int64_t j = 0; j < kLength - 2 - 70; ++j) {
      for (int64_t h = 0; h < kHeadsKv; ++h) {
        for (int64_t d = 0; d < kDim; ++d) {
          cache.k.set({0, j, h, d}, kNan);
          cache.v.set({0, j, h, d}, kNan);
        }
      }
    }
    EXPECT_EQ(differing(run(inputs, kernel), expected), "") << kernel;
  }
}

TEST(AttentionDecodeValues, NanBehindABiasOfMinusInfinityIsNotRead) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Cache cache = make_cache(dtype, 1, 2);
    const Tensor bias = Tensor::filled(DType::kF32, {1, 1, 1, kLength}, 0);
    bias.set({0, 0, 0, 1000}, -kInf);
    Inputs inputs = cache.inputs();
    inputs.options.bias = bias;
    for (const std::string& kernel : all_kernels()) {
      cache.v.set({0, 1000, 0, 3}, 1);
      const Results expected = run(inputs, kernel);
      cache.v.set({0, 1000, 0, 3}, kNan);
      EXPECT_EQ(differing(run(inputs, kernel), expected), "") << kernel;
    }
  }
}

/// Tokens appended one by one give what one prefill of all of them gives.
TEST(AttentionDecodeValues, TokenByTokenIsOnePrefill) {
  constexpr int64_t kTokens = 70;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Inputs whole;
    whole.q = Tensor::random(dtype, {1, kTokens, kHeads, kDim}, 4);
    whole.k = Tensor::random(dtype, {1, kTokens, kHeadsKv, kDim}, 5);
    whole.v = Tensor::random(dtype, {1, kTokens, kHeadsKv, kDim}, 6);
    whole.options.causal = true;
    const Truth truth(whole);
    for (const std::string& kernel : all_kernels()) {
      Results steps;
      steps.out = Tensor(dtype, {1, kTokens, kHeads, kDim});
      steps.lse = Tensor(DType::kF32, {1, kHeads, kTokens});
      const Tensor k(dtype, {1, kTokens, kHeadsKv, kDim});
      const Tensor v(dtype, {1, kTokens, kHeadsKv, kDim});
      for (int64_t i = 0; i < kTokens; ++i) {
        const Tensor used = Tensor::ints({static_cast<int>(i)});
        Inputs step{copy_of(whole.q.view().sliced(1, i, i + 1)), k, v, {}, {}};
        step.options.seqused_k = used;
        step.options.k_new = whole.k.view().sliced(1, i, i + 1);
        step.options.v_new = whole.v.view().sliced(1, i, i + 1);
        step.options.causal = true;
        const Results result = run(step, kernel);
        for (int64_t h = 0; h < kHeads; ++h) {
          steps.lse.set({0, h, i}, result.lse.get({0, h, 0}));
          for (int64_t d = 0; d < kDim; ++d) {
            steps.out.set({0, i, h, d}, result.out.get({0, 0, h, d}));
          }
        }
      }
      EXPECT_EQ(truth.fault_of(steps), "") << kernel;
      EXPECT_TRUE(same_bits(k, whole.k)) << kernel;
      EXPECT_TRUE(same_bits(v, whole.v)) << kernel;
    }
  }
}

}  // namespace
}  // namespace flashtile::test
