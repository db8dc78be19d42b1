// SPDX-License-Identifier: Apache-2.0
//
// Every allocation of a call may fail.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "counted_new.hpp"
#include "flashtile/error.hpp"
#include "flashtile/gpu.hpp"
#include "flashtile/merge.hpp"
#include "support/attention_runs.hpp"

namespace flashtile::test {
namespace {

/// Calls what() until it gets through, with one more allocation granted each time. What does not
/// get through is an Error of the op.
template <class What>
void expect_errors_only(const std::string& op, const What& what) {
  what();  // what is made once a process is there
  num_made = 0;
  what();
  const int64_t num_needed = num_made;
  int64_t num_failed = 0;
  for (int64_t granted = 0; granted < num_needed; ++granted) {
    try {
      num_left = granted;
      what();
      num_left = -1;
    } catch (const Error& error) {
      num_left = -1;
      ++num_failed;
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory) << error.what();
      EXPECT_TRUE(std::string(error.what()).starts_with(op + ": ")) << error.what();
    } catch (...) {
      num_left = -1;
      ADD_FAILURE() << "no Error when only " << granted << " allocations are granted";
      return;
    }
  }
  EXPECT_GT(num_failed, 0) << op;
}

TEST(Allocations, ThatFailAreErrorsOfAttention) {
  const Tensor slopes = Tensor::random(DType::kF32, {70}, 5);
  const Tensor documents = Tensor::ints(std::vector<int64_t>(90, 1));
  const Tensor gradient(DType::kF32, {70});
  const Tensor q = Tensor::random(DType::kF32, {1, 70, 2, 16}, 1);
  const Tensor k = Tensor::random(DType::kF32, {1, 90, 2, 16}, 2);
  const Tensor out(DType::kF32, {1, 70, 2, 16});
  const Tensor lse(DType::kF32, {1, 2, 70});
  const Tensor dq(DType::kF32, {1, 70, 2, 16});
  const Tensor dk(DType::kF32, {1, 90, 2, 16});
  const Tensor dv(DType::kF32, {1, 90, 2, 16});
  AttentionOptions options;
  options.score = "score * t[q_idx] + 0.0 * param.number";
  options.mask = "documents[q_idx] == documents[k_idx]";
  options.aux = {{"t", slopes, gradient}, {"documents", documents, {}}};
  options.params = {{"number", 0}};
  options.causal = true;
  // No call is like one before: none is launched from what that has left.
  const auto next = [&] { options.params[0].value += 1; };
  for (const std::string& implementation : all_implementations()) {
    Context context = one_worker();
    context.implementation = implementation;
    attention_fwd(q, k, k, out, lse, options, context);
    const Tensor expected = out.copy();
    expect_errors_only("attention_fwd", [&] {
      next();
      attention_fwd(q, k, k, out, lse, options, context);
    });
    expect_errors_only("attention_bwd", [&] {
      next();
      attention_bwd(out, q, k, k, out, lse, dq, dk, dv, options, context);
    });
    expect_errors_only("attention_fwd",
                       [&] { explain_attention_fwd(q, k, k, out, lse, options, context); });
    attention_fwd(q, k, k, out, lse, options, context);  // and the next call is right
    EXPECT_TRUE(same_bits(out, expected)) << implementation;
  }
}

TEST(Allocations, ThatFailAreErrorsOfMerge) {
  constexpr int64_t kRows = 400;
  const Tensor parts = Tensor::random(DType::kF32, {3, 1, kRows, 2, 8}, 1);
  const Tensor lse_parts = Tensor::random(DType::kF32, {3, 1, 2, kRows}, 2);
  const Tensor out(DType::kF32, {1, kRows, 2, 8});
  int64_t rows = 0;
  expect_errors_only("attention_merge", [&] {
    ++rows;  // no call is like one before
    attention_merge(parts.view().sliced(2, 0, rows), lse_parts.view().sliced(3, 0, rows),
                    out.view().sliced(1, 0, rows), {}, one_worker());
  });
  EXPECT_LE(rows, kRows);
}

TEST(Allocations, ThatFailAreErrorsOfProblemTexts) {
  const std::string text = "attention_fwd:b2:sq9:d64";
  EXPECT_NE(explain(text).chosen, "");
  warmup(text);
  const std::function<void()> calls[] = {[&] { explain(text); }, [&] { warmup(text); }};
  for (const auto& call : calls) {
    int num_failed = 0;
    for (int64_t granted = 0; granted < 200; ++granted) {
      try {
        num_left = granted;
        call();
        num_left = -1;
      } catch (const Error& error) {
        num_left = -1;
        ++num_failed;
        EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory) << error.what();
      } catch (...) {
        num_left = -1;
        ADD_FAILURE() << "no Error when only " << granted << " allocations are granted";
      }
    }
    EXPECT_GT(num_failed, 0);
  }
}

}  // namespace
}  // namespace flashtile::test
