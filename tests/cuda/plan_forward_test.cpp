// SPDX-License-Identifier: Apache-2.0
//
// Plans of the portable forward, made for named architectures without a GPU.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "core/problem_text.hpp"
#include "cuda/launch/attention_params.hpp"
#include "cuda/plan/attention_fwd_plan.hpp"
#include "cuda/plan/kernel_plan.hpp"
#include "ops/attention/implementations.hpp"
#include "pack_problems.hpp"
#include "variant/expr/parse.hpp"

namespace flashtile::cuda {
namespace {

/// Kernels that a problem text launches on an architecture, in order.
std::vector<KernelChoice> kernels_of(const std::string& text, const std::string& arch) {
  Context context;
  context.arch = arch;
  context.implementation = "attention_fwd_portable";
  return make_call(parse_problem(text)).kernels(context);
}

std::vector<std::string> stems_of(const std::string& text, const std::string& arch = "sm_80") {
  std::vector<std::string> stems;
  for (const KernelChoice& kernel : kernels_of(text, arch)) stems.push_back(kernel.source.stem);
  return stems;
}

KernelChoice forward_of(const std::string& text, const std::string& arch) {
  for (const KernelChoice& kernel : kernels_of(text, arch)) {
    if (kernel.source.stem == "attention_fwd_portable") return kernel;
  }
  return {};
}

using Stems = std::vector<std::string>;

TEST(ForwardPlan, FitsEveryArchitectureForAllHeadDimsAndTypes) {
  for (const std::string& arch : known_gpu_archs()) {
    const GpuModel& gpu = *named_gpu_model(arch);
    for (const char* type : {"bf16", "f16", "f32"}) {
      for (const char* dims : {"d1", "d64", "d128", "d192:dv128", "d256", "d257", "d512:dv1024",
                               "d1024", "d576:dv512", "d16:dv1000"}) {
        for (const char* lengths : {"b2:hq8:hkv2:sq1:sk4096", "b2:hq8:sq20:sk100",
                                    "b2:hq8:hkv2:sq3000", "b2:hq8:sq100:sk9:dropout_p=0.1"}) {
          const std::string text =
              std::string("attention_fwd:") + lengths + ":" + dims + ":" + type;
          const KernelChoice kernel = forward_of(text, arch);
          EXPECT_GT(kernel.num_threads, 0) << text;
          EXPECT_LE(kernel.shared_bytes, gpu.shared_bytes_per_cta) << arch << " " << text;
          EXPECT_EQ(kernel.source.arch, arch);
        }
      }
    }
  }
}

TEST(ForwardPlan, LaunchesWhatTheOptionsNeed) {
  EXPECT_EQ(stems_of("attention_fwd:b8:hq16:sq2048:d64:causal:bf16"),
            (Stems{"attention_fwd_portable"}));
  EXPECT_EQ(stems_of("attention_fwd:b8:hq16:sq512:d64:max_logit:bf16"),
            (Stems{"attention_prepare", "attention_fwd_portable"}));
  EXPECT_EQ(stems_of("attention_fwd:b8:hq16:sq512:d64:mask='k_idx % 2 == 0':bf16"),
            (Stems{"attention_blocks", "attention_order", "attention_fwd_portable"}));
  // All tiles start at once, or there is one of each head.
  EXPECT_EQ(stems_of("attention_fwd:b1:hq16:sq512:d64:mask='k_idx % 2 == 0':bf16"),
            (Stems{"attention_blocks", "attention_fwd_portable"}));
  EXPECT_EQ(stems_of("attention_fwd:b64:hq16:sq60:d64:mask='k_idx % 2 == 0':bf16"),
            (Stems{"attention_blocks", "attention_fwd_portable"}));
  EXPECT_EQ(stems_of("attention_fwd:b8:hq16:sq512:d64:weights:bf16"),
            (Stems{"attention_fwd_portable", "attention_weights"}));
  EXPECT_EQ(stems_of("attention_fwd:b2:hq16:hkv2:sq1:sk8192:d64:bf16"),
            (Stems{"attention_fwd_portable", "attention_combine"}));
}

TEST(ForwardPlan, SectionsFitTheCacheAndTheLastOneIsNotLeftOver) {
  const GpuModel& gpu = *named_gpu_model("sm_90a");
  for (const int64_t groups : {1, 2, 7, 32, 64, 101, 128, 1000}) {
    for (const int64_t bytes : {int64_t{1} << 30, gpu.l2_bytes / 2, gpu.l2_bytes / 7, int64_t{1}}) {
      const int64_t section = groups_per_section(gpu, groups, bytes);
      ASSERT_GE(section, 1);
      EXPECT_TRUE(section == 1 || section * bytes <= gpu.l2_bytes * 6 / 10);
      const int64_t count = (groups + section - 1) / section;
      const int64_t last = groups - (count - 1) * section;
      EXPECT_LT(section - last, count) << groups << " " << bytes;
      // No more sections than the cache asks for.
      EXPECT_TRUE(count == 1 || groups * bytes > (count - 1) * (gpu.l2_bytes * 6 / 10 - bytes));
    }
  }
}

TEST(ForwardPlan, AUsersCausalMaskIsOrderedLikeTheOption) {
  AttentionProblem problem;
  problem.gpu = named_gpu_model("sm_90a");
  problem.dtype = problem.q.dtype = problem.k.dtype = problem.v.dtype = DType::kBF16;
  problem.batch_size = 4;
  problem.num_heads = problem.num_heads_kv = 32;
  problem.max_seqlen_q = problem.max_seqlen_k = 4096;
  problem.head_dim = problem.head_dim_v = 64;
  EXPECT_EQ(make_forward_plan(problem).section_heads, 1);
  problem.user_mask = variant::parse_mask("k_idx <= q_idx + query_offset", {});
  const ForwardPlan mask = make_forward_plan(problem);
  problem.user_mask = {};
  problem.window_right = 0;
  const ForwardPlan option = make_forward_plan(problem);
  EXPECT_TRUE(option.is_descending);
  EXPECT_EQ(option.section_heads, 26);  // of 128, 30 of which the cache holds
  EXPECT_EQ(mask.is_descending, option.is_descending);
  EXPECT_EQ(mask.section_heads, option.section_heads);
}

TEST(ForwardPlan, MasksThatArePositionsNeedNoMap) {
  // The presets' texts for causal and windows are bands of k_idx - q_idx.
  for (const char* mask : {"k_idx <= q_idx + query_offset", "k_idx >= q_idx - 100",
                           "abs(q_idx - k_idx) < 50 && k_idx <= q_idx"}) {
    EXPECT_EQ(stems_of(std::string("attention_fwd:b8:hq16:sq512:d64:bf16:mask='") + mask + "'"),
              (Stems{"attention_fwd_portable"}))
        << mask;
  }
}

TEST(ForwardPlan, SplitsKeysOnlyWhereCtasAreFew) {
  const auto grid_of = [](const std::string& text) { return forward_of(text, "sm_90a").grid[0]; };
  // 16 query tiles of 16 heads of 8 sequences: every multiprocessor has work.
  EXPECT_EQ(grid_of("attention_fwd:b8:hq16:sq2048:d128:bf16"), 16 * 16 * 8);
  // One token of two sequences: many CTAs for each of four key heads.
  const int64_t few = grid_of("attention_fwd:b2:hq32:hkv4:sq1:sk65536:d128:bf16");
  EXPECT_GE(few, 132);
  EXPECT_EQ(few % 8, 0);
  // Few keys are not split.
  EXPECT_EQ(grid_of("attention_fwd:b2:hq32:hkv4:sq1:sk256:d128:bf16"), 8);
}

TEST(ForwardPlan, OneReadOfKeysServesTheHeadsOfAGroup) {
  // 8 query heads share a key head and are rows of one tile: a CTA for each of 4 key heads.
  EXPECT_EQ(forward_of("attention_fwd:b1:hq32:hkv4:sq1:sk128:d64:bf16", "sm_80").grid[0], 4);
  // A mask that asks for the head has tiles of its own for each.
  EXPECT_EQ(forward_of("attention_fwd:b1:hq32:hkv4:sq1:sk128:d64:bf16:mask='head > 3 || k_idx < 9'",
                       "sm_80")
                .grid[0],
            32);
}

TEST(ForwardPlan, NumbersAreNoPartOfTheProgram) {
  const std::string start = "attention_fwd:b2:hq8:sq300:d64:bf16:";
  const auto text_of = [&](const std::string& options) {
    return forward_of(start + options, "sm_80").source.config;
  };
  EXPECT_EQ(text_of("window_left=5:softcap=10"), text_of("window_left=77:softcap=20"));
  EXPECT_EQ(text_of("softmax_scale=0.5"), text_of("softmax_scale=-3"));
  EXPECT_EQ(text_of("causal"), text_of("window_right=9"));
  EXPECT_EQ(text_of("dropout_p=0.1:dropout_seed=3"), text_of("dropout_p=0.5:dropout_seed=4"));
  EXPECT_EQ(text_of("score='score * param.a':param.a=1"),
            text_of("score='score * param.a':param.a=2"));
  // Sizes decide whether keys are split, and whether a tile is for few blocks of keys; not here.
  EXPECT_EQ(forward_of("attention_fwd:b2:hq8:sq300:d64:bf16", "sm_80").source,
            forward_of("attention_fwd:b50:hq4:hkv2:sq999:sk900:d64:bf16", "sm_80").source);
}

TEST(ForwardPlan, CopiesAsWideAsStridesAllow) {
  const auto has = [](const std::string& text, const std::string& line) {
    return forward_of(text, "sm_80").source.config.find(line) != std::string::npos;
  };
  const std::string start = "attention_fwd:b2:hq8:sq300:bf16:";
  EXPECT_TRUE(has(start + "d64", "kCopyBytes = 16;"));
  EXPECT_TRUE(has(start + "d100", "kCopyBytes = 8;"));
  EXPECT_TRUE(has(start + "d98", "kCopyBytes = 4;"));
  EXPECT_TRUE(has(start + "d33", "kCopyBytes = 0;"));
  EXPECT_TRUE(has(start + "d64", "kStoreVectors = true;"));
  EXPECT_TRUE(has(start + "d100", "kStoreVectors = false;"));
}

TEST(ForwardPlan, KeysOf8BitsFitEveryArchitecture) {
  for (const std::string& arch : known_gpu_archs()) {
    const GpuModel& gpu = *named_gpu_model(arch);
    for (const char* type : {"bf16", "f16", "f32"}) {
      for (const char* dims : {"d64", "d128", "d192:dv128", "d256", "d257", "d576:dv512"}) {
        for (const char* rest :
             {"sq1:sk4096:k_scale:v_scale", "sq3000:causal:k_scale:v_scale",
              "sq1:ps16:np1024:pp256:block_table:k_scale[np,hkv]:v_scale[np,hkv]",
              "sq100:ps16:np1024:pp256:block_table:k_scale[np,hkv]:v_scale:dropout_p=0.1"}) {
          const std::string text = std::string("attention_fwd:b2:hq8:hkv2:") + rest + ":" + dims +
                                   ":k.e4m3:v.e4m3:" + type;
          const KernelChoice kernel = forward_of(text, arch);
          EXPECT_GT(kernel.num_threads, 0) << text;
          EXPECT_LE(kernel.shared_bytes, gpu.shared_bytes_per_cta) << arch << " " << text;
        }
      }
    }
  }
}

TEST(ForwardPlan, KeysOf8BitsAreCopiedAsTheyAre) {
  const std::string start = "attention_fwd:b2:hq8:hkv2:ps16:np512:pp256:block_table:k.i8:v.i8:bf16";
  const auto has = [&](const std::string& rest, const std::string& line) {
    return forward_of(start + rest, "sm_90a").source.config.find(line) != std::string::npos;
  };
  EXPECT_TRUE(has(":sq1:d64", "kKeyElement = Element::kI8;"));
  EXPECT_TRUE(has(":sq1:d64", "kCopyBytes = 16;"));
  EXPECT_TRUE(has(":sq1:d40", "kCopyBytes = 8;"));
  EXPECT_TRUE(has(":sq1:d33", "kCopyBytes = 0;"));
  // Queries go to the places that codes ask for, a pair at a time.
  EXPECT_TRUE(has(":sq1:d64", "kQueryCopyBytes = 4;"));
  // Scales of pages are copied with their rows, others are read once.
  EXPECT_TRUE(has(":sq1:d64:k_scale[np,hkv]:v_scale", "kCopiesKeyScales = true;"));
  EXPECT_TRUE(has(":sq1:d64:k_scale[np,hkv]:v_scale", "kCopiesValueScales = false;"));
  // Half of the bytes: room for the same keys in fewer.
  EXPECT_LT(forward_of("attention_fwd:b1:hq8:sq2048:d128:k.i8:v.i8:f16", "sm_90a").shared_bytes,
            forward_of("attention_fwd:b1:hq8:sq2048:d128:f16", "sm_90a").shared_bytes);
}

TEST(ForwardPlan, WorkspaceIsSaidAndIsLinear) {
  Context context;
  context.arch = "sm_90a";
  context.implementation = "attention_fwd_portable";
  const auto bytes_of = [&](const std::string& text) {
    return make_call(parse_problem(text)).explain(context).workspace_bytes;
  };
  EXPECT_EQ(bytes_of("attention_fwd:b8:hq16:sq2048:d128:causal:bf16"), 0);
  const int64_t decode = bytes_of("attention_fwd:b2:hq32:hkv4:sq1:sk65536:d128:bf16");
  EXPECT_GT(decode, 0);
  EXPECT_LT(decode, 128 * 2 * 32 * (128 + 1) * 4 + 1024);  // at most 128 splits
  // The map of blocks takes two bits for each tile, not for each pair.
  const int64_t map =
      bytes_of("attention_fwd:b1:hq4:sq16384:d64:mask='k_idx % 7 != q_idx % 5':bf16");
  EXPECT_GE(map, 16384 / 128 * (16384 / 128) / 4);
  EXPECT_LT(map, 16384 * 16384 / 1000);
}

TEST(ForwardPlan, RefusesWhatItCannotDo) {
  Context context;
  context.arch = "sm_80";
  const Explanation explanation =
      make_call(parse_problem("attention_fwd:b1:hq2:sq30:d16:f64")).explain(context);
  EXPECT_TRUE(explanation.chosen.empty());
  ASSERT_FALSE(explanation.candidates.empty());
  EXPECT_NE(explanation.candidates.front().refusal.find("f64"), std::string::npos);
}

TEST(ForwardPlan, ShapesFollowWhatWasMeasured) {
  const auto holds = [](const std::string& text, const std::string& arch, const char* member) {
    return forward_of(text, arch).source.config.find(member) != std::string::npos;
  };
  const std::string at_64 = "attention_fwd:b1:hq16:d64:bf16:";
  for (const char* arch : {"sm_80", "sm_89", "sm_90a"}) {
    EXPECT_TRUE(holds(at_64 + "sq2048", arch, "kBlockN = 128;")) << arch;
    EXPECT_TRUE(holds(at_64 + "sq2048", arch, "kNumStages = 1;")) << arch;
  }
  // Five small CTAs where a causal mask leaves little, and where they fit beside each other.
  EXPECT_TRUE(holds(at_64 + "sq512:causal", "sm_90a", "kMinCtas = 5;"));
  EXPECT_TRUE(holds(at_64 + "sq512:causal", "sm_89", "kMinCtas = 2;"));
  EXPECT_TRUE(holds(at_64 + "sq2048:causal", "sm_90a", "kBlockN = 128;"));
  EXPECT_TRUE(holds(at_64 + "sq4096:causal:window_left=1024", "sm_90a", "kMinCtas = 5;"));
  EXPECT_TRUE(holds(at_64 + "sq4096:causal:window_left=2048", "sm_90a", "kBlockN = 128;"));
  // Options take the plain shape where registers suffice.
  EXPECT_TRUE(holds(at_64 + "sq4096:alibi_slopes[hq]", "sm_90a", "kBlockN = 128;"));
  EXPECT_TRUE(holds(at_64 + "sq4096:mask='k_idx % 2 == 0'", "sm_90a", "kBlockN = 128;"));
  EXPECT_TRUE(holds(at_64 + "sq4096:softcap=20", "sm_90a", "kBlockN = 64;"));
  EXPECT_TRUE(holds(at_64 + "sq4096:softcap=20:alibi_slopes[hq]", "sm_90a", "kBlockN = 64;"));
  EXPECT_TRUE(holds(at_64 + "sq512:causal:alibi_slopes[hq]", "sm_90a", "kMinCtas = 2;"));
  const std::string at_128 = "attention_fwd:b1:hq16:d128:bf16:";
  EXPECT_TRUE(holds(at_128 + "sq2048", "sm_90a", "kBlockM = 128;"));
  EXPECT_TRUE(holds(at_128 + "sq2048", "sm_90a", "kNumStages = 1;"));
  EXPECT_TRUE(holds(at_128 + "sq512:causal", "sm_90a", "kMinCtas = 4;"));
  EXPECT_TRUE(holds(at_128 + "sq512:causal", "sm_80", "kMinCtas = 2;"));
  // Two small CTAs where they fit beside each other, else a large one where that fits; both with
  // warps that exchange weights.
  const std::string at_256 = "attention_fwd:b1:hq16:d256:sq2048:bf16";
  EXPECT_TRUE(holds(at_256, "sm_90a", "kBlockM = 64;"));
  EXPECT_TRUE(holds(at_256, "sm_90a", "kSharesWeights = true;"));
  EXPECT_TRUE(holds(at_256, "sm_80", "kBlockM = 128;"));
  EXPECT_TRUE(holds(at_256, "sm_80", "kSharesWeights = true;"));
  EXPECT_TRUE(holds(at_256, "sm_89", "kBlockM = 64;"));
  EXPECT_TRUE(holds(at_256, "sm_89", "kSharesWeights = false;"));
  // Above 256 whole rows where they fit, else chunks.
  const std::string at_512 = "attention_fwd:b1:hq16:d512:sq2048:bf16";
  EXPECT_TRUE(holds(at_512, "sm_90a", "kSharesWeights = true;"));
  EXPECT_TRUE(holds(at_512, "sm_90a", "kHeadDimV = 512;"));
  EXPECT_TRUE(holds(at_512, "sm_80", "kChunk = 64;"));
  EXPECT_TRUE(holds("attention_fwd:b1:hq16:d528:sq2048:bf16", "sm_90a", "kChunk = 64;"));
}

TEST(ForwardPlan, ReadsOfScoresThatAreLinearAreKnownToBeInside) {
  const auto is_linear = [](const std::string& score) {
    const std::string text =
        "attention_fwd:b1:hq2:sq512:d64:bf16:aux.t[hq,1023]:score='score + " + score + "'";
    const std::string config = forward_of(text, "sm_90a").source.config;
    return config.find("kIsScoreLinear = true;") != std::string::npos;
  };
  EXPECT_TRUE(is_linear("t[head, q_idx - k_idx + seqlen_k - 1]"));
  EXPECT_TRUE(is_linear("t[head, 2 * k_idx] * t[0, q_idx]"));
  EXPECT_FALSE(is_linear("t[head, abs(q_idx - k_idx)]"));
  EXPECT_FALSE(is_linear("t[head, (q_idx - k_idx) % 8]"));
  EXPECT_FALSE(is_linear("t[head, int(score)]"));
}

TEST(ForwardPlan, AWordOfTheMapOfBlocksIsACta) {
  const std::vector<KernelChoice> kernels =
      kernels_of("attention_fwd:b1:hq8:sq4096:d64:mask='k_idx % 7 != q_idx % 5':bf16", "sm_90a");
  ASSERT_EQ(kernels.front().source.stem, "attention_blocks");
  // 32 query blocks by 32 key blocks, 16 of them in a word; heads do not differ.
  EXPECT_EQ(kernels.front().grid[0], 32 * 2);
  EXPECT_EQ(kernels.front().num_threads, 16 * 32);
}

TEST(ForwardPlan, KernelsComeNearWhileTheOneBeforeEnds) {
  const std::string decode = "attention_fwd:b2:hq32:hkv4:sq1:sk65536:d128:bf16";
  for (const std::string& text : {decode, std::string("attention_fwd:b1:hq2:sq512:d64:bf16")}) {
    // The launch overlaps where kernels can wait for the one before them.
    for (const KernelChoice& kernel : kernels_of(text, "sm_90a")) {
      EXPECT_TRUE(kernel.overlaps_previous) << to_string(kernel);
    }
    for (const KernelChoice& kernel : kernels_of(text, "sm_80")) {
      EXPECT_FALSE(kernel.overlaps_previous) << to_string(kernel);
    }
  }
}

TEST(ForwardPlan, OneTileForEachMultiprocessorKeepsFourStagesOnTheirWay) {
  const auto stages_of = [](const std::string& text, const std::string& stages) {
    return forward_of(text, "sm_90a").source.config.find("kNumStages = " + stages) !=
           std::string::npos;
  };
  // 128 tiles for 132 multiprocessors, then 64, then 256.
  const std::string keys = ":hq32:hkv8:sq1:sk16384:bf16:";
  EXPECT_TRUE(stages_of("attention_fwd:b16" + keys + "d128", "4"));
  EXPECT_EQ(stems_of("attention_fwd:b16" + keys + "d128", "sm_90a"),
            Stems{"attention_fwd_portable"});
  EXPECT_TRUE(stages_of("attention_fwd:b16" + keys + "d64", "8"));
  EXPECT_TRUE(stages_of("attention_fwd:b16" + keys + "d256", "2"));
  EXPECT_TRUE(stages_of("attention_fwd:b8" + keys + "d128", "2"));
  EXPECT_TRUE(stages_of("attention_fwd:b32" + keys + "d128", "2"));
  // Small pages, whose rows come later.
  const std::string pages = keys + "d128:np999:pp1024:block_table:ps";
  EXPECT_TRUE(stages_of("attention_fwd:b32" + pages + "16", "3"));
  EXPECT_TRUE(stages_of("attention_fwd:b32" + pages + "256", "2"));
  EXPECT_TRUE(stages_of("attention_fwd:b8" + pages + "16", "2"));
  EXPECT_TRUE(
      stages_of("attention_fwd:b99:hq32:sq1:sk1024:d128:np999:pp64:block_table:ps16:bf16", "2"));
}

TEST(ForwardPlan, PartsAreCombinedByAsManyWarpsAsTheyHave) {
  const auto combine_of = [](const std::string& text, const std::string& arch) {
    const KernelChoice kernel = kernels_of(text, arch).back();
    EXPECT_EQ(kernel.source.stem, "attention_combine");
    return kernel;
  };
  const std::string decode = "attention_fwd:b2:hq32:hkv4:sq1:sk65536:d128:bf16";
  // A CTA for each row of many parts: 32 heads of 2 sequences.
  EXPECT_EQ(combine_of(decode, "sm_90a").grid[0], 64);
  // Four rows of few parts.
  const std::string few = "attention_fwd:b1:hq64:sq100:sk4096:d128:bf16";
  EXPECT_EQ(combine_of(few, "sm_90a").grid[0], 64 * 100 / 4);
}

TEST(ForwardPlan, SplitsOfATileAreAClusterThatMergesThem) {
  const std::string text = "attention_fwd:b16:hq16:hkv4:sq1:sk8192:d128:bf16";
  const std::vector<KernelChoice> kernels = kernels_of(text, "sm_90a");
  ASSERT_EQ(kernels.size(), 1u);
  EXPECT_EQ(kernels[0].cluster_size, 4);
  EXPECT_EQ(kernels[0].grid[0], 16 * 4 * 4);
  EXPECT_FALSE(kernels[0].overlaps_previous);
  Context context;
  context.arch = "sm_90a";
  EXPECT_EQ(make_call(parse_problem(text)).explain(context).workspace_bytes, 0);
  // Several queries of a head in one tile as well.
  EXPECT_EQ(stems_of("attention_fwd:b16:hq16:hkv4:sq3:sk8192:d128:causal:bf16", "sm_90a"),
            Stems{"attention_fwd_portable"});
  // Without clusters, or with more splits than these have, another kernel.
  const Stems two = {"attention_fwd_portable", "attention_combine"};
  EXPECT_EQ(stems_of(text, "sm_89"), two);
  EXPECT_EQ(kernels_of(text, "sm_89")[0].cluster_size, 1);
  EXPECT_EQ(stems_of("attention_fwd:b1:hq8:hkv1:sq1:sk131072:d128:bf16", "sm_90a"), two);
  // Nor where a multiprocessor has room for one CTA, so that not all clusters would run at once.
  EXPECT_EQ(stems_of("attention_fwd:b16:hq8:hkv2:sq1:sk8192:d256:bf16", "sm_90a"), two);
}

/// Splits of few sequences are combined, those of more merged in clusters: packs have both.
TEST(ForwardPlan, DecodesFindTheirKernelsInPacks) {
  Context context;
  context.arch = "sm_90a";
  std::set<std::string> packed;
  for (const std::string& problem : cli::pack_problems(*find_op("attention_fwd"))) {
    if (problem.find("sq1:") == std::string::npos) continue;
    for (const KernelChoice& kernel : make_call(parse_problem(problem)).kernels(context)) {
      packed.insert(kernel.source.stem + kernel.source.config);
    }
  }
  for (const char* sequences : {"b1", "b2", "b12", "b16"}) {
    const std::string text =
        std::string("attention_fwd:") + sequences +
        ":hq16:hkv4:sq1:sk20000:ps16:np999:pp1250:block_table:seqused_k:causal";
    for (const char* dims : {":d64:bf16", ":d128:f16", ":d256:bf16"}) {
      for (const KernelChoice& kernel : kernels_of(text + dims, "sm_90a")) {
        EXPECT_TRUE(packed.contains(kernel.source.stem + kernel.source.config))
            << to_string(kernel) << " of " << sequences << dims;
      }
    }
  }
}

TEST(ForwardPlan, DivisorsDivideExactly) {
  const auto quotient = [](uint32_t n, const device::DivisorParam& divisor) {
    const auto high = static_cast<uint32_t>((uint64_t{n} * divisor.magic) >> 32);
    return (high + n) >> divisor.shift;
  };
  std::mt19937 generator(5);
  const auto draw = [&] { return static_cast<uint32_t>(generator()); };
  for (int i = 0; i < 20000; ++i) {
    const uint32_t value = 1 + (draw() >> (1 + draw() % 31)) % 0x7fffffffu;
    const device::DivisorParam divisor = divisor_param(value);
    ASSERT_EQ(divisor.value, value);
    const uint32_t multiple = 0x7fffffffu / value * value;
    for (const uint32_t n : {draw() >> 1, draw() >> 20, multiple, multiple - 1, 0x7fffffffu, 0u}) {
      ASSERT_EQ(quotient(n, divisor), n / value) << n << " / " << value;
    }
  }
  EXPECT_EQ(divisor_param(0).value, 1u);
}

}  // namespace
}  // namespace flashtile::cuda
