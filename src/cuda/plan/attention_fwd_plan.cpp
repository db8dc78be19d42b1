// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan/attention_fwd_plan.hpp"

#include <algorithm>
#include <memory>

#include "cuda/device/params/attention_params.hpp"
#include "cuda/plan/attention_config.hpp"
#include "cuda/plan/forward_tiling.hpp"
#include "cuda/plan/kernel_plan.hpp"
#include "cuda/plan/user_expressions.hpp"

namespace flashtile::cuda {
namespace {

/// Key blocks that the query blocks visit at most.
int64_t num_visited_blocks(const AttentionProblem& problem, const device::ForwardShape& shape) {
  int64_t keys = problem.max_seqlen_k;
  if (problem.window_left && problem.window_right) {
    constexpr int64_t kLarge = int64_t{1} << 40;
    keys = std::min(keys, std::min(*problem.window_left, kLarge) +
                              std::min(*problem.window_right, kLarge) + shape.block_m);
  }
  return std::max<int64_t>(1, ceil_div(keys, shape.block_n));
}

/// Parts of the keys, so that a grid with few CTAs still fills the GPU: the fewest whose last wave
/// is nearly as full as that of any other number.
int64_t choose_splits(const AttentionProblem& problem, const ForwardTiling& tiling,
                      int64_t num_ctas) {
  const GpuModel& gpu = *problem.gpu;
  const int64_t resident =
      std::max<int64_t>(1, gpu.shared_bytes_per_sm / (tiling.shape.shared_bytes() + 1024));
  const int64_t slots = gpu.num_sms * std::min<int64_t>(resident, 2);
  const int64_t num_blocks = num_visited_blocks(problem, tiling.shape);
  if (num_ctas == 0 || num_ctas * 5 >= slots * 4 || num_blocks < 8) return 1;
  // A decode waits for memory: the fewer blocks one after the other, the better.
  const int64_t least_blocks = tiling.shape.block_m <= 16 ? 1 : 2;
  const int64_t most = std::min({int64_t{device::kMaxSplits}, num_blocks / least_blocks, slots});
  const auto fullness = [&](int64_t splits) {
    const int64_t waves = ceil_div(num_ctas * splits, slots);
    return static_cast<double>(num_ctas * splits) / static_cast<double>(waves * slots);
  };
  // Numbers that leave a part without a block are no better than the next smaller one.
  const auto is_distinct = [&](int64_t splits) {
    return splits == 1 || ceil_div(num_blocks, splits) != ceil_div(num_blocks, splits - 1);
  };
  double best = 0;
  for (int64_t splits = 1; splits <= most; ++splits) {
    if (is_distinct(splits)) best = std::max(best, fullness(splits));
  }
  for (int64_t splits = 1; splits <= most; ++splits) {
    if (is_distinct(splits) && fullness(splits) >= 0.9 * best) return splits;
  }
  return 1;
}

/// Places for CTAs on a multiprocessor where clusters are used.
constexpr int kClusterPlaces = 3;

/// True where the splits of a tile may be a cluster, which merges them itself: of a size that every
/// GPU with clusters has, and of CTAs that follow each other in the grid. A cluster runs in one
/// part of the GPU, of about 16 multiprocessors. All have to find places at once, though some are
/// left over in each part, or most of the GPU would wait for the last ones.
bool merges_in_cluster(const AttentionProblem& problem, const ForwardPlan& plan) {
  constexpr int64_t kMostCtas = 8;
  constexpr int64_t kPartSms = 16;
  const GpuModel& gpu = *problem.gpu;
  const int64_t size = plan.num_splits;
  if (gpu.compute_capability < 90 || !plan.tiling.shape.merges_in_cluster() || size == 1 ||
      size > kMostCtas || plan.section_heads > 1) {
    return false;
  }
  const int64_t cta_bytes = plan.tiling.shape.shared_bytes() + 1024;
  const int64_t left_over = ceil_div(gpu.num_sms, kPartSms) * (size - 1);
  return kClusterPlaces * cta_bytes <= gpu.shared_bytes_per_sm &&
         plan.num_ctas + left_over <= kClusterPlaces * gpu.num_sms;
}

/// (batch, head) pairs whose keys and values are read together.
int64_t choose_section(const AttentionProblem& problem, const ForwardPlan& plan) {
  if (!plan.is_descending && !plan.has_order) return 1;
  const int64_t bytes =
      problem.max_seqlen_k * (problem.head_dim + problem.head_dim_v) * dtype_bytes(problem.k.dtype);
  const int64_t group = plan.packs_heads ? 1 : problem.group_size();
  return groups_per_section(*problem.gpu, plan.num_pairs / group, bytes) * group;
}

/// Rows of one head's tile may be those of all heads of its group, unless something that is looked
/// up for a whole tile depends on the head.
bool may_pack_heads(const AttentionProblem& problem) {
  return problem.group_size() > 1 && !problem.has_block_list &&
         !reads_variable(problem.user_mask, variant::Variable::kHead);
}

/// True when sequences may have different lengths.
bool has_lengths(const AttentionProblem& problem) {
  return problem.is_packed_q || problem.is_packed_k || problem.has_seqused || problem.has_leftpad ||
         problem.has_new_keys;
}

void take_workspace(const AttentionProblem& problem, ForwardPlan& plan) {
  WorkspaceRegions regions;
  if (plan.num_splits > 1 && !plan.merges_in_cluster) {
    const int64_t num_rows = problem.total_q * problem.num_heads * plan.num_splits;
    plan.partial_out = regions.take(num_rows * plan.num_v_parts * plan.tiling.shape.head_dim_v * 4);
    plan.partial_lse = regions.take(num_rows * 4);
  }
  const BlockMapPlan& blocks = plan.blocks;
  plan.listed = regions.take(blocks.list_bytes());
  plan.map = regions.take(blocks.map_bytes(plan.num_m_blocks));
  if (plan.has_order) {
    plan.order = regions.take(blocks.map_batches * blocks.map_heads * plan.num_m_blocks * 4);
  }
  if (problem.rotary_dim > 0) {
    plan.turned_q = regions.take(problem.total_q * problem.num_heads * problem.head_dim *
                                 dtype_bytes(problem.dtype));
  }
  if (problem.wants_weights && !problem.wants_lse) {
    plan.lse = regions.take(problem.total_q * problem.num_heads * 4);
  }
  plan.workspace_bytes = regions.used();
}

/// Pages have scales of their own.
bool has_page_scales(const AttentionProblem& problem, const TensorLayout& scales) {
  return problem.page_size > 0 && scales.ndim == 2;
}

/// Queries that have been turned lie in the workspace, one row after the other.
int query_copy_bytes(const AttentionProblem& problem) {
  if (problem.rotary_dim == 0) return copy_bytes(problem.q);
  const int64_t row_bytes = problem.head_dim * dtype_bytes(problem.dtype);
  for (const int bytes : {16, 8, 4}) {
    if (row_bytes % bytes == 0) return bytes;
  }
  return 0;
}

std::string_view forward_stem(const ForwardPlan& plan) {
  return plan.tiling.shape.values_in_keys ? "attention_fwd_latent_sm90" : "attention_fwd_portable";
}

std::string append_config(const AttentionProblem& problem) {
  return "#include \"cuda/device/ptx/convert.cuh\"\nstruct Config {\n"
         "  using Element = flashtile::device::Element;\n" +
         config_element("kElement", problem.dtype) +
         config_element("kKeyElement", problem.k.dtype) +
         config_element("kTableElement",
                        problem.rotary_dim > 0 ? problem.rotary_cos.dtype : DType::kF32) +
         config_bool("kPaged", problem.page_size > 0) + "};\n";
}

std::string combine_config(const AttentionProblem& problem, const ForwardPlan& plan) {
  return "#include \"cuda/device/ptx/convert.cuh\"\nstruct Config {\n"
         "  using Element = flashtile::device::Element;\n" +
         config_element("kOutElement", problem.out.dtype) +
         config_int("kColumns", plan.num_v_parts * plan.tiling.shape.head_dim_v) + "};\n";
}

}  // namespace

std::string refuse_attention_fwd(const AttentionProblem& problem) {
  return refuse_attention(problem);
}

ForwardPlan make_forward_plan(const AttentionProblem& problem, const ForwardTiling& tiling) {
  ForwardPlan plan;
  plan.tiling = tiling;
  const device::ForwardShape& shape = tiling.shape;
  plan.packs_heads = may_pack_heads(problem) && problem.max_seqlen_q < shape.block_m;
  const int64_t rows = problem.max_seqlen_q * (plan.packs_heads ? problem.group_size() : 1);
  // Rows of packed queries that no sequence covers are a sequence of their own.
  const int64_t num_sequences = problem.batch_size + (problem.is_packed_q ? 1 : 0);
  plan.num_m_blocks = std::max<int64_t>(problem.is_packed_q ? 1 : 0, ceil_div(rows, shape.block_m));
  plan.num_heads_in_grid = plan.packs_heads ? problem.num_heads_kv : problem.num_heads;
  plan.num_pairs = num_sequences * plan.num_heads_in_grid;
  plan.num_v_parts = ceil_div(problem.head_dim_v, shape.head_dim_v);
  const int64_t num_tiles = plan.num_m_blocks * plan.num_pairs * plan.num_v_parts;
  plan.blocks =
      make_block_map_plan(problem, plan.num_m_blocks, shape.block_n, plan.num_heads_in_grid);
  // CTAs that all start at once need no order.
  plan.has_order =
      plan.blocks.is_on && plan.num_m_blocks > 1 && num_tiles > 2 * problem.gpu->num_sms;
  plan.is_descending = !plan.has_order && plan.num_m_blocks > 1 && has_upper_bound(problem);
  plan.section_heads = choose_section(problem, plan);
  plan.num_splits =
      tiling.num_splits > 0 ? tiling.num_splits : choose_splits(problem, tiling, num_tiles);
  plan.num_ctas = num_tiles * plan.num_splits;
  plan.merges_in_cluster = merges_in_cluster(problem, plan);
  if (plan.merges_in_cluster) plan.tiling.min_ctas = kClusterPlaces;
  if (plan.num_splits > 1 && !plan.merges_in_cluster) {
    // A row for each of a CTA's four warps, or of many splits for all, as long as the grid stays
    // small.
    constexpr int64_t kMaxCombineCtas = 1 << 16;
    plan.combine_warps = plan.num_splits > 4 ? 4 : 1;
    const int64_t combine_rows = problem.max_seqlen_q * problem.num_heads * plan.combine_warps;
    plan.combine_ctas = std::clamp<int64_t>(ceil_div(combine_rows, 4), 1, kMaxCombineCtas);
  }
  take_workspace(problem, plan);
  return plan;
}

ForwardPlan make_forward_plan(const AttentionProblem& problem) {
  return make_forward_plan(problem, choose_forward_tiling(problem, may_pack_heads(problem)));
}

std::string forward_config(const AttentionProblem& problem, const ForwardPlan& plan) {
  ScoreFlags flags(problem);
  const device::ForwardShape& shape = plan.tiling.shape;
  // Queries that pass through in chunks are not scaled, or negated, where they lie.
  flags.has_options = flags.has_options || shape.chunk > 0;
  const bool is_split = plan.num_splits > 1;
  const bool is_f32_out = problem.out.dtype == DType::kF32;
  const int store = copy_bytes(problem.out);
  // Pairs of queries go to places of their own (PairedTile).
  const bool is_paired = problem.is_quantised && problem.dtype != DType::kF32;
  const int query_copy = std::min(query_copy_bytes(problem), is_paired ? 4 : 16);
  return config_preamble(problem) + "struct Config {\n" + flags.text(problem) +
         config_element("kKeyElement", problem.k.dtype) +
         config_element("kOutElement", problem.out.dtype) +
         config_bool("kCopiesKeyScales", has_page_scales(problem, problem.k_scale)) +
         config_bool("kCopiesValueScales", has_page_scales(problem, problem.v_scale)) +
         config_int("kHeadDim", shape.head_dim) + config_int("kHeadDimV", shape.head_dim_v) +
         config_int("kBlockM", shape.block_m) + config_int("kBlockN", shape.block_n) +
         config_int("kSlice", plan.tiling.slice) + config_int("kWarpsM", shape.warps_m) +
         config_int("kWarpsN", shape.warps_n) + config_int("kNumStages", shape.num_stages) +
         config_int("kChunk", shape.chunk) + config_bool("kSharesWeights", shape.shares_weights) +
         config_bool("kValuesInKeys", shape.values_in_keys) +
         config_int("kBoxRows", plan.tiling.box_rows) +
         config_int("kMinCtas", plan.tiling.min_ctas) +
         config_bool("kQueryInRegisters", plan.tiling.query_in_registers) +
         config_bool("kRunsAhead", plan.tiling.runs_ahead) +
         config_int("kQueryCopyBytes", query_copy) +
         config_int("kCopyBytes", std::min(copy_bytes(problem.k), copy_bytes(problem.v))) +
         config_bool("kStoreVectors", store >= (is_f32_out ? 8 : 16)) +
         config_bool("kPackHeads", plan.packs_heads) +
         config_bool("kPaged", problem.page_size > 0) + config_bool("kHasOrder", plan.has_order) +
         config_bool("kHasLengths", has_lengths(problem)) +
         config_bool("kWantsMaxLogit", problem.wants_max_logit) +
         config_bool("kIsSplit", is_split) +
         config_bool("kMergesInCluster", plan.merges_in_cluster) + "};\n";
}

std::vector<KernelChoice> forward_kernels(const AttentionProblem& problem,
                                          const ForwardPlan& plan) {
  std::vector<KernelChoice> kernels;
  const BlockMapPlan& blocks = plan.blocks;
  if (blocks.num_lines() > 0 || problem.wants_max_logit) {
    kernels.push_back(prepare_kernel(problem, blocks.num_lines()));
  }
  if (problem.has_new_keys) {
    const int64_t rows =
        problem.max_seqlen_new * problem.num_heads_kv + problem.max_seqlen_q * problem.num_heads;
    kernels.push_back(strided_kernel(*problem.gpu, "attention_append", append_config(problem),
                                     problem.batch_size * rows));
  }
  const std::string config = forward_config(problem, plan);
  if (blocks.is_on) {
    kernels.push_back(block_map_kernel(problem, blocks, plan.num_m_blocks, config));
  }
  if (plan.has_order) kernels.push_back(order_kernel(problem, blocks));
  if (plan.num_ctas > 0) {
    kernels.push_back(tile_kernel(*problem.gpu, std::string(forward_stem(plan)), config,
                                  plan.num_ctas, plan.tiling.shape.num_threads(),
                                  plan.tiling.shape.shared_bytes()));
    kernels.back().overlaps_previous = may_overlap(problem);
    if (plan.merges_in_cluster) {
      kernels.back().cluster_size = plan.num_splits;
      // Clusters that come while others still run find places by chance: three CTAs on one
      // multiprocessor, none on another.
      kernels.back().overlaps_previous = false;
    }
  }
  if (plan.num_splits > 1 && !plan.merges_in_cluster) {
    const int64_t columns = plan.num_v_parts * plan.tiling.shape.head_dim_v;
    kernels.push_back(tile_kernel(*problem.gpu, "attention_combine", combine_config(problem, plan),
                                  plan.combine_ctas * problem.batch_size, 128, 3 * columns * 4));
    kernels.back().overlaps_previous = may_overlap(problem);
  }
  if (problem.wants_weights) {
    kernels.push_back(
        strided_kernel(*problem.gpu, "attention_weights", config,
                       problem.batch_size * problem.num_heads * problem.max_seqlen_q));
  }
  return kernels;
}

AttentionPlan plan_attention_fwd(const AttentionProblem& problem) {
  return plan_attention_fwd(problem, choose_forward_tiling(problem, may_pack_heads(problem)));
}

AttentionPlan plan_attention_fwd(const AttentionProblem& problem, const ForwardTiling& tiling) {
  const ForwardPlan forward = make_forward_plan(problem, tiling);
  AttentionPlan plan;
  plan.implementation = forward_stem(forward);
  plan.block_m = forward.tiling.shape.block_m;
  plan.block_n = forward.tiling.shape.block_n;
  plan.num_splits = forward.num_splits;
  plan.num_tasks = forward.num_ctas;
  plan.workspace_bytes = forward.workspace_bytes;
  plan.kernels = forward_kernels(problem, forward);
  plan.details = std::make_shared<const ForwardPlan>(forward);
  return plan;
}

}  // namespace flashtile::cuda
