// SPDX-License-Identifier: Apache-2.0
//
// What is added to scores by distance, made by the two warps of attention_fwd_sm90 that have
// nothing else to do: a block of m rows and n keys has m + n - 1 distances, and a row's own warps
// would read, and wait for, one for each second score.
#pragma once

#include "cuda/device/hopper/sm90_scores.cuh"
#include "cuda/device/ptx/exchange.cuh"

namespace flashtile::device {

/// Goes through the key blocks of all tiles in the order in which they are visited.
template <class Config>
struct Sm90Terms {
  using Memory = Sm90Memory<Config>;
  using Keys = Sm90Keys<Config>;
  using Scores = Sm90Scores<Config>;
  static constexpr auto kShape = Memory::kShape;
  static constexpr int kThreads = kWarpSize * Memory::kWarpsOfTerms;

  const Sm90ForwardParams& params;
  Scores scores;
  Memory memory;
  uint32 num_blocks = 0;

  FLASHTILE_DEVICE Sm90Terms(const Sm90ForwardParams& p,
                             const typename Config::Expressions::Params& user, const Memory& m)
      : params(p), scores(p, user), memory(m) {}

  /// By how far a column lies behind a row, from the first column and the last row on. The second
  /// copy begins at the second one.
  FLASHTILE_DEVICE void write_terms(const Sm90Tile& tile, uint32 terms, int n_block) const {
    scores.with_rules(tile, [&](const ScoreRules<Config>& rules) {
      const int first_row = Keys(params, tile).first_row();
      const bool in_log2 = Scores::kTermsInLog2 && tile.kind != kTileToRedo;
      const float unit = in_log2 ? kLog2e : 1.0f;
      constexpr int kAtOnce = 2;
      FLASHTILE_NO_UNROLL
      for (int first = thread_idx() % kThreads; first < kShape.num_terms();
           first += kAtOnce * kThreads) {
        float values[kAtOnce];
        FLASHTILE_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          // Any pair at that distance.
          const int behind = first + i * kThreads - (kShape.block_m() - 1);
          const Pair pair = rules.pair(tile.head, first_row + (behind < 0 ? -behind : 0),
                                       n_block * Config::kBlockN + (behind > 0 ? behind : 0));
          values[i] = Config::Expressions::template score<false>(rules.user, pair, -0.0f) * unit;
        }
        FLASHTILE_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          const int place = first + i * kThreads;
          if (place >= kShape.num_terms()) continue;
          const uint32 address = terms + static_cast<uint32>(place * 4);
          store_shared(address, values[i]);
          if (place > 0) store_shared(address + kShape.term_copy_bytes() - 4, values[i]);
        }
      }
    });
  }

  FLASHTILE_DEVICE void make_block(const Sm90Tile& tile, int n_block) {
    const uint32 stage = num_blocks % Memory::kTermStages;
    wait(memory.terms_free(stage), num_blocks / Memory::kTermStages % 2 ^ 1);
    write_terms(tile, memory.terms(stage), n_block);
    sync_warp();
    arrive_if(memory.terms_full(stage), lane_idx() == 0);
    ++num_blocks;
  }

  FLASHTILE_DEVICE void make_tile(const Sm90Tile& tile) {
    if constexpr (Config::kIsMapped) {
      // The loader chooses blocks. Nobody releases the keys of one before its terms are there.
      bool is_last = false;
      FLASHTILE_NO_UNROLL
      while (!is_last) {
        const uint32 stage = num_blocks % Memory::kStages;
        wait(memory.key_full(stage), num_blocks / Memory::kStages % 2);
        const Sm90Block block = {load_shared_word(memory.block_word(stage))};
        is_last = block.is_last();
        make_block(tile, block.n_block());
      }
    } else {
      const Keys keys(params, tile);
      const int begin = keys.begin_of_blocks();
      FLASHTILE_NO_UNROLL
      for (int n_block = keys.end_of_blocks() - 1; n_block >= begin; --n_block) {
        make_block(tile, n_block);
      }
    }
  }

  FLASHTILE_DEVICE void run() {
    Sm90TileReader<Config> reader;
    FLASHTILE_NO_UNROLL
    while (true) {
      const Sm90Tile tile = reader.next(memory);
      if (tile.kind == kNoTileEver) break;
      if (tile.is_tile()) make_tile(tile);
    }
  }
};

/// By two warps.
template <class Config>
FLASHTILE_DEVICE void make_terms(const Sm90ForwardParams& params,
                                 const typename Config::Expressions::Params& user,
                                 const Sm90Memory<Config>& memory) {
  if constexpr (Config::kAddsByDistance) Sm90Terms<Config>(params, user, memory).run();
}

}  // namespace flashtile::device
