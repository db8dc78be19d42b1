// SPDX-License-Identifier: Apache-2.0
//
// Two ways of saying one thing: an option and its preset expression, pages and rows, a padded batch
// and a packed one, one call and its parts.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "flashtile/presets.hpp"
#include "support/attention_runs.hpp"

namespace flashtile::test {
namespace {

struct Tensors {
  explicit Tensors(DType dtype)
      : q(Tensor::random(dtype, {2, 70, 4, 16}, 1)),
        k(Tensor::random(dtype, {2, 190, 2, 16}, 2)),
        v(Tensor::random(dtype, {2, 190, 2, 16}, 3)),
        dout(Tensor::random(dtype, {2, 70, 4, 16}, 4)) {}
  Inputs with(const AttentionOptions& options) const { return {q, k, v, dout, options}; }
  Tensor q, k, v, dout;
};

constexpr DType kDtypes[] = {DType::kF32, DType::kBF16, DType::kF16};

/// What the option gives is the truth for what its expression gives. `rename` moves gradients of
/// aux tensors to where the option has them; results that the expression does not have are left
/// out.
template <class Rename>
void expect_same_meaning(const AttentionOptions& option, const AttentionOptions& expression,
                         const Rename& rename) {
  for (const DType dtype : kDtypes) {
    const Tensors tensors(dtype);
    const Truth truth(tensors.with(option));
    for (const std::string& implementation : all_implementations()) {
      Results results = run(tensors.with(expression), implementation);
      rename(results);
      EXPECT_EQ(truth.fault_of(results), "") << implementation;
    }
  }
}

void expect_same_meaning(const AttentionOptions& option, const AttentionOptions& expression) {
  expect_same_meaning(option, expression, [](Results&) {});
}

TEST(PresetExpressionsFull, Softcap) {
  AttentionOptions option, expression;
  option.softcap = 2.5;
  expression.score = presets::kSoftcap;
  expression.params = {{"softcap", 2.5}};
  expect_same_meaning(option, expression);
}

/// A slope's gradient is a sum over all pairs: from 16-bit inputs it carries the rounding of out.
void take_slopes(Results& results) {
  if (results.out.view().dtype == DType::kF32) results.dalibi_slopes = results.daux.at("slopes");
  results.daux.clear();
}

TEST(PresetExpressionsFull, AlibiOfHeadsWithItsGradient) {
  const Tensor slopes = Tensor::of(DType::kF32, {4}, std::vector<double>{0.5, 0.25, 0.125, 0.01});
  AttentionOptions option, expression;
  option.alibi_slopes = slopes;
  expression.score = presets::kAlibiHeads;
  expression.aux = {{"slopes", slopes, {}}};
  expect_same_meaning(option, expression, take_slopes);
}

TEST(PresetExpressionsFull, AlibiOfBatchesAndHeadsWithItsGradient) {
  const Tensor slopes = Tensor::random(DType::kF32, {2, 4}, 5, 0.1);
  AttentionOptions option, expression;
  option.alibi_slopes = slopes;
  option.causal = expression.causal = true;
  expression.score = presets::kAlibiBatchHeads;
  expression.aux = {{"slopes", slopes, {}}};
  expect_same_meaning(option, expression, take_slopes);
}

TEST(PresetExpressionsFull, BiasWithItsGradient) {
  const Tensor bias = Tensor::random(DType::kF32, {1, 4, 70, 190}, 5);
  AttentionOptions option, expression;
  option.bias = bias;
  expression.score = "score + table[0, head, q_idx, k_idx]";
  expression.aux = {{"table", bias, {}}};
  expect_same_meaning(option, expression, [](Results& results) {
    results.dbias = results.daux.at("table");
    results.daux.clear();
  });
}

TEST(PresetExpressionsFull, RelativeBias) {
  const Tensor table = Tensor::random(DType::kF32, {4, 70 + 190 - 1}, 5);
  const Tensor bias(DType::kF32, {1, 4, 70, 190});
  for (int64_t n = 0; n < 4 * 70 * 190; ++n) {
    const int64_t j = n % 190, i = n / 190 % 70, h = n / (190 * 70);
    bias.set({0, h, i, j}, table.get({h, i - j + 189}));
  }
  AttentionOptions option, expression;
  option.bias = bias;
  expression.score = presets::relative_bias("table");
  expression.aux = {{"table", table, {}}};
  expect_same_meaning(option, expression, [](Results& results) { results.daux.clear(); });
  // The gradient of the table sums that of the bias.
  const Tensors tensors(DType::kF32);
  const std::vector<double> dbias = Truth(tensors.with(option)).values("dbias");
  std::vector<double> expected(4 * 259, 0.0);
  for (size_t n = 0; n < dbias.size(); ++n) {
    const size_t j = n % 190, i = n / 190 % 70, h = n / (190 * 70);
    expected[h * 259 + i - j + 189] += dbias[n];
  }
  for (const std::string& implementation : all_implementations()) {
    const Results results = run(tensors.with(expression), implementation);
    const std::vector<double> dtable = results.daux.at("table").numbers();
    for (size_t n = 0; n < expected.size(); ++n) {
      EXPECT_NEAR(dtable[n], expected[n], 2e-5) << implementation << " " << n;
    }
  }
}

TEST(PresetExpressionsFull, Chunk) {
  AttentionOptions option, expression;
  option.attention_chunk = 48;
  expression.mask = presets::kChunk;
  expression.params = {{"chunk", 48}};
  expect_same_meaning(option, expression);
}

TEST(PresetExpressionsFull, CausalAndWindow) {
  AttentionOptions option, expression;
  option.window_left = 30;
  option.causal = true;
  expression.mask = presets::sliding_window(30, 0);
  expect_same_meaning(option, expression);
}

/// A window that also sees the first keys, as a window and those keys by themselves, merged by lse.
TEST(SinkAndWindow, IsTheSumOfItsParts) {
  const Tensors tensors(DType::kF32);
  const int64_t sinks = 3, window = 20;
  AttentionOptions both, first, last;
  both.mask = presets::sink_window(sinks, window);
  first.mask = "k_idx < 3 && k_idx < q_idx + query_offset - 20";
  last.mask = presets::sliding_window(window, 0);
  for (const std::string& implementation : all_implementations()) {
    const Results whole = run({tensors.q, tensors.k, tensors.v, {}, both}, implementation);
    const Results a = run({tensors.q, tensors.k, tensors.v, {}, first}, implementation);
    const Results b = run({tensors.q, tensors.k, tensors.v, {}, last}, implementation);
    for (int64_t i = 0; i < 70; ++i) {
      const double lse_a = a.lse.get({1, 2, i}), lse_b = b.lse.get({1, 2, i});
      const double lse = std::log(std::exp(lse_a) + std::exp(lse_b));
      EXPECT_NEAR(whole.lse.get({1, 2, i}), lse, 1e-5) << implementation << " row " << i;
      const double merged = a.out.get({1, i, 2, 7}) * std::exp(lse_a - lse) +
                            b.out.get({1, i, 2, 7}) * std::exp(lse_b - lse);
      EXPECT_NEAR(whole.out.get({1, i, 2, 7}), merged, 1e-5) << implementation << " row " << i;
    }
  }
}

TEST(Documents, EqualPackedSequences) {
  // Lengths 40, 1, 129, 20 in one row of 190, and packed.
  const int64_t total = 190;
  const Tensor q = Tensor::random(DType::kF32, {1, total, 4, 16}, 1);
  const Tensor k = Tensor::random(DType::kF32, {1, total, 2, 16}, 2);
  const Tensor dout = Tensor::random(DType::kF32, {1, total, 4, 16}, 3);
  const Tensor cu_seqlens = Tensor::ints({0, 40, 41, 170, 190});
  const Tensor doc(DType::kI32, {total});
  for (int64_t j = 0; j < total; ++j) doc.set({j}, j < 40 ? 7 : j < 41 ? 2 : j < 170 ? 5 : 3);
  AttentionOptions by_document, packed;
  by_document.mask = presets::document("doc");
  by_document.aux = {{"doc", doc, {}}};
  packed.causal = true;
  packed.cu_seqlens_q = packed.cu_seqlens_k = cu_seqlens;
  const auto flat = [](const TensorView& view) {
    return TensorView(view.data, view.dtype, {view.shape[1], view.shape[2], view.shape[3]});
  };
  for (const std::string& implementation : all_implementations()) {
    const Results row = run({q, k, k, dout, by_document}, implementation);
    const Results sequences = run({flat(q), flat(k), flat(k), flat(dout), packed}, implementation);
    EXPECT_LT(max_difference(flat(row.out), sequences.out), 1e-6) << implementation;
    EXPECT_LT(max_difference(flat(row.dq), sequences.dq), 1e-5) << implementation;
    EXPECT_LT(max_difference(flat(row.dk), sequences.dk), 1e-5) << implementation;
    EXPECT_LT(max_difference(flat(row.dv), sequences.dv), 1e-5) << implementation;
  }
}

/// Pages of any size, in any order, hold the bits of rows.
TEST(Pages, HaveTheBitsOfRows) {
  const int64_t seqlen_k = 310;
  const Tensor bias = Tensor::random(DType::kBF16, {2, 1, 1, 600}, 6);
  const Tensor slopes = Tensor::random(DType::kF32, {2, 4}, 7, 0.1);
  const Tensor used = Tensor::ints({310, 77});
  const Tensor pad = Tensor::ints({4, 31});
  for (const DType dtype : kDtypes) {
    const Tensor q = Tensor::random(dtype, {2, 9, 4, 24}, 1);
    const Tensor k = Tensor::random(dtype, {2, seqlen_k, 2, 24}, 2);
    const Tensor v = Tensor::random(dtype, {2, seqlen_k, 2, 24}, 3);
    AttentionOptions options;
    options.causal = true;
    options.window_left = 200;
    options.softcap = 6;
    options.alibi_slopes = slopes;
    options.seqused_k = used;
    options.leftpad_k = pad;
    options.dropout_p = 0.1;
    Inputs rows{q, k, v, {}, options};
    rows.options.bias = bias.view().sliced(3, 0, seqlen_k);
    for (const int64_t page_size : {1, 3, 16, 300}) {
      const int64_t per_sequence = (seqlen_k + page_size - 1) / page_size;
      const int64_t num_pages = 2 * per_sequence + 3;
      const Tensor k_pages(dtype, {num_pages, page_size, 2, 24});  // NaN where nothing is stored
      const Tensor v_pages(dtype, {num_pages, page_size, 2, 24});
      const Tensor table(DType::kI32, {2, per_sequence});
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t n = 0; n < per_sequence; ++n) {
          const int64_t page = ((b * per_sequence + n) * 5 + 3) % num_pages;  // all different
          table.set({b, n}, static_cast<double>(page));
          const int64_t begin = n * page_size, end = std::min(begin + page_size, seqlen_k);
          for (int64_t j = begin; j < end; ++j) {
            for (int64_t m = 0; m < 48; ++m) {
              k_pages.set({page, j - begin, m / 24, m % 24}, k.get({b, j, m / 24, m % 24}));
              v_pages.set({page, j - begin, m / 24, m % 24}, v.get({b, j, m / 24, m % 24}));
            }
          }
        }
      }
      ASSERT_EQ(std::gcd(num_pages, int64_t{5}), 1);
      Inputs paged{q, k_pages, v_pages, {}, options};
      paged.options.block_table = table;
      paged.options.bias = bias.view().sliced(3, 0, per_sequence * page_size);
      for (const std::string& implementation : all_implementations()) {
        EXPECT_EQ(differing(run(paged, implementation), run(rows, implementation)), "")
            << implementation << " page size " << page_size;
      }
    }
  }
}

