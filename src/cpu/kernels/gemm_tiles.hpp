// SPDX-License-Identifier: Apache-2.0
#pragma once

// The products of gemm_bf16.hpp over tile registers (amx_tiles.hpp; `Tiles` below). B's pairs of
// rows and A's rows are what tiles read in memory.
//
// 32 x 32 of C stand in four registers, two more hold A, two B. A step takes 32 of k: four loads (8
// cycles each from L1) for four products (16 each), so products are the limit. Rows go outside and
// columns inside: A's 32 rows, turned where A is transposed, serve for all columns. What is no
// whole tile is copied, with zeros: the last pairs of k of both, and A where rows are missing.
//
// Sums that go on from C by itself (`accumulate`, alpha 1) start in C: a chain of tiles over k,
// whatever the block it falls in. Others start from zero, as in gemm.hpp.

#include "cpu/kernels/gemm_bf16.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

inline constexpr int64_t kTileSide = 16;      ///< rows, pairs and floats of a register
inline constexpr int64_t kTileK = 32;         ///< elements of k in a step
inline constexpr int64_t kTileRowBytes = 64;  ///< of a register
inline constexpr int64_t kTileMaxK = 256;     ///< that a copy of A holds; longer sums are split
inline constexpr int64_t kTileMaxCols = 128;  ///< likewise of B's last pairs
inline constexpr int64_t kBlockRows = 2 * kTileSide;  ///< of C in registers

/// Steps of an operand in place, and the last one, which may be a copy.
struct TileSteps {
  const Bf16* whole;
  int64_t whole_ld;  ///< elements from a row of tiles to the next
  const Bf16* last;
  int64_t last_ld;
};

/// `count` pairs, zeros up to kTileSide.
FLASHTILE_INLINE void copy_pair_row(const Bf16* from, int64_t count, Bf16* to) {
  for (int64_t p = 0; p < kTileSide; p += kLanes) {
    store_u(reinterpret_cast<uint32_t*>(to + 2 * p),
            load_u_partial(reinterpret_cast<const uint32_t*>(from + 2 * p), count - p));
  }
}

/// Pairs [first, first + kTileSide) of kTileSide rows of A, zeros where there are none; `to` has
/// rows of `ld` elements.
FLASHTILE_INLINE void copy_tile(const GemmPairsA& a, int64_t row, int64_t rows, int64_t first,
                                int64_t pairs, Bf16* to, int64_t ld) {
  const int64_t count = pairs - first;
  if (a.pair_stride == 2) {
    for (int64_t i = 0; i < kTileSide; ++i, to += ld) {
      const Bf16* from = a.data + (row + i) * a.row_stride + first * 2;
      copy_pair_row(from, i < rows ? count : 0, to);
    }
    return;
  }
  // Pairs of neighbouring rows lie side by side.
  for (int64_t i = 0; i < kTileSide; i += kLanes) {
    for (int64_t p = 0; p < kTileSide; p += kLanes) {
      Vu block[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) {
        const Bf16* from = a.data + (row + i) * 2 + (first + p + lane) * a.pair_stride;
        block[lane] = load_u_partial(reinterpret_cast<const uint32_t*>(from),
                                     p + lane < count ? rows - i : 0);
      }
      transpose(block);
      for (int lane = 0; lane < kLanes; ++lane) {
        store_u(reinterpret_cast<uint32_t*>(to + (i + lane) * ld + 2 * p), block[lane]);
      }
    }
  }
}

/// Where a block of C stands.
struct TileBlock {
  int64_t row, rows;  ///< rows <= kBlockRows
  int64_t col;
  int64_t steps;
};

/// Registers 0 to 3 hold kRows x kCols tiles of C, two a row.
template <class Tiles, int kRows, int kCols>
FLASHTILE_INLINE void clear_sums() {
  Tiles::template clear<0>();
  if constexpr (kCols == 2) Tiles::template clear<1>();
  if constexpr (kRows == 2) Tiles::template clear<2>();
  if constexpr (kRows == 2 && kCols == 2) Tiles::template clear<3>();
}

