// SPDX-License-Identifier: Apache-2.0
//
// The end of a tile of attention_fwd_sm90: sums and references of a warpgroup's 64 rows become
// results and lse, or a flag that the tile has failed. Results go to shared memory for the thread
// that stores, or out by the warps themselves.
#pragma once

#include "cuda/device/epilogue/max_logit.cuh"
#include "cuda/device/hopper/row_softmax.cuh"
#include "cuda/device/hopper/sm90_scores.cuh"
#include "cuda/device/ptx/exchange.cuh"

namespace flashtile::device {

template <class Config>
struct Sm90Results {
  using Memory = Sm90Memory<Config>;
  using Softmax = RowSoftmax<Config::kReference>;
  using Keys = Sm90Keys<Config>;
  using Scores = Sm90Scores<Config>;
  static constexpr auto kShape = Memory::kShape;
  static constexpr int kHeadDimV = Config::kHeadDimV;
  using Sums = float[kHeadDimV / 2];

  const Sm90ForwardParams& params;
  const Memory& memory;
  float scale;  ///< of logits as softmax gets them, to powers of two

  /// `number` tiles were finished before.
  FLASHTILE_DEVICE void finish(const Sm90Tile& done, Softmax& rows, const Sums& acc,
                               uint32 number) const {
    const uint32 slot = number % Memory::kResultSlots;
    rows.finish_sums();
    const int thread = fresh(thread_idx());
    const Keys keys(params, done);
    const int row = keys.first_row() + tile_row(thread, thread % kWarpSize / 4);
    // What all parts of the columns find alike, the first one tells.
    const bool is_first_part = Config::kNumValueParts == 1 || done.value_part == 0;
    if constexpr (Config::kWantsMaxLogit) {
      if (is_first_part) write_largest(done, rows, row);
    }
    bool is_good = true;
    float factors[2];
    float own_base = 0.0f, own_sum = 0.0f;
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      if constexpr (Config::kCanFail) {
        // A reference that follows, or does so up to the first key that a row sees, is one.
        const bool sees_keys = Config::kReference != Sm90Reference::kMaximum &&
                               !Scores::kAsksSettled &&
                               keys.end(row + half * 8) > keys.begin(row + half * 8);
        is_good = is_good && rows.is_in_range(half, sees_keys);
      }
      float base = rows.reference[half] == -infinity() ? 0.0f : rows.reference[half] * scale;
      float sum = rows.sum[half];
      float own = 1.0f;
      add_sink(done, base, own, sum);
      // A row that sees nothing has the sum 0 and gives 0.
      factors[half] = sum == 0.0f ? 0.0f : own * reciprocal_approx(sum);
      if constexpr (Config::kHasDropout) factors[half] *= params.call.dropout.gain;
      // Of the lanes that share the two rows, two store one each.
      if (half == 0 || thread % 2 == 1) {
        own_base = base;
        own_sum = sum;
      }
    }
    const RowScalarsParam& lse = params.call.lse;
    const int own_row = row + thread % 2 * 8;
    if (thread % 4 < 2 && lse.data != nullptr && own_row < keys.seqlen_q() && is_first_part) {
      char* address = reinterpret_cast<char*>(lse.data) + done.batch * lse.batch_stride +
                      done.head * lse.head_stride +
                      ((Config::kPackedQ ? done.q_begin : 0) + own_row) * lse.row_stride;
      *reinterpret_cast<float*>(address) =
          own_sum == 0.0f ? -infinity() : (own_base + log2_approx(own_sum)) * kLn2;
    }
    if constexpr (Config::kCanFail) {
      // 0 times a finite number is 0, times any other it is NaN.
      float probes[4] = {};
      FLASHTILE_UNROLL
      for (int i = 0; i < kHeadDimV / 2; ++i) {
        probes[i % 4] = fused_multiply_add(acc[i], 0.0f, probes[i % 4]);
      }
      is_good = is_good && (probes[0] + probes[1]) + (probes[2] + probes[3]) == 0.0f;
      const bool has_failed = done.kind == kTileToDo && any_lane(!is_good);
      if (has_failed && thread % kWarpSize == 0) store_shared(memory.failed_flag(slot), uint32{1});
    }
    if constexpr (Config::kWarpsStore) {
      store_rows(done, thread, acc, factors);
    } else {
      leave_rows(done, thread, acc, factors, slot);
      fence_shared_for_async();
    }
    sync_warp();
    arrive_if(memory.results_full(slot), thread % kWarpSize == 0);
  }

