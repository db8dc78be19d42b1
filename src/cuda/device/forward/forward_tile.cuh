// SPDX-License-Identifier: Apache-2.0
//
// The inner part of the forward kernel for head dims up to 256: queries stay in shared memory (or
// registers), whole key blocks pass through a ring of stages, and each warp takes its rows from
// products to weights to the sum of values.
#pragma once

#include "cuda/device/forward/forward_base.cuh"

namespace flashtile::device {

template <class Config>
struct ForwardTile : ForwardBase<Config> {
  using Base = ForwardBase<Config>;
  using Base::acc;
  using Base::blocks;
  using Base::first_warp_row;
  using Base::kNumSlices;
  using Base::kShape;
  using Base::kSlice;
  using Base::kThreads;
  using Base::kTilesM;
  using Base::params;
  using Base::rows;
  using Base::sequence;
  using Base::shared;
  using Base::softmax;
  using Base::stage_address;
  using Base::state;
  using Base::warp_n;
  using Scores = typename Base::Scores;

  using QueryTile = RowTile<Config::kElement, Config::kBlockM, Config::kHeadDim>;
  using KeyTile = RowTile<Config::kElement, Config::kBlockN, Config::kHeadDim>;
  using ValueTile = ColumnTile<Config::kElement, Config::kBlockN, Config::kHeadDimV>;
  using QueryCopy = TileCopy<Config::kElement, QueryTile, Config::kBlockM, Config::kHeadDim,
                             kThreads, Config::kQueryCopyBytes>;
  using KeyCopy = TileCopy<Config::kElement, KeyTile, Config::kBlockN, Config::kHeadDim, kThreads,
                           Config::kCopyBytes>;
  using ValueCopy = TileCopy<Config::kElement, ValueTile, Config::kBlockN, Config::kHeadDimV,
                             kThreads, Config::kCopyBytes>;

  HeldRows<Config::kElement, kTilesM, Config::kHeadDim> held;

  using Base::Base;

  FLASHTILE_DEVICE void load_queries() {
    // Rows that are not there are read like the last one, and never written.
    QueryCopy::copy(shared, params.head_dim, params.q.element_stride, [&](int row) {
      return query_row(params.q, sequence, rows.q_idx(row), rows.head_of(row));
    });
  }

  FLASHTILE_DEVICE void load_keys(int n_block, int stage) {
    const uint32 tile = stage_address(stage);
    this->template load_rows<KeyCopy>(state().keys, n_block, tile, 0, params.head_dim,
                                      params.k.element_stride);
    this->template load_rows<ValueCopy>(state().values, n_block,
                                        tile + static_cast<uint32>(kShape.key_bytes()), 0,
                                        this->num_value_columns(), params.v.element_stride);
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

  /// From one slice of keys to the sum of its values. The next slice's products come first in the
  /// text, so that tensor cores have work while weights are made.
  template <bool kMasked>
  FLASHTILE_DEVICE void process_block(int n_block, int stage) {
    const uint32 key_tile = stage_address(stage);
    const uint32 value_tile = key_tile + static_cast<uint32>(kShape.key_bytes());
    const typename Base::Ranges ranges(this->rules.position, rows, first_warp_row,
                                       n_block * Config::kBlockN);
    Scores scores[2];
    compute_scores(scores[0], key_tile, warp_n * kSlice);
    FLASHTILE_UNROLL
    for (int slice = 0; slice < kNumSlices; ++slice) {
      const int column = (slice * Config::kWarpsN + warp_n) * kSlice;
      if (slice + 1 < kNumSlices) {
        compute_scores(scores[(slice + 1) % 2], key_tile, column + Config::kWarpsN * kSlice);
      }
      typename Base::SliceWeights weights;
      this->template make_weights<kMasked>(weights, scores[slice % 2], ranges, n_block, column);
      accumulate_values<Config::kElement, kTilesM, Base::kTilesV, kSlice, Config::kHeadDimV,
                        ValueTile>(acc, weights, value_tile, column, 0);
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
    this->reset();
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
      if (is_careful) {
        this->find_seen_keys(n_block);
        Base::template clear_unseen_values<ValueTile, Config::kHeadDimV>(
            stage_address(stage) + static_cast<uint32>(kShape.key_bytes()));
      }
      if (!is_careful && this->is_plain(n_block)) {
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
