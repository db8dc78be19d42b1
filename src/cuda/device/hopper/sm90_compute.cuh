// SPDX-License-Identifier: Apache-2.0
//
// A computing warpgroup of attention_fwd_sm90: 64 rows of each tile. Products of a block's keys run
// beside those of the values of the block before, and softmax beside both; warpgroups take turns at
// the tensor cores. At the end of a tile the block before is that of another tile.
#pragma once

#include "cuda/device/hopper/row_softmax.cuh"
#include "cuda/device/hopper/sm90_results.cuh"
#include "cuda/device/hopper/sm90_scores.cuh"
#include "cuda/device/ptx/exchange.cuh"
#include "cuda/device/ptx/wgmma.cuh"

namespace flashtile::device {

template <class Config>
struct Sm90Compute {
  using Memory = Sm90Memory<Config>;
  using Softmax = RowSoftmax<Config::kReference>;
  using Keys = Sm90Keys<Config>;
  using Scores = Sm90Scores<Config>;
  static constexpr auto kShape = Memory::kShape;
  static constexpr int kBlockN = Config::kBlockN;
  static constexpr int kHeadDim = Config::kHeadDim;
  static constexpr int kHeadDimV = Config::kHeadDimV;
  static constexpr bool kFollows = Config::kReference == Sm90Reference::kMaximum;
  /// Where nothing happens between a cap and the exponentials of a plain block: tiles whose first
  /// products are tiny are taken to have only such ones, until a sum shows that they have not.
  static constexpr bool kTrustsTinyProducts =
      Scores::Kind::kIsCapped && !Scores::Kind::kIsTilted && !Config::kWantsMaxLogit && !kFollows;
  /// Blocks without masks need no reference that follows: a loop of their own, where they are known
  /// before their keys are there and the text is short.
  static constexpr bool kHasPlainLoop =
      !kFollows && !Config::kIsMapped && (!Config::kHasDropout || Scores::kDropsLate) &&
      !Scores::Kind::kIsCapped && (!Scores::Kind::kIsGeneral || Scores::kAddsToExponents);
  /// A reference of 0 saves an addition for each score.
  static constexpr bool kStaysAtZero = Scores::kTermsInLog2 && !kFollows;
  /// Natural logits below which nobody means a score, but a mask.
  static constexpr float kMaskedLogit = -1000.0f;
  /// Below a diagonal the last blocks of a tile hold nothing for its first rows.
  static constexpr bool kPassesOver = Config::kHasDiagonal && !Config::kHasChunk &&
                                      !Config::kIsMapped &&
                                      (Config::kNumWarpgroups - 1) * 64 >= kBlockN;
  static_assert(!kPassesOver || Config::kNumQueryBuffers == 1 ||
                    (Config::kNumWarpgroups - 1) * 64 <= (Config::kNumStages - 1) * kBlockN,
                "blocks that are passed over find stages beside the values that are still needed");
  using ScoreProduct = WarpgroupProduct<Config::kElement, kBlockN>;
  using ValueProduct = WarpgroupProduct<Config::kElement, kHeadDimV>;

  const Sm90ForwardParams& params;
  Memory memory;
  Sm90TileReader<Config> reader;
  int group;              ///< of the warpgroups that compute
  uint32 num_keys = 0;    ///< key blocks whose products have been started, or passed over
  uint32 num_passed = 0;  ///< passed over since the block that weights are of
  uint32 num_tiles = 0;

  Sm90Tile tile;
  Scores rules;
  /// The key block whose products have been started last. Weights are of it, or of the one before.
  int n_block;
  bool is_last;            ///< of its tile, where the loader chooses blocks
  Cover cover;             ///< what masks other than by position leave of it
  int end_of_plain;        ///< key blocks before this need neither mask nor reference
  int begin_of_plain = 0;  ///< those from this one on
  int first_of_tile = 0;   ///< the block that is visited last

  float scores[kBlockN / 2];
  float acc[kHeadDimV / 2];
  uint32 weights[kBlockN / 4];
  uint32 held[Config::kQueryInRegisters ? kHeadDim / 4 : 1];
  int adds = 0;          ///< 0: the next values are the first of a tile
  bool is_tiny = false;  ///< kTrustsTinyProducts: products of the tile
  Softmax softmax;