TEST(CacheLines, HaveTheBitsOfABatch) {
  const Tensor q = Tensor::random(DType::kBF16, {3, 5, 4, 24}, 1);
  const Tensor lines = Tensor::random(DType::kBF16, {6, 150, 2, 24}, 2);
  const Tensor index = Tensor::ints({4, 0, 4});
  const Tensor used = Tensor::ints({150, 20, 99});
  Inputs cached{q, lines, lines, {}, {}};
  cached.options.cache_batch_idx = index;
  cached.options.seqused_k = used;
  const Tensor gathered(DType::kBF16, {3, 150, 2, 24});
  for (int64_t n = 0; n < 3 * 150 * 48; ++n) {
    const int64_t d = n % 24, h = n / 24 % 2, j = n / 48 % 150, b = n / (48 * 150);
    gathered.set({b, j, h, d}, lines.get({static_cast<int64_t>(index.get({b})), j, h, d}));
  }
  Inputs batch{q, gathered, gathered, {}, {}};
  batch.options.seqused_k = used;
  for (const std::string& implementation : all_implementations()) {
    EXPECT_EQ(differing(run(cached, implementation), run(batch, implementation)), "")
        << implementation;
  }
}

TEST(Padding, OnTheLeftHasTheBitsOfAShorterSequence) {
  for (const DType dtype : kDtypes) {
    const Tensors tensors(dtype);
    const Tensor pad = Tensor::ints({37, 37});
    const Tensor used = Tensor::ints({150, 150});
    Inputs padded = tensors.with({});
    padded.options.causal = true;
    padded.options.score = "score + 0.01 * float(k_idx)";
    Inputs shorter = padded;
    padded.options.leftpad_k = pad;
    padded.options.seqused_k = used;
    shorter.k = tensors.k.view().sliced(1, 37, 150);
    shorter.v = tensors.v.view().sliced(1, 37, 150);
    for (const std::string& implementation : all_implementations()) {
      const Results a = run(padded, implementation);
      const Results b = run(shorter, implementation);
      EXPECT_TRUE(same_bits(a.out, b.out)) << implementation;
      EXPECT_TRUE(same_bits(a.lse, b.lse)) << implementation;
      EXPECT_TRUE(same_bits(a.dk.view().sliced(1, 37, 150), b.dk)) << implementation;
      EXPECT_TRUE(same_bits(a.dv.view().sliced(1, 37, 150), b.dv)) << implementation;
    }
  }
}

