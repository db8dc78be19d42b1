// SPDX-License-Identifier: Apache-2.0
//
// Each named mask and score of flashtile/presets.hpp against a line of C++ that says the same: what
// attention makes of it on every implementation, and which blocks are visited. A new preset is one
// entry of all_masks() or all_scores().
#include "flashtile/presets.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "flashtile/attention.hpp"
#include "ops/attention/mask.hpp"

namespace flashtile {
namespace {

constexpr int64_t kBatch = 2, kHeads = 2, kSeqlenQ = 150, kSeqlenK = 170, kDim = 8;
constexpr int64_t kOffset = kSeqlenK - kSeqlenQ;

/// A pair of a query and a key; p is the query's position.
struct Place {
  int64_t b, h, i, j, p;
};

using Sees = std::function<bool(const Place&)>;
using Score = std::function<double(double s, const Place&)>;

struct Mask {
  std::string name, text;
  Sees sees;
};
struct ScoreRule {
  std::string name, text;
  Score score;
};

/// Repeatable numbers in [-1, 1).
float noise(size_t n) {
  uint64_t x = (n + 1) * 0x9E3779B97F4A7C15u;
  x ^= x >> 31;
  x *= 0xBF58476D1CE4E5B9u;
  return static_cast<float>(x >> 40) / static_cast<float>(1 << 23) - 1.0f;
}

std::vector<float> noises(int64_t count, size_t seed) {
  std::vector<float> values;
  for (int64_t n = 0; n < count; ++n) values.push_back(noise(seed * 1000003 + values.size()));
  return values;
}

/// Inputs of a call, and what presets read.
class PresetsTest : public testing::Test {
 protected:
  PresetsTest() {
    for (int32_t j = 0; j < kSeqlenK; ++j) document_.push_back(j / 23);
  }

  /// Options with these texts, and what they read.
  AttentionOptions options_of(const std::string& mask, const std::string& score) {
    const AuxTensor tensors[] = {{"prefix", {prefix_.data(), DType::kI32, {kBatch}}, {}},
                                 {"document", {document_.data(), DType::kI32, {kSeqlenK}}, {}},
                                 {"slopes", {slopes_.data(), DType::kF32, {kHeads}}, {}},
                                 {"table", {table_.data(), DType::kF32, {kHeads, kTable}}, {}}};
    const ScalarParam scalars[] = {
        {"window_left", 13}, {"window_right", 2}, {"chunk", 24}, {"softcap", 3}};
    AttentionOptions options;
    options.mask = mask;
    options.score = score;
    const std::string texts = mask + " " + score;
    for (const AuxTensor& tensor : tensors) {
      if (texts.find(tensor.name + "[") != std::string::npos) options.aux.push_back(tensor);
    }
    for (const ScalarParam& scalar : scalars) {
      if (texts.find("param." + scalar.name) != std::string::npos) options.params.push_back(scalar);
    }
    return options;
  }

  std::vector<Mask> all_masks() {
    return {
        {"causal", std::string(presets::kCausal), [](const Place& at) { return at.j <= at.p; }},
        {"window_left", std::string(presets::kWindowLeft),
         [](const Place& at) { return at.p - at.j <= 13; }},
        {"window_right", std::string(presets::kWindowRight),
         [](const Place& at) { return at.j - at.p <= 2; }},
        {"chunk", std::string(presets::kChunk),
         [](const Place& at) { return at.p / 24 == at.j / 24; }},
        {"sliding_window", presets::sliding_window(30, 4),
         [](const Place& at) { return at.p - at.j <= 30 && at.j - at.p <= 4; }},
        {"prefix_lm", presets::prefix_lm("prefix"),
         [this](const Place& at) {
           return at.j < prefix_[static_cast<size_t>(at.b)] || at.j <= at.p;
         }},
        {"document", presets::document("document"),
         [](const Place& at) { return at.p / 23 == at.j / 23 && at.j <= at.p; }},
        {"sink_window", presets::sink_window(5, 40),
         [](const Place& at) { return at.j <= at.p && (at.j < 5 || at.p - at.j <= 40); }},
        {"dilated", presets::dilated(3),
         [](const Place& at) { return at.j <= at.p && (at.p - at.j) % 3 == 0; }},
    };
  }

