// SPDX-License-Identifier: Apache-2.0
//
// The inner part of the backward: a CTA owns a block of keys and values, whose gradients stay in
// registers, and goes over all query blocks that see some of it, of all heads of the group.
//
//   S' = K Q'            P' = e^(scores of S' - lse)
//   dP' = V dO'          dS' = P' (dP' - delta)
//   dV += P' dO    dK += dS' Q    dQ += dS K (atomically, in float32)
//
// Keys are the rows of all accumulators but those of dQ. Where a warp has all columns of its keys,
// P' and dS' are operands as they stand, and only dQ takes dS from shared memory; else both go
// through it, and warps share keys for the scores that divide the columns of dK and dV.
#pragma once

#include "cuda/device/backward/backward_scores.cuh"
#include "cuda/device/backward/query_vectors.cuh"
#include "cuda/device/copy/finite.cuh"
#include "cuda/device/copy/load_tile.cuh"
#include "cuda/device/mma/operands.cuh"
#include "cuda/device/mma/tile_products.cuh"

namespace flashtile::device {

template <class ConfigOfKernel>
struct BackwardTile {
  using Config = ConfigOfKernel;
  static constexpr BackwardShape kShape = {element_bytes(Config::kElement),
                                           Config::kHeadDim,
                                           Config::kHeadDimV,
                                           Config::kBlockM,
                                           Config::kBlockN,
                                           Config::kWarpsN,
                                           Config::kWarpsM,
                                           Config::kDqWarpsM,
                                           Config::kDqPasses,
                                           Config::kSlice,
                                           Config::kNumStages};
  static constexpr int kThreads = kShape.num_threads();
  static constexpr int kBlockM = Config::kBlockM;
  static constexpr int kBlockN = Config::kBlockN;
  static constexpr int kSlice = Config::kSlice;
  static constexpr int kTilesN = kBlockN / (16 * Config::kWarpsN);
  static constexpr int kNumSlices = kBlockM / (Config::kWarpsM * kSlice);
  /// Accumulator tiles of a warp's share of the columns.
  static constexpr int kTilesD = Config::kHeadDim / (8 * Config::kWarpsM);
  static constexpr int kTilesV = Config::kHeadDimV / (8 * Config::kWarpsM);
  static constexpr int kDqTilesM = kBlockM / (16 * Config::kDqWarpsM);
  static constexpr int kDqTilesD = kShape.dq_columns() / 8;
  static constexpr bool kKeepsWeights = kShape.keeps_weights();
  /// Flags of a step's rows, in whole vectors.
  static constexpr int kOddWords = (kBlockM / kRowPadding + 3) / 4 * 4;
  static_assert(kTilesN * 16 * Config::kWarpsN == kBlockN, "warps share the keys");
  static_assert(kNumSlices * kSlice * Config::kWarpsM == kBlockM, "slices fill a block");
  static_assert(kTilesD * 8 * Config::kWarpsM == Config::kHeadDim && kTilesD % 2 == 0,
                "warps share the columns");
  static_assert(kTilesV * 8 * Config::kWarpsM == Config::kHeadDimV && kTilesV % 2 == 0,
                "warps share the columns");
  static_assert(kDqTilesM * 16 * Config::kDqWarpsM == kBlockM, "warps share the queries");
  static_assert(kDqTilesD * 8 * kShape.dq_warps_d() * Config::kDqPasses == Config::kHeadDim &&
                    kDqTilesD % 2 == 0,
                "warps share the columns");

  using State = BackwardState<Config>;
  static_assert(sizeof(State) <= BackwardShape::kStateBytes, "the state fits its place");
  using KeyTile = RowTile<Config::kElement, kBlockN, Config::kHeadDim>;
  using ValueTile = RowTile<Config::kElement, kBlockN, Config::kHeadDimV>;
  using QueryTile = RowTile<Config::kElement, kBlockM, Config::kHeadDim>;
  using DoutTile = RowTile<Config::kElement, kBlockM, Config::kHeadDimV>;
  using WeightTile = RowTile<Config::kElement, kBlockN, kBlockM>;
  using KeyCopy =
      TileCopy<Config::kElement, KeyTile, kBlockN, Config::kHeadDim, kThreads, Config::kCopyBytes>;
  using ValueCopy = TileCopy<Config::kElement, ValueTile, kBlockN, Config::kHeadDimV, kThreads,
                             Config::kCopyBytes>;
  using QueryCopy = TileCopy<Config::kElement, QueryTile, kBlockM, Config::kHeadDim, kThreads,
                             Config::kQueryCopyBytes>;
  using DoutCopy = TileCopy<Config::kElement, DoutTile, kBlockM, Config::kHeadDimV, kThreads,
                            Config::kDoutCopyBytes>;
  using Scores = float[kTilesN][kSlice / 8][4];
  using SliceWeights = Weights<Config::kElement, kTilesN, kSlice>;

