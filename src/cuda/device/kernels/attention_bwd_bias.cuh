// SPDX-License-Identifier: Apache-2.0
//
// attention_bwd_bias: the gradient of bias, for every way in which it is shared. A CTA owns a block
// of it and works out the scores of all (sequence, head, query) that read it, in order: two
// products, no copy of the bias, the same bits in every run. Delta is known.
#pragma once

#include "cuda/device/backward/backward_queries.cuh"

namespace flashtile::device {

/// One key block, which may begin before key 0 or anywhere else.
struct OneStep {
  int first_key;

  FLASHTILE_DEVICE bool holds(const StreamStep& step) const { return step.block == 0; }
  FLASHTILE_DEVICE StreamStep next(const StreamStep&) const { return {0, 1}; }
};

template <class ConfigOfKernel>
struct BackwardBias {
  using Config = ConfigOfKernel;
  using Stream = BackwardStream<Config, OneStep>;
  using State = QueriesState<Config>;
  using Scores = typename Stream::Scores;
  static constexpr int kThreads = Stream::kThreads;

  FLASHTILE_DEVICE static State& state() {
    return *reinterpret_cast<State*>(shared_memory() + Stream::kShape.state_begin());
  }

  const AttentionParams& params;
  const typename Config::Expressions::Params& user;
  const BackwardParams& backward;
  Scores sums;

  /// What a block of queries of a head adds; `first_col` is the stored key of column 0.
  FLASHTILE_DEVICE void add(int batch_idx, int head, int m_block, int first_col) {
    sync_cta();
    if (thread_idx() == 0) {
      State& s = state();
      s.find(params, user, backward, batch_idx, head, m_block);
      if (!s.is_empty) {
        // The first key of this block becomes key 0 of the views.
        const int first_key = first_col - s.sequence.leftpad;
        s.is_empty =
            first_key + kStreamBlock <= s.blocks.key_begin || first_key >= s.blocks.key_end;
      }
    }
    sync_cta();
    const State& s = state();
    if (s.is_empty) return;
    const int first_key = first_col - s.sequence.leftpad;
    const OneStep steps = {first_key};
    const ScoreRules<Config> rules{params, user, s.sequence, s.position};
    Stream stream{s.views, steps, shared_address(shared_memory()), head, m_block * kStreamBlock,
                  0,       0};
    stream.first_col_row = first_key;
    QueryScores<Config> scores(rules, head, m_block * kStreamBlock + stream.first_warp_row());
    scores.load(backward, s.padded_row);
    const auto nothing = [](const StreamStep&) {};
    stream.load_own_rows();
    stream.begin({0, 0}, Stream::kNumChunks);
    Scores products;
    Scores dp = {};
    stream.multiply(products, dp, nothing);
    copy_async_wait<0>();
    scores.for_each_pair(
        products, dp, first_key, /*hides=*/true, /*asks=*/true,
        [&](int half, int, float, const PairGradient& pair) { return scores.dlogit(half, pair); });
    FLASHTILE_UNROLL
    for (int n = 0; n < kStreamBlock / 8; ++n) {
      FLASHTILE_UNROLL
      for (int r = 0; r < 4; ++r) sums[0][n][r] += dp[0][n][r];
    }
  }

  FLASHTILE_DEVICE char* address(int plane_batch, int plane_head, int row, int col) const {
    const ScoresParam& to = backward.dbias;
    return to.data + plane_batch * to.batch_stride + plane_head * to.head_stride +
           row * to.row_stride + col * to.key_stride;
  }

  FLASHTILE_DEVICE void store(int plane_batch, int plane_head, int first_row, int first_col) {
    const int row = first_row + warp_idx() * 16 + lane_idx() / 4;
    const int col = first_col + lane_idx() % 4 * 2;
    FLASHTILE_UNROLL
    for (int n = 0; n < kStreamBlock / 8; ++n) {
      FLASHTILE_UNROLL
      for (int r = 0; r < 4; ++r) {
        const int to_row = row + r / 2 * 8;
        const int to_col = col + n * 8 + r % 2;
        if (to_row < backward.dbias_rows && to_col < backward.dbias_cols) {
          store_element<Config::kBias>(address(plane_batch, plane_head, to_row, to_col),
                                       sums[0][n][r]);
        }
      }
    }
  }

