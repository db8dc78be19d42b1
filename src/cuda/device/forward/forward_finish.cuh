// SPDX-License-Identifier: Apache-2.0
//
// From the running state of a tile to results: warps that divided the keys are merged, the sink
// joins the denominator, rows and lse are written.
#pragma once

#include "cuda/device/epilogue/max_logit.cuh"
#include "cuda/device/epilogue/store_rows.cuh"
#include "cuda/device/forward/cluster_merge.cuh"
#include "cuda/device/forward/forward_base.cuh"
#include "cuda/device/forward/forward_places.cuh"

namespace flashtile::device {

/// `Work` is what has run: a ForwardBase.
template <class Work>
struct ForwardFinish {
  using Config = typename Work::Config;
  using Places = ForwardPlaces<Work>;
  static constexpr int kTilesM = Work::kTilesM;
  static constexpr int kTilesV = Work::kTilesV;
  static constexpr bool kInFours = Work::kColumnsInFours;

  /// Natural units of a logit as softmax has it.
  FLASHTILE_DEVICE static float natural(const Work& work) {
    if constexpr (Config::kElement != Element::kF32) return work.softmax.scale * kLn2;
    // Not by way of log2 units: the backward subtracts lse from logits that are scaled like this.
    if constexpr (Config::kHasScoreOptions) return 1.0f;
    return larger(absolute(work.params.softmax_scale), 1e-30f);
  }

  // To the last bits where results are float32 products; elsewhere as good as the weights were.
  FLASHTILE_DEVICE static float divide(float a, float b) {
    if constexpr (Config::kElement == Element::kF32) return a / b;
    return a * reciprocal_approx(b);
  }
  FLASHTILE_DEVICE static float logarithm(float x) {
    if constexpr (Config::kElement == Element::kF32) return log_precise(x);
    return log2_approx(x) * kLn2;
  }

  /// The highest logit of each row that is there, into its head's.
  FLASHTILE_DEVICE static void write_max_logit(const Work& work) {
    for_each_row<kTilesM>(work.first_warp_row, [&](int m, int half, int row) {
      float highest = work.max_logit[m][half];
      FLASHTILE_UNROLL
      for (int lane_mask = 1; lane_mask <= 2; lane_mask *= 2) {
        const float other = shuffle_xor(highest, lane_mask);
        if (!(other <= highest)) highest = other;
      }
      if (lane_idx() % 4 == 0 && work.rows.is_there(row)) {
        raise_max_logit(work.params.max_logit, work.rows.head_of(row), highest * natural(work));
      }
    });
  }

  /// What a row's sum of values is multiplied by, and its lse.
  struct RowEnd {
    float factor, lse;
  };

  /// From a row's reference and its sum of weights. A split leaves the sink to those who combine.
  FLASHTILE_DEVICE static RowEnd end_row(const Work& work, int row, float logit_reference,
                                         float weight_sum) {
    const AttentionParams& params = work.params;
    const float reference = logit_reference * natural(work);
    float sink = -infinity();
    if constexpr (!Config::kIsSplit) sink = sink_of(params, work.rows.head_of(row));
    const float highest = larger(reference, sink);
    const float base = highest == -infinity() ? 0.0f : highest;
    const float own = exp2_approx((reference - base) * kLog2e);
    const float sum = weight_sum * own + exp2_approx((sink - base) * kLog2e);
    // A row that sees nothing has the sum 0 and gives 0.
    float factor = sum == 0.0f ? 0.0f : divide(own, sum);
    if constexpr (Config::kHasDropout) factor *= params.dropout.gain;
    return {factor, sum == 0.0f ? -infinity() : base + logarithm(sum)};
  }

  /// Of a row that is there, by one lane.
  FLASHTILE_DEVICE static void write_lse(const Work& work, int row, float lse) {
    const AttentionParams& params = work.params;
    if constexpr (Config::kMergesInCluster) {
      store_shared(Places::number_address(work, 0, row), lse);
      return;
    }
    const Tile& tile = Work::state().tile;
    if (tile.v_part != 0) return;
    const int q_idx = work.rows.q_idx(row);
    const int head = work.rows.head_of(row);
    if constexpr (Config::kIsSplit) {
      const int64 num_rows = params.lengths.total_q * params.num_heads;
      params.grid
          .partial_lse[tile.split_idx * num_rows + flat_row(params, work.sequence, q_idx, head)] =
          lse;
    } else if (params.lse.data != nullptr) {
      *query_scalar(params.lse, work.sequence, q_idx, head) = lse;
    }
  }