  FLASHTILE_DEVICE Sm90Compute(const Sm90ForwardParams& p,
                               const typename Config::Expressions::Params& user, const Memory& m)
      : params(p), memory(m), rules(p, user) {
    group = warp_idx() / 4 - 1;
    FLASHTILE_UNROLL
    for (int i = 0; i < kHeadDimV / 2; ++i) acc[i] = 0.0f;
  }

  FLASHTILE_DEVICE Keys keys_of(const Sm90Tile& of) const { return Keys(params, of); }

  // ---- Values of keys that no row of the tile sees may be anything, and a weight of 0 hides
  // nothing: they become 0. Of the block whose keys were the last.

  FLASHTILE_DEVICE void clear_values_behind() {
    if constexpr (!Keys::kHasEnd && !Config::kHasLengths) return;
    const Keys keys = keys_of(tile);
    const int seen = keys.end(keys.first_row() + kShape.block_m() - 1) - n_block * kBlockN;
    if (seen < kBlockN) clear_values(seen < 0 ? 0 : seen, kBlockN);
  }
  FLASHTILE_DEVICE void clear_values_before() {
    if constexpr (!Keys::kHasBegin) return;
    const Keys keys = keys_of(tile);
    const int hidden = keys.begin(keys.first_row()) - n_block * kBlockN;
    if (hidden > 0) clear_values(0, hidden < kBlockN ? hidden : kBlockN);
  }
  FLASHTILE_DEVICE void clear_values(int begin, int end) {
    wait_for_values(1);
    // Every warpgroup clears all of it before it reads any of it.
    const int thread = fresh(thread_idx()) % kWarpgroupSize;
    const uint32 values = memory.values((num_keys - 1) % Memory::kStages);
    FLASHTILE_NO_UNROLL
    for (int row = begin + thread / 8; row < end; row += kWarpgroupSize / 8) {
      FLASHTILE_UNROLL
      for (int chunk = 0; chunk < kHeadDimV / 64; ++chunk) {
        store_shared(values + static_cast<uint32>(chunk * kShape.key_chunk_bytes() + row * 128 +
                                                  thread % 8 * 16),
                     Vector4{0, 0, 0, 0});
      }
    }
    fence_shared_for_async();
    sync_group(1 + Config::kNumWarpgroups + group, kWarpgroupSize);
  }
  /// What other masks hide: only of tiles whose results were not finite.
  FLASHTILE_DEVICE void clear_hidden_values() {
    if constexpr (!Scores::kHidesPairs && Config::kBias == Element::kNone) return;
    if (tile.kind != kTileToRedo) return;
    wait_for_values(1);
    const uint32 values = memory.values((num_keys - 1) % Memory::kStages);
    const int row = fresh(thread_idx()) % kWarpgroupSize;
    if (row < kBlockN && !rules.is_seen_by_any(tile, n_block * kBlockN + row)) {
      FLASHTILE_NO_UNROLL
      for (int i = 0; i < kHeadDimV / 8; ++i) {
        store_shared(
            values + static_cast<uint32>(i / 8 * kShape.key_chunk_bytes() + row * 128 + i % 8 * 16),
            Vector4{0, 0, 0, 0});
      }
    }
    fence_shared_for_async();
    sync_group(1 + Config::kNumWarpgroups + group, kWarpgroupSize);
  }

  FLASHTILE_DEVICE void take_turn() const {
    if constexpr (Config::kTakesTurns) sync_group(1 + group, 2 * kWarpgroupSize);
  }
  FLASHTILE_DEVICE void pass_turn() const {
    if constexpr (Config::kTakesTurns) {
      const int next = group + 1 == Config::kNumWarpgroups ? 0 : group + 1;
      arrive_at_group(1 + next, 2 * kWarpgroupSize);
    }
  }