template <class Tiles, int kRows, int kCols>
FLASHTILE_INLINE void load_sums(const float* from, int64_t ld) {
  const float* below = from + kTileSide * ld;
  Tiles::template load<0>(from, ld * 4);
  if constexpr (kCols == 2) Tiles::template load<1>(from + kTileSide, ld * 4);
  if constexpr (kRows == 2) Tiles::template load<2>(below, ld * 4);
  if constexpr (kRows == 2 && kCols == 2) Tiles::template load<3>(below + kTileSide, ld * 4);
}

template <class Tiles, int kRows, int kCols>
FLASHTILE_INLINE void store_sums(float* to, int64_t ld) {
  float* below = to + kTileSide * ld;
  Tiles::template store<0>(to, ld * 4);
  if constexpr (kCols == 2) Tiles::template store<1>(to + kTileSide, ld * 4);
  if constexpr (kRows == 2) Tiles::template store<2>(below, ld * 4);
  if constexpr (kRows == 2 && kCols == 2) Tiles::template store<3>(below + kTileSide, ld * 4);
}

/// kRows x kCols registers of C.
template <class Tiles, int kRows, int kCols>
FLASHTILE_NOINLINE void multiply_block(const TileSteps& a, const TileSteps& b,
                                       const TileBlock& block, const GemmC& out) {
  if (out.prefetch != nullptr) out.prefetch->step();
  constexpr int64_t kWidth = kCols * kTileSide;
  alignas(64) float room[static_cast<size_t>(kBlockRows * kWidth)];
  const bool is_whole = block.rows == kRows * kTileSide;
  // Sums from zero that are put together with C afterwards.
  const bool has_factor = out.alpha != 1.0f || (out.addend != nullptr && !out.accumulate);
  float* c = out.c + block.row * out.ldc + block.col;
  float* sums = is_whole && !has_factor ? c : room;
  const int64_t sums_ld = sums == c ? out.ldc : kWidth;

  if (out.accumulate && !has_factor) {
    if (sums != c || out.row_scale != nullptr) {
      for (int64_t i = 0; i < block.rows; ++i) {
        const Vf scale = broadcast(out.row_scale != nullptr ? out.row_scale[block.row + i] : 1.0f);
        for (int64_t j = 0; j < kWidth; j += kLanes) {
          store(sums + i * sums_ld + j, load(c + i * out.ldc + j) * scale);
        }
      }
    }
    load_sums<Tiles, kRows, kCols>(sums, sums_ld);
  } else {
    clear_sums<Tiles, kRows, kCols>();
  }

  const auto step = [&](const Bf16* left, int64_t left_ld, const Bf16* right, int64_t right_ld) {
    Tiles::template load<6>(right, right_ld * 2);
    Tiles::template load<4>(left, left_ld * 2);
    Tiles::template dot<0, 4, 6>();
    if constexpr (kCols == 2) {
      Tiles::template load<7>(right + 2 * kTileSide, right_ld * 2);
      Tiles::template dot<1, 4, 7>();
    }
    if constexpr (kRows == 2) {
      Tiles::template load<5>(left + kTileSide * left_ld, left_ld * 2);
      Tiles::template dot<2, 5, 6>();
      if constexpr (kCols == 2) Tiles::template dot<3, 5, 7>();
    }
  };
  const Bf16* left = a.whole;
  const Bf16* right = b.whole + 2 * block.col;
  for (int64_t s = 0; s + 1 < block.steps; ++s) {
    step(left, a.whole_ld, right, b.whole_ld);
    left += kTileK;
    right += kTileSide * b.whole_ld;
  }
  if (block.steps > 0) step(a.last, a.last_ld, b.last + 2 * block.col, b.last_ld);

  store_sums<Tiles, kRows, kCols>(sums, sums_ld);
  if (sums == c) return;

  const Vf alpha = broadcast(out.alpha);
  const float* addend = !has_factor ? nullptr : out.accumulate ? out.c : out.addend;
  const int64_t addend_stride = out.accumulate ? out.ldc : out.addend_row_stride;
  if (addend != nullptr) addend += block.row * addend_stride + block.col;
  for (int64_t i = 0; i < block.rows; ++i) {
    const Vf scale = broadcast(out.row_scale != nullptr ? out.row_scale[block.row + i] : 1.0f);
    FLASHTILE_UNROLL
    for (int64_t j = 0; j < kWidth; j += kLanes) {
      const Vf x = load(sums + i * kWidth + j);
      store(c + i * out.ldc + j, addend == nullptr
                                     ? x * alpha
                                     : fma(x, alpha, load(addend + i * addend_stride + j) * scale));
    }
  }
}

