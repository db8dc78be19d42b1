// SPDX-License-Identifier: Apache-2.0
//
// Plans of the portable backward, made for named architectures without a GPU.
#include <gtest/gtest.h>

#include <random>

#include "core/problem_text.hpp"
#include "cuda/plan/attention_bwd_plan.hpp"
#include "variant/position_mask.hpp"

namespace flashtile::cuda {
namespace {

using Stems = std::vector<std::string>;

std::vector<KernelChoice> kernels_of(const std::string& text, const std::string& arch) {
  Context context;
  context.arch = arch;
  return make_call(parse_problem(text)).kernels(context);
}

Stems stems_of(const std::string& text) {
  Stems stems;
  for (const KernelChoice& kernel : kernels_of(text, "sm_90a")) {
    stems.push_back(kernel.source.stem);
  }
  return stems;
}

KernelChoice main_of(const std::string& text, const std::string& arch) {
  for (const KernelChoice& kernel : kernels_of(text, arch)) {
    if (kernel.source.stem == "attention_bwd_portable") return kernel;
  }
  return {};
}

TEST(BackwardPlan, FitsEveryArchitectureForAllHeadDims) {
  for (const std::string& arch : known_gpu_archs()) {
    const GpuModel& gpu = *named_gpu_model(arch);
    for (const char* type : {"bf16", "f16", "f32", "deterministic:bf16"}) {
      for (const char* dims : {"d1", "d32", "d64", "d80", "d128", "d192:dv128", "d16:dv256", "d256",
                               "d300", "d576:dv512", "d1024"}) {
        for (const char* lengths : {"b2:hq8:hkv2:sq1:sk4096", "b2:hq8:sq20:sk100"}) {
          const std::string text =
              std::string("attention_bwd:") + lengths + ":" + dims + ":" + type;
          for (const KernelChoice& kernel : kernels_of(text, arch)) {
            EXPECT_GT(kernel.num_threads, 0) << text;
            EXPECT_GT(kernel.grid[0], 0) << text;
            EXPECT_LE(kernel.shared_bytes, gpu.shared_bytes_per_cta) << arch << " " << text;
            EXPECT_EQ(kernel.source.arch, arch);
          }
        }
      }
    }
  }
}

TEST(BackwardPlan, LaunchesWhatTheOptionsNeed) {
  const std::string prepare = "attention_bwd_prepare", queries = "attention_bwd_queries";
  const std::string main = "attention_bwd_portable", keys = "attention_bwd_keys";
  const std::string convert = "attention_bwd_convert", blocks = "attention_blocks";
  const std::string clear = "attention_bwd_clear", reduce = "attention_bwd_reduce";
  const Stems plain = {prepare, main, convert};
  const std::string base = "attention_bwd:b1:hq16:sq8192:d64:";
  EXPECT_EQ(stems_of(base + "causal:bf16"), plain);
  EXPECT_EQ(stems_of(base + "mask='k_idx <= q_idx':bf16"), plain);
  EXPECT_EQ(stems_of(base + "mask='k_idx % 2 == 0':bf16"), (Stems{prepare, blocks, main, convert}));
  EXPECT_EQ(stems_of(base + "f32"), (Stems{prepare, queries, keys}));
  EXPECT_EQ(stems_of(base + "mask='k_idx % 2 == 0':f32"), (Stems{prepare, blocks, queries, keys}));
  // Nothing is added up in any order.
  EXPECT_EQ(stems_of(base + "deterministic:bf16"), (Stems{prepare, queries, main}));
  EXPECT_EQ(stems_of(base + "bias[1,hq,1,sk]:dbias:bf16"),
            (Stems{prepare, queries, "attention_bwd_bias", main, convert}));
  EXPECT_EQ(stems_of(base + "alibi_slopes[hq]:dalibi_slopes:bf16"),
            (Stems{clear, prepare, queries, main, reduce}));
  EXPECT_EQ(stems_of(base + "sink:dsink:bf16"), (Stems{clear, prepare, main, convert, reduce}));
}

TEST(BackwardPlan, TheLastCtaOfFewQueriesMakesDq) {
  const Stems two = {"attention_bwd_prepare", "attention_bwd_portable"};
  for (const char* sizes : {"sq512:d64", "sq4096:d64", "sq512:d256", "hkv8:sq1024:d128"}) {
    EXPECT_EQ(stems_of(std::string("attention_bwd:b4:hq16:bf16:") + sizes), two) << sizes;
  }
  // More than a MiB of sums, rows that are not whole vectors, rows that no sequence covers.
  for (const char* sizes : {"sq8192:d64", "hkv1:sq1024:d128", "sq512:d60",
                            "cu_seqlens_q={0,100}:cu_seqlens_k={0,100}:d64"}) {
    EXPECT_EQ(stems_of(std::string("attention_bwd:hq16:bf16:") + sizes).back(),
              "attention_bwd_convert")
        << sizes;
  }
}

TEST(BackwardPlan, WideHeadsStreamWhereNoTileFits) {
  const std::string text = "attention_bwd:b1:hq2:sq512:bf16:";
  EXPECT_GT(main_of(text + "d512", "sm_90a").num_threads, 0);
  EXPECT_EQ(main_of(text + "d512", "sm_86").num_threads, 0);
  EXPECT_EQ(main_of(text + "d1024", "sm_90a").num_threads, 0);
}

TEST(BackwardPlan, OneCtaForEachKeyBlockOfAKvHead) {
  EXPECT_EQ(main_of("attention_bwd:b2:hq16:hkv4:sq512:sk1000:d64:bf16", "sm_90a").grid[0],
            8 * 2 * 4);
  EXPECT_EQ(main_of("attention_bwd:b2:hq16:sq512:sk1:d128:bf16", "sm_80").grid[0], 2 * 16);
}

TEST(BackwardPlan, TileShapesLeaveRoomForTheCtasThatTheyAreMeantFor) {
  const auto shape = [](const char* text, const char* arch) {
    return std::pair(main_of(text, arch).num_threads, main_of(text, arch).grid[0]);
  };
  // 128 x 128 (or 64 x 128 where two of those do not fit) by four warps, by eight, 128 x 64.
  EXPECT_EQ(shape("attention_bwd:b1:hq1:sq4096:d64:bf16", "sm_90a"), std::pair(128l, 32l));
  EXPECT_EQ(shape("attention_bwd:b1:hq1:sq4096:d128:bf16", "sm_90a"), std::pair(256l, 32l));
  EXPECT_EQ(shape("attention_bwd:b1:hq1:sq4096:d256:bf16", "sm_90a"), std::pair(256l, 64l));
  EXPECT_EQ(shape("attention_bwd:b1:hq1:sq512:d128:causal:bf16", "sm_90a"), std::pair(256l, 4l));
  EXPECT_EQ(shape("attention_bwd:b1:hq1:sq64:d128:bf16", "sm_90a"), std::pair(128l, 1l));
  EXPECT_EQ(shape("attention_bwd:b1:hq1:sq512:d64:causal:bf16", "sm_90a"), std::pair(128l, 4l));
  EXPECT_EQ(shape("attention_bwd:b1:hq1:sq4096:d128:bf16", "sm_86"), std::pair(128l, 64l));
  // Two CTAs of 128 x 128 for head_dim 64 need 200 KiB.
  EXPECT_GT(main_of("attention_bwd:b1:hq1:sq4096:d64:bf16", "sm_90a").shared_bytes,
            main_of("attention_bwd:b1:hq1:sq4096:d64:bf16", "sm_80").shared_bytes);
}

TEST(BackwardPlan, WorkspaceIsOneFloatForEachElementOfDqAndVectors) {
  for (const std::string& arch : known_gpu_archs()) {
    Context context;
    context.arch = arch;
    context.implementation = "attention_bwd_portable";
    for (const int64_t dim : {16, 64, 80, 128, 192, 256, 320, 512, 576, 1024}) {
      for (const int64_t seqlen : {1024, 8192}) {
        const std::string text = "attention_bwd:b2:hq16:hkv4:sq" + std::to_string(seqlen) +
                                 ":causal:bf16:d" + std::to_string(dim);
        const int64_t bytes = make_call(parse_problem(text)).explain(context).workspace_bytes;
        const int64_t rows = 2 * 16 * seqlen;
        const int64_t rounded = (dim + 63) / 64 * 64;
        // lse, delta, and a flag for 16 rows.
        EXPECT_LE(bytes, rows * (rounded + 2) * 4 + rows / 4 + 5 * 256) << arch << " " << text;
        if (dim == 128) {
          EXPECT_GE(bytes, rows * dim * 4) << arch << " " << text;
        }
      }
    }
  }
}

TEST(BackwardPlan, DeterministicNeedsNoSumsOfDq) {
  Context context;
  context.arch = "sm_90a";
  const auto bytes_of = [&](const std::string& option) {
    const std::string text = "attention_bwd:b2:hq16:sq1024:d128:bf16" + option;
    const std::string plan = make_call(parse_problem(text)).explain(context).plan;
    return std::stoll(plan.substr(plan.find("workspace ") + 10));
  };
  EXPECT_LT(bytes_of(":deterministic"), 2 * 16 * 1024 * 12);
  EXPECT_GT(bytes_of(""), 2 * 16 * 1024 * 128 * 4);
}

TEST(BackwardPlan, NumbersChangeNoText) {
  const auto text_of = [](const std::string& numbers) {
    std::string text;
    for (const KernelChoice& kernel : kernels_of("attention_bwd:bf16:d64:" + numbers, "sm_90a")) {
      text += kernel.source.stem + kernel.source.config;
    }
    return text;
  };
  const std::string base = text_of("b2:hq4:sq700:sk200:causal:softcap=5:dropout_p=0.1");
  EXPECT_EQ(base, text_of("b7:hq8:sq1000:sk3000:causal:softcap=50:dropout_p=0.3"));
  EXPECT_EQ(base, text_of("b2:hq4:sq700:sk200:causal:softcap=5:dropout_p=0.1:softmax_scale=2"));
  EXPECT_NE(base, text_of("b2:hq4:sq700:sk200:causal:softcap=5"));
  // Few queries have another tile shape.
  EXPECT_NE(base, text_of("b2:hq4:sq500:sk200:causal:softcap=5:dropout_p=0.1"));
}

TEST(BackwardPlan, RangesOfQueriesAreThoseOfKeysTurnedAround) {
  std::mt19937 random(3);
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 300; ++round) {
    variant::PositionMask mask;
    const int seqlen_q = draw(1, 30);
    mask.seqlen_k = draw(1, 30);
    mask.query_offset = draw(-20, 20);
    if (draw(0, 1) == 1) mask.lower = mask.query_offset - draw(0, 20);
    if (draw(0, 1) == 1) mask.upper = mask.query_offset + draw(0, 20);
    if (draw(0, 1) == 1) mask.chunk = draw(1, 12);
    for (int key = 0; key < mask.seqlen_k; ++key) {
      const variant::KeyRange queries = mask.queries(key);
      for (int q_idx = 0; q_idx < seqlen_q; ++q_idx) {
        const variant::KeyRange keys = mask.keys(q_idx);
        EXPECT_EQ(key >= keys.begin && key < keys.end,
                  q_idx >= queries.begin && q_idx < queries.end)
            << key << " " << q_idx;
      }
    }
  }
}

}  // namespace
}  // namespace flashtile::cuda
