// SPDX-License-Identifier: Apache-2.0
//
// What the backward kernels share that read their operands in chunks of columns, whatever their
// number: a CTA owns a block of rows (queries or keys) and visits blocks of columns (keys or
// queries). Each step is a sequence of items that pass through a ring of stages: chunks whose
// products add up to q k' and dout v', and pieces of what weights are multiplied by.
#pragma once

#include "cuda/device/copy/finite.cuh"
#include "cuda/device/copy/rows_view.cuh"
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

  template <bool kIsKey, bool kIsFirst>
  static constexpr int kBytesAtOnce = kIsKey     ? Config::kCopyBytes
                                      : kIsFirst ? Config::kQueryCopyBytes
                                                 : Config::kDoutCopyBytes;
  using ChunkTile = RowTile<Config::kElement, kStreamBlock, kChunk>;
  using PieceTile = ColumnTile<Config::kElement, kStreamBlock, kChunk>;
  template <class Tile, bool kIsKey, bool kIsFirst>
  using Copy = TileCopy<Config::kElement, Tile, kStreamBlock, kChunk, kThreads,
                        kBytesAtOnce<kIsKey, kIsFirst>>;
  /// Sums of tensor cores on float32 are short.
  static constexpr int kSlice = Config::kElement == Element::kF32 ? kFlushColumns : kCols;
  using Scores = float[1][kCols / 8][4];
  using SliceWeights = Weights<Config::kElement, 1, kSlice>;

  const StreamViews& views;
  const Steps& steps;
  uint32 shared;
  int own_head;           ///< of rows that are queries; else 0
  int first_row;          ///< of the CTA
  int part;               ///< which part of the columns of results
  int num_items;          ///< of a step: without pieces, or with
  int first_col_row = 0;  ///< of the column side: of block 0
  StreamStep loading{};
  int load_item = 0;
  int load_stage = 0;
  int stage = 0;

  FLASHTILE_DEVICE uint32 stage_address(int at) const {
    return shared + static_cast<uint32>(kShape.ring_begin() + at * kShape.stage_bytes());
  }
  FLASHTILE_DEVICE static int next_stage(int at) {
    return at + 1 == Config::kNumStages ? 0 : at + 1;
  }
  FLASHTILE_DEVICE int first_warp_row() const { return warp_idx() * 16; }

  template <bool kIsFirst>
  FLASHTILE_DEVICE void load_rows(uint32 tile, int first_col) const {
    using RowCopy = Copy<ChunkTile, Config::kRowsAreKeys, kIsFirst>;
    load_view<RowCopy>(tile, kIsFirst ? views.row_first : views.row_second, own_head, first_row,
                       first_col);
  }

  /// The CTA's own rows, where they stay.
  FLASHTILE_DEVICE void load_own_rows() const {
    if constexpr (Config::kRowsStay) {
      FLASHTILE_NO_UNROLL
      for (int chunk = 0; chunk < kNumChunks; ++chunk) {
        const uint32 tile = shared + static_cast<uint32>(chunk * ChunkTile::kBytes);
        if (chunk < kChunksD) {
          load_rows<true>(tile, chunk * kChunk);
        } else {
          load_rows<false>(tile, (chunk - kChunksD) * kChunk);
        }
      }
    }
  }

  template <bool kIsFirst>
  FLASHTILE_DEVICE void load_chunk(uint32 tile, int chunk) const {
    if constexpr (!Config::kRowsStay) {
      load_rows<kIsFirst>(tile, chunk * kChunk);
      tile += static_cast<uint32>(ChunkTile::kBytes);
    }
    using ColCopy = Copy<ChunkTile, !Config::kRowsAreKeys, kIsFirst>;
    load_view<ColCopy>(tile, kIsFirst ? views.col_first : views.col_second, loading.head,
                       first_col_row + loading.block * kCols, chunk * kChunk);
  }

  template <bool kIsFirst>
  FLASHTILE_DEVICE void load_piece(uint32 tile, int piece) const {
    using PieceCopy = Copy<PieceTile, !Config::kRowsAreKeys, kIsFirst>;
    const int first_col = part * (kIsFirst ? Config::kPartD : Config::kPartV) + piece * kChunk;
    load_view<PieceCopy>(tile, kIsFirst ? views.col_first : views.col_second, loading.head,
                         first_col_row + loading.block * kCols, first_col);
  }

  /// Starts copying the next item, if there is one; a group in any case. `on_step` is called at
  /// the first item of a step.
  template <class OnStep>
  FLASHTILE_DEVICE void load_next(const OnStep& on_step) {
    if (steps.holds(loading)) {
      const uint32 tile = stage_address(load_stage);
      if (load_item == 0) on_step(loading);
      if (load_item < kChunksD) {
        load_chunk<true>(tile, load_item);
      } else if (load_item < kNumChunks) {
        load_chunk<false>(tile, load_item - kChunksD);
      } else if (load_item < kNumChunks + kPiecesD) {
        load_piece<true>(tile, load_item - kNumChunks);
      } else {
        load_piece<false>(tile, load_item - kNumChunks - kPiecesD);
      }
      if (++load_item == num_items) {
        load_item = 0;
        loading = steps.next(loading);
      }
    }
    load_stage = next_stage(load_stage);
    copy_async_commit();
  }

  /// Makes the first items come. All threads have left the ring.
  template <class OnStep>
  FLASHTILE_DEVICE void begin(const StreamStep& first, int items_of_step, const OnStep& on_step) {
    loading = first;
    num_items = items_of_step;
    load_item = load_stage = stage = 0;
    FLASHTILE_NO_UNROLL
    for (int i = 0; i < Config::kNumStages - 1; ++i) load_next(on_step);
  }

  /// Waits for the next item and starts the copy into the stage that is free now; the item's tile.
  template <class OnStep>
  FLASHTILE_DEVICE uint32 take_item(const OnStep& on_step) {
    copy_async_wait<Config::kNumStages - 2>();
    sync_cta();
    load_next(on_step);
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

  template <int kTiles>
  FLASHTILE_DEVICE static bool is_finite_tile(const float (&acc)[1][kTiles][4]) {
    bool finite = true;
    FLASHTILE_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      FLASHTILE_UNROLL
      for (int r = 0; r < 4; ++r) finite = finite && is_finite(acc[0][n][r]);
    }
    return finite;
  }

  template <int kTiles>
  FLASHTILE_DEVICE static void set_zero(float (&acc)[1][kTiles][4]) {
    FLASHTILE_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      FLASHTILE_UNROLL
      for (int r = 0; r < 4; ++r) acc[0][n][r] = 0.0f;
    }
  }

  template <int kTiles>
  FLASHTILE_DEVICE static void scale(float (&acc)[1][kTiles][4], float factor) {
    FLASHTILE_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      FLASHTILE_UNROLL
      for (int r = 0; r < 4; ++r) acc[0][n][r] *= factor;
    }
  }
};

}  // namespace flashtile::device