  std::vector<ScoreRule> all_scores() {
    return {
        {"softcap", std::string(presets::kSoftcap),
         [](double s, const Place&) { return 3 * std::tanh(s / 3); }},
        {"alibi", std::string(presets::kAlibiHeads),
         [this](double s, const Place& at) {
           return s - static_cast<double>(slopes_[static_cast<size_t>(at.h)]) *
                          static_cast<double>(std::abs(at.p - at.j));
         }},
        {"relative_bias", presets::relative_bias("table"),
         [this](double s, const Place& at) {
           return s + static_cast<double>(
                          table_[static_cast<size_t>(at.h * kTable + at.i - at.j + kSeqlenK - 1)]);
         }},
    };
  }

  TensorView view(std::vector<float>& values, int64_t seqlen) const {
    return {values.data(), DType::kF32, {kBatch, seqlen, kHeads, kDim}};
  }

  /// Row i of head h in the plain way.
  std::vector<double> plain_row(int64_t b, int64_t h, int64_t i, const Sees& sees,
                                const Score& score) const {
    std::vector<double> out(kDim, 0.0);
    double sum = 0;
    for (int64_t j = 0; j < kSeqlenK; ++j) {
      const Place at{b, h, i, j, i + kOffset};
      if (!sees(at)) continue;
      double dot = 0;
      for (int64_t d = 0; d < kDim; ++d) {
        dot += static_cast<double>(q_[index(b, i, h, d, kSeqlenQ)]) *
               static_cast<double>(k_[index(b, j, h, d, kSeqlenK)]);
      }
      const double weight = std::exp(score(dot / std::sqrt(static_cast<double>(kDim)), at));
      sum += weight;
      for (int64_t d = 0; d < kDim; ++d) {
        out[static_cast<size_t>(d)] +=
            weight * static_cast<double>(v_[index(b, j, h, d, kSeqlenK)]);
      }
    }
    for (double& x : out) x = sum > 0 ? x / sum : 0;
    return out;
  }

  static size_t index(int64_t b, int64_t i, int64_t h, int64_t d, int64_t seqlen) {
    return static_cast<size_t>(((b * seqlen + i) * kHeads + h) * kDim + d);
  }

  std::vector<float> run(const AttentionOptions& options, const std::string& implementation) {
    std::vector<float> out(q_.size(), std::numeric_limits<float>::quiet_NaN());
    Context context;
    context.implementation = implementation;
    attention_fwd(view(q_, kSeqlenQ), view(k_, kSeqlenK), view(v_, kSeqlenK), view(out, kSeqlenQ),
                  {}, options, context);
    return out;
  }

  void expect_means(const AttentionOptions& options, const Sees& sees, const Score& score) {
    for (const std::string& implementation : implementations("attention_fwd")) {
      const std::vector<float> out = run(options, implementation);
      double error = 0;
      for (int64_t b = 0; b < kBatch; ++b) {
        for (int64_t h = 0; h < kHeads; ++h) {
          for (int64_t i = 0; i < kSeqlenQ; ++i) {
            const std::vector<double> row = plain_row(b, h, i, sees, score);
            for (int64_t d = 0; d < kDim; ++d) {
              const double difference =
                  std::abs(static_cast<double>(out[index(b, i, h, d, kSeqlenQ)]) -
                           row[static_cast<size_t>(d)]);
              error = difference <= error ? error : difference;  // a NaN stays
            }
          }
        }
      }
      EXPECT_LT(error, 2e-6) << implementation;
    }
  }

