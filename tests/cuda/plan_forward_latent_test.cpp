// SPDX-License-Identifier: Apache-2.0
//
// Plans of latent attention on Hopper, made without a GPU: values that are the first columns of
// keys are recognised, and the kernel fits a multiprocessor.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "core/problem_text.hpp"
#include "cuda/jit/nvrtc.hpp"
#include "cuda/jit/program.hpp"
#include "flashtile/error.hpp"
#include "ops/attention/implementations.hpp"
#include "pack_problems.hpp"

namespace flashtile::cuda {
namespace {

constexpr const char* kStem = "attention_fwd_latent_sm90";

std::vector<KernelChoice> kernels_of(const std::string& text, const std::string& implementation,
                                     const std::string& arch) {
  Context context;
  context.arch = arch;
  context.implementation = implementation;
  return make_call(parse_problem("attention_fwd:" + text)).kernels(context);
}

/// Why the problem is not taken; empty: it is.
std::string refusal_of(const std::string& text, const std::string& arch = "sm_90a") {
  try {
    EXPECT_FALSE(kernels_of(text, kStem, arch).empty());
    return {};
  } catch (const Error& error) {
    const std::string all = error.what();
    const std::string label = std::string(kStem) + ": ";
    const size_t begin = all.find(label) + label.size();
    return all.substr(begin, all.find('\n', begin) - begin);
  }
}

TEST(LatentPlan, IsChosenWhereValuesAreInKeys) {
  const std::string rest = "b32:hq64:hkv1:sq1:sk8192:d576:dv512:bf16";
  EXPECT_EQ(kernels_of(rest + ":v=k", "", "sm_90a").front().source.stem, kStem);
  EXPECT_EQ(kernels_of(rest, "", "sm_90a").front().source.stem, "attention_fwd_portable");
  EXPECT_EQ(kernels_of(rest + ":v=k", "", "sm_100").front().source.stem, "attention_fwd_portable");
}

TEST(LatentPlan, TakesOptionsAndSaysWhatItDoesNotTake) {
  for (const char* text :
       {"b2:hq128:hkv1:sq4:sk900:d576:dv512:v=k:causal:seqused_k:bf16",
        "b2:hq16:hkv1:sq1:d576:dv512:ps64:np40:pp20:v=k:block_table:softcap=9:sink:f16",
        "b1:hq4:hkv2:sq900:d320:dv200:v=k:mask='k_idx % 3 != 1':dropout_p=0.1:lse:max_logit:bf16",
        "b3:hq4:hkv1:cu_seqlens_q={0,5,5,9}:cu_seqlens_k={0,9,60,90}:d320:dv256:v=k:bf16"}) {
    EXPECT_EQ(refusal_of(text), "") << text;
  }
  EXPECT_EQ(refusal_of("hq4:sq9:d576:dv512:bf16"),
            "takes values that are the first columns of keys");
  EXPECT_EQ(refusal_of("hq4:sq9:d576:dv512:v=k:f32"), "takes f16 and bf16, not f32");
  const std::string dims = "takes a head_dim of 320, 384, ... 576 and a head_dim_v of at most 512";
  EXPECT_EQ(refusal_of("hq4:sq9:d256:dv128:v=k:bf16"), dims);
  EXPECT_EQ(refusal_of("hq4:sq9:d640:dv512:v=k:bf16"), dims);
  EXPECT_EQ(refusal_of("hq4:sq9:d576:dv520:v=k:bf16"), dims);
  EXPECT_EQ(refusal_of("hq4:sq9:d576:dv512:v=k:weights:bf16"), "has no weights");
  EXPECT_EQ(refusal_of("hq4:sq9:d576:dv512:v=k:softmax_scale=-1:bf16"),
            "takes a positive softmax_scale only");
  EXPECT_EQ(refusal_of("hq4:sq9:d568:dv512:v=k:bf16"), dims);
  EXPECT_NE(refusal_of("hq4:sq9:d576:dv512:v=k:bf16", "sm_80").find("9.0"), std::string::npos);
}

TEST(LatentPlan, SplitsKeysUntilTheGpuIsFull) {
  const auto num_ctas = [](const std::string& text) {
    return kernels_of(text + ":hkv1:d576:dv512:v=k:bf16", "", "sm_90a").front().grid[0];
  };
  EXPECT_EQ(num_ctas("b1:hq16:sq1:sk131072"), 121);  // 2048 blocks, 17 each
  EXPECT_EQ(num_ctas("b32:hq64:sq1:sk8192"), 128);
  EXPECT_EQ(num_ctas("b128:hq128:sq1:sk8192"), 256);
}

TEST(LatentPlan, LetsTheCopyEngineTakeKeysWhereThatIsFaster) {
  const auto box_rows = [](const std::string& text) {
    const std::string config =
        kernels_of(text + ":d576:dv512:v=k:bf16", kStem, "sm_90a").front().source.config;
    const std::string name = "kBoxRows = ";
    return std::stoi(config.substr(config.find(name) + name.size()));
  };
  EXPECT_EQ(box_rows("b9:hq64:hkv1:sq1:sk8192"), 0);
  EXPECT_EQ(box_rows("b9:hq64:hkv1:sq2:sk8192"), 64);
  EXPECT_EQ(box_rows("b9:hq64:hkv1:sq1:ps16:np99:pp9:block_table"), 0);
  EXPECT_EQ(box_rows("b9:hq64:hkv1:sq1:ps128:np99:pp9:block_table"), 64);
  EXPECT_EQ(box_rows("b9:hq128:hkv1:sq1:ps16:np99:pp9:block_table"), 16);
  EXPECT_EQ(box_rows("b9:hq128:hkv1:sq1:ps24:np99:pp9:block_table"), 0);
  EXPECT_EQ(box_rows("b9:hq128:hkv1:sq1:ps64:np99:pp9:block_table:leftpad_k"), 0);
}

/// Models' calls find their kernels in a pack, whatever their sizes are.
TEST(LatentPlan, IsInKernelPacks) {
  Context context;
  context.arch = "sm_90a";
  std::set<std::string> packed;
  for (const std::string& problem : cli::pack_problems(*find_op("attention_fwd"))) {
    for (const KernelChoice& kernel : make_call(parse_problem(problem)).kernels(context)) {
      packed.insert(kernel.source.stem + kernel.source.config);
    }
  }
  for (const char* text :
       {"b64:hq128:hkv1:sq1:sk5000:seqused_k:causal:d576:dv512:v=k:bf16",
        "b3:hq16:hkv1:sq2:ps64:np300:pp90:block_table:seqused_k:causal:d576:dv512:v=k:lse:bf16",
        "b200:hq128:hkv1:sq1:ps64:np900:pp40:block_table:seqused_k:causal:d576:dv512:v=k:f16",
        "b1:hq128:hkv1:sq9000:causal:d576:dv512:v=k:bf16"}) {
    SCOPED_TRACE(text);
    const auto kernels = kernels_of(text, "", "sm_90a");
    EXPECT_EQ(kernels.front().source.stem, kStem);
    for (const KernelChoice& kernel : kernels) {
      EXPECT_TRUE(packed.contains(kernel.source.stem + kernel.source.config)) << kernel.source.stem;
    }
  }
}

TEST(LatentPlan, CompilesWithoutSpillsAndInOrder) {
  if (Nvrtc::get() == nullptr) GTEST_SKIP() << Nvrtc::fault();
  if (!Nvrtc::get()->knows("sm_90a")) GTEST_SKIP() << "this NVRTC does not know sm_90a";
  for (const char* text :
       {"b32:hq64:hkv1:sq1:sk8192:d576:dv512:v=k:bf16",
        "b32:hq128:hkv1:sq2:sk8192:d576:dv512:ps64:np99:pp128:v=k:block_table:seqused_k:causal"
        ":bf16",
        "b128:hq16:hkv1:sq4:sk8192:d576:dv512:v=k:causal:lse:f16",
        "b1:hq4:hkv1:sq900:d320:dv256:v=k:causal:bf16"}) {
    SCOPED_TRACE(text);
    for (const KernelChoice& kernel : kernels_of(text, kStem, "sm_90a")) {
      if (kernel.source.stem != kStem) continue;
      EXPECT_LE(kernel.shared_bytes, named_gpu_model("sm_90a")->shared_bytes_per_cta);
      const CompiledKernel compiled = Nvrtc::get()->compile(program_of(kernel.source));
      EXPECT_EQ(compiled.usage.spill_store_bytes, 0);
      EXPECT_EQ(compiled.notes, "");
    }
  }
}

}  // namespace
}  // namespace flashtile::cuda
