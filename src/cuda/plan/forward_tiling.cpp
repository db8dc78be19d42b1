// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan/forward_tiling.hpp"

#include <algorithm>

#include "cuda/plan/attention_config.hpp"

namespace flashtile::cuda {
namespace {

/// The widest head_dim_v that a CTA sums, and head_dim that it keeps whole.
constexpr int64_t kWidest = 256;
/// Of shared memory, by the driver for each CTA.
constexpr int64_t kReservedBytes = 1024;

/// Columns of values of one part: all parts alike.
int value_columns(int64_t head_dim_v, int64_t step) {
  const int64_t num_parts = ceil_div(head_dim_v, kWidest);
  return static_cast<int>(round_up(ceil_div(head_dim_v, num_parts), step));
}

ForwardTiling tiling_of(const AttentionProblem& problem, int block_m, int block_n, int warps_m,
                        int warps_n, int num_stages, int min_ctas) {
  ForwardTiling tiling;
  tiling.shape.element_bytes = static_cast<int>(dtype_bytes(problem.dtype));
  tiling.shape.key_element_bytes = static_cast<int>(dtype_bytes(problem.k.dtype));
  tiling.shape.copies_scales =
      problem.page_size > 0 && (problem.k_scale.ndim == 2 || problem.v_scale.ndim == 2);
  tiling.shape.head_dim = static_cast<int>(round_up(problem.head_dim, 16));
  tiling.shape.head_dim_v = value_columns(problem.head_dim_v, 16);
  tiling.shape.block_m = block_m;
  tiling.shape.block_n = block_n;
  tiling.shape.warps_m = warps_m;
  tiling.shape.warps_n = warps_n;
  tiling.shape.num_stages = num_stages;
  tiling.slice = std::min(block_n / warps_n, problem.dtype == DType::kF32 ? 32 : 64);
  tiling.min_ctas = min_ctas;
  return tiling;
}

bool fits(const AttentionProblem& problem, const ForwardTiling& tiling) {
  return tiling.shape.shared_bytes() <= problem.gpu->shared_bytes_per_cta;
}

/// So many CTAs find their shared memory beside each other.
bool has_room_for(const AttentionProblem& problem, const ForwardTiling& tiling, int num_ctas) {
  return num_ctas * (tiling.shape.shared_bytes() + kReservedBytes) <=
         problem.gpu->shared_bytes_per_sm;
}

/// Few rows: the warps of a CTA divide the keys. Dropout's generator serves 32 keys at a time.
/// Where each multiprocessor has just one of the `num_tiles`, that keeps as many bytes on their way
/// as two CTAs with half of the keys would, and nothing has to be combined.
ForwardTiling decode_tiling(const AttentionProblem& problem, int64_t num_tiles) {
  const int block_n = problem.dropout.is_on || problem.is_quantised ? 128 : 64;
  ForwardTiling tiling = tiling_of(problem, 16, block_n, 1, 4, 2, 1);
  constexpr int kBytesOnTheirWay = 128 << 10;
  const int64_t num_sms = problem.gpu->num_sms;
  if (num_tiles <= num_sms && num_tiles * 5 >= num_sms * 4) {
    ForwardTiling deep = tiling;
    deep.shape.num_stages = std::clamp(kBytesOnTheirWay / tiling.shape.stage_bytes(), 2, 8);
    if (fits(problem, deep)) return deep;
  }
  // Keys of 8 bits, split: two CTAs fill a multiprocessor. Room for a third one goes to the first
  // CTAs of the next call, and the others share what multiprocessors are left. Small pages: rows
  // come later, so more of them are asked for; but a third CTA helps where tiles are short.
  ForwardTiling full = tiling;
  full.shape.num_stages = 3;
  const bool is_split = num_tiles < num_sms;
  constexpr int64_t kManyKeys = 2048;
  const bool has_small_pages =
      problem.page_size > 0 && problem.page_size < block_n && problem.max_seqlen_k >= kManyKeys;
  const bool wants_three = problem.is_quantised ? is_split : has_small_pages && !is_split;
  return wants_three && has_room_for(problem, full, 2) ? full : tiling;
}

/// What registers just suffice for: keys of bf16, and at most one option that changes each score.
bool has_few_options(const AttentionProblem& problem) {
  const ScoreFlags flags(problem);
  const int num_options = int{flags.has_softcap} + int{flags.has_alibi} + int{flags.has_user_score};
  return problem.dtype == DType::kBF16 && num_options <= 1 && !problem.bias &&
         !problem.dropout.is_on && !problem.wants_max_logit && !problem.is_quantised;
}

/// Warps of 32 rows that exchange weights and divide the columns of values: registers for 16 rows'
/// sums, and a third less to read from shared memory.
ForwardTiling sharing_tiling(const AttentionProblem& problem, int block_m, int min_ctas) {
  ForwardTiling tiling = tiling_of(problem, block_m, 64, block_m / 32, 2, 1, min_ctas);
  tiling.shape.shares_weights = true;
  // Whole groups of a swizzled tile for each warp.
  tiling.shape.head_dim_v = value_columns(problem.head_dim_v, problem.is_quantised ? 256 : 128);
  return tiling;
}

/// Head dims above 192. One stage leaves room for a second CTA, which works while this one waits.
ForwardTiling large_head_tiling(const AttentionProblem& problem, int64_t rows) {
  const ForwardTiling sharing = sharing_tiling(problem, 64, 2);
  if (has_room_for(problem, sharing, 2)) return sharing;
  const ForwardTiling large = sharing_tiling(problem, 128, 1);
  if (rows > 64 && fits(problem, large)) return large;
  return tiling_of(problem, 64, 64, 4, 1, 1, 2);
}

/// A causal mask over few blocks: the smaller the tile, the less of it is hidden.
bool is_short_causal(const AttentionProblem& problem, int64_t length) {
  return problem.window_right.has_value() && problem.max_seqlen_k < length;
}

/// The same of a window.
bool is_narrow_window(const AttentionProblem& problem, int64_t length) {
  return problem.window_left && problem.window_right && *problem.window_left < length &&
         *problem.window_right < length - *problem.window_left;
}

/// Head dims up to 64, more than 64 rows.
ForwardTiling small_head_tiling(const AttentionProblem& problem) {
  // The text of capped scores is long enough for one slice.
  if (has_few_options(problem) && !problem.softcap) {
    // Registers of the fifth CTA are there for bare products.
    const ScoreFlags flags(problem);
    const bool is_plain = !flags.has_options && !flags.has_block_map();
    const ForwardTiling five = tiling_of(problem, 64, 64, 2, 1, 1, 5);
    const bool is_short = is_short_causal(problem, 1536) || is_narrow_window(problem, 1536);
    if (is_plain && is_short && has_room_for(problem, five, 5)) return five;
    // Two slices of a block overlap.
    const ForwardTiling overlapping = tiling_of(problem, 128, 128, 4, 1, 1, 2);
    if (has_room_for(problem, overlapping, 2)) return overlapping;
  }
  return tiling_of(problem, 128, 64, 4, 1, 2, 2);
}

/// Head dims of 65 to 128, more than 64 rows.
ForwardTiling middle_head_tiling(const AttentionProblem& problem) {
  if (has_few_options(problem)) {
    const ForwardTiling four = tiling_of(problem, 64, 64, 2, 1, 1, 4);
    if (is_short_causal(problem, 1024) && has_room_for(problem, four, 4)) return four;
    const ForwardTiling two = tiling_of(problem, 128, 64, 4, 1, 1, 2);
    if (has_room_for(problem, two, 2)) return two;
  }
  // Where 64 keys at a time do not spill.
  const bool has_room = problem.gpu->compute_capability == 90 && problem.dtype == DType::kBF16 &&
                        !problem.is_quantised;
  return tiling_of(problem, 128, has_room ? 64 : 32, 4, 1, 2, 2);
}

/// 16-bit elements. Warps with 32 rows read each fragment of keys and values half as often as those
/// with 16, as long as the accumulators leave room.
ForwardTiling half_tiling(const AttentionProblem& problem, int64_t rows) {
  const int64_t widest = std::max(problem.head_dim, std::min(problem.head_dim_v, kWidest));
  if (widest > 192) return large_head_tiling(problem, rows);
  if (rows <= 64) return tiling_of(problem, 64, 64, 4, 1, 2, widest <= 128 ? 2 : 1);
  if (widest <= 64) return small_head_tiling(problem);
  if (widest <= 128) return middle_head_tiling(problem);
  return tiling_of(problem, 128, problem.is_quantised ? 32 : 64, 8, 1, 2, 1);
}

ForwardTiling float_tiling(const AttentionProblem& problem) {
  const int64_t widest = std::max(problem.head_dim, std::min(problem.head_dim_v, kWidest));
  return tiling_of(problem, 64, 32, 4, 1, 2, widest <= 64 ? 2 : 1);
}

/// Head dims of 257 to 512, 16-bit elements: four warps of the same rows divide the columns of
/// values, so that products of keys are taken once.
ForwardTiling whole_head_tiling(const AttentionProblem& problem) {
  ForwardTiling tiling = tiling_of(problem, 64, 64, 2, 4, 1, 1);
  tiling.shape.shares_weights = true;
  tiling.shape.head_dim_v = static_cast<int>(round_up(problem.head_dim_v, 256));
  return tiling;
}

/// Larger head dims, and what has less shared memory: queries and keys in chunks of 128 bytes.
ForwardTiling wide_tiling(const AttentionProblem& problem, int64_t rows) {
  const bool is_float = problem.dtype == DType::kF32;
  const bool is_short = is_float || rows <= 64;
  ForwardTiling tiling =
      tiling_of(problem, is_short ? 64 : 128, is_float || problem.is_quantised ? 32 : 64,
                is_short ? 4 : 8, 1, 3, 1);
  device::ForwardShape& shape = tiling.shape;
  shape.chunk = is_float ? 32 : 64;
  shape.head_dim = static_cast<int>(round_up(problem.head_dim, shape.chunk));
  const int piece = 2 * shape.chunk;
  if (shape.head_dim_v > piece) shape.head_dim_v = value_columns(problem.head_dim_v, piece);
  return tiling;
}

ForwardTiling first_choice(const AttentionProblem& problem, int64_t rows, bool may_pack) {
  if (problem.head_dim > kWidest) {
    const bool is_whole = rows > 16 && problem.dtype != DType::kF32 && !problem.is_quantised &&
                          problem.head_dim <= 512 && problem.head_dim_v <= 512;
    const ForwardTiling whole = whole_head_tiling(problem);
    return is_whole && fits(problem, whole) ? whole : wide_tiling(problem, rows);
  }
  if (rows <= 16) {
    return decode_tiling(
        problem, problem.batch_size * (may_pack ? problem.num_heads_kv : problem.num_heads));
  }
  return problem.dtype == DType::kF32 ? float_tiling(problem) : half_tiling(problem, rows);
}

/// Smaller key blocks, fewer stages, fewer warps, until it fits; as it is where that does not help.
ForwardTiling fitted(const AttentionProblem& problem, ForwardTiling tiling) {
  device::ForwardShape& shape = tiling.shape;
  const int least_keys = problem.dropout.is_on ? 32 : 16;  // of a warp
  while (!fits(problem, tiling)) {
    if (shape.block_n > least_keys * shape.warps_n) {
      shape.block_n /= 2;
    } else if (shape.num_stages > 2) {
      --shape.num_stages;
    } else if (shape.warps_n > 1) {
      shape.warps_n /= 2;
      shape.block_n /= 2;
    } else if (shape.warps_m > 1) {
      shape.block_m /= 2;
      shape.warps_m /= 2;
    } else {
      break;
    }
    tiling.slice = std::min(tiling.slice, shape.block_n / shape.warps_n);
  }
  return tiling;
}

}  // namespace

ForwardTiling choose_forward_tiling(const AttentionProblem& problem, bool may_pack) {
  const int64_t rows = problem.max_seqlen_q * (may_pack ? problem.group_size() : 1);
  const ForwardTiling tiling = fitted(problem, first_choice(problem, rows, may_pack));
  if (fits(problem, tiling)) return tiling;
  return fitted(problem, wide_tiling(problem, rows));
}

}  // namespace flashtile::cuda
