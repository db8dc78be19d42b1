// SPDX-License-Identifier: Apache-2.0
//
// What the forward kernels share: the running state of a warp's rows, the way from products to
// weights, and rows of keys that are read as zero.
#pragma once

#include "cuda/device/copy/load_tile.cuh"
#include "cuda/device/forward/forward_state.cuh"
#include "cuda/device/mma/operands.cuh"
#include "cuda/device/score/dropout.cuh"
#include "cuda/device/score/logits.cuh"
#include "cuda/device/softmax/online.cuh"

namespace flashtile::device {

/// How a thread knows its key blocks: where they lie in shared memory, or by itself, if it has
/// registers for them.
template <class Blocks, bool kInRegisters>
struct BlocksOf {
  using Type = const Blocks&;
};
template <class Blocks>
struct BlocksOf<Blocks, true> {
  using Type = const Blocks;
};

template <class ConfigOfKernel>
struct ForwardBase {
  using Config = ConfigOfKernel;
  static constexpr ForwardShape kShape = {element_bytes(Config::kElement),
                                          Config::kHeadDim,
                                          Config::kHeadDimV,
                                          Config::kBlockM,
                                          Config::kBlockN,
                                          Config::kWarpsM,
                                          Config::kWarpsN,
                                          Config::kNumStages,
                                          Config::kChunk,
                                          Config::kSharesWeights,
                                          Config::kValuesInKeys,
                                          element_bytes(Config::kKeyElement),
                                          Config::kCopiesKeyScales || Config::kCopiesValueScales};
  static constexpr int kThreads = kShape.num_threads();
  /// Those that copy: all, or the last warpgroup.
  static constexpr int kCopyThreads = Config::kValuesInKeys ? 128 : kThreads;
  static constexpr int kFirstCopyThread = kThreads - kCopyThreads;
  static constexpr int kTilesM = Config::kBlockM / (16 * Config::kWarpsM);
  /// Columns of values that a warp sums.
  static constexpr int kOwnCols =
      Config::kSharesWeights ? Config::kHeadDimV / Config::kWarpsN : Config::kHeadDimV;
  static constexpr int kTilesV = kOwnCols / 8;
  static constexpr int kSlice = Config::kSlice;
  /// Warps that divide the keys of a block.
  static constexpr int kKeyShares = Config::kValuesInKeys ? 1 : Config::kWarpsN;
  static constexpr int kNumSlices = Config::kBlockN / (kSlice * kKeyShares);
  /// Keys and values of 8 bits.
  static constexpr bool kHasCodes = Config::kKeyElement != Config::kElement;
  static constexpr bool kColumnsInFours = kHasCodes && Config::kElement != Element::kF32;
  /// float16 weights have no room for any scale: they are multiplied by what it is of another one.
  static constexpr bool kHasRelativeScales =
      Config::kCopiesValueScales && Config::kElement == Element::kF16;
  using Kind = LogitKind<Config>;
  static constexpr bool kIsGeneral = Kind::kIsGeneral;
  /// There is a text for scores that read nothing outside of the user's tensors.
  static constexpr bool kHasInsideText = Config::Expressions::kIsScoreLinear && !Config::kPackHeads;
  static constexpr bool kIsCapped = Kind::kIsCapped;
  static constexpr bool kIsTilted = Kind::kIsTilted;
  /// Blocks that need nothing else have terms added to exponents.
  static constexpr bool kAddsTerms = Kind::kAddsTerms && kHasInsideText && kNumSlices > 1;
  /// Rows of a lane have references in a line, so that what is added to a product depends on the
  /// key alone, or on its distance.
  static constexpr bool kAlignsReferences =
      (kIsTilted || kAddsTerms) && !Config::kPackHeads && !Config::kValuesInKeys;
  /// bf16 and TF32 have float32's exponents.
  static constexpr bool kFixedReference = Config::kElement != Element::kF16;
  /// Products with the scale may overflow; or float32, where a large logit less itself must be 0.
  static constexpr bool kWideLogits = kIsGeneral || Config::kElement == Element::kF32;
  static_assert(kTilesM * 16 * Config::kWarpsM == Config::kBlockM, "warps share the rows");
  /// Of a swizzled tile of values.
  static constexpr int kGroupCols = 128 / kShape.key_element_bytes;
  static_assert(!Config::kSharesWeights || (kOwnCols % kGroupCols == 0 && kGroupCols >= 64),
                "columns of a warp are groups of a swizzled tile");
  static_assert(kNumSlices * kSlice * kKeyShares == Config::kBlockN, "slices fill a block");

