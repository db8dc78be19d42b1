// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan/attention_fwd_sm90_plan.hpp"

#include <algorithm>
#include <memory>

#include "cuda/plan/attention_config.hpp"
#include "cuda/plan/kernel_plan.hpp"

namespace flashtile::cuda {
namespace {

using device::Sm90Reference;

constexpr int64_t kMaxHeadDim = 256;
/// Positions and their sums with a diagonal are 32-bit integers in the kernel.
constexpr int64_t kMaxSeqlen = (int64_t{1} << 30) - 512;
constexpr int64_t kMib = int64_t{1} << 20;

/// The name of an option that the kernel does not have.
std::string_view missing_option(const AttentionProblem& problem) {
  const std::pair<bool, std::string_view> options[] = {
      {problem.page_size > 0 || problem.has_block_table, "paged keys"},
      {problem.has_new_keys || problem.rotary_dim > 0, "new keys or rotary embedding"},
      {problem.attention_chunk.has_value(), "attention_chunk"},
      {problem.softcap.has_value(), "softcap"},
      {problem.has_alibi, "alibi_slopes"},
      {bool(problem.bias), "bias"},
      {problem.has_sink, "sink"},
      {!problem.user_score.empty() || !problem.user_mask.empty(), "expressions"},
      {problem.has_block_list, "lists of blocks"},
      {problem.dropout.is_on, "dropout"},
      {problem.wants_max_logit || problem.wants_weights, "max_logit or weights"},
  };
  for (const auto& [is_on, name] : options) {
    if (is_on) return name;
  }
  return {};
}

/// What the copy engine does not take of a tensor (batch, seqlen, heads, dim).
std::string refuse_layout(std::string_view name, const TensorLayout& layout) {
  const bool is_aligned = copy_bytes(layout) == 16;
  bool is_positive = true;
  for (size_t d = 0; d < static_cast<size_t>(layout.ndim); ++d) {
    is_positive = is_positive && (layout.shape[d] <= 1 || layout.strides[d] > 0);
  }
  if (is_aligned && is_positive) return {};
  return std::string(name) + " cannot be copied by the copy engine: address and strides must be " +
         "positive multiples of 16 bytes, and rows contiguous";
}

/// True when sequences may have different lengths.
bool lengths_differ(const AttentionProblem& problem) {
  return problem.is_packed_q || problem.is_packed_k || problem.has_seqused || problem.has_leftpad;
}

int padded_head_dim(int64_t head_dim) { return static_cast<int>(round_up(head_dim, 64)); }

}  // namespace

std::string refuse_attention_fwd_sm90(const AttentionProblem& problem) {
  std::string refusal = refuse_attention(problem);
  if (!refusal.empty()) return refusal;
  if (problem.gpu->compute_capability != 90) {
    return "needs compute capability 9.0, " + problem.gpu->name + " has another";
  }
  if (problem.dtype != DType::kF16 && problem.dtype != DType::kBF16) {
    return "takes f16 and bf16, not " + std::string(dtype_name(problem.dtype));
  }
  if (problem.out.dtype != problem.dtype) return "writes out in the dtype of q only";
  if (const std::string_view option = missing_option(problem); !option.empty()) {
    return "has no " + std::string(option) + " yet";
  }
  if (problem.head_dim > kMaxHeadDim || problem.head_dim_v > kMaxHeadDim) {
    return "takes head dims up to " + std::to_string(kMaxHeadDim);
  }
  if (!(problem.softmax_scale > 0)) return "takes a positive softmax_scale only";
  if (problem.batch_size < 1 || problem.max_seqlen_q < 1 || problem.max_seqlen_k < 1) {
    return "takes no empty tensors";
  }
  if (std::max(problem.max_seqlen_q, problem.max_seqlen_k) > kMaxSeqlen) {
    return "takes sequences of at most " + std::to_string(kMaxSeqlen) + " rows";
  }
  if (std::max(problem.total_q, problem.total_k) > kMaxSeqlen && lengths_differ(problem)) {
    return "takes at most " + std::to_string(kMaxSeqlen) + " packed rows";
  }
  if (problem.is_packed_q && problem.head_dim_v % 8 != 0) {
    return "takes packed rows of whole multiples of 16 bytes";
  }
  constexpr int64_t kMaxTiles = int64_t{1} << 30;
  if (problem.batch_size * problem.num_heads > kMaxTiles / ceil_div(problem.max_seqlen_q, 64)) {
    return "takes at most " + std::to_string(kMaxTiles) + " blocks of 64 queries";
  }
  for (const auto& [name, layout] : {std::pair{"q", &problem.q}, std::pair{"k", &problem.k},
                                     std::pair{"v", &problem.v}, std::pair{"out", &problem.out}}) {
    refusal = refuse_layout(name, *layout);
    if (!refusal.empty()) return refusal;
  }
  return {};
}

std::string leave_to_portable(const AttentionProblem& problem) {
  // Fewer keys are read in no time. The portable kernel, with its heads packed and its keys split,
  // runs at less than half of this one's speed.
  constexpr int64_t kManyKeys = 512;
  if (problem.max_seqlen_k < kManyKeys) return {};
  const int64_t block_m = choose_sm90_tiling(problem).shape.block_m();
  const int64_t num_pairs = problem.batch_size * problem.num_heads;
  const int64_t num_tiles = problem.is_packed_q
                                ? problem.total_q / block_m * problem.num_heads + num_pairs
                                : ceil_div(problem.max_seqlen_q, block_m) * num_pairs;
  const int64_t num_rows = problem.total_q * problem.num_heads;
  const int64_t capacity = std::max<int64_t>(num_tiles, problem.gpu->num_sms) * block_m;
  if (5 * num_rows > 2 * capacity) return {};
  return "leaves few queries to a kernel that splits the keys: " + std::to_string(num_rows) +
         " rows for " + std::to_string(problem.gpu->num_sms) + " multiprocessors of " +
         std::to_string(block_m);
}

Sm90Tiling choose_sm90_tiling(const AttentionProblem& problem) {
  Sm90Tiling tiling;
  device::Sm90Shape& shape = tiling.shape;
  shape.head_dim = padded_head_dim(problem.head_dim);
  shape.head_dim_v = padded_head_dim(problem.head_dim_v);
  const int largest = std::max(shape.head_dim, shape.head_dim_v);
  const bool is_causal = problem.window_right.has_value();
  const bool is_bf16 = problem.dtype == DType::kBF16;
  const bool is_short = problem.max_seqlen_k <= 2048;
  // Taking tiles costs a memset in front; dealing tiles of unequal length out in turns costs more.
  tiling.is_dynamic = is_causal || lengths_differ(problem);
  tiling.section_bytes = (problem.max_seqlen_k <= 512 ? 8 : 32) * kMib;
  if (is_bf16) tiling.reference = Sm90Reference::kFirstBlock;
  if (largest <= 64) {
    shape.num_warpgroups = is_short ? 4 : 3;
    shape.block_n = is_short ? 64 : 128;
    shape.num_stages = is_short ? 4 : 2;
    tiling.copy_registers = 32;
    tiling.compute_registers = is_short ? 112 : 160;
    return tiling;
  }
  tiling.copy_registers = 40;
  tiling.compute_registers = 232;
  if (largest <= 128) {
    tiling.query_in_registers = true;
    tiling.holds_back = is_bf16;
    if (is_bf16 && is_short) tiling.reference = Sm90Reference::kZero;
    return tiling;
  }
  shape.num_query_buffers = 1;
  shape.block_n = problem.max_seqlen_k <= 8192 ? 64 : 80;
  tiling.takes_turns = false;
  return tiling;
}

Sm90ForwardPlan make_sm90_plan(const AttentionProblem& problem, const Sm90Tiling& tiling) {
  Sm90ForwardPlan plan;
  plan.tiling = tiling;
  plan.has_diagonal = problem.window_right.has_value();
  plan.has_lengths = lengths_differ(problem);
  plan.num_m_blocks = ceil_div(problem.max_seqlen_q, tiling.shape.block_m());
  plan.num_pairs = problem.batch_size * problem.num_heads;
  plan.num_tiles = plan.num_m_blocks * plan.num_pairs;
  plan.num_ctas = std::min<int64_t>(plan.num_tiles, problem.gpu->num_sms);
  if (plan.has_diagonal) {
    const int64_t head_bytes =
        (problem.is_packed_k ? ceil_div(problem.total_k, problem.batch_size) + 1
                             : problem.max_seqlen_k) *
        (problem.head_dim + problem.head_dim_v) * dtype_bytes(problem.dtype);
    const int64_t heads_kv = std::max<int64_t>(1, tiling.section_bytes / head_bytes);
    plan.section_pairs = std::min(heads_kv * problem.group_size(), plan.num_pairs);
  }
  WorkspaceRegions regions;
  if (tiling.is_dynamic) plan.num_taken = regions.take(4);
  if (tiling.reference != Sm90Reference::kMaximum) {
    plan.next_failed = regions.take(plan.num_tiles * 4);
  }
  plan.workspace_bytes = regions.used();
  return plan;
}

KernelChoice sm90_kernel(const AttentionProblem& problem, const Sm90ForwardPlan& plan) {
  const Sm90Tiling& tiling = plan.tiling;
  const device::Sm90Shape& shape = tiling.shape;
  const std::string_view references[] = {"kMaximum", "kFirstBlock", "kZero"};
  std::string config =
      "#include \"cuda/device/params/sm90_params.hpp\"\n"
      "#include \"cuda/device/ptx/convert.cuh\"\nstruct Config {\n"
      "  using Element = flashtile::device::Element;\n"
      "  using Reference = flashtile::device::Sm90Reference;\n" +
      config_element("kElement", problem.dtype) + config_int("kHeadDim", shape.head_dim) +
      config_int("kHeadDimV", shape.head_dim_v) + config_int("kBlockN", shape.block_n) +
      config_int("kNumWarpgroups", shape.num_warpgroups) +
      config_int("kNumStages", shape.num_stages) +
      config_int("kNumQueryBuffers", shape.num_query_buffers) +
      "  static constexpr Reference kReference = Reference::" +
      std::string(references[static_cast<size_t>(tiling.reference)]) + ";\n" +
      config_bool("kHasDiagonal", plan.has_diagonal) +
      config_bool("kHasLower", problem.window_left.has_value()) +
      config_bool("kHasLengths", plan.has_lengths) + config_bool("kPackedQ", problem.is_packed_q) +
      config_bool("kIsDynamic", tiling.is_dynamic) +
      config_bool("kQueryInRegisters", tiling.query_in_registers) +
      config_bool("kTakesTurns", tiling.takes_turns) +
      config_bool("kHoldsBack", tiling.holds_back) +
      config_int("kCopyRegisters", tiling.copy_registers) +
      config_int("kComputeRegisters", tiling.compute_registers) + "};\n";
  KernelChoice kernel = tile_kernel(problem, "attention_fwd_sm90", std::move(config), plan.num_ctas,
                                    shape.num_threads(), shape.shared_bytes());
  kernel.overlaps_previous = true;
  return kernel;
}

AttentionPlan plan_attention_fwd_sm90(const AttentionProblem& problem) {
  const Sm90ForwardPlan forward = make_sm90_plan(problem, choose_sm90_tiling(problem));
  AttentionPlan plan;
  plan.implementation = "attention_fwd_sm90";
  plan.block_m = forward.tiling.shape.block_m();
  plan.block_n = forward.tiling.shape.block_n;
  plan.num_tasks = forward.num_tiles;
  plan.workspace_bytes = forward.workspace_bytes;
  plan.kernels = {sm90_kernel(problem, forward)};
  plan.details = std::make_shared<const Sm90ForwardPlan>(forward);
  return plan;
}

}  // namespace flashtile::cuda