  // ---- Warps that divided the keys

  /// Leaves what the warp has of its rows for all to see.
  FLASHTILE_DEVICE static void publish(const Work& work) {
    for_each_row<kTilesM>(work.first_warp_row, [&](int m, int half, int row) {
      if (!work.rows.is_there(row)) return;
      if (lane_idx() % 4 == 0) {
        store_shared(Places::number_address(work, work.warp_n, row),
                     FloatPair{work.softmax.reference[m][half], work.softmax.sum[m][half]});
      }
      const uint32 target = Places::sums_address(work, work.warp_n, row);
      FLASHTILE_UNROLL
      for (int v = 0; v < kTilesV; ++v) {
        store_shared(target + static_cast<uint32>(lane_column<kInFours>(v) * 4),
                     FloatPair{work.acc[m][v][half * 2], work.acc[m][v][half * 2 + 1]});
      }
    });
  }

  /// A row of all warps, by one of them: lanes are columns.
  FLASHTILE_DEVICE static void merge_row(const Work& work, int row) {
    constexpr int kParts = Config::kWarpsN;
    float factors[kParts];
    float sums[kParts];
    float highest = -infinity();
    FLASHTILE_UNROLL
    for (int part = 0; part < kParts; ++part) {
      const FloatPair numbers = load_shared_pair(Places::number_address(work, part, row));
      factors[part] = numbers.x;
      sums[part] = numbers.y;
      highest = larger(highest, numbers.x);
    }
    const float base = highest == -infinity() ? 0.0f : highest;
    float sum = 0.0f;
    FLASHTILE_UNROLL
    for (int part = 0; part < kParts; ++part) {
      factors[part] = exp2_approx((factors[part] - base) * work.softmax.scale);
      sum += sums[part] * factors[part];
    }
    const RowEnd end = end_row(work, row, highest, sum);
    if constexpr (Config::kMergesInCluster) sync_warp();  // the lse takes the place of a number
    if (lane_idx() == 0) write_lse(work, row, end.lse);
    FLASHTILE_UNROLL
    for (int first = 0; first < Config::kHeadDimV; first += 4 * kWarpSize) {
      const int col = first + lane_idx() * 4;
      if (col >= Config::kHeadDimV) break;
      float total[4] = {};
      FLASHTILE_UNROLL
      for (int part = 0; part < kParts; ++part) {
        float values[4];
        load_shared(values, Places::sums_address(work, part, row) + static_cast<uint32>(col * 4));
        FLASHTILE_UNROLL
        for (int e = 0; e < 4; ++e) total[e] += values[e] * factors[part];
      }
      FLASHTILE_UNROLL
      for (int e = 0; e < 4; ++e) total[e] *= end.factor;
      if constexpr (Config::kMergesInCluster) {
        store_shared(Places::sums_address(work, 0, row) + static_cast<uint32>(col * 4), total);
      } else if constexpr (Config::kIsSplit) {
        store_quad<Element::kF32, true>(Places::partial_row(work, row), col, Config::kHeadDimV, 4,
                                        total);
      } else {
        store_quad<Config::kOutElement, Config::kStoreVectors>(
            Places::out_row(work, row), col, work.num_value_columns(),
            work.params.out.element_stride, total);
      }
    }
  }

  FLASHTILE_DEVICE static void merge(const Work& work) {
    publish(work);
    sync_cta();
    FLASHTILE_NO_UNROLL
    for (int row = warp_idx(); row < Config::kBlockM; row += Work::kThreads / kWarpSize) {
      if (work.rows.is_there(row)) merge_row(work, row);
    }
    if constexpr (Config::kMergesInCluster) ClusterMerge<Work>::run(work);
  }

  // ---- Warps that have seen all keys

