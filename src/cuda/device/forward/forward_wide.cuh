// SPDX-License-Identifier: Apache-2.0
//
// The inner part of the forward kernel for head dims above 256: neither queries nor keys fit, so
// both pass through the ring in chunks of kChunk columns, and values in pieces of kValueCols.
//
// Of each key block: head_dim / kChunk items (a chunk of queries and of keys), whose products add
// up in registers; weights; then kHeadDimV / kValueCols items of values. All items have one stage
// size.
#pragma once

#include "cuda/device/forward/forward_base.cuh"

namespace flashtile::device {

template <class Config>
struct ForwardWide : ForwardBase<Config> {
  using Base = ForwardBase<Config>;
  using Base::acc;
  using Base::blocks;
  using Base::first_warp_row;
  using Base::kShape;
  using Base::kSlice;
  using Base::kThreads;
  using Base::kTilesM;
  using Base::params;
  using Base::rows;
  using Base::sequence;
  using Base::softmax;
  using Base::stage_address;
  using Base::state;
  using Scores = typename Base::Scores;
  static constexpr int kChunk = Config::kChunk;
  static constexpr int kNumChunks = Config::kHeadDim / kChunk;
  static constexpr int kValueCols = kShape.value_chunk();
  static constexpr int kNumPieces = Config::kHeadDimV / kValueCols;
  static constexpr int kNumItems = kNumChunks + kNumPieces;
  static_assert(kNumChunks * kChunk == Config::kHeadDim, "chunks fill the head dim");
  static_assert(kNumPieces * kValueCols == Config::kHeadDimV, "pieces fill the values");
  static_assert(Config::kWarpsN == 1 && Config::kHasScoreOptions, "what the plan gives");

  using QueryTile = TileOfQueries<Config::kElement, Base::kHasCodes, Config::kBlockM, kChunk>;
  using KeyTile = RowTile<Config::kKeyElement, Config::kBlockN, kChunk>;
  using ValueTile = ColumnTile<Config::kKeyElement, Config::kBlockN, kValueCols>;
  using QueryCopy = TileCopy<Config::kElement, QueryTile, Config::kBlockM, kChunk, kThreads,
                             Config::kQueryCopyBytes>;
  using KeyCopy =
      TileCopy<Config::kKeyElement, KeyTile, Config::kBlockN, kChunk, kThreads, Config::kCopyBytes>;
  using ValueCopy = TileCopy<Config::kKeyElement, ValueTile, Config::kBlockN, kValueCols, kThreads,
                             Config::kCopyBytes>;

  using Base::Base;

  /// The next item to copy.
  struct Cursor {
    int n_block;
    int item;
  };
  Cursor loading;
  int load_stage;

  FLASHTILE_DEVICE void load_chunk(int n_block, int chunk, int stage) {
    const uint32 tile = stage_address(stage);
    const int first_col = chunk * kChunk;
    const int64 skipped = first_col * params.q.element_stride;
    QueryCopy::copy(tile, params.head_dim - first_col, params.q.element_stride, [&](int row, int) {
      return query_row(params.q, sequence, rows.q_idx(row), rows.head_of(row)) + skipped;
    });
    this->template load_rows<KeyCopy>(state().keys, n_block, tile + QueryTile::kBytes, first_col,
                                      params.head_dim - first_col, params.k.element_stride);
    if (chunk + 1 < kNumChunks) return;
    this->template load_scales<false>(n_block, stage);
    this->template load_scales<true>(n_block, stage);
  }

  FLASHTILE_DEVICE void load_piece(int n_block, int piece, uint32 tile) {
    const int first_col = piece * kValueCols;
    this->template load_rows<ValueCopy>(state().values, n_block, tile, first_col,
                                        this->num_value_columns() - first_col,
                                        params.v.element_stride);
  }

  /// Goes on to the next item; a group of copies in any case.
  FLASHTILE_DEVICE void end_load() {
    load_stage = next_stage(load_stage);
    copy_async_commit();
  }

  /// Starts copying the next item, if there is one.
  FLASHTILE_DEVICE void load_next() {
    if (blocks.holds(loading.n_block)) {
      if (loading.item < kNumChunks) {
        load_chunk(loading.n_block, loading.item, load_stage);
      } else {
        load_piece(loading.n_block, loading.item - kNumChunks, stage_address(load_stage));
      }
      if (++loading.item == kNumItems) {
        loading.item = 0;
        loading.n_block = blocks.before(loading.n_block);
      }
    }
    end_load();
  }

  /// The first items: chunks, so that no other text is there once more.
  FLASHTILE_DEVICE void load_first() {
    constexpr int kAhead = Config::kNumStages - 1;
    static_assert(kAhead <= kNumChunks, "what comes first are chunks");
    loading = {blocks.before(blocks.end), kAhead};
    load_stage = 0;
    FLASHTILE_NO_UNROLL
    for (int chunk = 0; chunk < kAhead; ++chunk) {
      if (blocks.holds(loading.n_block)) load_chunk(loading.n_block, chunk, load_stage);
      end_load();
    }
  }

  /// Waits for the item of a stage and starts the copy into the one before it.
  FLASHTILE_DEVICE void take_item() {
    copy_async_wait<Config::kNumStages - 2>();
    sync_cta();
    load_next();
  }

  FLASHTILE_DEVICE static int next_stage(int stage) {
    return stage + 1 == Config::kNumStages ? 0 : stage + 1;
  }

  FLASHTILE_DEVICE void visit_blocks(bool is_careful) {
    this->reset();
    load_first();
    int n_block = loading.n_block;
    int stage = 0;
    FLASHTILE_NO_UNROLL
    for (; blocks.holds(n_block); n_block = blocks.before(n_block)) {
      Scores scores = {};
      HeldRows<Config::kElement, kTilesM, kChunk> held;
      int last_stage = 0;  // holds the scales
      FLASHTILE_NO_UNROLL
      for (int chunk = 0; chunk < kNumChunks; ++chunk) {
        take_item();
        const uint32 tile = stage_address(stage);
        accumulate_scores<Config::kElement, kTilesM, kSlice, kChunk, /*kInRegisters=*/false,
                          QueryTile, KeyTile>(scores, held, tile, first_warp_row,
                                              tile + QueryTile::kBytes, 0);
        last_stage = stage;
        stage = next_stage(stage);
      }
      this->scale_products(scores, last_stage, 0);
      typename Base::SliceWeights weights;
      const typename Base::Treatment treatment = this->treatment_of(n_block, is_careful);
      this->template prepare<false>(scores, treatment, n_block, 0);
      this->template weigh<false>(weights, scores, treatment, n_block, last_stage, 0);
      if (is_careful) this->find_seen_keys(n_block);
      FLASHTILE_UNROLL
      for (int piece = 0; piece < kNumPieces; ++piece) {
        take_item();
        const uint32 tile = stage_address(stage);
        if (is_careful) Base::template clear_unseen_values<ValueTile, kValueCols>(tile);
        accumulate_values<Config::kElement, kTilesM, Base::kTilesV, kSlice, kValueCols, ValueTile>(
            acc, weights, tile, 0, piece * (kValueCols / 8));
        stage = next_stage(stage);
      }
    }
    copy_async_wait<0>();
    softmax.finish_sums();
  }

  FLASHTILE_DEVICE void run() {
    FLASHTILE_NO_UNROLL
    for (int attempt = 0; attempt < 2; ++attempt) {
      visit_blocks(/*is_careful=*/attempt == 1);
      if (!sync_cta_any(!softmax.is_in_range(acc))) break;
    }
    this->finish_scales();
  }
};

}  // namespace flashtile::device