  static constexpr int64_t kTable = kSeqlenQ + kSeqlenK - 1;
  std::vector<float> q_ = noises(kBatch * kSeqlenQ * kHeads * kDim, 1);
  std::vector<float> k_ = noises(kBatch * kSeqlenK * kHeads * kDim, 2);
  std::vector<float> v_ = noises(kBatch * kSeqlenK * kHeads * kDim, 3);
  std::vector<int32_t> prefix_ = {97, 4};
  std::vector<int32_t> document_;
  std::vector<float> slopes_ = {0.25f, 0.0625f};
  std::vector<float> table_ = noises(kHeads * kTable, 4);
};

TEST_F(PresetsTest, MasksMeanWhatTheySay) {
  for (const Mask& mask : all_masks()) {
    SCOPED_TRACE(mask.name);
    expect_means(options_of(mask.text, ""), mask.sees, [](double s, const Place&) { return s; });
  }
}

TEST_F(PresetsTest, ScoresMeanWhatTheySay) {
  for (const ScoreRule& rule : all_scores()) {
    SCOPED_TRACE(rule.name);
    expect_means(
        options_of("", rule.text), [](const Place&) { return true; }, rule.score);
  }
}

TEST_F(PresetsTest, SlopesMayDifferBySequence) {
  std::vector<float> slopes = {0.5f, 0.25f, 0.125f, 0.0f};
  AttentionOptions options;
  options.aux = {{"slopes", {slopes.data(), DType::kF32, {kBatch, kHeads}}, {}}};
  options.score = presets::kAlibiBatchHeads;
  expect_means(
      options, [](const Place&) { return true; },
      [&](double s, const Place& at) {
        const float slope = slopes[static_cast<size_t>(at.b * kHeads + at.h)];
        return s - static_cast<double>(slope) * static_cast<double>(std::abs(at.p - at.j));
      });
}

/// Seen pairs of a rectangle of one head of sequence b.
int64_t count_seen(const Sees& sees, int64_t b, int64_t q_begin, int64_t q_end, int64_t k_begin,
                   int64_t k_end) {
  int64_t count = 0;
  for (int64_t i = q_begin; i < q_end; ++i) {
    for (int64_t j = k_begin; j < k_end; ++j) count += sees({b, 0, i, j, i + kOffset});
  }
  return count;
}

TEST_F(PresetsTest, BlocksAreVisitedWhereSomethingIsSeenAndNowhereElse) {
  constexpr int64_t kBlockM = 16, kBlockN = 12;
  std::vector<float> out(q_.size());
  for (const Mask& mask : all_masks()) {
    SCOPED_TRACE(mask.name);
    AttentionArgs args;
    static_cast<AttentionOptions&>(args) = options_of(mask.text, "");
    args.q = view(q_, kSeqlenQ);
    args.k = view(k_, kSeqlenK);
    args.v = view(v_, kSeqlenK);
    args.out = view(out, kSeqlenQ);
    const AttentionProblem problem = make_attention_problem(args, /*is_backward=*/false);
    const AttentionMask attention_mask(problem, args);
    for (const Sequence& sequence : attention_sequences(problem, args)) {
      HeadMask head_mask(attention_mask, sequence, /*head=*/0);
      std::vector<variant::BlockRun> runs;
      for (int64_t m = 0; m * kBlockM < kSeqlenQ; ++m) {
        const int64_t q_end = std::min((m + 1) * kBlockM, kSeqlenQ);
        head_mask.key_runs(m * kBlockM, q_end, kBlockN, &runs);
        for (int64_t n = 0; n * kBlockN < kSeqlenK; ++n) {
          const int64_t k_end = std::min((n + 1) * kBlockN, kSeqlenK);
          const int64_t seen =
              count_seen(mask.sees, sequence.batch_idx, m * kBlockM, q_end, n * kBlockN, k_end);
          bool is_visited = false;
          for (const variant::BlockRun& run : runs) {
            if (n < run.begin || n >= run.end) continue;
            is_visited = true;
            const int64_t all = (q_end - m * kBlockM) * (k_end - n * kBlockN);
            EXPECT_TRUE(!run.is_full || seen == all) << "full block " << m << ", " << n;
          }
          EXPECT_EQ(is_visited, seen > 0) << "block " << m << ", " << n;
        }
      }
    }
  }
}

/// An option is a preset by another name: the same keys in the same tiles, so the same bits.
TEST_F(PresetsTest, OptionsGiveTheBitsOfTheirPresets) {
  for (const std::string& implementation : implementations("attention_fwd")) {
    SCOPED_TRACE(implementation);
    AttentionOptions option, preset;
    option.causal = true;
    option.window_left = 30;
    preset.mask = std::string(presets::kCausal) + " && " + presets::sliding_window(30, 0);
    EXPECT_EQ(run(option, implementation), run(preset, implementation));

    option = {};
    option.attention_chunk = 24;
    preset = options_of(std::string(presets::kChunk), "");
    EXPECT_EQ(run(option, implementation), run(preset, implementation));
  }
}

}  // namespace
}  // namespace flashtile
