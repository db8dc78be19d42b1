// SPDX-License-Identifier: Apache-2.0
//
// How much memory a call asks for: for no more rows than there are, and for no number that wraps.
#include <gtest/gtest.h>

#include <tuple>

#include "core/executor.hpp"
#include "flashtile/error.hpp"
#include "ops/attention/implementations.hpp"
#include "support/attention_runs.hpp"
#include "support/problem_cases.hpp"

namespace flashtile::test {
namespace {

constexpr int64_t kStatedLengths[] = {6000,
                                      1'000'000'000,
                                      int64_t{1} << 60,
                                      int64_t{1} << 61,
                                      int64_t{1} << 62,
                                      9'000'000'000'000'000'000};

Inputs packed_inputs(const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k) {
  Inputs inputs{Tensor::random(DType::kF32, {70, 4, 64}, 1),
                Tensor::random(DType::kF32, {40, 2, 64}, 2),
                Tensor::random(DType::kF32, {40, 2, 64}, 3),
                Tensor::random(DType::kF32, {70, 4, 64}, 4),
                {}};
  inputs.options.cu_seqlens_q = cu_seqlens_q;
  inputs.options.cu_seqlens_k = cu_seqlens_k;
  return inputs;
}

TEST(StatedLength, MayBeAnyNumberFromTheLongestSequenceOn) {
  const Tensor cu_seqlens_q = Tensor::ints({0, 70});
  const Tensor cu_seqlens_k = Tensor::ints({0, 40});
  const Inputs unstated = packed_inputs(cu_seqlens_q, cu_seqlens_k);
  for (const int64_t stated : kStatedLengths) {
    Inputs inputs = unstated;
    inputs.options.max_seqlen_q = inputs.options.max_seqlen_k = stated;
    for (const std::string& implementation : all_implementations()) {
      EXPECT_EQ(differing(run(inputs, implementation), run(unstated, implementation)), "")
          << implementation << " for " << stated;
    }
  }
}

TEST(StatedLength, AsksForNoMoreMemoryThanAllRows) {
  for (const bool is_backward : {false, true}) {
    const std::string problem = std::string(is_backward ? "attention_bwd" : "attention_fwd") +
                                ":b3:cu_seqlens_q:tq70:cu_seqlens_k:tk40:hq4:hkv2:d64";
    const auto bytes_of = [&](int64_t stated) {
      const std::string length = std::to_string(stated);
      return explain(problem + ":max_seqlen_q=" + length + ":max_seqlen_k=" + length)
          .workspace_bytes;
    };
    for (const int64_t stated : kStatedLengths) EXPECT_EQ(bytes_of(stated), bytes_of(70)) << stated;
  }
}

/// What a problem text gives: the text of the error, "" for none.
std::string fault_of(const std::string& problem) {
  try {
    explain(problem);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// Beyond outputs and gradients: 1 MiB, and for each thread at most twice one packed kv head; the
/// backward adds four float32 dq partials for each head that is worked on. Where few pairs make it
/// split keys in four, packed queries do not fit in that.
TEST(Workspace, IsAFewPackedHeads) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  const int64_t workers = num_workers_of({});
  for (const auto& [heads, group, bwd_share] : {std::tuple{":b4:hq16:hkv4", 4, 1.0},
                                                {":b2:hq16", 1, 1.0},
                                                {":hq8", 1, 1.0},
                                                {":hq4", 1, 1.3}}) {
    for (const int64_t seqlen : {int64_t{4096}, int64_t{65536}}) {
      for (const int64_t head_dim : {int64_t{64}, int64_t{128}}) {
        for (const std::string dtype : {"f32", "bf16"}) {
          const std::string problem = std::string(heads) + ":causal:sq" + std::to_string(seqlen) +
                                      ":d" + std::to_string(head_dim) + ":" + dtype;
          const Explanation forward = explain("attention_fwd" + problem);
          const Explanation backward = explain("attention_bwd" + problem);
          const bool has_pairs = dtype == "bf16" && forward.chosen.ends_with("bf16");
          const int64_t packed = 2 * seqlen * head_dim * (has_pairs ? 2 : 4);
          const int64_t partials = 4 * group * seqlen * head_dim * 4;
          EXPECT_LE(forward.workspace_bytes, kMiB + workers * 2 * packed) << problem;
          EXPECT_LE(static_cast<double>(backward.workspace_bytes),
                    bwd_share * static_cast<double>(kMiB + workers * (2 * packed + partials)))
              << problem;
        }
      }
    }
  }
}

TEST(LongSequences, WhoseSizesDoNotFitIn64BitsAreErrors) {
  // 2^52 keys are the most that there may be; packed, these need 2^63 bytes and some.
  for (const std::string& isa : all_kernels()) {
    for (const std::string op : {"attention_fwd", "attention_bwd"}) {
      EXPECT_EQ(fault_of(op + ":hq1:sq99:sk4503599627370496:d256@" + isa),
                op + ": bytes of workspace are more than 64 bits count");
    }
  }
  EXPECT_EQ(fault_of("attention_fwd:sk4503599627370497"),
            "attention_fwd: seqlen_k is 4503599627370497, expected at most 4503599627370496");
  EXPECT_EQ(fault_of("attention_bwd:sq4503599627370497"),
            "attention_bwd: seqlen_q is 4503599627370497, expected at most 4503599627370496");
}

TEST(PagedKeys, WhoseNumberOverflowsAreAnError) {
  EXPECT_EQ(fault_of("attention_fwd:block_table:ps1099511627776:pp1099511627776:np1:d1"),
            "attention_fwd: block_table has 1099511627776 pages of 1099511627776 keys for a "
            "sequence, expected at most 4503599627370496 keys");
  EXPECT_EQ(fault_of("attention_fwd:block_table:ps1099511627776:pp8192:np1:d1"),
            "attention_fwd: seqlen_k is 9007199254740992, expected at most 4503599627370496");
  // The same with memory: 2^31 entries of stride 0 that name one page of 2^33 keys of stride 0.
  const Tensor q = Tensor::random(DType::kF32, {1, 1, 1, 8}, 1);
  const Tensor row = Tensor::random(DType::kF32, {8}, 2);
  const Tensor page = Tensor::ints({0});
  const Tensor used = Tensor::ints({3});
  const Tensor out(DType::kF32, {1, 1, 1, 8});
  const int64_t pool_shape[] = {1, int64_t{1} << 33, 1, 8};
  const int64_t pool_strides[] = {0, 0, 0, 1};
  const TensorView pool(row.view().data, DType::kF32, pool_shape, pool_strides);
  const int64_t table_shape[] = {1, int64_t{1} << 31};
  const int64_t table_strides[] = {0, 0};
  AttentionOptions options;
  options.block_table = TensorView(page.view().data, DType::kI32, table_shape, table_strides);
  options.seqused_k = used;
  for (const std::string& implementation : all_implementations()) {
    Context context = one_worker();
    context.implementation = implementation;
    try {
      attention_fwd(q, pool, pool, out, {}, options, context);
      ADD_FAILURE() << implementation;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("block_table has 2147483648 pages of 8589934592"),
                std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace flashtile::test
