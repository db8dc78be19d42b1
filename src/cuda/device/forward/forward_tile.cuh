// SPDX-License-Identifier: Apache-2.0
//
// The inner part of the forward kernel: queries stay, key blocks pass through a ring of stages, and
// each warp takes its rows from products to weights to the sum of values.
#pragma once

#include "cuda/device/copy/load_tile.cuh"
#include "cuda/device/forward/forward_state.cuh"
#include "cuda/device/mma/operands.cuh"
#include "cuda/device/score/dropout.cuh"
#include "cuda/device/softmax/online.cuh"

namespace flashtile::device {

template <class Config>
struct ForwardTile {
  static constexpr ForwardShape kShape = {element_bytes(Config::kElement),
                                          Config::kHeadDim,
                                          Config::kHeadDimV,
                                          Config::kBlockM,
                                          Config::kBlockN,
                                          Config::kWarpsM,
                                          Config::kWarpsN,
                                          Config::kNumStages};
  static constexpr int kThreads = kShape.num_threads();
  static constexpr int kTilesM = Config::kBlockM / (16 * Config::kWarpsM);
  static constexpr int kTilesV = Config::kHeadDimV / 8;
  static constexpr int kSlice = Config::kSlice;
  static constexpr int kNumSlices = Config::kBlockN / (kSlice * Config::kWarpsN);
  static constexpr bool kFixedReference = Config::kElement != Element::kF16;
  static constexpr bool kWideLogits = Config::kHasScoreOptions;
  static_assert(kTilesM * 16 * Config::kWarpsM == Config::kBlockM, "warps share the rows");
  static_assert(kNumSlices * kSlice * Config::kWarpsN == Config::kBlockN, "slices fill a block");

  using QueryTile = RowTile<Config::kElement, Config::kBlockM, Config::kHeadDim>;
  using KeyTile = RowTile<Config::kElement, Config::kBlockN, Config::kHeadDim>;
  using ValueTile = ColumnTile<Config::kElement, Config::kBlockN, Config::kHeadDimV>;
  using QueryCopy = TileCopy<Config::kElement, QueryTile, Config::kBlockM, Config::kHeadDim,
                             kThreads, Config::kQueryCopyBytes>;
  using KeyCopy = TileCopy<Config::kElement, KeyTile, Config::kBlockN, Config::kHeadDim, kThreads,
                           Config::kCopyBytes>;
  using ValueCopy = TileCopy<Config::kElement, ValueTile, Config::kBlockN, Config::kHeadDimV,
                             kThreads, Config::kCopyBytes>;
  using State = ForwardState<Config>;
  using Rows = QueryRows<Config::kPackHeads>;
  using Blocks = KeyBlocks<Config::kBlockN>;
  using Softmax = OnlineSoftmax<Config, kTilesM>;
  using Scores = float[kTilesM][kSlice / 8][4];
  static_assert(sizeof(State) <= ForwardShape::kStateBytes, "the state fits its place");

  FLASHTILE_DEVICE static State& state() {
    return *reinterpret_cast<State*>(shared_memory() + kShape.state_begin());
  }

  const AttentionParams& params;
  const Sequence& sequence;
  const Rows& rows;
  const Blocks& blocks;
  ScoreRules<Config> rules;
  int first_warp_row;  ///< of the warp, in the tile
  int warp_n;          ///< which share of each key block is the warp's
  uint32 shared;       ///< queries, then stages

  Softmax softmax;
  float acc[kTilesM][kTilesV][4];
  float max_logit[kTilesM][2];
  HeldRows<Config::kElement, kTilesM, Config::kHeadDim> held;

  /// Log2 units of a logit as softmax gets it: logits are natural where an option has changed them,
  /// else bare products.
  FLASHTILE_DEVICE static float logit_scale(float softmax_scale) {
    if constexpr (Config::kHasScoreOptions) return kLog2e;
    // A scale of 0 would make 0 * -inf of what is hidden.
    return larger(absolute(softmax_scale), 1e-30f) * kLog2e;
  }