  /// Divides rows by their sums and writes lse.
  FLASHTILE_DEVICE static void normalize(Work& work) {
    for_each_row<kTilesM>(work.first_warp_row, [&](int m, int half, int row) {
      const RowEnd end =
          end_row(work, row, work.softmax.reference[m][half], work.softmax.sum[m][half]);
      FLASHTILE_UNROLL
      for (int v = 0; v < kTilesV; ++v) {
        work.acc[m][v][half * 2] *= end.factor;
        work.acc[m][v][half * 2 + 1] *= end.factor;
      }
      if (lane_idx() % 4 != 0 || !work.rows.is_there(row)) return;
      if (Config::kSharesWeights && work.warp_n > 0) return;
      write_lse(work, row, end.lse);
    });
  }

  FLASHTILE_DEVICE static void store(const Work& work) {
    const AttentionParams& params = work.params;
    const int first_col = work.first_own_column();
    if constexpr (Config::kIsSplit) {
      store_float_pairs<kInFours>(
          work.acc, work.first_warp_row, work.num_own_columns(), [&](int row) -> char* {
            if (!work.rows.is_there(row)) return nullptr;
            return reinterpret_cast<char*>(Places::partial_row(work, row) + first_col);
          });
    } else {
      const auto address = [&](int row) -> char* {
        if (!work.rows.is_there(row)) return nullptr;
        return Places::out_row(work, row) + first_col * params.out.element_stride;
      };
      if constexpr (!Config::kStoreVectors) {
        store_elements<Config::kOutElement, kInFours>(work.acc, work.first_warp_row,
                                                      work.num_own_columns(),
                                                      params.out.element_stride, address);
      } else if constexpr (Config::kOutElement == Element::kF32) {
        store_float_pairs<kInFours>(work.acc, work.first_warp_row, work.num_own_columns(), address);
      } else {
        const uint32 staging =
            work.shared + static_cast<uint32>(work.first_own_column() / 64 * Config::kBlockM * 128);
        stage_rows<Config::kOutElement, Config::kBlockM, kInFours>(work.acc, staging,
                                                                   work.first_warp_row);
        if (!Config::kPackHeads && work.num_own_columns() == Work::kOwnCols) {
          store_staged_whole<Config::kBlockM, kTilesM, kTilesV>(
              staging, work.first_warp_row, address(0), params.out.row_stride,
              work.rows.num_rows - work.rows.first);
        } else {
          store_staged<Config::kBlockM, kTilesM, kTilesV>(staging, work.first_warp_row,
                                                          work.num_own_columns(), address);
        }
      }
    }
  }

  FLASHTILE_DEVICE static void run(Work& work) {
    if constexpr (Config::kWantsMaxLogit) {
      if (Work::state().tile.v_part == 0) write_max_logit(work);
    }
    if constexpr (Config::kWarpsN > 1 && !Config::kSharesWeights) {
      merge(work);
    } else {
      if constexpr (Config::kSharesWeights) work.share_sums();
      normalize(work);
      store(work);
    }
  }
};

/// Rows of packed queries that no sequence covers: out 0, lse -inf. CTAs of a head share them.
template <class Config>
FLASHTILE_DEVICE void fill_uncovered_rows(const AttentionParams& params, const Tile& tile) {
  if (tile.split_idx != 0 || tile.v_part != 0) return;
  Sequence all;
  const int64 first = clamp<int64>(load_int(params.lengths.cu_seqlens_q, params.lengths.batch_size),
                                   0, params.lengths.total_q);
  const int heads = Config::kPackHeads ? params.group_size : 1;
  const int64 step = params.grid.num_m_blocks;
  for (int64 q_idx = first + tile.m_block; q_idx < params.lengths.total_q; q_idx += step) {
    all.q_begin = q_idx;
    for (int h = 0; h < heads; ++h) {
      char* out = query_row(params.out, all, 0, tile.head + h);
      for (int col = thread_idx(); col < params.head_dim_v; col += ForwardBase<Config>::kThreads) {
        store_element<Config::kOutElement>(out + col * params.out.element_stride, 0.0f);
      }
      if (thread_idx() == 0 && params.lse.data != nullptr) {
        *query_scalar(params.lse, all, 0, tile.head + h) = -infinity();
      }
    }
  }
}

}  // namespace flashtile::device