TEST(BlockLists, ThatListEverythingHaveTheBitsOfNone) {
  for (const DType dtype : kDtypes) {
    const Tensors tensors(dtype);
    const Tensor counts = Tensor::filled(DType::kI32, {1, 1, 3}, 4);
    const Tensor indices = Tensor::of(DType::kI32, {1, 1, 3, 4},
                                      std::vector<double>{0, 1, 2, 3, 3, 2, 1, 0, 2, 0, 3, 1});
    AttentionOptions listed;
    listed.block_rows = 32;
    listed.block_cols = 48;
    listed.block_counts = counts;
    listed.block_indices = indices;
    for (const std::string& implementation : all_implementations()) {
      EXPECT_EQ(differing(run(tensors.with(listed), implementation),
                          run(tensors.with({}), implementation)),
                "")
          << implementation;
    }
  }
}

TEST(NeutralOptionsFull, ChangeNoBitWorthMentioning) {
  for (const DType dtype : kDtypes) {
    const Tensors tensors(dtype);
    const Truth truth(tensors.with({}));
    const Tensor sink = Tensor::filled(DType::kF32, {4}, -kInf);
    const Tensor slopes = Tensor::filled(DType::kF32, {4}, 0);
    const Tensor bias = Tensor::filled(dtype, {1, 1, 1, 190}, 0);
    std::vector<AttentionOptions> all(7);
    all[0].sink = sink;
    all[1].alibi_slopes = slopes;
    all[2].bias = bias;
    all[3].softcap = 1e20;
    all[4].score = "score";
    all[5].mask = "1";
    all[6].softmax_scale = 0.25;  // 1 / sqrt(16)
    for (size_t n = 0; n < all.size(); ++n) {
      for (const std::string& implementation : all_implementations()) {
        Results results = run(tensors.with(all[n]), implementation);
        results.dsink = results.dalibi_slopes = results.dbias = {};
        EXPECT_EQ(truth.fault_of(results), "") << implementation << " option " << n;
      }
    }
  }
}

}  // namespace
}  // namespace flashtile::test