  FLASHTILE_DEVICE ForwardTile(const AttentionParams& p,
                               const typename Config::Expressions::Params& user)
      : params(p),
        sequence(state().sequence),
        rows(state().rows),
        blocks(state().blocks),
        rules{p, user, state().sequence, state().position},
        softmax(logit_scale(p.softmax_scale)) {
    const int warp = warp_idx();
    first_warp_row = warp % Config::kWarpsM * kTilesM * 16;
    warp_n = warp / Config::kWarpsM;
    shared = shared_address(shared_memory());
  }

  FLASHTILE_DEVICE int first_value_column() const {
    return state().tile.v_part * Config::kHeadDimV;
  }
  /// Columns of values of this part.
  FLASHTILE_DEVICE int num_value_columns() const {
    return clamp(params.head_dim_v - first_value_column(), 0, Config::kHeadDimV);
  }

  FLASHTILE_DEVICE uint32 stage_address(int stage) const {
    return shared + static_cast<uint32>(kShape.query_bytes() + stage * kShape.stage_bytes());
  }

  // ---- Copies

  FLASHTILE_DEVICE void load_queries() {
    // Rows that are not there are read like the last one, and never written.
    QueryCopy::copy(shared, params.head_dim, params.q.element_stride, [&](int row) {
      return query_row(params.q, sequence, rows.q_idx(row), rows.head_of(row));
    });
  }

  template <class Copy>
  FLASHTILE_DEVICE void load_rows(const KeyRows<Config::kPaged>& from, int first_key, uint32 tile,
                                  int num_cols, int64 element_stride) {
    const auto address = [&](int row) { return from.row(first_key + row); };
    const bool is_whole =
        first_key >= blocks.key_begin && first_key + Config::kBlockN <= blocks.key_end;
    if (!is_whole) {
      Copy::copy_range(tile, num_cols, element_stride, blocks.key_begin - first_key,
                       blocks.key_end - first_key, address);
    } else if constexpr (Config::kPaged) {
      Copy::copy(tile, num_cols, element_stride, address);
    } else {
      Copy::copy_strided(tile, num_cols, element_stride, address(Copy::first_row()),
                         from.row_stride);
    }
  }

  FLASHTILE_DEVICE void load_keys(int n_block, int stage) {
    const int first_key = n_block * Config::kBlockN;
    const uint32 tile = stage_address(stage);
    load_rows<KeyCopy>(state().keys, first_key, tile, params.head_dim, params.k.element_stride);
    load_rows<ValueCopy>(state().values, first_key, tile + static_cast<uint32>(kShape.key_bytes()),
                         num_value_columns(), params.v.element_stride);
  }

  /// Negates the queries, which is exact, so that the scale of products is positive.
  FLASHTILE_DEVICE void negate_queries() {
    constexpr uint32 kSigns = Config::kElement == Element::kF32 ? 0x80000000u : 0x80008000u;
    for (int at = thread_idx() * 16; at < QueryTile::kBytes; at += kThreads * 16) {
      const uint32 address = shared + static_cast<uint32>(at);
      const Vector4 value = load_shared_vector(address);
      store_shared(address,
                   Vector4{value.x ^ kSigns, value.y ^ kSigns, value.z ^ kSigns, value.w ^ kSigns});
    }
    sync_cta();
  }

  // ---- One key block

  FLASHTILE_DEVICE void compute_scores(Scores& scores, uint32 key_tile, int first_column) {
    FLASHTILE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      FLASHTILE_UNROLL
      for (int n = 0; n < kSlice / 8; ++n) {
        FLASHTILE_UNROLL
        for (int r = 0; r < 4; ++r) scores[m][n][r] = 0.0f;
      }
    }
    accumulate_scores<Config::kElement, kTilesM, kSlice, Config::kHeadDim,
                      Config::kQueryInRegisters, QueryTile, KeyTile>(
        scores, held, shared, first_warp_row, key_tile, first_column);
  }