  /// The largest logit of the lanes' rows, into the head's.
  FLASHTILE_DEVICE void write_largest(const Sm90Tile& done, const Softmax& rows, int row) const {
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      float highest = rows.largest[half];
      FLASHTILE_UNROLL
      for (int lanes = 1; lanes <= 2; lanes *= 2) {
        highest = larger_or_nan(highest, shuffle_xor(highest, lanes));
      }
      if (lane_idx() % 4 == 0 && row + half * 8 < Keys(params, done).seqlen_q()) {
        raise_max_logit(params.call.max_logit, done.head, highest * (scale * kLn2));
      }
    }
  }

  /// The sink joins a row's sum, whose base may move.
  FLASHTILE_DEVICE void add_sink(const Sm90Tile& done, float& base, float& own, float& sum) const {
    if constexpr (Config::kHasSink) {
      const HeadScalarsParam& sinks = params.call.sink;
      const float sink =
          kLog2e * load_global(reinterpret_cast<const float*>(
                       reinterpret_cast<const char*>(sinks.data) + done.head * sinks.head_stride));
      // A row without keys has no base.
      float highest = sum == 0.0f ? sink : larger(base, sink);
      if (highest == -infinity()) highest = 0.0f;
      own = sum == 0.0f ? 0.0f : exp2_approx(base - highest);
      base = highest;
      sum = sum * own + exp2_approx(sink - highest);
    }
  }

  /// Results of 16 columns, as an accumulator's lanes hold them.
  FLASHTILE_DEVICE static void pack_results(uint32 (&fragment)[4], const Sums& acc, int step,
                                            const float (&factors)[2]) {
    FLASHTILE_UNROLL
    for (int r = 0; r < 4; ++r) {
      fragment[r] = pack<Config::kElement>(acc[step * 8 + r * 2] * factors[r % 2],
                                           acc[step * 8 + r * 2 + 1] * factors[r % 2]);
    }
  }

  /// Columns of the results that the tile has are its own from this one on.
  FLASHTILE_DEVICE static int first_column(const Sm90Tile& done) {
    return Config::kNumValueParts > 1 ? done.value_part * kHeadDimV : 0;
  }

  /// The warp's rows of a tile, by itself: 64 columns at a time go through its own memory.
  FLASHTILE_DEVICE void store_rows(const Sm90Tile& done, int thread, const Sums& acc,
                                   const float (&factors)[2]) const {
    const Keys keys(params, done);
    const RowsParam& out = params.call.out;
    const int lane = thread % kWarpSize;
    const int first = keys.first_row() + tile_row(thread, lane / 8);
    const int rows_left = keys.seqlen_q() - first;
    const int columns_left = params.call.head_dim_v - first_column(done);
    char* target = out.data + done.batch * out.batch_stride + done.head * out.head_stride +
                   ((Config::kPackedQ ? done.q_begin : 0) + first) * out.row_stride +
                   first_column(done) * 2 + lane % 8 * 16;
    const uint32 own = memory.warp_results(thread / kWarpSize - 4);
    FLASHTILE_UNROLL
    for (int chunk = 0; chunk < kHeadDimV / 64; ++chunk) {
      const uint32 half = own + static_cast<uint32>(chunk % 2 * (Sm90Shape::kWarpResultBytes / 2));
      const auto piece_address = [&](int row, int piece) {
        return half + static_cast<uint32>(row * 128 + (piece ^ row % 8) * 16);
      };
      FLASHTILE_UNROLL
      for (int step = 0; step < 4; ++step) {
        uint32 fragment[4];
        pack_results(fragment, acc, chunk * 4 + step, factors);
        store_matrices(piece_address(lane % 16, step * 2 + lane / 16), fragment, [&](int i) {
          return piece_address(i % 2 * 8 + lane / 4, step * 2 + i / 2) +
                 static_cast<uint32>(lane % 4 * 4);
        });
      }
      // All have read the other half before, too.
      sync_warp();
      const bool is_inside = chunk * 64 + lane % 8 * 8 < columns_left;
      FLASHTILE_UNROLL
      for (int row = 0; row < 16; row += 4) {
        const Vector4 piece = load_shared_vector(piece_address(row + lane / 8, lane % 8));
        if (row < rows_left && is_inside) {
          store_vector(target + row * out.row_stride + chunk * 128, piece);
        }
      }
    }
  }

  /// The warp's rows of a tile, in the buffer of its queries, for the thread that stores.
  FLASHTILE_DEVICE void leave_rows(const Sm90Tile& done, int thread, const Sums& acc,
                                   const float (&factors)[2], uint32 buffer) const {
    // Of the tile in 16-byte pieces: row `number` of the warp's, half `side` of 16 columns.
    const auto piece_address = [&](int number, int step, int side) {
      const int stored = tile_row(thread, number);
      return memory.queries(buffer) +
             static_cast<uint32>(step / 4 * kShape.query_chunk_bytes() + stored * 128 +
                                 ((step % 4 * 2 + side) ^ (stored % 8)) * 16);
    };
    FLASHTILE_UNROLL
    for (int step = 0; step < kHeadDimV / 16; ++step) {
      uint32 fragment[4];
      pack_results(fragment, acc, step, factors);
      store_matrices(piece_address(thread % 16, step, thread % kWarpSize / 16), fragment,
                     [&](int i) {
                       return piece_address(i % 2 * 8 + thread % kWarpSize / 4, step, i / 2) +
                              static_cast<uint32>(thread % 4 * 4);
                     });
    }
    if constexpr (Config::kPackedQ) store_last_rows(done, thread, piece_address);
  }

  /// Where the sequence ends in the tile, its rows are stored by the warps that hold them, and not
  /// by the copy engine: others follow.
  template <class PieceAddress>
  FLASHTILE_DEVICE void store_last_rows(const Sm90Tile& done, int thread,
                                        const PieceAddress& piece_address) const {
    const int rows_left = done.seqlen_q - Keys(params, done).first_row();
    if (rows_left >= kShape.block_m()) return;
    sync_warp();
    constexpr int kPieces = kHeadDimV / 8;
    FLASHTILE_NO_UNROLL
    for (int i = thread % kWarpSize; i < 16 * kPieces; i += kWarpSize) {
      const int number = i / kPieces;
      const int piece = i % kPieces;
      const int row = tile_row(thread, number);
      const int column = first_column(done) + piece * 8;
      if (row >= rows_left || column >= params.call.head_dim_v) continue;
      const RowsParam& out = params.call.out;
      store_vector(out.data + done.head * out.head_stride +
                       (done.q_begin + Keys(params, done).first_row() + row) * out.row_stride +
                       column * 2,
                   load_shared_vector(piece_address(number, piece / 2, piece % 2)));
    }
  }
};

}  // namespace flashtile::device