  using State = ForwardState<Config>;
  using Rows = QueryRows<Config::kPackHeads>;
  using Blocks = typename State::Blocks;
  using Softmax = OnlineSoftmax<Config, kTilesM>;
  using Scores = float[kTilesM][kSlice / 8][4];
  using Ranges = RowRanges<Config, kTilesM>;
  using SliceWeights = Weights<Config::kElement, kTilesM, kSlice>;
  static_assert(sizeof(State) <= ForwardShape::kStateBytes, "the state fits its place");

  FLASHTILE_DEVICE static State& state() {
    return *reinterpret_cast<State*>(shared_memory() + kShape.state_begin());
  }

  const AttentionParams& params;
  const Sequence& sequence;
  const Rows& rows;
  typename BlocksOf<Blocks, Config::kValuesInKeys>::Type blocks;
  ScoreRules<Config> rules;
  int first_warp_row;  ///< of the warp, in the tile
  int warp_n;          ///< which share of each key block is the warp's
  uint32 shared;       ///< where shared memory begins

  /// Few rows, or threads that only copy, leave registers for a page of the next block. A thread
  /// knows the place of one key, and eight neighbours copy the rows that they know.
  static constexpr bool kKeepsPages = Config::kPaged && Config::kNumStages > 1 &&
                                      (Config::kBlockM <= 16 || Config::kValuesInKeys) &&
                                      Config::kChunk == 0 && Config::kBoxRows == 0;
  static constexpr int kRowsAtOnce = kCopyThreads / 8;
  static_assert(!kKeepsPages ||
                    (Config::kBlockN % kRowsAtOnce == 0 && Config::kBlockN <= 8 * kRowsAtOnce),
                "a key for each thread at most");
  typename KeyRows<Config::kPaged>::Place known_place;

  Softmax softmax;
  float acc[kTilesM][kTilesV][4];
  float max_logit[kTilesM][2];
  /// Slopes of the lane's rows, negative and in log2 units; one where rows have one head.
  static constexpr int kSlopeTiles = Config::kPackHeads ? kTilesM : 1;
  float slopes[kSlopeTiles][2];
  float lane_distance;  ///< of the lane's first row behind its first key, within warp and slice
  int aligned_side;     ///< kAlignsReferences: 1 for keys behind the queries, -1 before; or 0
  float key_scale;      ///< of all keys, or 1
  float value_scale;    ///< what sums of values have yet to be multiplied by

  /// Log2 units of a logit as softmax gets it: of a natural one, of one that is in these units, of
  /// a capped one, or of a bare product.
  FLASHTILE_DEVICE static float logit_scale(const AttentionParams& params) {
    if constexpr (kIsGeneral) return kLog2e;
    if constexpr (kIsTilted) return 1.0f;
    if constexpr (kIsCapped) return params.softcap * kLog2e;
    // A scale of 0 would make 0 * -inf of what is hidden.
    return larger(absolute(params.softmax_scale), 1e-30f) * kLog2e;
  }

  FLASHTILE_DEVICE ForwardBase(const AttentionParams& p,
                               const typename Config::Expressions::Params& user)
      : params(p),
        sequence(state().sequence),
        rows(state().rows),
        blocks(state().blocks),
        rules{p, user, state().sequence, state().position},
        softmax(logit_scale(p)) {
    const int warp = warp_idx();
    first_warp_row = warp % Config::kWarpsM * kTilesM * 16;
    warp_n = warp / Config::kWarpsM;
    shared = shared_address(shared_memory());
    if constexpr (kHasCodes) {
      key_scale = Config::kCopiesKeyScales ? 1.0f : scale_of_all(params.k_scale);
      value_scale = Config::kCopiesValueScales ? 1.0f : scale_of_all(params.v_scale);
    }
    if constexpr (kIsTilted) {
      const int lane = lane_idx();
      lane_distance = static_cast<float>(first_warp_row + lane / 4 - lane % 4 * 2);
      for_each_row<kSlopeTiles>(first_warp_row, [&](int m, int half, int row) {
        slopes[m][half] = -kLog2e * rules.slope(rows.head_of(row));
      });
    }
  }