  /// Written so that a NaN stays.
  FLASHTILE_DEVICE void track_max(const Scores& scores) {
    FLASHTILE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      FLASHTILE_UNROLL
      for (int n = 0; n < kSlice / 8; ++n) {
        FLASHTILE_UNROLL
        for (int r = 0; r < 4; ++r) {
          if (!(scores[m][n][r] <= max_logit[m][r / 2])) max_logit[m][r / 2] = scores[m][n][r];
        }
      }
    }
  }

  FLASHTILE_DEVICE void drop_weights(Scores& weights, int first_key) {
    for_each_row<kTilesM>(first_warp_row, [&](int m, int half, int row) {
      const uint32 batch_head =
          static_cast<uint32>(sequence.batch_idx * params.num_heads + rows.head_of(row));
      drop<kSlice>(params.dropout, batch_head, static_cast<uint32>(rows.q_idx(row)),
                   static_cast<uint32>(first_key), static_cast<uint32>(lane_idx() % 4),
                   [&](int n, int e) -> float& { return weights[m][n][half * 2 + e]; });
    });
  }

  /// From one slice of keys to the sum of its values. The next slice's products come first in the
  /// text, so that tensor cores have work while weights are made.
  template <bool kMasked>
  FLASHTILE_DEVICE void process_block(int n_block, int stage) {
    const uint32 key_tile = stage_address(stage);
    const uint32 value_tile = key_tile + static_cast<uint32>(kShape.key_bytes());
    const RowRanges<Config, kTilesM> ranges(rules.position, rows, first_warp_row,
                                            n_block * Config::kBlockN);
    Scores scores[2];
    compute_scores(scores[0], key_tile, warp_n * kSlice);
    FLASHTILE_UNROLL
    for (int slice = 0; slice < kNumSlices; ++slice) {
      const int column = (slice * Config::kWarpsN + warp_n) * kSlice;
      if (slice + 1 < kNumSlices) {
        compute_scores(scores[(slice + 1) % 2], key_tile, column + Config::kWarpsN * kSlice);
      }
      Scores& current = scores[slice % 2];
      const int first_key = n_block * Config::kBlockN + column;
      if constexpr (Config::kHasScoreOptions) {
        apply_scores<Config, kTilesM, kSlice>(current, rules, rows, first_warp_row, first_key);
      }
      if constexpr (kMasked) {
        apply_masks<Config, kTilesM, kSlice>(current, rules, rows, ranges, first_warp_row,
                                             n_block * Config::kBlockN, column);
      }
      if constexpr (Config::kWantsMaxLogit) track_max(current);
      if constexpr (kMasked || !kFixedReference) {
        softmax.template follow<kSlice, kTilesV>(current, acc);
      }
      softmax.template weigh<kSlice, kWideLogits>(current);
      if constexpr (Config::kHasDropout) drop_weights(current, first_key);
      Weights<Config::kElement, kTilesM, kSlice> weights;
      weights.set(current);
      accumulate_values<Config::kElement, kTilesM, kSlice, Config::kHeadDimV, ValueTile>(
          acc, weights, value_tile, column);
    }
  }

  /// Values of keys that no query of the tile sees become 0, so that what is not finite there meets
  /// no weight of 0. Only tiles whose results are not finite come here.
  FLASHTILE_DEVICE void clear_unseen_values(int n_block, int stage) {
    uint32* flags = reinterpret_cast<uint32*>(shared_memory() + kShape.flags_begin());
    for (int key = thread_idx(); key < Config::kBlockN; key += kThreads) flags[key] = 0;
    sync_cta();
    FLASHTILE_NO_UNROLL
    for (int at = thread_idx(); at < Config::kBlockN * Config::kBlockM; at += kThreads) {
      const int key = at % Config::kBlockN;
      const int row = at / Config::kBlockN;
      if (!rows.is_there(row) || flags[key] != 0) continue;
      if (rules.is_seen(rows.head_of(row), rows.q_idx(row), n_block * Config::kBlockN + key)) {
        flags[key] = 1;
      }
    }
    sync_cta();
    constexpr int kChunks = Config::kHeadDimV / (16 / kShape.element_bytes);
    const uint32 value_tile = stage_address(stage) + static_cast<uint32>(kShape.key_bytes());
    FLASHTILE_NO_UNROLL
    for (int at = thread_idx(); at < Config::kBlockN * kChunks; at += kThreads) {
      const int key = at / kChunks;
      if (flags[key] != 0) continue;
      store_shared(value_tile + ValueTile::offset(key, at % kChunks), Vector4{0, 0, 0, 0});
    }
    sync_cta();
  }

  // ---- All key blocks

  FLASHTILE_DEVICE void reset() {
    softmax = Softmax(softmax.scale);
    FLASHTILE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      max_logit[m][0] = max_logit[m][1] = -infinity();
      FLASHTILE_UNROLL
      for (int v = 0; v < kTilesV; ++v) {
        FLASHTILE_UNROLL
        for (int r = 0; r < 4; ++r) acc[m][v][r] = 0.0f;
      }
    }
  }

  /// Waits for the queries, which were copied as a group of their own before `pending` others.
  template <int pending>
  FLASHTILE_DEVICE void take_queries() {
    if constexpr (!Config::kHasScoreOptions) {
      if (params.softmax_scale < 0.0f) {
        copy_async_wait<pending>();
        sync_cta();
        negate_queries();
      }
    }
    if constexpr (Config::kQueryInRegisters) {
      copy_async_wait<pending>();
      sync_cta();
      held.template load<QueryTile>(shared, first_warp_row);
    }
  }

  /// Visits all key blocks. `is_careful`: with a following reference everywhere, and no value that
  /// is not seen.
  FLASHTILE_DEVICE void visit_blocks(bool is_careful) {
    reset();
    if (!is_careful) load_queries();
    copy_async_commit();
    int loading = blocks.before(blocks.end);
    int n_block = loading;
    FLASHTILE_UNROLL
    for (int stage = 0; stage < Config::kNumStages - 1; ++stage) {
      if (blocks.holds(loading)) {
        load_keys(loading, stage);
        loading = blocks.before(loading);
      }
      copy_async_commit();
    }
    if (!is_careful) take_queries<Config::kNumStages - 1>();
    int stage = 0;
    FLASHTILE_NO_UNROLL
    for (; blocks.holds(n_block); n_block = blocks.before(n_block)) {
      // The block is there for all, and nobody reads the stage any more that is written next.
      copy_async_wait<Config::kNumStages - 2>();
      sync_cta();
      if (blocks.holds(loading)) {
        load_keys(loading, stage == 0 ? Config::kNumStages - 1 : stage - 1);
        loading = blocks.before(loading);
      }
      copy_async_commit();
      if (is_careful) clear_unseen_values(n_block, stage);
      if (!is_careful && blocks.cover(n_block) == Cover::kFull &&
          (!kFixedReference || softmax.is_settled())) {
        process_block<false>(n_block, stage);
      } else {
        process_block<true>(n_block, stage);
      }
      stage = stage + 1 == Config::kNumStages ? 0 : stage + 1;
    }
    copy_async_wait<0>();
    softmax.finish_sums();
  }

  /// The weighted sum of values and the softmax state of the warp's rows and share of keys.
  FLASHTILE_DEVICE void run() {
    FLASHTILE_NO_UNROLL
    for (int attempt = 0; attempt < 2; ++attempt) {
      visit_blocks(/*is_careful=*/attempt == 1);
      // A barrier too: the ring is free for what comes next.
      if (!sync_cta_any(!softmax.is_in_range(acc))) break;
    }
  }
};

}  // namespace flashtile::device
