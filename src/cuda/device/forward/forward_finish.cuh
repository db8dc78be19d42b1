// SPDX-License-Identifier: Apache-2.0
//
// From the running state of a tile to results: warps that divided the keys are merged, the sink
// joins the denominator, rows and lse are written.
#pragma once

#include "cuda/device/epilogue/max_logit.cuh"
#include "cuda/device/epilogue/store_rows.cuh"
#include "cuda/device/forward/forward_base.cuh"

namespace flashtile::device {

/// `Work` is what has run: a ForwardBase.
template <class Work>
struct ForwardFinish {
  using Config = typename Work::Config;
  static constexpr int kTilesM = Work::kTilesM;
  static constexpr int kTilesV = Work::kTilesV;

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

  /// Sums the states of warps that share rows into the first of them; the others hold nothing then.
  FLASHTILE_DEVICE static void merge(Work& work) {
    constexpr int kBlockM = Config::kBlockM;
    char* memory = shared_memory() + Work::kShape.ring_begin();
    float* references = reinterpret_cast<float*>(memory);
    float* sums = references + (Config::kWarpsN - 1) * kBlockM;
    float* rows_of_others = sums + (Config::kWarpsN - 1) * kBlockM;
    const int place = lane_idx() % 4 * 2;
    if (work.warp_n > 0) {
      const int other = work.warp_n - 1;
      for_each_row<kTilesM>(work.first_warp_row, [&](int m, int half, int row) {
        if (place == 0) {
          references[other * kBlockM + row] = work.softmax.reference[m][half];
          sums[other * kBlockM + row] = work.softmax.sum[m][half];
        }
        float* target = rows_of_others + (other * kBlockM + row) * Config::kHeadDimV + place;
        FLASHTILE_UNROLL
        for (int v = 0; v < kTilesV; ++v) {
          target[v * 8] = work.acc[m][v][half * 2];
          target[v * 8 + 1] = work.acc[m][v][half * 2 + 1];
        }
      });
    }
    sync_cta();
    if (work.warp_n > 0) return;
    for_each_row<kTilesM>(work.first_warp_row, [&](int m, int half, int row) {
      float highest = work.softmax.reference[m][half];
      FLASHTILE_UNROLL
      for (int other = 0; other < Config::kWarpsN - 1; ++other) {
        highest = larger(highest, references[other * kBlockM + row]);
      }
      const float base = highest == -infinity() ? 0.0f : highest;
      const auto factor_of = [&](float reference) {
        return exp2_approx((reference - base) * work.softmax.scale);
      };
      const float own = factor_of(work.softmax.reference[m][half]);
      float sum = work.softmax.sum[m][half] * own;
      FLASHTILE_UNROLL
      for (int v = 0; v < kTilesV; ++v) {
        work.acc[m][v][half * 2] *= own;
        work.acc[m][v][half * 2 + 1] *= own;
      }
      FLASHTILE_UNROLL
      for (int other = 0; other < Config::kWarpsN - 1; ++other) {
        const float factor = factor_of(references[other * kBlockM + row]);
        sum += sums[other * kBlockM + row] * factor;
        const float* source = rows_of_others + (other * kBlockM + row) * Config::kHeadDimV + place;
        FLASHTILE_UNROLL
        for (int v = 0; v < kTilesV; ++v) {
          work.acc[m][v][half * 2] += source[v * 8] * factor;
          work.acc[m][v][half * 2 + 1] += source[v * 8 + 1] * factor;
        }
      }
      work.softmax.reference[m][half] = highest;
      work.softmax.sum[m][half] = sum;
    });
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

  /// Divides rows by their sums and writes lse. A split leaves the sink to those who combine.
  FLASHTILE_DEVICE static void normalize(Work& work) {
    const AttentionParams& params = work.params;
    const Tile& tile = Work::state().tile;
    for_each_row<kTilesM>(work.first_warp_row, [&](int m, int half, int row) {
      const float reference = work.softmax.reference[m][half] * natural(work);
      float highest = reference;
      float sink = -infinity();
      if constexpr (!Config::kIsSplit) {
        if (params.sink.data != nullptr) {
          sink = load_global(
              reinterpret_cast<const float*>(reinterpret_cast<const char*>(params.sink.data) +
                                             work.rows.head_of(row) * params.sink.head_stride));
          highest = larger(highest, sink);
        }
      }
      const float base = highest == -infinity() ? 0.0f : highest;
      const float own = exp2_approx((reference - base) * kLog2e);
      const float sum = work.softmax.sum[m][half] * own + exp2_approx((sink - base) * kLog2e);
      // A row that sees nothing has the sum 0 and gives 0.
      float factor = sum == 0.0f ? 0.0f : divide(own, sum);
      if constexpr (Config::kHasDropout) factor *= params.dropout.gain;
      FLASHTILE_UNROLL
      for (int v = 0; v < kTilesV; ++v) {
        work.acc[m][v][half * 2] *= factor;
        work.acc[m][v][half * 2 + 1] *= factor;
      }
      if (lane_idx() % 4 != 0 || !work.rows.is_there(row) || tile.v_part != 0) return;
      if (Config::kSharesWeights && work.warp_n > 0) return;
      const float lse = sum == 0.0f ? -infinity() : base + logarithm(sum);
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
    });
  }

  FLASHTILE_DEVICE static void store(const Work& work) {
    const AttentionParams& params = work.params;
    const int first_col = work.first_value_column() + work.first_own_column();
    if constexpr (Config::kIsSplit) {
      // Rows of all parts side by side, so that each is aligned.
      const int64 row_floats = static_cast<int64>(params.grid.num_v_parts) * Config::kHeadDimV;
      const int64 num_rows = params.lengths.total_q * params.num_heads;
      float* split_rows =
          params.grid.partial_out + Work::state().tile.split_idx * num_rows * row_floats;
      store_float_pairs(
          work.acc, work.first_warp_row, work.num_own_columns(), [&](int row) -> char* {
            if (!work.rows.is_there(row)) return nullptr;
            const int64 flat =
                flat_row(params, work.sequence, work.rows.q_idx(row), work.rows.head_of(row));
            return reinterpret_cast<char*>(split_rows + flat * row_floats + first_col);
          });
    } else {
      const auto address = [&](int row) -> char* {
        if (!work.rows.is_there(row)) return nullptr;
        return query_row(params.out, work.sequence, work.rows.q_idx(row), work.rows.head_of(row)) +
               first_col * params.out.element_stride;
      };
      if constexpr (!Config::kStoreVectors) {
        store_elements<Config::kOutElement>(work.acc, work.first_warp_row, work.num_own_columns(),
                                            params.out.element_stride, address);
      } else if constexpr (Config::kOutElement == Element::kF32) {
        store_float_pairs(work.acc, work.first_warp_row, work.num_own_columns(), address);
      } else {
        const uint32 staging =
            work.shared + static_cast<uint32>(work.first_own_column() / 64 * Config::kBlockM * 128);
        stage_rows<Config::kOutElement, Config::kBlockM>(work.acc, staging, work.first_warp_row);
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
    if constexpr (Config::kSharesWeights) {
      work.share_sums();
    } else if constexpr (Config::kWarpsN > 1) {
      merge(work);
      if (work.warp_n > 0) return;
    }
    normalize(work);
    store(work);
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