  FLASHTILE_DEVICE void start_tile(const Sm90Tile& next) {
    tile = next;
    const Keys keys = keys_of(tile);
    const int first = keys.first_row() + group * 64;
    int plain = keys.seqlen_k();
    // One less than the first row sees: then each row sees a key in the blocks behind.
    if constexpr (Keys::kHasEnd) {
      const int seen = keys.bound(first) - 1;
      plain = seen < plain ? (seen < 0 ? 0 : seen) : plain;
    }
    if constexpr (Keys::kHasBegin) {
      begin_of_plain = (keys.begin(first + 63) + kBlockN - 1) / kBlockN;
      first_of_tile = keys.begin_of_blocks();
    }
    end_of_plain = tile.kind == kTileToRedo ? 0 : plain / kBlockN;
    if constexpr (!Config::kIsMapped) {
      n_block = kPassesOver ? keys.first_block_of(group) : keys.end_of_blocks() - 1;
    }
    softmax.reset(kFollows || Config::kReference == Sm90Reference::kFirstBlock ||
                  tile.kind == kTileToRedo);
    rules.start_tile(tile);
  }
  /// Of the block that is worked on: no row of the warpgroup misses a key of it.
  FLASHTILE_DEVICE bool is_plain() const {
    return n_block < end_of_plain && n_block >= begin_of_plain &&
           (!Config::kIsMapped || cover == Cover::kFull);
  }
  FLASHTILE_DEVICE bool is_last_of_tile() const {
    return Config::kIsMapped ? is_last : n_block <= first_of_tile;
  }

  FLASHTILE_DEVICE void take_queries() {
    const uint32 buffer = num_tiles % Memory::kBuffers;
    wait(memory.query_full(buffer), num_tiles / Memory::kBuffers % 2);
    ++num_tiles;
    if constexpr (Config::kQueryInRegisters) {
      const int thread = fresh(thread_idx());
      const int row = tile_row(thread, thread % 16);
      const uint32 row_address = memory.queries(buffer) + static_cast<uint32>(row * 128);
      FLASHTILE_UNROLL
      for (int step = 0; step < kHeadDim / 16; ++step) {
        const int piece = (step % 4 * 2 + thread % kWarpSize / 16) ^ (row % 8);
        uint32 fragment[4];
        load_matrices(
            fragment,
            row_address + static_cast<uint32>(step / 4 * kShape.query_chunk_bytes() + piece * 16));
        FLASHTILE_UNROLL
        for (int r = 0; r < 4; ++r) held[step * 4 + r] = fragment[r];
      }
    }
  }
  /// The buffer of the tile whose queries were taken last.
  FLASHTILE_DEVICE uint32 query_buffer() const { return (num_tiles - 1) % Memory::kBuffers; }

  FLASHTILE_DEVICE void wait_for_keys() const {
    wait(memory.key_full(num_keys % Memory::kStages), num_keys / Memory::kStages % 2);
  }
  /// The block before the one whose keys are next (`behind` 1), or are under way (2).
  FLASHTILE_DEVICE uint32 value_number(uint32 behind) const {
    return num_keys - behind - (kPassesOver ? num_passed : 0);
  }
  FLASHTILE_DEVICE void wait_for_values(uint32 behind) const {
    const uint32 number = value_number(behind);
    wait(memory.value_full(number % Memory::kStages), number / Memory::kStages % 2);
  }
  FLASHTILE_DEVICE void release_keys() const {
    arrive_if(memory.key_free((num_keys - 1) % Memory::kStages), lane_idx() == 0);
  }
  FLASHTILE_DEVICE void release_values(uint32 behind) const {
    arrive_if(memory.value_free(value_number(behind) % Memory::kStages), lane_idx() == 0);
  }

  /// Starts the products of the next key block.
  FLASHTILE_DEVICE void start_scores() {
    const OperandAddress keys = OperandAddress::of_rows(memory.keys(num_keys % Memory::kStages));
    const OperandAddress queries = OperandAddress::of_rows(memory.queries(query_buffer()) +
                                                           static_cast<uint32>(group * 64 * 128));
    FLASHTILE_UNROLL
    for (int step = 0; step < kHeadDim / 16; ++step) {
      const int column_bytes = step % 4 * 32;
      const uint64 b = (keys + (step / 4 * kShape.key_chunk_bytes() + column_bytes)).descriptor();
      if constexpr (Config::kQueryInRegisters) {
        ScoreProduct::template registers<0>(scores, held[step * 4], held[step * 4 + 1],
                                            held[step * 4 + 2], held[step * 4 + 3], b, step > 0);
      } else {
        const uint64 a =
            (queries + (step / 4 * kShape.query_chunk_bytes() + column_bytes)).descriptor();
        ScoreProduct::shared(scores, a, b, step > 0);
      }
    }
    commit_products();
    ++num_keys;
  }