  // ---- Scales of keys and values of 8 bits

  /// Of a sequence's keys, where pages have no scales of their own.
  FLASHTILE_DEVICE float scale_of_all(const HeadScalarsParam& scales) const {
    if (scales.data == nullptr) return 1.0f;
    return load_global(scale_of(scales, scale_line(params.lengths, sequence),
                                State::head_kv_of(params, state().tile)));
  }

  template <bool kOfValues>
  FLASHTILE_DEVICE uint32 scale_address(int stage, int key) const {
    return stage_address(stage) +
           static_cast<uint32>(kShape.scales_begin() + (kOfValues * Config::kBlockN + key) * 4);
  }

  /// Copies those of a block's keys or values, together with their rows.
  template <bool kOfValues>
  FLASHTILE_DEVICE void load_scales(int n_block, int stage) const {
    if constexpr (kOfValues ? Config::kCopiesValueScales : Config::kCopiesKeyScales) {
      const HeadScalarsParam& scales = kOfValues ? params.v_scale : params.k_scale;
      const auto copy_scale = [&](int row, int page) {
        const float* source = scale_of(scales, clamp(page, 0, params.lengths.num_lines - 1),
                                       State::head_kv_of(params, state().tile));
        copy_async<4>(scale_address<kOfValues>(stage, row), source, 4);
      };
      if constexpr (kKeepsPages) {
        if (known_row() < Config::kBlockN) copy_scale(known_row(), known_place.page);
      } else {
        for (int row = thread_idx(); row < Config::kBlockN; row += kThreads) {
          copy_scale(row, place_of(n_block * Config::kBlockN + row).page);
        }
      }
    }
  }

  /// Products with stored keys become products with keys.
  FLASHTILE_DEVICE void scale_products(Scores& scores, int stage, int column) const {
    if constexpr (Config::kCopiesKeyScales) {
      scale_columns(scores, scale_address<false>(stage, column), 1.0f);
    } else if constexpr (kHasCodes) {
      FLASHTILE_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        FLASHTILE_UNROLL
        for (int n = 0; n < kSlice / 8; ++n) {
          FLASHTILE_UNROLL
          for (int r = 0; r < 4; ++r) scores[m][n][r] *= key_scale;
        }
      }
    }
  }

