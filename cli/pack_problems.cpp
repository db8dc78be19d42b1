// SPDX-License-Identifier: Apache-2.0
#include "pack_problems.hpp"

#include <iterator>

namespace flashtile::cli {
namespace {

constexpr const char* kPackedBothWays[] = {
    ":b2:hq8:hkv8:sq4096",
    ":b2:hq8:hkv8:sq4096:causal",
    ":b2:hq8:hkv2:sq4096:causal",
    ":b2:hq8:hkv2:sq4096:causal:window_left=1024",
    ":b2:hq8:hkv2:cu_seqlens_q={0,1024,4096}:cu_seqlens_k={0,1024,4096}:causal",
    ":b2:hq8:hkv8:sq1024:alibi_slopes[hq]:causal",
    ":b2:hq8:hkv8:sq1024:bias[1,hq,sq,sk]",
    ":b2:hq8:hkv8:sq1024:dropout_p=0.1:causal",
    ":b2:hq8:hkv2:sq4096:softcap=50:causal",
};

constexpr const char* kPackedForward[] = {
    ":b8:hq32:hkv8:sq1:sk8192",
    ":b8:hq32:hkv8:sq1:sk8192:seqused_k:causal",
    ":b8:hq32:hkv8:sq1:sk8192:seqused_k:block_table:page_size=16:causal",
    // One sequence, whose splits are more than a cluster.
    ":b1:hq32:hkv8:sq1:sk8192",
    ":b1:hq32:hkv8:sq1:sk8192:seqused_k:causal",
    ":b1:hq32:hkv8:sq1:sk8192:seqused_k:block_table:page_size=16:causal",
    ":b8:hq32:hkv8:sq1024:sk8192:seqused_k:block_table:page_size=16:causal",
};

/// Latent attention: values are the first columns of keys.
constexpr const char* kPackedLatent[] = {
    // Few sequences, whose keys are divided, and many.
    ":b8:hq16:hkv1:sq1:sk8192:seqused_k:causal",
    ":b8:hq128:hkv1:sq1:sk8192:seqused_k:causal",
    ":b256:hq16:hkv1:sq1:sk8192:seqused_k:causal",
    ":b256:hq128:hkv1:sq1:sk8192:seqused_k:causal",
    ":b8:hq16:hkv1:sq1:sk8192:seqused_k:block_table:page_size=64:causal",
    ":b8:hq128:hkv1:sq1:sk8192:seqused_k:block_table:page_size=64:causal",
    ":b256:hq16:hkv1:sq1:sk8192:seqused_k:block_table:page_size=64:causal",
    ":b256:hq128:hkv1:sq1:sk8192:seqused_k:block_table:page_size=64:causal",
    ":b1:hq128:hkv1:sq4096:causal",
};

/// Caches of 8 bits.
constexpr const char* kPackedCodes[] = {
    ":b8:hq32:hkv8:sq1:sk8192:seqused_k:block_table:page_size=16:causal",
    ":b8:hq32:hkv8:sq1024:sk8192:seqused_k:block_table:page_size=16:causal",
};

constexpr int kHeadDims[] = {64, 128, 256};
constexpr const char* kDtypes[] = {"bf16", "f16"};

}  // namespace

std::vector<std::string> pack_problems(const OpSpec& spec) {
  const bool is_forward = spec.name == "attention_fwd";
  if (!is_forward && spec.name != "attention_bwd") return {};
  std::vector<std::string> rests(std::begin(kPackedBothWays), std::end(kPackedBothWays));
  if (is_forward) {
    rests.insert(rests.end(), std::begin(kPackedForward), std::end(kPackedForward));
    for (const std::string rest : kPackedCodes) {
      for (const char* code : {"i8", "e4m3"}) {
        rests.push_back(rest + ":k_scale:v_scale:k." + code + ":v." + code);
      }
    }
  }
  std::vector<std::string> problems;
  const auto add = [&](const std::string& rest) {
    for (const char* dtype : kDtypes) {
      problems.push_back(std::string(spec.name) + rest + ":" + dtype);
    }
  };
  for (const std::string& rest : rests) {
    for (const int head_dim : kHeadDims) add(rest + ":d" + std::to_string(head_dim));
  }
  if (is_forward) {
    for (const char* rest : kPackedLatent) add(rest + std::string(":d576:dv512:v=k"));
  }
  return problems;
}

}  // namespace flashtile::cli
