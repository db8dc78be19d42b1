// SPDX-License-Identifier: Apache-2.0
//
// What the backward kernels share that read their operands in chunks of columns, whatever their
// number: a CTA owns a block of rows (queries or keys) and visits blocks of columns (keys or
// queries). Each step is a sequence of items that pass through a ring of stages: chunks whose
// products add up to q k' and dout v', and pieces of what weights are multiplied by.
#pragma once

#include "cuda/device/copy/finite.cuh"
#include "cuda/device/copy/rows_view.cuh"
#include "cuda/device/epilogue/store_rows.cuh"
#include "cuda/device/mma/operands.cuh"
#include "cuda/device/params/stream_shape.hpp"

namespace flashtile::device {

/// The operands of both products, by side.
struct StreamViews {
  RowsView row_first, row_second;  ///< q and dout, or k and v
  RowsView col_first, col_second;  ///< k and v, or q and dout
};

/// A block of columns; `head` counts where columns are queries.
struct StreamStep {
  int head;
  int block;
};

/// `Steps` says which blocks are visited: holds(step), next(step).
template <class ConfigOfKernel, class Steps>
struct BackwardStream {
  using Config = ConfigOfKernel;
  static constexpr StreamShape kShape = {element_bytes(Config::kElement),
                                         Config::kHeadDim,
                                         Config::kHeadDimV,
                                         Config::kChunk,
                                         Config::kNumStages,
                                         Config::kRowsStay};
  static constexpr int kThreads = StreamShape::num_threads();
  static constexpr int kRows = kStreamBlock;
  static constexpr int kCols = kStreamBlock;
  static constexpr int kChunk = Config::kChunk;
  static constexpr int kChunksD = Config::kHeadDim / kChunk;
  static constexpr int kChunksV = Config::kHeadDimV / kChunk;
  static constexpr int kNumChunks = kChunksD + kChunksV;
  /// Pieces of the first and of the second column operand that this CTA multiplies by.
  static constexpr int kPiecesD = Config::kPartD / kChunk;
  static constexpr int kPiecesV = Config::kPartV / kChunk;
  static_assert(kChunksD * kChunk == Config::kHeadDim && kChunksV * kChunk == Config::kHeadDimV,
                "chunks fill the head dims");
  static_assert(kPiecesD * kChunk == Config::kPartD && kPiecesV * kChunk == Config::kPartV,
                "pieces fill the parts");
  static_assert(Config::kBlockM == kStreamBlock && Config::kBlockN == kStreamBlock,
                "blocks are square, so that one map of blocks serves all");

  /// One text copies both operands of a side.
  template <bool kIsKey>
  static constexpr int kBytesAtOnce =
      kIsKey                                             ? Config::kCopyBytes
      : Config::kQueryCopyBytes < Config::kDoutCopyBytes ? Config::kQueryCopyBytes
                                                         : Config::kDoutCopyBytes;
  using ChunkTile = RowTile<Config::kElement, kStreamBlock, kChunk>;
  using PieceTile = ColumnTile<Config::kElement, kStreamBlock, kChunk>;
  template <class Tile, bool kIsKey>
  using Copy =
      TileCopy<Config::kElement, Tile, kStreamBlock, kChunk, kThreads, kBytesAtOnce<kIsKey>>;
  /// Sums of tensor cores on float32 are short.
  static constexpr int kSlice = Config::kElement == Element::kF32 ? kFlushColumns : kCols;
  using Scores = float[1][kCols / 8][4];
  using SliceWeights = Weights<Config::kElement, 1, kSlice>;

  const StreamViews& views;
  Steps steps;
  uint32 shared;
  int own_head;           ///< of rows that are queries; else 0
  int first_row;          ///< of the CTA
  int part;               ///< which part of the columns of results
  int num_items;          ///< of a step: without pieces, or with
  int first_col_row = 0;  ///< of the column side: of block 0
  StreamStep loading{};
  int load_item = 0;
  int load_stage = 0;
  int items_ahead = 0;  ///< to be loaded before the first one is taken
  int stage = 0;

  FLASHTILE_DEVICE uint32 stage_address(int at) const {
    return shared + static_cast<uint32>(kShape.ring_begin() + at * kShape.stage_bytes());
  }
  FLASHTILE_DEVICE static int next_stage(int at) {
    return at + 1 == Config::kNumStages ? 0 : at + 1;
  }
  FLASHTILE_DEVICE int first_warp_row() const { return warp_idx() * 16; }