  /// One step: a query block of a head.
  struct Step {
    int head;
    int m_block;
  };

  FLASHTILE_DEVICE static State& state() {
    return *reinterpret_cast<State*>(shared_memory() + kShape.state_begin());
  }

  const AttentionParams& params;
  const BackwardParams& backward;
  ScoreRules<Config> rules;
  uint32 shared;             ///< where shared memory begins
  int first_warp_key;        ///< of the warp, in the block
  int warp_m;                ///< which share of queries, or columns, is the warp's
  bool has_new_keys = true;  ///< nothing has been done with them
  float dk[kTilesN][kTilesD][4];
  float dv[kTilesN][kTilesV][4];

  FLASHTILE_DEVICE BackwardTile(const AttentionParams& p,
                                const typename Config::Expressions::Params& user,
                                const BackwardParams& b)
      : params(p),
        backward(b),
        rules{p, user, state().sequence, state().position},
        shared(shared_address(shared_memory())),
        first_warp_key(warp_idx() % Config::kWarpsN * kTilesN * 16),
        warp_m(warp_idx() / Config::kWarpsN),
        dk{},
        dv{} {}

  FLASHTILE_DEVICE uint32 place(int offset) const { return shared + static_cast<uint32>(offset); }
  FLASHTILE_DEVICE uint32 key_tile() const { return shared; }
  FLASHTILE_DEVICE uint32 value_tile() const { return place(kShape.values_begin()); }
  FLASHTILE_DEVICE uint32 query_tile(int stage) const {
    return place(kShape.stages_begin() + stage * kShape.stage_bytes());
  }
  FLASHTILE_DEVICE uint32 dout_tile(int stage) const {
    return query_tile(stage) + static_cast<uint32>(kShape.query_bytes());
  }
  /// lse; behind it delta, and then pairs of ints: the keys that a query sees, from first_key on.
  FLASHTILE_DEVICE uint32 vectors(int stage) const {
    return dout_tile(stage) + static_cast<uint32>(kShape.dout_bytes());
  }

  // ---- Copies

  /// Rows [0, num_rows) of a tile, zeros behind them.
  template <class Copy>
  FLASHTILE_DEVICE static void load_rows(uint32 tile, const char* source, int64 row_stride,
                                         int num_rows, int num_cols, int64 element_stride) {
    if (num_rows >= Copy::kNumRows) {
      Copy::copy_strided(tile, num_cols, element_stride, source + Copy::first_row() * row_stride,
                         row_stride);
    } else {
      Copy::copy_range(tile, num_cols, element_stride, 0, num_rows,
                       [&](int row) { return source + row * row_stride; });
    }
  }

  FLASHTILE_DEVICE void load_keys() const {
    const State& s = state();
    const KeyRows<false> keys(params.k, params.lengths, s.sequence, s.head_kv, 0);
    const KeyRows<false> values(params.v, params.lengths, s.sequence, s.head_kv, 0);
    load_rows<KeyCopy>(key_tile(), keys.row(s.first_key), keys.row_stride, s.num_keys,
                       params.head_dim, params.k.element_stride);
    load_rows<ValueCopy>(value_tile(), values.row(s.first_key), values.row_stride, s.num_keys,
                         params.head_dim_v, params.v.element_stride);
  }

  /// Starts the copies of a step.
  FLASHTILE_DEVICE void load_queries(const Step& step, int stage) const {
    const State& s = state();
    const int first = step.m_block * kBlockM;
    const int num_rows = s.sequence.seqlen_q - first;
    load_rows<QueryCopy>(query_tile(stage), query_row(params.q, s.sequence, first, step.head),
                         params.q.row_stride, num_rows, params.head_dim, params.q.element_stride);
    load_rows<DoutCopy>(dout_tile(stage), query_row(backward.dout, s.sequence, first, step.head),
                        backward.dout.row_stride, num_rows, params.head_dim_v,
                        backward.dout.element_stride);
    load_query_vectors<Config>(backward, s, step.head, step.m_block, cover(step) == Cover::kFull,
                               vectors(stage));
    const int row_block = thread_idx();
    if (row_block < kOddWords) {
      const int64 odd = (step.head * backward.padded_rows + s.padded_row + first) / kRowPadding;
      const bool is_there = row_block * kRowPadding < num_rows;
      copy_async<4>(odd_rows(stage) + static_cast<uint32>(row_block * 4),
                    backward.odd_rows + odd + (is_there ? row_block : 0), is_there ? 4 : 0);
    }
  }