  FLASHTILE_DEVICE static void scale_columns(Scores& scores, uint32 scales, float factor) {
    FLASHTILE_UNROLL
    for (int n = 0; n < kSlice / 8; ++n) {
      const FloatPair pair =
          load_shared_pair(scales + static_cast<uint32>(n * 32 + lane_idx() % 4 * 8));
      FLASHTILE_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        FLASHTILE_UNROLL
        for (int r = 0; r < 4; ++r) scores[m][n][r] *= (r % 2 == 0 ? pair.x : pair.y) * factor;
      }
    }
  }

  /// Weights, which have been summed, take the scales of their values. The scale that they are
  /// relative to becomes larger where one of the block is far above it; so it is for all warps.
  FLASHTILE_DEVICE void scale_weights(Scores& weights, int stage, int column) {
    if constexpr (kHasRelativeScales) {
      constexpr float kMostRatio = 16.0f;
      float largest = 0.0f;
      for (int key = lane_idx(); key < Config::kBlockN; key += kWarpSize) {
        largest = larger(largest, absolute(load_shared(scale_address<true>(stage, key))));
      }
      FLASHTILE_UNROLL
      for (int lane_mask = 1; lane_mask < kWarpSize; lane_mask *= 2) {
        largest = larger(largest, shuffle_xor(largest, lane_mask));
      }
      if (largest > value_scale * kMostRatio) {
        scale_sums(value_scale / largest);
        value_scale = largest;
      }
    }
    if constexpr (Config::kCopiesValueScales) {
      const float factor = !kHasRelativeScales  ? 1.0f
                           : value_scale > 0.0f ? reciprocal_approx(value_scale)
                                                : 0.0f;
      scale_columns(weights, scale_address<true>(stage, column), factor);
    }
  }

  FLASHTILE_DEVICE void scale_sums(float factor) {
    FLASHTILE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      FLASHTILE_UNROLL
      for (int v = 0; v < kTilesV; ++v) {
        FLASHTILE_UNROLL
        for (int r = 0; r < 4; ++r) acc[m][v][r] *= factor;
      }
    }
  }

  /// Behind the last block.
  FLASHTILE_DEVICE void finish_scales() {
    if constexpr (kHasCodes) scale_sums(value_scale);
  }

  FLASHTILE_DEVICE int first_value_column() const {
    return state().tile.v_part * Config::kHeadDimV;
  }
  /// Columns of values of this part.
  FLASHTILE_DEVICE int num_value_columns() const {
    return clamp(params.head_dim_v - first_value_column(), 0, Config::kHeadDimV);
  }

  /// The first of the warp's own columns, in the part, and how many there are.
  FLASHTILE_DEVICE int first_own_column() const {
    return Config::kSharesWeights ? warp_n * kOwnCols : 0;
  }
  FLASHTILE_DEVICE int num_own_columns() const {
    return Config::kSharesWeights ? clamp(num_value_columns() - first_own_column(), 0, kOwnCols)
                                  : num_value_columns();
  }

  FLASHTILE_DEVICE uint32 stage_address(int stage) const {
    return shared + static_cast<uint32>(kShape.ring_begin() + stage * kShape.stage_bytes());
  }

  /// Of a key that is there, or of the nearest one.
  FLASHTILE_DEVICE typename KeyRows<Config::kPaged>::Place place_of(int key) const {
    return state().keys.place_of(clamp(key, blocks.key_begin, blocks.key_end - 1));
  }
  /// The row of a block whose place the thread knows.
  FLASHTILE_DEVICE static int known_row() {
    const int thread = thread_idx() - kFirstCopyThread;
    return thread / 8 + thread % 8 * kRowsAtOnce;
  }

  /// Asks for the page of a thread's key in the block that is copied next, so that it is there when
  /// the copy begins.
  FLASHTILE_DEVICE void find_pages(int n_block) {
    if constexpr (kKeepsPages) {
      if (blocks.holds(n_block)) known_place = place_of(n_block * Config::kBlockN + known_row());
    }
  }

  FLASHTILE_DEVICE const char* query_address(int row) const {
    return query_row(params.q, sequence, rows.q_idx(row), rows.head_of(row));
  }
  /// Copies the first columns of the queries.
  template <class Copy>
  FLASHTILE_DEVICE void load_query_rows(uint32 tile, int num_cols) const {
    if (!Config::kPackHeads && rows.is_there(Config::kBlockM - 1)) {
      Copy::copy_strided(tile, num_cols, params.q.element_stride, query_address(Copy::first_row()),
                         params.q.row_stride);
    } else {
      Copy::copy_range(tile, num_cols, params.q.element_stride, 0, rows.num_rows - rows.first,
                       [&](int row) { return query_address(row); });
    }
  }

  /// Copies a key block's rows of keys or values; those that no query of the tile sees by position
  /// become zeros.
  template <class Copy>
  FLASHTILE_DEVICE void load_rows(const KeyRows<Config::kPaged>& from, int n_block, uint32 tile,
                                  int first_col, int num_cols, int64 element_stride) const {
    const int first_key = n_block * Config::kBlockN;
    const int64 skipped = first_col * element_stride;
    const auto address = [&](int row) { return from.row(first_key + row) + skipped; };
    if (!blocks.is_whole(n_block)) {
      Copy::copy_range(tile, num_cols, element_stride, blocks.key_begin - first_key,
                       blocks.key_end - first_key, address);
    } else if constexpr (kKeepsPages) {
      const auto known = reinterpret_cast<int64>(from.row(known_place) + skipped);
      Copy::template copy<true>(tile, num_cols, element_stride, [&](int, int step) {
        return reinterpret_cast<const char*>(shuffle(known, lane_idx() / 8 * 8 + step));
      });
    } else if constexpr (Config::kPaged) {
      Copy::copy(tile, num_cols, element_stride, [&](int row, int) { return address(row); });
    } else {
      Copy::copy_strided(tile, num_cols, element_stride, address(Copy::first_row()),
                         from.row_stride);
    }
  }

  // ---- From products to weights

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
      drop<kSlice>(dropout_of<Config>(params.dropout), batch_head,
                   static_cast<uint32>(rows.q_idx(row)), static_cast<uint32>(first_key),
                   static_cast<uint32>(lane_idx() % 4),
                   [&](int n, int e) -> float& { return weights[m][n][half * 2 + e]; });
    });
  }

  /// What has to be done with a key block's products before they are weighed.
  struct Treatment {
    bool hides;        ///< masks hide some of them
    bool asks;         ///< masks by more than position may
    bool follows;      ///< references may have to move
    bool is_inside;    ///< see apply_scores
    bool comes_after;  ///< keys lie behind the queries
    bool is_wide;      ///< logits may overflow
    bool is_careful;   ///< the tile's result was not finite
  };

  FLASHTILE_DEVICE Treatment treatment_of(int n_block, bool is_careful) {
    Treatment treatment = {};
    treatment.hides = blocks.cover(n_block) != Cover::kFull;
    if constexpr (Config::kHasBlockList || Config::Expressions::kHasMask) {
      treatment.asks = blocks.mapped_cover(n_block) != Cover::kFull;
    }
    treatment.is_careful = is_careful;
    treatment.is_wide = is_careful || Config::kElement == Element::kF32;
    treatment.follows = treatment.hides || treatment.is_wide || !kFixedReference;
    if constexpr (kIsTilted) {
      const int64 first_key = n_block * Config::kBlockN - sequence.query_offset;
      treatment.comes_after = first_key >= rows.q_idx(Config::kBlockM - 1);
      const bool comes_before = first_key + Config::kBlockN - 1 <= rows.q_idx(0);
      treatment.follows =
          treatment.follows || Config::kWantsMaxLogit || !(treatment.comes_after || comes_before);
    }
    if constexpr (kAlignsReferences) {
      treatment.follows = treatment.follows || !aligns(treatment.comes_after);
    } else {
      treatment.follows = treatment.follows || !softmax.is_settled();
    }
    if constexpr (kHasInsideText) {
      treatment.is_inside = reads_inside(n_block);
    }
    return treatment;
  }

  /// Lays the references in a line for keys on one side, if they can be.
  FLASHTILE_DEVICE bool aligns(bool comes_after) {
    const int side = comes_after ? 1 : -1;
    if (aligned_side == side) return true;
    if (!softmax.is_settled()) return false;
    float slope = 0.0f;
    if constexpr (kIsTilted) slope = comes_after ? -slope_of(0, 0) : slope_of(0, 0);
    if (!softmax.align(slope, acc)) return false;
    aligned_side = side;
    return true;
  }

  /// Of any pair of a block; by all lanes.
  FLASHTILE_DEVICE bool reads_inside(int n_block) const {
    const int last = rows.is_there(Config::kBlockM - 1) ? Config::kBlockM - 1 : 0;
    const bool is_inside =
        score_reads_inside(rules, rows.head_of(0), rows.q_idx(0), rows.q_idx(last),
                           n_block * Config::kBlockN, (n_block + 1) * Config::kBlockN - 1);
    return last > 0 && is_inside;
  }

  /// How far a row's query lies behind the lane's first key of a slice. Rows that are not there may
  /// get anything.
  FLASHTILE_DEVICE float distance_of(int m, int half, int first_key) const {
    const int64 first = sequence.query_offset - first_key;
    if constexpr (Config::kPackHeads) {
      const int row = first_warp_row + m * 16 + half * 8 + lane_idx() / 4;
      return static_cast<float>(rows.q_idx(row) + first - lane_idx() % 4 * 2);
    } else {
      return static_cast<float>(rows.first + first) + lane_distance +
             static_cast<float>(m * 16 + half * 8);
    }
  }
  FLASHTILE_DEVICE float slope_of(int m, int half) const {
    return Config::kPackHeads ? slopes[m][half] : slopes[0][0];
  }

  /// What a bare product, or a capped one, has to be multiplied by for log2 units.
  FLASHTILE_DEVICE float tilted_factor() const {
    return (kIsCapped ? params.softcap : params.softmax_scale) * kLog2e;
  }

  /// Logits in log2 units with ALiBi.
  FLASHTILE_DEVICE void level(Scores& scores, int first_key) const {
    level_scores<kTilesM, kSlice>(scores, tilted_factor(), [&](int m, int half) -> TiltedRow {
      return {slope_of(m, half), distance_of(m, half, first_key)};
    });
  }

  /// Products of one slice of a key block become logits; the reference and what has been summed may
  /// move. Most blocks need nothing here; the others take a branch, so that the text of the rest is
  /// there once: instructions have to be fetched too.
  template <bool kIsPlain>
  FLASHTILE_DEVICE void prepare(Scores& scores, Treatment treatment, int n_block, int column) {
    const int first_key = n_block * Config::kBlockN + column;
    if constexpr (kIsPlain && kAddsTerms) {
      add_terms<Config, kTilesM, kSlice>(scores, rules, rows, first_warp_row, first_key,
                                         softmax.reference[0][0]);
    } else if constexpr (kIsGeneral) {
      if (kHasInsideText && (kIsPlain || treatment.is_inside)) {
        apply_scores<Config, true, kTilesM, kSlice>(scores, rules, rows, first_warp_row, first_key);
      } else {
        apply_scores<Config, false, kTilesM, kSlice>(scores, rules, rows, first_warp_row,
                                                     first_key);
      }
    }
    if constexpr (kIsCapped) cap_scores<Config, kTilesM, kSlice>(scores, params);
    if constexpr (kIsTilted) {
      if (!kIsPlain && treatment.follows) level(scores, first_key);
    }
    if (!kIsPlain && treatment.hides) {
      const Ranges ranges(rules.position, rows, first_warp_row, n_block * Config::kBlockN);
      mask_positions<Config, kTilesM, kSlice>(scores, ranges, column);
      if constexpr (Config::kHasBlockList) {
        if (treatment.asks) {
          mask_unlisted<Config, kTilesM, kSlice>(scores, rules, rows, first_warp_row, first_key);
        }
      }
      if constexpr (Config::Expressions::kHasMask) {
        if (treatment.asks) {
          mask_pairs<Config, kTilesM, kSlice>(scores, rules, rows, first_warp_row, first_key);
        }
      }
    }
    if constexpr (Config::kBias != Element::kNone) {
      if (!kIsPlain && treatment.is_careful) {
        mask_biased<Config, kTilesM, kSlice>(scores, rules, rows, first_warp_row, first_key);
      }
    }
    if constexpr (Config::kWantsMaxLogit) track_max(scores);
    if (!kIsPlain && treatment.follows) {
      softmax.template follow<kSlice, kTilesV>(
          scores, acc, [&](float(&highest)[kTilesM][2]) { share_highest(highest); });
      aligned_side = 0;
    }
  }

  // ---- Between warps that share rows and weights

  /// A barrier of these warps.
  FLASHTILE_DEVICE void sync_sharers() const {
    sync_group(1 + first_warp_row / (kTilesM * 16), kWarpSize * Config::kWarpsN);
  }

  FLASHTILE_DEVICE uint32 exchange_address(int warp, int row) const {
    return shared +
           static_cast<uint32>(kShape.exchange_begin() + (warp * Config::kBlockM + row) * 4);
  }

  /// The highest logits of a lane's rows become those of all columns that sharers have. The next
  /// use must be behind another barrier.
  FLASHTILE_DEVICE void share_highest(float (&highest)[kTilesM][2]) const {
    if constexpr (Config::kSharesWeights && kKeyShares > 1) {
      for_each_row<kTilesM>(first_warp_row, [&](int m, int half, int row) {
        float top = highest[m][half];
        top = larger(top, shuffle_xor(top, 1));
        top = larger(top, shuffle_xor(top, 2));
        if (lane_idx() % 4 == 0) store_shared(exchange_address(warp_n, row), top);
      });
      sync_sharers();
      for_each_row<kTilesM>(first_warp_row, [&](int m, int half, int row) {
        FLASHTILE_UNROLL
        for (int warp = 0; warp < Config::kWarpsN; ++warp) {
          const float top = load_shared(exchange_address(warp, row));
          highest[m][half] = warp == 0 ? top : larger(highest[m][half], top);
        }
      });
    }
  }

  /// Sums of the weights of all sharers. By all threads of the CTA, behind the last block.
  FLASHTILE_DEVICE void share_sums() {
    if constexpr (Config::kSharesWeights) {
      for_each_row<kTilesM>(first_warp_row, [&](int m, int half, int row) {
        if (lane_idx() % 4 == 0) store_shared(exchange_address(warp_n, row), softmax.sum[m][half]);
      });
      sync_sharers();
      for_each_row<kTilesM>(first_warp_row, [&](int m, int half, int row) {
        float sum = 0.0f;
        FLASHTILE_UNROLL
        for (int warp = 0; warp < Config::kWarpsN; ++warp) {
          sum += load_shared(exchange_address(warp, row));
        }
        softmax.sum[m][half] = sum;
      });
    }
  }

  /// The weights of one slice, from its logits.
  template <bool kIsPlain>
  FLASHTILE_DEVICE void weigh(SliceWeights& weights, Scores& scores, Treatment treatment,
                              int n_block, int stage, int column) {
    const int first_key = n_block * Config::kBlockN + column;
    if constexpr (kIsTilted) {
      // A slice that has been levelled is one without a slope.
      const bool is_level = !kIsPlain && treatment.follows;
      const auto line_of = [&](int m, int half) -> TiltedLine {
        const float slope = treatment.comes_after ? slope_of(m, half) : -slope_of(m, half);
        const bool is_shared = kAlignsReferences;
        const float distance = distance_of(is_shared ? 0 : m, is_shared ? 0 : half, first_key);
        const float base = is_shared && !is_level ? softmax.reference[0][0] : softmax.base(m, half);
        return is_level ? TiltedLine{0.0f, -base}
                        : TiltedLine{slope, fused_multiply_add(-slope, distance, -base)};
      };
      TiltedLine lines[kTilesM][2];
      for_each_row<kTilesM>(0, [&](int m, int half, int) { lines[m][half] = line_of(m, half); });
      softmax.template weigh_tilted<kSlice>(
          scores, is_level ? 1.0f : tilted_factor(),
          [&](int m, int half) -> const TiltedLine& { return lines[m][half]; });
    } else if constexpr (kIsPlain && kAddsTerms) {
      softmax.template weigh_exponents<kSlice>(scores);
    } else if (kWideLogits && !kIsPlain && treatment.is_wide) {
      softmax.template weigh<kSlice, true>(scores);
    } else {
      softmax.template weigh<kSlice, false>(scores);
    }
    if constexpr (Config::kHasDropout) drop_weights(scores, first_key);
    scale_weights(scores, stage, column);
    weights.set(scores);
  }

  // ---- Values that must not be met, not even by a weight of 0. Only tiles whose results are not
  // finite come here.

  FLASHTILE_DEVICE static uint32* seen_flags() {
    return reinterpret_cast<uint32*>(shared_memory() + kShape.flags_begin());
  }

  /// A barrier of those who copy.
  FLASHTILE_DEVICE static void sync_copiers() {
    if constexpr (Config::kValuesInKeys) {
      sync_group(2, kCopyThreads);
    } else {
      sync_cta();
    }
  }

  /// Which keys of a block some query of the tile sees; by those who copy. Ends with a barrier.
  FLASHTILE_DEVICE void find_seen_keys(int n_block) const {
    uint32* flags = seen_flags();
    const int thread = thread_idx() - kFirstCopyThread;
    sync_copiers();
    for (int key = thread; key < Config::kBlockN; key += kCopyThreads) flags[key] = 0;
    sync_copiers();
    FLASHTILE_NO_UNROLL
    for (int at = thread; at < Config::kBlockN * Config::kBlockM; at += kCopyThreads) {
      const int key = at % Config::kBlockN;
      const int row = at / Config::kBlockN;
      if (!rows.is_there(row) || flags[key] != 0) continue;
      if (rules.is_seen(rows.head_of(row), rows.q_idx(row), n_block * Config::kBlockN + key)) {
        flags[key] = 1;
      }
    }
    sync_copiers();
  }

  /// Values of keys that are not seen become 0; by the same. Ends with a barrier.
  template <class ValueTile, int kCols>
  FLASHTILE_DEVICE static void clear_unseen_values(uint32 value_tile) {
    constexpr int kChunks = kCols / (16 / kShape.key_element_bytes);
    const uint32* flags = seen_flags();
    FLASHTILE_NO_UNROLL
    for (int at = thread_idx() - kFirstCopyThread; at < Config::kBlockN * kChunks;
         at += kCopyThreads) {
      const int key = at / kChunks;
      if (flags[key] != 0) continue;
      store_shared(value_tile + ValueTile::offset(key, at % kChunks), Vector4{0, 0, 0, 0});
    }
    sync_copiers();
  }

  FLASHTILE_DEVICE void reset() {
    softmax = Softmax(softmax.scale);
    aligned_side = 0;
    if constexpr (kHasRelativeScales) value_scale = 0.0f;
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
};

}  // namespace flashtile::device
