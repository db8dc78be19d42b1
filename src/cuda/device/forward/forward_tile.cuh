// SPDX-License-Identifier: Apache-2.0
//
// The inner part of the forward kernel for head dims up to 256: queries stay in shared memory (or
// registers), whole key blocks pass through a ring of stages, and each warp takes its rows from
// products to weights to the sum of values.
#pragma once

#include "cuda/device/forward/forward_base.cuh"
#include "cuda/device/mma/tile_products.cuh"

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
  static_assert(Config::kNumStages > 1 || kNumSlices <= 2, "products end before values begin");
  static_assert(!Config::kSharesWeights || (kNumSlices == 1 && !Config::kRunsAhead),
                "one exchange for each block");
  static_assert(!Config::kRunsAhead || (kNumSlices == 1 && Config::kNumStages == 2),
                "what runs ahead is a block");

  using QueryTile =
      TileOfQueries<Config::kElement, Base::kHasCodes, Config::kBlockM, Config::kHeadDim>;
  using KeyTile = RowTile<Config::kKeyElement, Config::kBlockN, Config::kHeadDim>;
  using ValueTile = ColumnTile<Config::kKeyElement, Config::kBlockN, Config::kHeadDimV>;
  using QueryCopy = TileCopy<Config::kElement, QueryTile, Config::kBlockM, Config::kHeadDim,
                             kThreads, Config::kQueryCopyBytes>;
  using KeyCopy = TileCopy<Config::kKeyElement, KeyTile, Config::kBlockN, Config::kHeadDim,
                           kThreads, Config::kCopyBytes>;
  using ValueCopy = TileCopy<Config::kKeyElement, ValueTile, Config::kBlockN, Config::kHeadDimV,
                             kThreads, Config::kCopyBytes>;

  HeldRows<Config::kElement, kTilesM, Config::kHeadDim> held;

  using Base::Base;

  FLASHTILE_DEVICE void load_queries() {
    this->template load_query_rows<QueryCopy>(shared, params.head_dim);
  }

  FLASHTILE_DEVICE uint32 key_tile(int stage) const { return stage_address(stage); }
  FLASHTILE_DEVICE uint32 value_tile(int stage) const {
    return stage_address(stage) + static_cast<uint32>(kShape.key_bytes());
  }

  FLASHTILE_DEVICE void load_keys(int n_block, int stage) {
    this->template load_rows<KeyCopy>(state().keys, n_block, key_tile(stage), 0, params.head_dim,
                                      params.k.element_stride);
    this->template load_scales<false>(n_block, stage);
  }
  FLASHTILE_DEVICE void load_values(int n_block, int stage) {
    this->template load_rows<ValueCopy>(state().values, n_block, value_tile(stage), 0,
                                        this->num_value_columns(), params.v.element_stride);
    this->template load_scales<true>(n_block, stage);
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

  FLASHTILE_DEVICE void compute_scores(Scores& scores, int stage, int first_column) {
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
        scores, held, shared, first_warp_row, key_tile(stage), first_column);
    this->scale_products(scores, stage, first_column);
  }

  /// Gives the warp's weights to the warps of its rows, and adds the values of all in the warp's
  /// own columns. A barrier of the CTA comes before the next block's.
  FLASHTILE_DEVICE void finish_shared(const typename Base::SliceWeights& weights, int stage,
                                      int column) {
    if constexpr (Config::kSharesWeights) {
      using WeightTile = SwizzledTile<Config::kBlockM, Config::kBlockN>;
      const uint32 tile = shared + static_cast<uint32>(kShape.weights_begin());
      store_weights<WeightTile>(tile, weights, first_warp_row, column);
      this->sync_sharers();
      HalfRows<kTilesM, Config::kBlockN> rows_of_weights;
      rows_of_weights.template load<WeightTile>(tile, first_warp_row);
      HalfWeights<Config::kElement, kTilesM, Config::kBlockN> all;
      FLASHTILE_UNROLL
      for (int step = 0; step < Config::kBlockN / 16; ++step) {
        FLASHTILE_UNROLL
        for (int m = 0; m < kTilesM; ++m) {
          FLASHTILE_UNROLL
          for (int r = 0; r < 4; ++r) {
            all.fragments[step][m][r] = rows_of_weights.fragments[step][m][r];
          }
        }
      }
      const uint32 values =
          value_tile(stage) + static_cast<uint32>(warp_n * (Base::kOwnCols / Base::kGroupCols) *
                                                  ValueTile::kGroupBytes);
      accumulate_values<Config::kElement, kTilesM, Base::kTilesV, Config::kBlockN, Base::kOwnCols,
                        ValueTile>(acc, all, values, 0, 0);
    }
  }

  /// Weighs the prepared logits of a slice and adds its values.
  template <bool kIsPlain>
  FLASHTILE_DEVICE void finish_slice(Scores& scores, typename Base::Treatment treatment,
                                     int n_block, int stage, int column) {
    typename Base::SliceWeights weights;
    this->template weigh<kIsPlain>(weights, scores, treatment, n_block, stage, column);
    if constexpr (Config::kSharesWeights) {
      finish_shared(weights, stage, column);
      return;
    }
    accumulate_values<Config::kElement, kTilesM, Base::kTilesV, kSlice, Config::kHeadDimV,
                      ValueTile>(acc, weights, value_tile(stage), column, 0);
  }

  /// From products of keys to the sum of values. The next slice's products stand in the text beside
  /// the weights of this one, so that tensor cores and special functions work at the same time.
  /// `values_ready()` is called when no products are left to take. kIsPlain: nothing has to be
  /// prepared.
  template <bool kIsPlain, class ValuesReady>
  FLASHTILE_DEVICE void take_block(int n_block, int stage, typename Base::Treatment treatment,
                                   const ValuesReady& values_ready) {
    const auto column_of = [&](int slice) { return (slice * Config::kWarpsN + warp_n) * kSlice; };
    Scores scores[2];
    compute_scores(scores[0], stage, column_of(0));
    if constexpr (kNumSlices == 1) values_ready();
    FLASHTILE_UNROLL
    for (int slice = 0; slice < kNumSlices; ++slice) {
      this->template prepare<kIsPlain>(scores[slice % 2], treatment, n_block, column_of(slice));
      if (slice + 1 < kNumSlices) {
        compute_scores(scores[(slice + 1) % 2], stage, column_of(slice + 1));
      }
      if (kNumSlices > 1 && slice == 0) values_ready();
      finish_slice<kIsPlain>(scores[slice % 2], treatment, n_block, stage, column_of(slice));
    }
  }

  /// The same where text is long and such blocks are few: slices take turns in one text.
  template <class ValuesReady>
  FLASHTILE_DEVICE void take_block_in_turns(int n_block, int stage,
                                            typename Base::Treatment treatment,
                                            const ValuesReady& values_ready) {
    const auto column_of = [&](int slice) { return (slice * Config::kWarpsN + warp_n) * kSlice; };
    Scores scores[2];
    compute_scores(scores[0], stage, column_of(0));
    compute_scores(scores[1], stage, column_of(1));
    values_ready();
    FLASHTILE_NO_UNROLL
    for (int slice = 0; slice < 2; ++slice) {
      this->template prepare<false>(scores[0], treatment, n_block, column_of(slice));
      finish_slice<false>(scores[0], treatment, n_block, stage, column_of(slice));
      copy_scores(scores[0], scores[1]);
    }
  }

  FLASHTILE_DEVICE static void copy_scores(Scores& to, const Scores& from) {
    FLASHTILE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      FLASHTILE_UNROLL
      for (int n = 0; n < kSlice / 8; ++n) {
        FLASHTILE_UNROLL
        for (int r = 0; r < 4; ++r) to[m][n][r] = from[m][n][r];
      }
    }
  }

  template <class ValuesReady>
  FLASHTILE_DEVICE void process_block(int n_block, int stage, bool is_careful,
                                      const ValuesReady& values_ready) {
    const typename Base::Treatment treatment = this->treatment_of(n_block, is_careful);
    // Several slices overlap where no branch stands between them.
    if (kNumSlices > 1 && !treatment.follows && (!Base::kHasInsideText || treatment.is_inside)) {
      take_block<true>(n_block, stage, treatment, values_ready);
    } else if constexpr (Base::kHasInsideText && kNumSlices == 2) {
      take_block_in_turns(n_block, stage, treatment, values_ready);
    } else {
      take_block<false>(n_block, stage, treatment, values_ready);
    }
  }

  /// Waits for the queries, which were copied before `pending` other groups.
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

  /// Of the values of a block that lie in a stage: those that no query sees become 0.
  FLASHTILE_DEVICE void clear_values(int n_block, int stage) {
    this->find_seen_keys(n_block);
    Base::template clear_unseen_values<ValueTile, Config::kHeadDimV>(value_tile(stage));
  }

  /// One stage: keys are copied while the values of the block before are summed, and values while
  /// products of their keys are taken. Two barriers for each block, and memory for more CTAs.
  FLASHTILE_DEVICE void visit_blocks_in_place(bool is_careful) {
    int n_block = blocks.before(blocks.end);
    if (!is_careful) load_queries();
    if (blocks.holds(n_block)) load_keys(n_block, 0);
    copy_async_commit();
    this->reset();
    if (!is_careful) take_queries<0>();
    FLASHTILE_NO_UNROLL
    while (blocks.holds(n_block)) {
      const int next = blocks.before(n_block);
      copy_async_wait<0>();
      sync_cta();
      load_values(n_block, 0);
      copy_async_commit();
      process_block(n_block, 0, is_careful, [&] {
        copy_async_wait<0>();
        sync_cta();
        if (is_careful) clear_values(n_block, 0);
        if (blocks.holds(next)) load_keys(next, 0);
        copy_async_commit();
      });
      n_block = next;
    }
  }

  /// A ring of stages, each keys and values of a block. The copies of float32, whose text is long,
  /// stand once: there the first rounds of the loop only copy.
  FLASHTILE_DEVICE void visit_blocks_in_ring(bool is_careful) {
    constexpr int kAhead = Config::kNumStages - 1;
    constexpr bool kBeginsInLoop = Config::kElement == Element::kF32;
    if (!is_careful) load_queries();
    copy_async_commit();
    int loading = blocks.before(blocks.end);
    int n_block = loading;
    this->find_pages(loading);
    const auto load_next = [&](int stage) {
      if (blocks.holds(loading)) {
        load_keys(loading, stage);
        load_values(loading, stage);
        loading = blocks.before(loading);
        this->find_pages(loading);
      }
      copy_async_commit();
    };
    if constexpr (!kBeginsInLoop) {
      FLASHTILE_NO_UNROLL
      for (int stage = 0; stage < kAhead; ++stage) load_next(stage);
    }
    this->reset();
    if (!kBeginsInLoop && !is_careful) take_queries<kAhead>();
    FLASHTILE_NO_UNROLL
    for (int stage = kBeginsInLoop ? -kAhead : 0;
         (kBeginsInLoop && stage < 0) || blocks.holds(n_block);) {
      // The block is there for all, and nobody reads the stage any more that is written next.
      if (!kBeginsInLoop || stage >= 0) {
        copy_async_wait<Config::kNumStages - 2>();
        sync_cta();
      }
      load_next(stage <= 0 ? stage + kAhead : stage - 1);
      if (kBeginsInLoop && stage < 0) {
        if (++stage == 0 && !is_careful) take_queries<kAhead>();
        continue;
      }
      if (is_careful) clear_values(n_block, stage);
      process_block(n_block, stage, is_careful, [] {});
      stage = stage == kAhead ? 0 : stage + 1;
      n_block = blocks.before(n_block);
    }
  }

  /// Two stages, and products one block ahead of weights: while a block's logits are weighed, the
  /// products of the next one are taken.
  FLASHTILE_DEVICE void visit_blocks_ahead(bool is_careful) {
    int n_block = blocks.before(blocks.end);
    int next = blocks.before(n_block);
    if (!is_careful) load_queries();
    if (blocks.holds(n_block)) load_keys(n_block, 0);
    copy_async_commit();
    if (blocks.holds(next)) load_keys(next, 1);
    if (blocks.holds(n_block)) load_values(n_block, 0);
    copy_async_commit();
    this->reset();
    if (!is_careful) take_queries<1>();
    copy_async_wait<1>();
    sync_cta();
    Scores scores[2];
    if (blocks.holds(n_block)) compute_scores(scores[0], 0, warp_n * kSlice);
    int stage = 0;
    FLASHTILE_NO_UNROLL
    while (blocks.holds(n_block)) {
      const int after = blocks.before(next);
      const bool is_last = !blocks.holds(next);
      // The next keys and these values are there, and nobody reads these keys or the values before.
      copy_async_wait<0>();
      sync_cta();
      if (!is_last) {
        if (blocks.holds(after)) load_keys(after, stage);
        load_values(next, 1 - stage);
      }
      copy_async_commit();
      if (is_careful) clear_values(n_block, stage);
      const typename Base::Treatment treatment = this->treatment_of(n_block, is_careful);
      this->template prepare<false>(scores[0], treatment, n_block, warp_n * kSlice);
      if (is_last) {
        finish_slice<false>(scores[0], treatment, n_block, stage, warp_n * kSlice);
        break;
      }
      compute_scores(scores[1], 1 - stage, warp_n * kSlice);
      finish_slice<false>(scores[0], treatment, n_block, stage, warp_n * kSlice);
      copy_scores(scores[0], scores[1]);
      n_block = next;
      next = after;
      stage = 1 - stage;
    }
  }

  /// Visits all key blocks. `is_careful`: with a following reference everywhere, and no value that
  /// is not seen.
  FLASHTILE_DEVICE void visit_blocks(bool is_careful) {
    if constexpr (Config::kRunsAhead) {
      visit_blocks_ahead(is_careful);
    } else if constexpr (Config::kNumStages == 1) {
      visit_blocks_in_place(is_careful);
    } else {
      visit_blocks_in_ring(is_careful);
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
    this->finish_scales();
  }
};

}  // namespace flashtile::device