/// A block of `rows` rows and `cols` columns, both at most 32 and the columns whole registers.
template <class Tiles>
FLASHTILE_INLINE void multiply_any_block(const TileSteps& a, const TileSteps& b,
                                         const TileBlock& block, int64_t cols, const GemmC& out) {
  if (block.rows > kTileSide) {
    if (cols > kTileSide) return multiply_block<Tiles, 2, 2>(a, b, block, out);
    return multiply_block<Tiles, 2, 1>(a, b, block, out);
  }
  if (cols > kTileSide) return multiply_block<Tiles, 1, 2>(a, b, block, out);
  multiply_block<Tiles, 1, 1>(a, b, block, out);
}

/// Columns [col, col + cols) of C for at most kTileMaxK of k, in `pairs`.
template <class Tiles>
void multiply_columns(int64_t m, int64_t col, int64_t cols, int64_t pairs, const GemmPairsA& a,
                      const Bf16* b, int64_t ldb, const GemmC& out) {
  alignas(64) Bf16 b_last[static_cast<size_t>(kTileSide * kTileMaxCols * 2)];
  alignas(64) Bf16 a_copy[static_cast<size_t>(kBlockRows * kTileMaxK)];
  const int64_t steps = (pairs + kTileSide - 1) / kTileSide;
  const int64_t last = (steps - 1) * kTileSide;  // the first pair of the last step
  const bool is_even = steps * kTileSide == pairs;
  TileSteps right{b, ldb * 2, b + last * ldb * 2, ldb * 2};
  if (!is_even) {
    for (int64_t p = 0; p < kTileSide; ++p) {
      for (int64_t j = 0; j < cols; j += kTileSide) {
        const Bf16* from = b + ((last + p) * ldb + col + j) * 2;
        copy_pair_row(from, last + p < pairs ? kTileSide : 0, b_last + (p * kTileMaxCols + j) * 2);
      }
    }
    right.last = b_last - 2 * col;
    right.last_ld = kTileMaxCols * 2;
  }
  for (int64_t row = 0; row < m; row += kBlockRows) {
    const int64_t rows = m - row < kBlockRows ? m - row : kBlockRows;
    const Bf16* in_place = a.data + row * a.row_stride;
    TileSteps left{in_place, a.row_stride, in_place + last * 2, a.row_stride};
    const bool is_copied = a.pair_stride != 2 || rows % kTileSide != 0;
    const int64_t ld = is_copied ? steps * kTileK : kTileK;
    for (int64_t step = is_copied ? 0 : is_even ? steps : steps - 1; step < steps; ++step) {
      for (int64_t i = 0; i < rows; i += kTileSide) {
        copy_tile(a, row + i, rows - i, step * kTileSide, pairs,
                  a_copy + i * ld + (is_copied ? step * kTileK : 0), ld);
      }
    }
    if (is_copied) left = {a_copy, ld, a_copy + last * 2, ld};
    if (!is_copied && !is_even) {
      left.last = a_copy;
      left.last_ld = ld;
    }
    for (int64_t j = 0; j < cols; j += kBlockRows) {
      multiply_any_block<Tiles>(left, right, {row, rows, col + j, steps}, cols - j, out);
    }
  }
}

template <class Tiles>
FLASHTILE_INLINE void multiply_tiles(int64_t m, int64_t n, int64_t k, const GemmPairsA& a,
                                     const Bf16* b, int64_t ldb, GemmC out) {
  const int64_t pairs = (k + 1) / 2;
  const int64_t columns = (n + kTileSide - 1) / kTileSide * kTileSide;
  for (int64_t first = 0; first == 0 || first < pairs; first += kTileMaxK / 2) {
    const int64_t left = pairs - first;
    const int64_t count = left < kTileMaxK / 2 ? left : kTileMaxK / 2;
    const GemmPairsA part{a.data + first * a.pair_stride, a.row_stride, a.pair_stride};
    for (int64_t col = 0; col < columns; col += kTileMaxCols) {
      const int64_t cols = columns - col < kTileMaxCols ? columns - col : kTileMaxCols;
      multiply_columns<Tiles>(m, col, cols, count, part, b + first * ldb * 2, ldb, out);
    }
    out.accumulate = true;
    out.row_scale = nullptr;
  }
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
