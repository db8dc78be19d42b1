// SPDX-License-Identifier: Apache-2.0
//
// Tile tails, score functions, softcap: reports from other libraries, as small inputs.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "support/attention_runs.hpp"
#include "support/guarded_memory.hpp"
#include "tensors.hpp"

namespace flashtile::test {
namespace {

// flashinfer#3716
TEST(TileTails, OfPagedDecodeAreNotCounted) {
  const Tensor q = Tensor::filled(DType::kBF16, {1, 1, 8, 128}, 0);
  const Tensor k = Tensor::random(DType::kBF16, {19, 16, 8, 128}, 1);
  const Tensor v = Tensor::random(DType::kBF16, {19, 16, 8, 128}, 2);
  std::vector<double> numbers(19);
  std::iota(numbers.begin(), numbers.end(), 0);
  const Tensor table = Tensor::of(DType::kI32, {1, 19}, numbers);
  const Tensor used = Tensor::ints({300});
  Inputs inputs{q, k, v, {}, {}};
  inputs.options.block_table = table;
  inputs.options.seqused_k = used;
  for (const std::string& implementation : all_implementations()) {
    const Results results = run(inputs, implementation);
    for (int64_t h = 0; h < 8; ++h) {
      EXPECT_NEAR(results.lse.get({0, h, 0}), std::log(300.0), 1e-5) << implementation;
      for (int64_t d = 0; d < 128; ++d) {
        double mean = 0;
        for (int64_t j = 0; j < 300; ++j) mean += v.get({j / 16, j % 16, h, d}) / 300;
        EXPECT_NEAR(results.out.get({0, 0, h, d}), mean, 1e-3) << implementation;
      }
    }
  }
}

// pytorch#153799
TEST(TileTailsFull, WithCausalAndAScoreHaveGradients) {
  Inputs inputs{Tensor::random(DType::kBF16, {1, 1025, 1, 64}, 1),
                Tensor::random(DType::kBF16, {1, 1025, 1, 64}, 2),
                Tensor::random(DType::kBF16, {1, 1025, 1, 64}, 3),
                Tensor::random(DType::kBF16, {1, 1025, 1, 64}, 4),
                {}};
  inputs.options.mask = "k_idx <= q_idx";
  inputs.options.score = "score + float(q_idx - k_idx)";
  expect_all_conform(inputs);
}

// pytorch#133717
TEST(TileTails, OfDecodeAtEveryLengthAreNotRead) {
  const Tensor q = Tensor::random(DType::kF16, {1, 1, 16, 64}, 1);
  const Tensor k = Tensor::random(DType::kF16, {1, 228, 16, 64}, 2);
  const Tensor v = Tensor::random(DType::kF16, {1, 228, 16, 64}, 3);
  // The same with heads outermost; the last 227 rows of those also right before a page that faults.
  const Tensor k_by_heads = copy_of(k.view().transposed(1, 2));
  const Tensor v_by_heads = copy_of(v.view().transposed(1, 2));
  const auto bytes = static_cast<size_t>(16 * 228 * 64 * 2);
  const GuardedMemory k_memory(bytes), v_memory(bytes);
  const auto guarded = [&](const Tensor& source, const GuardedMemory& memory) {
    std::memcpy(memory.data(), source.view().data, bytes);
    const int64_t shape[] = {1, 16, 228, 64};
    return TensorView(memory.data(), DType::kF16, shape).transposed(1, 2);
  };
  const TensorView k_at_guard = guarded(k_by_heads, k_memory);
  const TensorView v_at_guard = guarded(v_by_heads, v_memory);
  const TensorView views[] = {k, v, k_by_heads.view().transposed(1, 2),
                              v_by_heads.view().transposed(1, 2)};
  for (int64_t seqlen_k = 227; seqlen_k >= 128; --seqlen_k) {
    for (const TensorView& view : views) cli::poison(view.sliced(1, seqlen_k, seqlen_k + 1));
    const auto first = [&](const TensorView& x) { return x.sliced(1, 0, seqlen_k); };
    const auto last = [&](const TensorView& x) { return x.sliced(1, 228 - seqlen_k, 228); };
    const Inputs by_rows{q, first(views[0]), first(views[1]), {}, {}};
    const Inputs by_heads{q, first(views[2]), first(views[3]), {}, {}};
    const Inputs at_guard{q, last(k_at_guard), last(v_at_guard), {}, {}};
    const Results expected = run(by_rows, "reference");
    const Results expected_at_guard = run(at_guard, "reference");
    for (const double x : expected.out.numbers()) ASSERT_TRUE(std::isfinite(x)) << seqlen_k;
    EXPECT_EQ(differing(run(by_heads, "reference"), expected), "") << seqlen_k;
    for (const std::string& implementation : all_kernels()) {
      const Results results = run(by_rows, implementation);
      EXPECT_EQ(differing(run(by_heads, implementation), results), "")
          << implementation << " length " << seqlen_k;
      const Results guarded_results = run(at_guard, implementation);
      for (const auto& [mine, right] :
           {std::pair{results, expected}, std::pair{guarded_results, expected_at_guard}}) {
        EXPECT_LT(max_difference(mine.out, right.out), 2e-3)
            << implementation << " length " << seqlen_k;
        EXPECT_LT(max_difference(mine.lse, right.lse), 1e-5)
            << implementation << " length " << seqlen_k;
      }
    }
  }
}

// pytorch#136232
TEST(TileTails, MaskMadeForLongerSequencesAndLseInTheLoss) {
  std::vector<double> documents(4096);
  for (size_t j = 0; j < documents.size(); ++j) documents[j] = static_cast<double>(j / 90);
  const Tensor doc = Tensor::of(DType::kI32, {4096}, documents);
  const Tensor dlse = Tensor::random(DType::kF32, {1, 2, 400}, 5);
  Inputs inputs{Tensor::random(DType::kF32, {1, 400, 2, 16}, 1),
                Tensor::random(DType::kF32, {1, 400, 2, 16}, 2),
                Tensor::random(DType::kF32, {1, 400, 2, 16}, 3),
                Tensor::random(DType::kF32, {1, 400, 2, 16}, 4),
                {}};
  inputs.options.mask = "doc[q_idx] == doc[k_idx] && k_idx <= q_idx";
  inputs.options.aux = {{"doc", doc, {}}};
  inputs.options.dlse = dlse;
  expect_all_conform(inputs);
}

// pytorch#136232, at its lengths; documents are sequences of their own, which judge it.
TEST(TileTailsFull, MaskMadeForLongerSequencesWithALossOfOutTimesExpLse) {
  constexpr int64_t kLength = 4000;
  std::vector<double> documents(4096);
  for (size_t j = 0; j < documents.size(); ++j) {
    documents[j] = static_cast<double>(j / 90);
  }
  const Tensor doc = Tensor::of(DType::kI32, {4096}, documents);
  std::vector<int64_t> offsets;
  for (int64_t row = 0; row < kLength; row += 90) offsets.push_back(row);
  offsets.push_back(kLength);
  const Tensor cu_seqlens = Tensor::ints(offsets);
  const auto rows = [](uint64_t seed) {
    return Tensor::random(DType::kF32, {kLength, 1, 16}, seed, 0.5);
  };
  const Tensor q = rows(1), k = rows(2), v = rows(3), weight = rows(4);
  Inputs packed{q, k, v, {}, {}};
  packed.options.causal = true;
  packed.options.cu_seqlens_q = packed.options.cu_seqlens_k = cu_seqlens;
  // The loss is the sum of weight out exp(lse).
  const Results at = run(packed, "reference");
  const Tensor dout(DType::kF32, {kLength, 1, 16}), dlse(DType::kF32, {1, kLength});
  for (int64_t i = 0; i < kLength; ++i) {
    const double factor = std::exp(at.lse.get({0, i}));
    double sum = 0;
    for (int64_t d = 0; d < 16; ++d) {
      dout.set({i, 0, d}, weight.get({i, 0, d}) * factor);
      sum += weight.get({i, 0, d}) * at.out.get({i, 0, d}) * factor;
    }
    dlse.set({0, i}, sum);
  }
  packed.dout = dout;
  packed.options.dlse = dlse;
  const Truth truth(packed);

  const auto in_batch = [](const Tensor& x) {
    TensorView view = x.view();
    std::vector<int64_t> shape = cli::shape_of(view);
    shape.insert(shape.begin(), 1);
    return TensorView(view.data, view.dtype, shape);
  };
  const auto without_batch = [](const Tensor& x) {
    std::vector<int64_t> shape = cli::shape_of(x);
    shape.erase(shape.begin());
    return TensorView(x.view().data, x.view().dtype, shape);
  };
  Inputs inputs{in_batch(q), in_batch(k), in_batch(v), in_batch(dout), {}};
  inputs.options.mask = "doc[q_idx] == doc[k_idx] && k_idx <= q_idx";
  inputs.options.aux = {{"doc", doc, {}}};
  inputs.options.dlse = in_batch(dlse);
  for (const std::string& implementation : all_kernels()) {
    const Results results = run(inputs, implementation);
    Results same;
    same.out = without_batch(results.out);
    same.lse = without_batch(results.lse);
    same.dq = without_batch(results.dq);
    same.dk = without_batch(results.dk);
    same.dv = without_batch(results.dv);
    EXPECT_EQ(truth.fault_of(same), "") << implementation;
  }
}

// flash-attention PR 2544
TEST(Softcap, HasGradientsInPackedSequences) {
  const Tensor cu_seqlens_q = Tensor::ints({0, 128, 128, 199});
  const Tensor cu_seqlens_k = Tensor::ints({0, 217, 220, 300});
  Inputs inputs{Tensor::random(DType::kBF16, {199, 2, 128}, 1, 2),
                Tensor::random(DType::kBF16, {300, 2, 128}, 2, 2),
                Tensor::random(DType::kBF16, {300, 2, 128}, 3),
                Tensor::random(DType::kBF16, {199, 2, 128}, 4),
                {}};
  inputs.options.softcap = 15;
  inputs.options.causal = true;
  inputs.options.cu_seqlens_q = cu_seqlens_q;
  inputs.options.cu_seqlens_k = cu_seqlens_k;
  expect_all_conform(inputs);
}

// sgl-kernel-xpu PR 491
TEST(Options, EachHaveTheirEffect) {
  const Tensor q = Tensor::random(DType::kF32, {1, 40, 2, 16}, 1, 3);
  const Tensor k = Tensor::random(DType::kF32, {1, 60, 2, 16}, 2, 3);
  const Tensor v = Tensor::random(DType::kF32, {1, 60, 2, 16}, 3);
  const Tensor bias = Tensor::random(DType::kF32, {1, 1, 1, 60}, 4);
  const Tensor slopes = Tensor::filled(DType::kF32, {2}, 0.1);
  const Tensor sink = Tensor::filled(DType::kF32, {2}, 3);
  const Tensor used = Tensor::ints({50});
  const Tensor pad = Tensor::ints({3});
  const Tensor counts = Tensor::of(DType::kI32, {1, 1, 1}, std::vector<double>{1});
  const Tensor blocks = Tensor::of(DType::kI32, {1, 1, 1, 1}, std::vector<double>{1});
  std::vector<std::pair<std::string, AttentionOptions>> all;
  const auto add = [&](const std::string& name, const auto& set) {
    all.emplace_back(name, AttentionOptions{});
    set(all.back().second);
  };
  add("softcap 5", [](AttentionOptions& o) { o.softcap = 5; });
  add("softcap 50", [](AttentionOptions& o) { o.softcap = 50; });
  add("scale", [](AttentionOptions& o) { o.softmax_scale = 0.3; });
  add("causal", [](AttentionOptions& o) { o.causal = true; });
  add("window_left", [](AttentionOptions& o) { o.window_left = 9; });
  add("window_right", [](AttentionOptions& o) {
    o.window_right = 0;
    o.query_offset = 3;
  });
  add("chunk", [](AttentionOptions& o) { o.attention_chunk = 16; });
  add("bias", [&](AttentionOptions& o) { o.bias = bias; });
  add("alibi", [&](AttentionOptions& o) { o.alibi_slopes = slopes; });
  add("sink", [&](AttentionOptions& o) { o.sink = sink; });
  add("seqused", [&](AttentionOptions& o) { o.seqused_k = used; });
  add("leftpad", [&](AttentionOptions& o) { o.leftpad_k = pad; });
  add("dropout", [](AttentionOptions& o) { o.dropout_p = 0.1; });
  add("seed", [](AttentionOptions& o) {
    o.dropout_p = 0.1;
    o.dropout_seed = 1;
  });
  add("offset", [](AttentionOptions& o) {
    o.dropout_p = 0.1;
    o.dropout_offset = 1;
  });
  add("score", [](AttentionOptions& o) { o.score = "score + 0.1 * float(k_idx)"; });
  add("mask", [](AttentionOptions& o) { o.mask = "k_idx % 2 == 0"; });
  add("param", [](AttentionOptions& o) {
    o.score = "score * param.t";
    o.params = {{"t", 0.5}};
  });
  add("param 2", [](AttentionOptions& o) {
    o.score = "score * param.t";
    o.params = {{"t", 2}};
  });
  add("blocks", [&](AttentionOptions& o) {
    o.block_counts = counts;
    o.block_indices = blocks;
    o.block_rows = 64;
    o.block_cols = 32;
  });
  for (const std::string& implementation : all_implementations()) {
    std::vector<Results> results = {run({q, k, v, {}, {}}, implementation)};
    for (const auto& [name, options] : all) {
      results.push_back(run({q, k, v, {}, options}, implementation));
      for (size_t n = 0; n + 1 < results.size(); ++n) {
        EXPECT_GT(max_difference(results.back().out, results[n].out), 1e-4)
            << implementation << ": " << name << " has no effect beside case " << n;
      }
    }
    // What is always so on a CPU.
    AttentionOptions deterministic;
    deterministic.deterministic = true;
    EXPECT_EQ(differing(run({q, k, v, {}, deterministic}, implementation), results.front()), "");
  }
  for (const auto& [name, options] : all) {
    SCOPED_TRACE(name);
    expect_all_conform({q, k, v, {}, options});
  }
}

// pytorch#145208, PR 188869, #157677
TEST(ScoreFunctions, LearntScalarsAndTablesHaveGradientsOfAllTheirUses) {
  const Tensor scale = Tensor::filled(DType::kF32, {}, 1.25);
  const Tensor table = Tensor::random(DType::kF32, {255}, 5);
  Inputs inputs{Tensor::random(DType::kF32, {1, 128, 1, 64}, 1),
                Tensor::random(DType::kF32, {1, 128, 1, 64}, 2),
                Tensor::random(DType::kF32, {1, 128, 1, 64}, 3),
                Tensor::random(DType::kF32, {1, 128, 1, 64}, 4),
                {}};
  inputs.options.score = "score * s";
  inputs.options.aux = {{"s", scale, {}}};
  expect_all_conform(inputs);
  inputs.options.score = "score + table[q_idx - k_idx + 127]";
  inputs.options.aux = {{"table", table, {}}};
  expect_all_conform(inputs);
  // A constant added to all scores changes nothing: the gradient of the table sums to 0.
  for (const std::string& implementation : all_implementations()) {
    const Results results = run(inputs, implementation);
    double sum = 0, size = 0;
    for (const double x : results.daux.at("table").numbers()) {
      sum += x;
      size += std::abs(x);
    }
    EXPECT_LT(std::abs(sum), 1e-5 * size) << implementation;
  }
}

// flash-attention#907, llama.cpp PR 20031
TEST(Alibi, OfAWholePassAndOfSingleStepsAgree) {
  for (const int64_t num_heads : {6, 48}) {
    const Tensor q = Tensor::random(DType::kF32, {1, 5, num_heads, 16}, 1);
    const Tensor k = Tensor::random(DType::kF32, {1, 9, num_heads, 16}, 2);
    const Tensor v = Tensor::random(DType::kF32, {1, 9, num_heads, 16}, 3);
    const Tensor slopes(DType::kF32, {num_heads});
    for (int64_t h = 0; h < num_heads; ++h) {
      slopes.set({h},
                 std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(num_heads)));
    }
    Inputs whole{q, k, v, {}, {}};
    whole.options.alibi_slopes = slopes;
    whole.options.causal = true;
    expect_all_conform(whole);
    for (const std::string& implementation : all_implementations()) {
      const Results results = run(whole, implementation);
      for (int64_t i = 0; i < 5; ++i) {
        Inputs step = whole;
        step.q = q.view().sliced(1, i, i + 1);
        step.k = k.view().sliced(1, 0, 4 + i + 1);
        step.v = v.view().sliced(1, 0, 4 + i + 1);
        const Results single = run(step, implementation);
        EXPECT_LT(max_difference(single.out, results.out.view().sliced(1, i, i + 1)), 1e-6)
            << implementation << " step " << i;
      }
    }
  }
}

}  // namespace
}  // namespace flashtile::test