  FLASHTILE_DEVICE uint32 odd_rows(int stage) const {
    return vectors(stage) + static_cast<uint32>(kShape.odd_rows_begin());
  }

  /// What weights multiply becomes finite: a weight of 0 must hide what it belongs to, and where a
  /// query sees what is not finite, its lse or delta are not either. Keys before the first step.
  FLASHTILE_DEVICE void clear_odd_rows(int stage) {
    uint32 odd = 0;
    FLASHTILE_UNROLL
    for (int i = 0; i < kOddWords / 4; ++i) {
      const Vector4 words = load_shared_vector(odd_rows(stage) + static_cast<uint32>(i * 16));
      odd |= words.x | words.y | words.z | words.w;
    }
    const bool is_odd = odd != 0;
    if (is_odd) {
      clear_nonfinite<Config::kElement, QueryTile::kBytes, kThreads>(query_tile(stage));
      clear_nonfinite<Config::kElement, DoutTile::kBytes, kThreads>(dout_tile(stage));
    }
    if (has_new_keys && Config::kSumsDq) {
      clear_nonfinite<Config::kElement, KeyTile::kBytes, kThreads>(key_tile());
    }
    if (is_odd || (has_new_keys && Config::kSumsDq)) sync_cta();
    has_new_keys = false;
  }

  // ---- From products to weights and their gradients

  /// kMayHide: where masks may hide pairs, `hides` is set.
  template <bool kMayHide>
  FLASHTILE_DEVICE void process_slice(const Step& step, int stage, int slice, bool hides) {
    const int first_query = (warp_m * kNumSlices + slice) * kSlice;
    const HeldRows<Config::kElement, kTilesN, Config::kHeadDim> no_keys = {};
    const HeldRows<Config::kElement, kTilesN, Config::kHeadDimV> no_values = {};
    Scores s = {};
    accumulate_scores<Config::kElement, kTilesN, kSlice, Config::kHeadDim, false, KeyTile,
                      QueryTile>(s, no_keys, key_tile(), first_warp_key, query_tile(stage),
                                 first_query);
    Scores dp = {};
    accumulate_scores<Config::kElement, kTilesN, kSlice, Config::kHeadDimV, false, ValueTile,
                      DoutTile>(dp, no_values, value_tile(), first_warp_key, dout_tile(stage),
                                first_query);
    const BackwardScores<Config, kTilesN, kSlice> scores = {
        rules,       vectors(stage),    step.head,      step.m_block * kBlockM,
        first_query, state().first_key, first_warp_key, kMayHide && asks(step)};
    scores.make_weights(s, dp);
    if (kMayHide && hides) scores.hide(s, dp);
    SliceWeights weights, dscores;
    weights.set(s);
    dscores.set(dp);
    if constexpr (Config::kSumsDq || !kKeepsWeights) {
      store_weights<WeightTile>(place(kShape.dscores_begin()), dscores, first_warp_key,
                                first_query);
    } else {
      sync_warp();  // keeps the compiler from working on several slices at once
    }
    if constexpr (kKeepsWeights) {
      accumulate_values<Config::kElement, kTilesN, kTilesV, kSlice, Config::kHeadDimV, DoutTile>(
          dv, weights, dout_tile(stage), first_query, 0);
      accumulate_values<Config::kElement, kTilesN, kTilesD, kSlice, Config::kHeadDim, QueryTile>(
          dk, dscores, query_tile(stage), first_query, 0);
    } else {
      store_weights<WeightTile>(place(kShape.weights_begin()), weights, first_warp_key,
                                first_query);
    }
  }

  /// Adds one part of the columns of dq.
  FLASHTILE_DEVICE void add_dq(const Step& step, int pass) const {
    const int warp = warp_idx();
    const int first_row = warp % Config::kDqWarpsM * kDqTilesM * 16;
    const int part = pass * kShape.dq_warps_d() + warp / Config::kDqWarpsM;
    float dq[kDqTilesM][kDqTilesD][4] = {};
    multiply_tiles<Config::kElement, true, kDqTilesM, kDqTilesD, kBlockN, WeightTile, KeyTile>(
        dq, place(kShape.dscores_begin()), first_row, key_tile(), part * (kDqTilesD / 2));
    const State& s = state();
    const int q_idx = step.m_block * kBlockM + first_row;
    FLASHTILE_UNROLL
    for (int m = 0; m < kDqTilesM; ++m) {
      if (q_idx + m * 16 >= s.sequence.seqlen_q) break;
      float* tile = dq_tile<Config::kHeadDim>(backward, step.head, s.padded_row + q_idx + m * 16,
                                              part * kDqTilesD);
      FLASHTILE_UNROLL
      for (int d = 0; d < kDqTilesD; ++d) add_to_dq_tile(tile + d * 128, dq[m][d]);
    }
  }

