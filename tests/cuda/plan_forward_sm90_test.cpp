// SPDX-License-Identifier: Apache-2.0
//
// Plans of the Hopper forward, made without a GPU: what it takes, what it leaves to the portable
// kernel, and that a multiprocessor holds what it asks for.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "core/problem_text.hpp"
#include "cuda/jit/nvrtc.hpp"
#include "cuda/jit/program.hpp"
#include "cuda/plan/attention_fwd_sm90_plan.hpp"
#include "flashtile/error.hpp"
#include "ops/attention/implementations.hpp"

namespace flashtile::cuda {
namespace {

std::vector<KernelChoice> kernels_of(const std::string& text, const std::string& implementation,
                                     const std::string& arch = "sm_90a") {
  Context context;
  context.arch = arch;
  context.implementation = implementation;
  return make_call(parse_problem(text)).kernels(context);
}

/// Why the problem is not taken; empty: it is.
std::string refusal_of(const std::string& text, const std::string& arch = "sm_90a") {
  try {
    const auto kernels = kernels_of(text, "attention_fwd_sm90", arch);
    EXPECT_EQ(kernels.back().source.stem, "attention_fwd_sm90");
    return {};
  } catch (const Error& error) {
    const std::string all = error.what();
    const std::string label = "attention_fwd_sm90: ";
    const size_t begin = all.find(label) + label.size();
    return all.substr(begin, all.find('\n', begin) - begin);
  }
}

TEST(Sm90Plan, TakesWhatTheCopyEngineTakes) {
  for (const char* text :
       {"attention_fwd:b2:hq8:sq1000:d64:bf16", "attention_fwd:b2:hq8:sq1000:d64:causal:lse:f16",
        "attention_fwd:b9:hq8:hkv2:sq277:sk3000:d128:causal:bf16",
        "attention_fwd:b1:hq4:sq300:d192:dv128:bf16", "attention_fwd:b1:hq4:sq300:d64:dv512:bf16",
        "attention_fwd:b1:hq4:sq300:d80:bf16",
        "attention_fwd:b2:hq16:cu_seqlens_q={0,300,700}:cu_seqlens_k={0,300,700}:d128:causal:bf16",
        "attention_fwd:b2:hq8:sq300:sk400:d64:seqused_k:leftpad_k:f16",
        "attention_fwd:b1:hq4:sq9000:d256:bf16", "attention_fwd:b1:hq4:sq9:d256:f16",
        "attention_fwd:b1:hq4:sq300:d64:softcap=20:alibi_slopes[hq]:sink:max_logit:bf16",
        "attention_fwd:b1:hq4:sq300:d64:attention_chunk=9:dropout_p=0.5:bf16",
        "attention_fwd:b1:hq4:sq300:d64:bias[1,hq,sq,sk]:mask='k_idx % 3 != 1':bf16",
        "attention_fwd:b2:hq4:sq300:ps16:np99:pp20:d64:block_table:bf16"}) {
    EXPECT_EQ(refusal_of(text), "") << text;
  }
}

TEST(Sm90Plan, SaysWhatItLeavesToThePortableKernel) {
  EXPECT_EQ(refusal_of("attention_fwd:b1:hq4:sq300:d64:f32"), "takes f16 and bf16, not f32");
  EXPECT_EQ(refusal_of("attention_fwd:b1:hq4:sq300:d512:bf16"), "takes a head_dim of at most 256");
  EXPECT_EQ(refusal_of("attention_fwd:b1:hq4:sq300:d64:weights:bf16"), "has no weights yet");
  EXPECT_EQ(refusal_of("attention_fwd:b1:hq4:sq300:d64:k.e4m3:v.e4m3:k_scale:bf16"),
            "takes no keys of i8 or e4m3");
  EXPECT_EQ(refusal_of("attention_fwd:b2:hq4:sq300:ps12:np99:pp30:d64:block_table:bf16"),
            "takes pages of 8, 16, ... keys, of which at most eight fill a block of 64, or that "
            "such blocks fill");
  EXPECT_EQ(refusal_of("attention_fwd:b1:hq4:sq300:d64:attention_chunk=9:query_offset=900000000"
                       ":bf16"),
            "takes attention_chunk with positions below 536870912 only");
  EXPECT_EQ(refusal_of("attention_fwd:b1:hq4:sq300:d64:softmax_scale=-1:bf16"),
            "takes a positive softmax_scale only");
  // Rows of 72 bytes are no multiple of 16.
  EXPECT_EQ(refusal_of("attention_fwd:b1:hq4:sq300:d36:bf16").substr(0, 18), "q cannot be copied");
  EXPECT_NE(refusal_of("attention_fwd:b1:hq4:sq300:d64:bf16", "sm_80").find("9.0"),
            std::string::npos);
}

std::string chosen_stem(const std::string& text, const std::string& arch = "sm_90a") {
  return kernels_of(text, "", arch).front().source.stem;
}

TEST(Sm90Plan, PreparesWhatTheKernelReads) {
  const auto stems = [](const std::string& text) {
    std::vector<std::string> found;
    for (const KernelChoice& kernel : kernels_of(text, "sm90")) found.push_back(kernel.source.stem);
    return found;
  };
  using Stems = std::vector<std::string>;
  EXPECT_EQ(stems("attention_fwd:b1:hq4:sq300:d64:bf16"), Stems{"attention_fwd_sm90"});
  EXPECT_EQ(stems("attention_fwd:b1:hq4:sq300:d64:max_logit:bf16"),
            (Stems{"attention_prepare", "attention_fwd_sm90"}));
  EXPECT_EQ(stems("attention_fwd:b1:hq4:sq300:d64:mask='k_idx % 3 != 1':bf16"),
            (Stems{"attention_blocks", "attention_fwd_sm90"}));
  EXPECT_EQ(
      stems("attention_fwd:b2:hq8:cu_seqlens_q={0,2000,4000}:cu_seqlens_k={0,300,4000}:d64:bf16"),
      Stems{"attention_fwd_sm90"});
  EXPECT_EQ(
      stems("attention_fwd:b2:hq9:cu_seqlens_q={0,3000,9000}:cu_seqlens_k={0,300,7000}:d64:bf16"),
      (Stems{"attention_tiles", "attention_fwd_sm90"}));
  EXPECT_EQ(stems("attention_fwd:b1:hq9:sq9000:d64:mask='k_idx % 3 != 1':bf16"),
            (Stems{"attention_blocks", "attention_tiles", "attention_fwd_sm90"}));
  // So many heads that the query blocks under way would each read keys of their own.
  EXPECT_EQ(stems("attention_fwd:b9:hq9:sq9000:d64:mask='k_idx % 3 != 1':bf16"),
            (Stems{"attention_blocks", "attention_fwd_sm90"}));
  // A band is a mask by position.
  EXPECT_EQ(stems("attention_fwd:b1:hq4:sq300:d64:mask='k_idx <= q_idx + 3':bf16"),
            Stems{"attention_fwd_sm90"});
}

TEST(Sm90Plan, IsChosenOnHopperForWhatItTakes) {
  EXPECT_EQ(chosen_stem("attention_fwd:b2:hq8:sq1000:d64:bf16"), "attention_fwd_sm90");
  EXPECT_EQ(chosen_stem("attention_fwd:b2:hq8:sq1000:d64:f32"), "attention_fwd_portable");
  EXPECT_EQ(chosen_stem("attention_fwd:b2:hq8:sq1000:d64:bf16", "sm_100"),
            "attention_fwd_portable");
}

TEST(Sm90Plan, LeavesFewQueriesOfManyKeysToAKernelThatSplitsKeys) {
  EXPECT_EQ(refusal_of("attention_fwd:b1:hq16:sq1:sk8192:d128:bf16"),
            "leaves few queries to a kernel that splits the keys: 16 rows for 132 "
            "multiprocessors of 128");
  // Many sequences do not help where each fills little of its tile.
  EXPECT_NE(refusal_of("attention_fwd:b64:hq32:sq32:sk4096:d128:bf16"), "");
  EXPECT_NE(refusal_of("attention_fwd:b1:hq4:sq1024:d128:bf16"), "");
  EXPECT_EQ(refusal_of("attention_fwd:b1:hq16:sq1:sk256:d128:bf16"), "");
  EXPECT_EQ(refusal_of("attention_fwd:b1:hq4:sq2048:d128:bf16"), "");
  // Parts of the values fill multiprocessors as heads do.
  EXPECT_EQ(refusal_of("attention_fwd:b1:hq2:sq2048:d128:dv256:bf16"),
            "leaves few queries to a kernel that splits the keys: 4096 rows for 132 "
            "multiprocessors of 128");
  EXPECT_EQ(refusal_of("attention_fwd:b1:hq2:sq2048:d128:dv1024:bf16"), "");
  EXPECT_EQ(refusal_of("attention_fwd:b1:hq4:sq100:d128:bf16"), "");
}

/// The member of a generated Config.
int config_value(const std::string& config, const std::string& name) {
  const size_t at = config.find(" " + name + " = ");
  EXPECT_NE(at, std::string::npos) << name;
  return std::stoi(config.substr(at + name.size() + 4));
}

TEST(Sm90Plan, FitsRegistersAndSharedMemory) {
  constexpr int kRegisters = 65536;
  const GpuModel& gpu = *named_gpu_model("sm_90a");
  for (const char* dims : {"16", "64", "96", "128", "192", "256", "192:dv128", "64:dv256",
                           "64:dv512", "256:dv320", "128:dv1024"}) {
    for (const int seqlen : {100, 2048, 4096, 16384}) {
      for (const char* rest :
           {":bf16", ":f16", ":causal:bf16", ":causal:f16", ":causal:dropout_p=0.1:bf16",
            ":aux.t[9]:score='score + t[q_idx - k_idx]':bf16", ":bias.bf16[1,1,sq,sk]:f16",
            ":aux.t[9]:score='score + t[q_idx - k_idx]':dropout_p=0.1:softcap=9:f16"}) {
        const std::string text =
            "attention_fwd:b4:hq8:sq" + std::to_string(seqlen) + ":d" + dims + rest;
        SCOPED_TRACE(text);
        const KernelChoice kernel = kernels_of(text, "sm90").back();
        EXPECT_TRUE(kernel.overlaps_previous);
        EXPECT_LE(kernel.shared_bytes, gpu.shared_bytes_per_cta);
        const std::string& config = kernel.source.config;
        const int copies = config_value(config, "kCopyRegisters");
        const int computes = config_value(config, "kComputeRegisters");
        const int groups = config_value(config, "kNumWarpgroups");
        EXPECT_EQ(kernel.num_threads, 128 * (groups + 1));
        // At the start each thread has as many; warpgroups then pass on what they do not need.
        const int at_start = kRegisters / static_cast<int>(kernel.num_threads) / 8 * 8;
        EXPECT_LE(128 * (copies + groups * computes), at_start * kernel.num_threads);
        EXPECT_EQ(copies % 8 + computes % 8, 0);
      }
    }
  }
}

Sm90ForwardPlan causal_plan(int64_t batch_size, int64_t num_heads, int64_t seqlen, int64_t dim) {
  AttentionProblem problem;
  problem.gpu = named_gpu_model("sm_90a");
  problem.dtype = DType::kBF16;
  problem.batch_size = batch_size;
  problem.num_heads = problem.num_heads_kv = num_heads;
  problem.max_seqlen_q = problem.max_seqlen_k = seqlen;
  problem.head_dim = problem.head_dim_v = dim;
  problem.window_right = 0;
  return make_sm90_plan(problem, choose_sm90_tiling(problem));
}

/// A tile sums 256 columns of the values at most. Each part is a tile of its own.
TEST(Sm90Plan, DividesTheColumnsOfWideValues) {
  const auto check = [](const std::string& dims, int num_parts, int columns) {
    SCOPED_TRACE(dims);
    const std::string text = "attention_fwd:b2:hq4:sq1000:d" + dims + ":bf16";
    const std::string config = kernels_of(text, "sm90").back().source.config;
    EXPECT_EQ(config_value(config, "kNumValueParts"), num_parts);
    EXPECT_EQ(config_value(config, "kHeadDimV"), columns);
  };
  check("64:dv256", 1, 256);
  check("64:dv264", 2, 192);
  check("64:dv512", 2, 256);
  check("256:dv520", 3, 192);
  check("16:dv1024", 4, 256);
  const auto tiles_of = [](int64_t head_dim_v) {
    AttentionProblem problem;
    problem.gpu = named_gpu_model("sm_90a");
    problem.dtype = DType::kBF16;
    problem.batch_size = 3;
    problem.num_heads = problem.num_heads_kv = 5;
    problem.max_seqlen_q = problem.max_seqlen_k = 1000;
    problem.head_dim = 64;
    problem.head_dim_v = head_dim_v;
    return make_sm90_plan(problem, choose_sm90_tiling(problem)).num_tiles;
  };
  EXPECT_EQ(tiles_of(256), 3 * 5 * 8);
  EXPECT_EQ(tiles_of(512), 2 * 3 * 5 * 8);
}

TEST(Sm90Plan, CopiesABiasWhoseRowsTheCopyEngineTakes) {
  AttentionProblem problem;
  problem.gpu = named_gpu_model("sm_90a");
  problem.dtype = DType::kBF16;
  problem.batch_size = 2;
  problem.num_heads = problem.num_heads_kv = 8;
  problem.max_seqlen_q = problem.max_seqlen_k = 504;
  problem.head_dim = problem.head_dim_v = 128;
  using Numbers = std::array<int64_t, TensorView::kMaxDims>;
  const auto copies = [&](const Numbers& shape, const Numbers& strides, DType dtype = DType::kF16,
                          int64_t alignment = 16) {
    problem.bias = {dtype, 4, shape, strides, alignment};
    return choose_sm90_tiling(problem).shape.copies_bias;
  };
  const Numbers shape = {2, 8, 504, 504};
  const Numbers strides = {504 * 4096, 504 * 512, 512, 1};
  EXPECT_TRUE(copies(shape, strides));
  EXPECT_TRUE(copies({1, 1, 504, 504}, {7, 7, 504, 1}));
  EXPECT_TRUE(copies(shape, {0, 0, 512, 1}));  // one for all, seen as many
  EXPECT_FALSE(copies(shape, {0, 504, 0, 1}));
  EXPECT_FALSE(copies({2, 8, 1, 504}, strides));
  EXPECT_FALSE(copies(shape, {504 * 4040, 504 * 505, 505, 1}));
  EXPECT_FALSE(copies(shape, {504 * 8192, 504 * 1024, 1024, 2}));
  EXPECT_FALSE(copies(shape, strides, DType::kF32));
  EXPECT_FALSE(copies(shape, strides, DType::kF16, 8));
  problem.has_leftpad = true;
  EXPECT_FALSE(copies(shape, strides));
}

/// All pairs are in a section; the last one holds short tiles for all CTAs where the cache does.
TEST(Sm90Plan, EndsWithShortTilesWhereTheCacheHoldsTheirKeys) {
  constexpr int64_t kMost = int64_t{40} << 20;
  for (const int64_t dim : {64, 128, 256}) {
    for (const int64_t seqlen : {100, 512, 1024, 4096, 16384}) {
      for (const int64_t batch_size : {1, 3, 32}) {
        SCOPED_TRACE(testing::Message() << dim << " " << seqlen << " " << batch_size);
        const Sm90ForwardPlan plan = causal_plan(batch_size, 16, seqlen, dim);
        const int64_t left = plan.num_pairs - plan.last_section * plan.section_pairs;
        EXPECT_GT(left, 0);
        const int64_t head_bytes = seqlen * dim * 4;
        if (left > plan.section_pairs) {
          EXPECT_LE(left * head_bytes, kMost);
        } else {
          // Another section with it would be too much, or there is none, or it has enough tiles.
          EXPECT_TRUE(plan.last_section == 0 || left * plan.num_m_blocks >= 4 * plan.num_ctas ||
                      (left + plan.section_pairs) * head_bytes > kMost);
        }
      }
    }
  }
  const Sm90ForwardPlan plan = causal_plan(32, 16, 512, 128);
  EXPECT_GE((plan.num_pairs - plan.last_section * plan.section_pairs) * plan.num_m_blocks,
            4 * plan.num_ctas);
}

TEST(Sm90Plan, CompilesWithoutSpillsAndInOrder) {
  if (Nvrtc::get() == nullptr) GTEST_SKIP() << Nvrtc::fault();
  if (!Nvrtc::get()->knows("sm_90a")) GTEST_SKIP() << "this NVRTC does not know sm_90a";
  for (
      const char* text :
      {"attention_fwd:b4:hq8:sq4096:d64:bf16",
       "attention_fwd:b4:hq8:sq1024:d64:causal:bf16",
       "attention_fwd:b4:hq8:sq4096:d128:bf16",
       "attention_fwd:b4:hq8:sq1024:d128:causal:bf16",
       "attention_fwd:b4:hq8:sq4096:d128:causal:f16",
       "attention_fwd:b2:hq8:cu_seqlens_q={0,3000,7000}:cu_seqlens_k={0,300,7000}:d64:bf16",
       "attention_fwd:b2:hq8:cu_seqlens_q={0,3000,7000}:cu_seqlens_k={0,300,7000}:d128:causal:bf16",
       "attention_fwd:b2:hq8:cu_seqlens_q={0,3000,7000}:cu_seqlens_k={0,300,7000}:d256:causal:bf16",
       "attention_fwd:b9:hq8:sq700:sk900:d128:seqused_k:f16",
       "attention_fwd:b9:hq8:sq4096:d64:window_left=500:window_right=0:bf16",
       "attention_fwd:b9:hq8:sq4096:d256:window_left=500:window_right=0:bf16",
       "attention_fwd:b4:hq8:sq4096:d256:bf16",
       "attention_fwd:b4:hq8:sq9000:d192:dv128:bf16",
       "attention_fwd:b4:hq8:sq9000:d192:dv128:causal:f16",
       "attention_fwd:b4:hq8:sq4096:d64:dv512:bf16",
       "attention_fwd:b4:hq8:sq9000:d64:dv256:causal:bf16",
       "attention_fwd:b2:hq8:cu_seqlens_q={0,3000,7000}:cu_seqlens_k={0,300,7000}:d128:dv512:causal"
       ":dropout_p=0.1:f16",
       "attention_fwd:b4:hq8:sq4096:d64:causal:alibi_slopes[hq]:bf16",
       "attention_fwd:b4:hq8:sq4096:d128:causal:alibi_slopes[hq]:sink:bf16",
       "attention_fwd:b4:hq8:sq4096:d128:causal:softcap=30:max_logit:bf16",
       "attention_fwd:b4:hq8:sq4096:d256:causal:softcap=30:bf16",
       "attention_fwd:b4:hq8:sq4096:d64:aux.t[4096]:bf16:mask='t[q_idx] == t[k_idx]'",
       "attention_fwd:b4:hq8:sq4096:d128:causal:aux.t[9000]:bf16:score='score + t[q_idx - k_idx]'",
       "attention_fwd:b4:hq8:sq4096:d64:causal:aux.t[9000]:bf16:score='score + t[q_idx - k_idx]'",
       "attention_fwd:b4:hq8:sq4096:d64:causal:bias.bf16[1,hq,sq,sk]:bf16",
       "attention_fwd:b4:hq8:sq4096:d64:bias[1,hq,sq,sk]:bf16",
       "attention_fwd:b2:hq8:cu_seqlens_q={0,3000,7000}:cu_seqlens_k={0,300,7000}:d64:causal"
       ":softcap=30:alibi_slopes[hq]:dropout_p=0.1:bf16",
       "attention_fwd:b4:hq8:sq4096:d128:causal:dropout_p=0.1:bf16",
       "attention_fwd:b4:hq8:sq4096:d256:causal:aux.t[9000]:bf16:score='score + t[q_idx - k_idx]'",
       "attention_fwd:b4:hq8:sq4096:d128:causal:bias.bf16[1,hq,sq,sk]:bf16",
       "attention_fwd:b4:hq16:sq2048:ps16:np512:pp128:d128:block_table:causal:bf16",
       "attention_fwd:b4:hq16:sq4096:ps256:np512:pp128:d64:block_table:causal:bf16"}) {
    SCOPED_TRACE(text);
    const CompiledKernel compiled =
        Nvrtc::get()->compile(program_of(kernels_of(text, "sm90").back().source));
    EXPECT_EQ(compiled.usage.spill_store_bytes, 0);
    // The assembler's warnings about products that it puts one after the other.
    EXPECT_EQ(compiled.notes, "");
  }
}

}  // namespace
}  // namespace flashtile::cuda