  /// Starts adding the values of the block before the `behind`th last.
  FLASHTILE_DEVICE void start_values(uint32 behind) {
    const OperandAddress values =
        OperandAddress::of_columns(memory.values(value_number(behind) % Memory::kStages),
                                   static_cast<uint32>(kShape.key_chunk_bytes()));
    FLASHTILE_UNROLL
    for (int step = 0; step < kBlockN / 16; ++step) {
      ValueProduct::template registers<1>(
          acc, weights[step * 4], weights[step * 4 + 1], weights[step * 4 + 2],
          weights[step * 4 + 3], (values + step * 16 * 128).descriptor(), step > 0 ? 1 : adds);
    }
    commit_products();
  }

  // ---- What other warps make, or the copy engine brings, of the block whose keys were the last.

  FLASHTILE_DEVICE uint32 terms_stage() const { return (num_keys - 1) % Memory::kTermStages; }
  FLASHTILE_DEVICE void wait_for_terms() const {
    if constexpr (!Config::kAddsByDistance) return;
    wait(memory.terms_full(terms_stage()), (num_keys - 1) / Memory::kTermStages % 2);
  }
  FLASHTILE_DEVICE void release_terms() const {
    if constexpr (!Config::kAddsByDistance) return;
    sync_warp();
    arrive_if(memory.terms_free(terms_stage()), lane_idx() == 0);
  }
  /// A bias is read when its products are there, and its keys are released behind it.
  static constexpr bool kReleasesLate = Config::kCopiesBias && !Scores::kTakesBiasAhead;
  /// When the weights are there.
  FLASHTILE_DEVICE void end_terms() const {
    if constexpr (kReleasesLate) {
      sync_warp();
      release_keys();
    } else {
      release_terms();
    }
  }
  FLASHTILE_DEVICE void take_terms() {
    wait_for_terms();
    if constexpr (Config::kAddsByDistance) rules.take_terms(memory.terms(terms_stage()));
    if constexpr (Config::kCopiesBias) {
      rules.take_bias(memory.bias((num_keys - 1) % Memory::kStages));
    }
  }