  FLASHTILE_DEVICE void load_rows(uint32 tile, bool is_first, int first_col) const {
    load_view<Copy<ChunkTile, Config::kRowsAreKeys>>(
        tile, is_first ? views.row_first : views.row_second, own_head, first_row, first_col);
  }

  template <class Tile>
  FLASHTILE_DEVICE void load_columns(uint32 tile, bool is_first, int first_col) const {
    load_view<Copy<Tile, !Config::kRowsAreKeys>>(
        tile, is_first ? views.col_first : views.col_second, loading.head,
        first_col_row + loading.block * kCols, first_col);
  }

  /// The CTA's own rows, where they stay.
  FLASHTILE_DEVICE void load_own_rows() const {
    if constexpr (Config::kRowsStay) {
      FLASHTILE_NO_UNROLL
      for (int chunk = 0; chunk < kNumChunks; ++chunk) {
        const bool is_first = chunk < kChunksD;
        load_rows(shared + static_cast<uint32>(chunk * ChunkTile::kBytes), is_first,
                  (is_first ? chunk : chunk - kChunksD) * kChunk);
      }
    }
  }

  /// A chunk of rows and columns, or a piece of columns.
  FLASHTILE_DEVICE void load_one(uint32 tile) const {
    const bool is_chunk = load_item < kNumChunks;
    const int item = is_chunk ? load_item : load_item - kNumChunks;
    const int num_first = is_chunk ? kChunksD : kPiecesD;
    const bool is_first = item < num_first;
    int first_col = (is_first ? item : item - num_first) * kChunk;
    if (!is_chunk) first_col += part * (is_first ? Config::kPartD : Config::kPartV);
    if (is_chunk && !Config::kRowsStay) {
      load_rows(tile, is_first, first_col);
      tile += static_cast<uint32>(ChunkTile::kBytes);
    }
    // Only tiles of float32 differ.
    if (is_chunk || Config::kElement != Element::kF32) {
      load_columns<ChunkTile>(tile, is_first, first_col);
    } else {
      load_columns<PieceTile>(tile, is_first, first_col);
    }
  }

  /// Starts copying the next item, if there is one; a group in any case. `on_step` is called at
  /// the first item of a step.
  template <class OnStep>
  FLASHTILE_DEVICE void load_next(const OnStep& on_step) {
    if (steps.holds(loading)) {
      if (load_item == 0) on_step(loading);
      load_one(stage_address(load_stage));
      if (++load_item == num_items) {
        load_item = 0;
        loading = steps.next(loading);
      }
    }
    load_stage = next_stage(load_stage);
    copy_async_commit();
  }

  /// Makes the first items come. All threads have left the ring.
  FLASHTILE_DEVICE void begin(const StreamStep& first, int items_of_step) {
    loading = first;
    num_items = items_of_step;
    load_item = load_stage = stage = 0;
    items_ahead = Config::kNumStages - 1;
  }

  /// Waits for the next item and starts the copy into the stage that is free now; the item's tile.
  /// The first time it starts those before that, too: copies are a long text.
  template <class OnStep>
  FLASHTILE_DEVICE uint32 take_item(const OnStep& on_step) {
    FLASHTILE_NO_UNROLL
    for (;; --items_ahead) {
      if (items_ahead == 0) {
        copy_async_wait<Config::kNumStages - 2>();
        sync_cta();
      }
      load_next(on_step);
      if (items_ahead == 0) break;
    }
    const uint32 tile = stage_address(stage);
    stage = next_stage(stage);
    return tile;
  }

  /// Both products of the warp's rows and a step's columns.
  template <class OnStep>
  FLASHTILE_DEVICE void multiply(Scores& s, Scores& dp, const OnStep& on_step) {
    const HeldRows<Config::kElement, 1, kChunk> none = {};
    FLASHTILE_NO_UNROLL
    for (int chunk = 0; chunk < kNumChunks; ++chunk) {
      uint32 cols = take_item(on_step);
      uint32 rows = cols;
      if constexpr (Config::kRowsStay) {
        rows = shared + static_cast<uint32>(chunk * ChunkTile::kBytes);
      } else {
        cols += static_cast<uint32>(ChunkTile::kBytes);
      }
      if (chunk == kChunksD) {
        FLASHTILE_UNROLL
        for (int n = 0; n < kCols / 8; ++n) {
          FLASHTILE_UNROLL
          for (int r = 0; r < 4; ++r) {
            s[0][n][r] = dp[0][n][r];
            dp[0][n][r] = 0.0f;
          }
        }
      }
      accumulate_scores<Config::kElement, 1, kCols, kChunk, false, ChunkTile, ChunkTile,
                        Config::kRowsAreKeys>(dp, none, rows, first_warp_row(), cols, 0);
    }
  }