  /// Text of the user's takes long to compile: it is there once.
  static constexpr bool kIsLong = Config::kHasBlockMap || Config::Expressions::kHasScore;
  /// So does that of options where slices are many: it is there once for blocks of either kind.
  static constexpr bool kHasOptions = kNumSlices > 1 &&
                                      (Config::kHasScoreOptions || Config::kHasDropout);

  /// From products to weights and their gradients.
  FLASHTILE_DEVICE void process_scores(const Step& step, int stage) {
    const bool hides = cover(step) != Cover::kFull;
    if constexpr (kIsLong) {
      FLASHTILE_NO_UNROLL
      for (int slice = 0; slice < kNumSlices; ++slice) {
        process_slice<true>(step, stage, slice, hides);
      }
    } else if (kHasOptions || hides) {
      FLASHTILE_UNROLL
      for (int slice = 0; slice < kNumSlices; ++slice) {
        process_slice<true>(step, stage, slice, hides);
      }
    } else {
      FLASHTILE_UNROLL
      for (int slice = 0; slice < kNumSlices; ++slice) {
        process_slice<false>(step, stage, slice, false);
      }
    }
  }

  /// What is left for keys and values once all warps have written their weights.
  FLASHTILE_DEVICE void add_shared_weights(int stage) {
    if constexpr (kKeepsWeights) return;
    multiply_tiles<Config::kElement, false, kTilesN, kTilesV, kBlockM, WeightTile, DoutTile>(
        dv, place(kShape.weights_begin()), first_warp_key, dout_tile(stage),
        warp_m * (kTilesV / 2));
    multiply_tiles<Config::kElement, false, kTilesN, kTilesD, kBlockM, WeightTile, QueryTile>(
        dk, place(kShape.dscores_begin()), first_warp_key, query_tile(stage),
        warp_m * (kTilesD / 2));
  }

  // ---- Steps

  FLASHTILE_DEVICE static bool holds(const Step& step) { return step.head < state().head_end; }

  FLASHTILE_DEVICE Cover cover(const Step& step) const {
    return state().cover(params, step.head, step.m_block);
  }

  /// Whether masks by more than position may hide something.
  FLASHTILE_DEVICE bool asks(const Step& step) const {
    return state().mapped_cover(params, step.head, step.m_block) != Cover::kFull;
  }

  /// The first step behind `step` of which something is seen.
  FLASHTILE_DEVICE Step next(Step step) const {
    do {
      if (++step.m_block >= state().blocks.end) {
        step.m_block = state().blocks.begin;
        ++step.head;
      }
    } while (Config::kHasBlockMap && holds(step) && cover(step) == Cover::kNone);
    return step;
  }

  /// Starts the copies of the step behind `step`, if there is one; a group in any case.
  FLASHTILE_DEVICE void load_next(const Step& step, int stage) const {
    const Step next_step = next(step);
    if (holds(next_step)) load_queries(next_step, stage);
    copy_async_commit();
  }

  /// All steps of the heads that the state names.
  FLASHTILE_DEVICE void visit_blocks() {
    if (state().blocks.end <= state().blocks.begin) return;
    Step step = next({state().head_begin, state().blocks.begin - 1});
    if (holds(step)) load_queries(step, 0);
    copy_async_commit();
    int stage = 0;
    FLASHTILE_NO_UNROLL
    while (holds(step)) {
      // The step's queries are there for all, and nobody reads what the last step left.
      copy_async_wait<0>();
      sync_cta();
      clear_odd_rows(stage);
      if constexpr (Config::kNumStages == 2) load_next(step, stage ^ 1);
      process_scores(step, stage);
      sync_cta();
      add_shared_weights(stage);
      if constexpr (Config::kNumStages == 1) {
        // dq needs neither queries nor their gradients.
        if constexpr (!kKeepsWeights) sync_cta();
        load_next(step, stage);
      }
      if constexpr (Config::kSumsDq) {
        FLASHTILE_UNROLL
        for (int pass = 0; pass < Config::kDqPasses; ++pass) add_dq(step, pass);
      }
      if constexpr (Config::kNumStages == 2) stage ^= 1;
      // Found again, rather than kept in registers.
      step = next(step);
    }
  }

  FLASHTILE_DEVICE void run() {
    load_keys();
    visit_blocks();
    if constexpr (Config::kHeadsDiffer) {
      FLASHTILE_NO_UNROLL
      for (int head = 1; head < params.group_size; ++head) {
        sync_cta();
        if (thread_idx() == 0) state().find_next_head(params, rules.user);
        sync_cta();
        visit_blocks();
      }
    }
    copy_async_commit();
    copy_async_wait<0>();
    sync_cta();
  }
};

}  // namespace flashtile::device