  FLASHTILE_DEVICE void mask() {
    const int thread = fresh(thread_idx());
    const Keys keys = keys_of(tile);
    const int row = keys.first_row() + tile_row(thread, thread % kWarpSize / 4);
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int first_key = n_block * kBlockN + thread % 4 * 2;
      // Nothing is left of a block that is there only because each tile has one.
      const bool is_there = !Config::kIsMapped || cover != Cover::kNone;
      const int end = is_there ? keys.end(row + half * 8) - first_key : 0;
      const int begin = keys.begin(row + half * 8) - first_key;
      FLASHTILE_UNROLL
      for (int n = 0; n < kBlockN / 8; ++n) {
        FLASHTILE_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& score = scores[n * 4 + half * 2 + e];
          if (n * 8 + e >= end) score = -infinity();
          if (Keys::kHasBegin && n * 8 + e < begin) score = -infinity();
        }
      }
    }
  }

  /// Masks, and a reference that follows; true where sums must be multiplied by `factors` then.
  template <bool kMayHide>
  FLASHTILE_DEVICE bool prepare(float (&factors)[2]) {
    if constexpr (Scores::Kind::kIsTilted) rules.level(scores, tile, n_block);
    if (kMayHide && !is_plain()) mask();
    if constexpr (Scores::kHidesPairs) {
      if (cover == Cover::kPart) rules.hide_unseen(scores);
    }
    if constexpr (kMayHide && Config::kBias != Element::kNone) {
      if (tile.kind == kTileToRedo) rules.hide_biased(scores, tile, n_block);
    }
    if constexpr (Config::kWantsMaxLogit) softmax.track_largest(scores);
    const bool follows = Config::kReference != Sm90Reference::kZero || tile.kind == kTileToRedo;
    return follows &&
           softmax.template follow<kStaysAtZero>(scores, rules.logit_scale(tile), factors);
  }

  /// Behind a branch: the assembler would move it in front of the wait for products.
  FLASHTILE_DEVICE void find_kept_early() {
    if constexpr (Config::kHasDropout && !Scores::kDropsLate) rules.find_kept(tile, n_block);
  }

  /// Of a block in which nothing is hidden and no reference moves.
  FLASHTILE_DEVICE void weigh_with_terms() {
    const auto for_each_term = [&](const auto& use) { rules.for_each_term(use); };
    if (kStaysAtZero && softmax.is_at_zero()) {
      softmax.template weigh_with_terms<false, true>(scores, params.scale, for_each_term);
    } else {
      softmax.template weigh_with_terms<true, Scores::kTermsInLog2>(scores, params.scale,
                                                                    for_each_term);
    }
  }

  /// Scores to weights, in place. Careful: a block may not be plain, or be the tile's first. True
  /// where sums must be multiplied by `factors` then.
  template <bool kIsCareful>
  FLASHTILE_DEVICE bool weigh(bool is_first, float (&factors)[2]) {
    bool has_moved = false;
    bool is_careful = kIsCareful;
    if constexpr (!kFollows && (!kIsCareful || !kHasPlainLoop)) {
      constexpr float kFloor = Scores::kTermsInLog2 ? kMaskedLogit * kLog2e : kMaskedLogit;
      const float floor = Scores::Kind::kIsGeneral ? kFloor : -infinity();
      if constexpr (kIsCareful) is_careful = is_first || !is_plain();
      if constexpr (Scores::kAsksSettled) is_careful = is_careful || !softmax.is_settled(floor);
    }
    if constexpr (Scores::kAddsToExponents && !kFollows) {
      if (!is_careful) {
        find_kept_early();
        weigh_with_terms();
        return false;
      }
    }
    if constexpr (Scores::Kind::kIsGeneral) rules.make_logits(scores, tile, n_block);
    if constexpr (kTrustsTinyProducts) {
      if (is_tiny && !is_careful) {
        find_kept_early();
        softmax.weigh_tiny(scores, params.short_cap_line, params.tiny_products);
        return false;
      }
      is_careful = true;
    }
    bool is_small = false;
    if constexpr (Scores::Kind::kIsCapped) {
      const float powers = rules.fourth_powers(scores);
      is_small = all_lanes(powers <= params.small_products);
      if (is_first) is_tiny = all_lanes(powers <= params.tiny_products);
    }
    if (is_careful) {
      if constexpr (Scores::Kind::kIsCapped) rules.cap(scores, is_small);
      has_moved = prepare<kIsCareful>(factors);
      const bool is_redone = kIsCareful && tile.kind == kTileToRedo;
      find_kept_early();
      if (Scores::Kind::kIsGeneral && is_redone && softmax.is_huge()) {
        softmax.weigh_wide(scores, rules.logit_scale(tile));
      } else {
        softmax.template weigh<true>(scores, rules.logit_scale(tile));
      }
    } else {
      if constexpr (Scores::Kind::kIsCapped) rules.cap(scores, is_small);
      if constexpr (Config::kWantsMaxLogit) softmax.track_largest(scores);
      find_kept_early();
      if constexpr (Scores::Kind::kIsTilted) {
        // Keys of plain blocks lie before the queries: the distance falls from column to column.
        const float offsets[2] = {rules.slope * rules.distance_of(tile, 0, n_block),
                                  rules.slope * rules.distance_of(tile, 1, n_block)};
        softmax.weigh_tilted(scores, rules.tilted_scale(), -rules.slope, offsets);
      } else {
        softmax.template weigh<Config::kReference != Sm90Reference::kZero>(scores,
                                                                           rules.logit_scale(tile));
      }
    }
    return has_moved;
  }

  FLASHTILE_DEVICE void pack_weights() {
    if constexpr (Scores::kDropsLate) rules.find_kept(tile, n_block);
    FLASHTILE_UNROLL
    for (int i = 0; i < kBlockN / 4; ++i) {
      weights[i] = pack<Config::kElement>(scores[i * 2], scores[i * 2 + 1]);
      if constexpr (Config::kHasDropout) weights[i] &= rules.kept[i];
    }
  }

  FLASHTILE_DEVICE void fence() {
    pin(acc);
    pin(weights);
    if constexpr (Config::kQueryInRegisters) pin(held);
    fence_products();
  }

  /// The products of the next keys, and beside them the values of the block before, which may still
  /// be under way then. `start_block()`, when they have been started, makes what they are of known.
  template <bool kHasValues, class StartBlock>
  FLASHTILE_DEVICE void multiply(const StartBlock& start_block) {
    wait_for_keys();
    if constexpr (Config::kIsMapped) {
      const Sm90Block block = {load_shared_word(memory.block_word(num_keys % Memory::kStages))};
      n_block = block.n_block();
      is_last = block.is_last();
      cover = block.cover();
    }
    take_turn();
    fence();
    start_scores();
    if constexpr (kHasValues) {
      wait_for_values(2);
      fence_products();
      start_values(2);
    }
    pass_turn();
    start_block();
    rules.work_ahead(tile, n_block, cover);
    take_terms();
    wait_for_products<kHasValues ? 1 : 0>();
    pin(scores);
    if constexpr (Scores::kTakesBiasAhead) sync_warp();
    if constexpr (!kReleasesLate) release_keys();
    if constexpr (Config::kWarpsStore) {
      arrive_if(memory.query_free(query_buffer()), is_last_of_tile() && lane_idx() == 0);
    }
  }

  FLASHTILE_DEVICE void wait_for_sums(uint32 behind) {
    wait_for_products<0>();
    pin(acc);
    pin(weights);
    release_values(behind);
    num_passed = 0;
  }

  /// Blocks at the end of a tile of which no row of the warpgroup sees a key.
  FLASHTILE_DEVICE void pass_over(const Sm90Tile& next) {
    if constexpr (!kPassesOver) return;
    const Keys keys = keys_of(next);
    FLASHTILE_NO_UNROLL
    for (int i = keys.end_of_blocks() - 1 - keys.first_block_of(group); i > 0; --i) {
      wait_for_keys();
      take_turn();
      pass_turn();
      const uint32 stage = num_keys % Memory::kStages;
      const uint32 parity = num_keys / Memory::kStages % 2;
      ++num_keys;
      ++num_passed;
      release_keys();
      wait_for_terms();
      release_terms();
      wait(memory.value_full(stage), parity);
      arrive_if(memory.value_free(stage), lane_idx() == 0);
    }
  }

  /// Ends a basic block, so that the assembler cannot move a wait for products in front of what
  /// `never` is made of. It is never true.
  FLASHTILE_DEVICE void hold_back(bool never) const {
    if (never) wait_for_values(2);
  }
  /// In front of the wait for values: exponentials. A sum is not negative.
  FLASHTILE_DEVICE void hold_back_values() const {
    if constexpr (Config::kHoldsBack) {
      hold_back(static_cast<int>(bits_of_float(softmax.sum[0])) < 0);
    }
  }

  FLASHTILE_DEVICE void scale_rows(const float (&factors)[2]) {
    FLASHTILE_UNROLL
    for (int i = 0; i < kHeadDimV / 2; ++i) acc[i] *= factors[i / 2 % 2];
  }

  /// The first key block of a tile, with nothing beside it.
  FLASHTILE_DEVICE void first_block(const Sm90Tile& first) {
    take_queries();
    pass_over(first);
    multiply<false>([&] { start_tile(first); });
    num_passed = 0;
    float factors[2];
    weigh<true>(true, factors);
    end_terms();
    end_first_block();
  }
  FLASHTILE_DEVICE void end_first_block() {
    pack_weights();
    adds = 0;
    clear_values_behind();
    clear_hidden_values();
  }

  /// The next key block of the tile, which hides nothing, beside the values of the one before.
  FLASHTILE_DEVICE void plain_block() {
    multiply<true>([&] {
      if constexpr (!Config::kIsMapped) --n_block;
    });
    float factors[2];
    const bool has_moved = weigh<false>(false, factors);
    end_terms();
    hold_back_values();
    wait_for_sums(2);
    adds = 1;
    if (has_moved) scale_rows(factors);
    pack_weights();
  }

  /// The next key block, of this tile or of the next one, beside the values of the one before.
  FLASHTILE_DEVICE void careful_block(bool is_first, const Sm90Tile& next) {
    const uint32 old_number = num_tiles - 1;
    if constexpr (Config::kNumQueryBuffers > 1) {
      if (is_first) {
        take_queries();
        pass_over(next);
      }
    }
    Softmax old;
    Sm90Tile old_tile;
    multiply<true>([&] {
      if constexpr (!Config::kIsMapped) --n_block;
      old = softmax;
      old_tile = tile;
      if (is_first) start_tile(next);
    });
    float factors[2];
    const bool has_moved = weigh<true>(is_first, factors);
    end_terms();
    hold_back_values();
    wait_for_sums(2);
    if (is_first) {
      finish(old_tile, old, old_number);
      end_first_block();
      return;
    }
    adds = 1;
    if (has_moved) scale_rows(factors);
    pack_weights();
    clear_hidden_values();
  }

  /// The last values, with nothing beside them.
  FLASHTILE_DEVICE void last_values() {
    wait_for_values(1);
    fence();
    start_values(1);
    wait_for_sums(1);
    finish(tile, softmax, num_tiles - 1);
  }

  /// `number` tiles were finished before.
  FLASHTILE_DEVICE void finish(const Sm90Tile& done, Softmax& rows, uint32 number) const {
    const Sm90Results<Config> results{params, memory, rules.logit_scale(done)};
    results.finish(done, rows, acc, number);
  }

  /// The blocks of a tile from the next one on that are known to be plain.
  FLASHTILE_DEVICE void visit_plain_blocks() {
    if constexpr (kHasPlainLoop) {
      int end = Keys::kHasBegin && begin_of_plain > first_of_tile ? begin_of_plain : first_of_tile;
      if (n_block > end_of_plain) end = n_block;
      FLASHTILE_NO_UNROLL
      while (n_block > end) plain_block();
    }
  }

  /// The blocks of a tile behind its first, where tiles do not overlap. Three loops one after the
  /// other, and not one in another, keep addresses in registers that all lanes share.
  FLASHTILE_DEVICE void visit_blocks() {
    if constexpr (kHasPlainLoop) {
      FLASHTILE_NO_UNROLL
      while (n_block > end_of_plain && !is_last_of_tile()) careful_block(false, tile);
      visit_plain_blocks();
    }
    if constexpr (!kHasPlainLoop || Keys::kHasBegin) {
      FLASHTILE_NO_UNROLL
      while (!is_last_of_tile()) careful_block(false, tile);
    }
    clear_values_before();
  }

  /// The same, and the tiles behind it as long as they come: the entry of the queue that is none.
  FLASHTILE_DEVICE Sm90Tile visit_tiles() {
    FLASHTILE_NO_UNROLL
    while (true) {
      visit_plain_blocks();
      Sm90Tile next = tile;
      const bool crosses = is_last_of_tile();
      if (crosses) {
        clear_values_before();
        next = reader.next(memory);
        if (!next.is_tile()) return next;
      }
      careful_block(crosses, next);
    }
  }

  FLASHTILE_DEVICE void run() {
    if (group == Config::kNumWarpgroups - 1) pass_turn();
    FLASHTILE_NO_UNROLL
    while (true) {
      Sm90Tile next = reader.next(memory);
      if (next.kind == kNoTileEver) break;
      if (!next.is_tile()) continue;
      first_block(next);
      if constexpr (Config::kNumQueryBuffers == 1) {
        visit_blocks();
      } else {
        next = visit_tiles();
      }
      last_values();
      if (next.kind == kNoTileEver) break;
    }
  }
};

}  // namespace flashtile::device