  /// acc += weights . the step's columns, piece by piece; with `is_careful` only finite ones.
  template <int kPieces, class OnStep>
  FLASHTILE_DEVICE void add_pieces(float (&acc)[1][kPieces * kChunk / 8][4], const Scores& weights,
                                   bool is_careful, const OnStep& on_step) {
    SliceWeights operands[kCols / kSlice];
    FLASHTILE_UNROLL
    for (int slice = 0; slice < kCols / kSlice; ++slice) {
      float part_of[1][kSlice / 8][4];
      FLASHTILE_UNROLL
      for (int n = 0; n < kSlice / 8; ++n) {
        FLASHTILE_UNROLL
        for (int r = 0; r < 4; ++r) part_of[0][n][r] = weights[0][slice * (kSlice / 8) + n][r];
      }
      operands[slice].set(part_of);
    }
    // Three products for each of float32 are long: they are there once, and the tiles of acc take
    // turns in the registers of the first ones.
    constexpr bool kTakesTurns = Config::kElement == Element::kF32;
    constexpr int kTiles = kChunk / 8;
    constexpr int kUnrolled = kTakesTurns ? 1 : kPieces;
    FLASHTILE_NO_UNROLL
    for (int first = 0; first < kPieces; first += kUnrolled) {
      FLASHTILE_UNROLL
      for (int i = 0; i < kUnrolled; ++i) {
        const uint32 tile = take_item(on_step);
        if (is_careful) {
          clear_nonfinite<Config::kElement, PieceTile::kBytes, kThreads>(tile);
          sync_cta();
        }
        FLASHTILE_UNROLL
        for (int slice = 0; slice < kCols / kSlice; ++slice) {
          accumulate_values<Config::kElement, 1, kPieces * kTiles, kSlice, kChunk, PieceTile>(
              acc, operands[slice], tile, slice * kSlice, i * kTiles);
        }
      }
      if constexpr (kTakesTurns) turn_tiles<kTiles>(acc);
    }
  }

  /// Written so that an element takes one operation: 0 times any that is not finite is NaN.
  template <int kTiles>
  FLASHTILE_DEVICE static bool is_finite_tile(const float (&acc)[1][kTiles][4]) {
    float probes[4] = {};
    FLASHTILE_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      FLASHTILE_UNROLL
      for (int r = 0; r < 4; ++r) probes[r] = fused_multiply_add(acc[0][n][r], 0.0f, probes[r]);
    }
    return (probes[0] + probes[1]) + (probes[2] + probes[3]) == 0.0f;
  }

  /// Writes the rows of a warp, times a factor; `address(row)` gives where one begins, null for one
  /// that is not there. A few tiles at a time, for the sake of the text: once for each CTA.
  template <int kTiles, class RowAddress>
  FLASHTILE_DEVICE void store(float (&acc)[1][kTiles][4], float factor, int num_cols,
                              int64 element_stride, const RowAddress& address) const {
    constexpr int kAtOnce = kTiles % 4 == 0 ? 4 : 2;
    FLASHTILE_NO_UNROLL
    for (int first = 0; first < kTiles; first += kAtOnce) {
      float some[1][kAtOnce][4];
      FLASHTILE_UNROLL
      for (int n = 0; n < kAtOnce; ++n) {
        FLASHTILE_UNROLL
        for (int r = 0; r < 4; ++r) some[0][n][r] = acc[0][n][r] * factor;
      }
      store_elements<Config::kElement, false, 1, kAtOnce>(
          some, first_warp_row(), num_cols - first * 8, element_stride, [&](int row) -> char* {
            char* const begin = address(row);
            return begin == nullptr ? nullptr : begin + first * 8 * element_stride;
          });
      turn_tiles<kAtOnce>(acc);
    }
  }

  template <int kTiles>
  FLASHTILE_DEVICE static void set_zero(float (&acc)[1][kTiles][4]) {
    FLASHTILE_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      FLASHTILE_UNROLL
      for (int r = 0; r < 4; ++r) acc[0][n][r] = 0.0f;
    }
  }
};

}  // namespace flashtile::device