  /// Sums over all rows of the CTA, where the bias has one.
  FLASHTILE_DEVICE void store_one_row(int plane_batch, int plane_head, int first_col) {
    const uint32 place = shared_address(shared_memory());
    const int own_row = warp_idx() * kStreamBlock;
    sync_cta();
    FLASHTILE_UNROLL
    for (int n = 0; n < kStreamBlock / 8; ++n) {
      FLASHTILE_UNROLL
      for (int e = 0; e < 2; ++e) {
        float sum = sums[0][n][e] + sums[0][n][2 + e];
        FLASHTILE_UNROLL
        for (int mask = 4; mask < kWarpSize; mask *= 2) sum += shuffle_xor(sum, mask);
        const int col = n * 8 + lane_idx() % 4 * 2 + e;
        if (lane_idx() < 4) {
          store_shared(place + static_cast<uint32>((own_row + col) * 4), sum);
        }
      }
    }
    sync_cta();
    const int col = thread_idx();
    if (col >= kStreamBlock || first_col + col >= backward.dbias_cols) return;
    float sum = 0.0f;
    FLASHTILE_UNROLL
    for (int warp = 0; warp < StreamShape::num_warps(); ++warp) {
      sum += load_shared(place + static_cast<uint32>((warp * kStreamBlock + col) * 4));
    }
    store_element<Config::kBias>(address(plane_batch, plane_head, 0, first_col + col), sum);
  }

  /// The block of a CTA: (plane, query block, key block).
  FLASHTILE_DEVICE void run(int64 cta) {
    const int n_blocks = (backward.dbias_cols + kStreamBlock - 1) / kStreamBlock;
    const int m_blocks =
        backward.dbias_rows == 1 ? 1 : (backward.dbias_rows + kStreamBlock - 1) / kStreamBlock;
    const int first_col = static_cast<int>(cta % n_blocks) * kStreamBlock;
    const int m_block = static_cast<int>(cta / n_blocks % m_blocks);
    const int plane = static_cast<int>(cta / n_blocks / m_blocks);
    const int plane_head = plane % backward.dbias_heads;
    const int plane_batch = plane / backward.dbias_heads;
    const bool has_one_row = backward.dbias_rows == 1;
    const Range batches = range_of(plane_batch, backward.dbias_batches, params.lengths.batch_size);
    const Range heads = range_of(plane_head, backward.dbias_heads, params.num_heads);
    const Range blocks =
        has_one_row ? Range{0, params.grid.num_m_blocks} : Range{m_block, m_block + 1};
    FLASHTILE_UNROLL
    for (int n = 0; n < kStreamBlock / 8; ++n) {
      FLASHTILE_UNROLL
      for (int r = 0; r < 4; ++r) sums[0][n][r] = 0.0f;
    }
    FLASHTILE_NO_UNROLL
    for (int b = batches.begin; b < batches.end; ++b) {
      FLASHTILE_NO_UNROLL
      for (int h = heads.begin; h < heads.end; ++h) {
        FLASHTILE_NO_UNROLL
        for (int m = blocks.begin; m < blocks.end; ++m) add(b, h, m, first_col);
      }
    }
    if (has_one_row) {
      store_one_row(plane_batch, plane_head, first_col);
    } else {
      store(plane_batch, plane_head, m_block * kStreamBlock, first_col);
    }
  }

  struct Range {
    int begin, end;
  };
  /// Those that share a plane.
  FLASHTILE_DEVICE static Range range_of(int plane, int num_planes, int count) {
    return num_planes == 1 ? Range{0, count} : Range{plane, plane + 1};
  }
};

}  // namespace flashtile::device

FLASHTILE_KERNEL FLASHTILE_LAUNCH_BOUNDS(flashtile::device::BackwardBias<Config>::kThreads, 2)
    attention_bwd_bias(FLASHTILE_PARAMETER flashtile::device::AttentionParams params,
                       FLASHTILE_PARAMETER Config::Expressions::Params user,
                       FLASHTILE_PARAMETER flashtile::device::BackwardParams backward) {
  using namespace flashtile::device;
  BackwardBias<Config> work{params, user, backward};
  work.run(cta_idx());
}
