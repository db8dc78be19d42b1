// SPDX-License-Identifier: Apache-2.0
//
// Shared memory of attention_fwd_sm90: where everything lies, and who signals what.
//
//   queries of a tile    copied -> query_full    -> read by products, overwritten with results
//                        results_full (a count for each warp) -> stored -> query_free
//                        where warps store: read by products -> query_free (a count for each warp);
//                        results_full tells of tiles that failed
//   keys, values         copied -> key_full, value_full -> products -> key_free, value_free
//   terms by distance    made -> terms_full -> read -> terms_free
//   tiles                published -> tile_full -> read by all warps that compute or make
//                        terms, and by the thread that stores -> tile_free
//   list of failures     after the last tile: list_full
#pragma once

#include "cuda/device/params/sm90_params.hpp"
#include "cuda/device/ptx/exchange.cuh"
#include "cuda/device/ptx/mbarrier.cuh"
#include "cuda/device/ptx/memory.cuh"
#include "cuda/device/ptx/thread.cuh"
#include "cuda/device/schedule/key_blocks.cuh"

namespace flashtile::device {

/// What the next entry of the queue of tiles is.
enum Sm90TileKind : uint32 {
  kTileToDo = 0,
  kTileToRedo = 1,  ///< one whose result was out of range
  kNoTileYet = 2,   ///< the queue goes on when all before it is done
  kNoTileEver = 3,
};

struct Sm90Tile {
  int m_block;
  int head;
  int batch;  ///< of q; 0 where it is packed
  uint32 kind;
  int value_part;  ///< which kHeadDimV columns of values
  // Where lengths differ; elsewhere they are arguments of the kernel.
  int seqlen_q;
  int seqlen_k;  ///< keys that some query sees
  int diagonal;
  int q_begin;
  int lower;
  int batch_idx;  ///< of the sequence
  int num_keys;   ///< of the sequence
  int leftpad;
  int offset;  ///< with chunks: row q's position is q + offset

  FLASHTILE_DEVICE bool is_tile() const { return kind <= kTileToRedo; }
};

template <class Config>
struct Sm90Memory {
  static constexpr Sm90Shape kShape = {
      Config::kHeadDim,       Config::kHeadDimV,       Config::kBlockN,
      Config::kNumWarpgroups, Config::kNumStages,      Config::kNumQueryBuffers,
      Config::kWarpsStore,    Config::kAddsByDistance, Config::kCopiesBias};
  static constexpr uint32 kStages = Config::kNumStages;
  static constexpr uint32 kBuffers = Config::kNumQueryBuffers;
  static constexpr uint32 kSlots = Sm90Shape::kTileSlots;
  static constexpr uint32 kResultSlots = static_cast<uint32>(kShape.num_result_slots());
  static constexpr uint32 kStageBarriers = 2 * kBuffers + kResultSlots;
  static constexpr int kComputingWarps = 4 * Config::kNumWarpgroups;
  static constexpr int kWarpsOfTerms = Config::kAddsByDistance ? 2 : 0;
  static constexpr uint32 kTermStages = Sm90Shape::kTermStages;

  uint32 base;

  FLASHTILE_DEVICE Sm90Memory() {
    constexpr uint32 kMask = Sm90Shape::kAlignment - 1;
    base = (shared_address(shared_memory()) + kMask) & ~kMask;
  }

  FLASHTILE_DEVICE uint32 queries(uint32 buffer) const {
    return base + buffer * static_cast<uint32>(kShape.query_bytes());
  }
  FLASHTILE_DEVICE uint32 keys(uint32 stage) const {
    return base + static_cast<uint32>(kShape.keys_begin()) +
           stage * static_cast<uint32>(kShape.key_bytes());
  }
  FLASHTILE_DEVICE uint32 values(uint32 stage) const {
    return base + static_cast<uint32>(kShape.values_begin()) +
           stage * static_cast<uint32>(kShape.value_bytes());
  }

  /// Of a warp that computes.
  FLASHTILE_DEVICE uint32 warp_results(int warp) const {
    return base + static_cast<uint32>(kShape.results_begin() + warp * Sm90Shape::kWarpResultBytes);
  }
  FLASHTILE_DEVICE uint32 bias(uint32 stage) const {
    return base + static_cast<uint32>(kShape.bias_begin()) +
           stage * static_cast<uint32>(kShape.bias_bytes());
  }

  FLASHTILE_DEVICE uint32 barrier(uint32 number) const {
    return base + static_cast<uint32>(kShape.barriers_begin()) + number * kBarrierBytes;
  }
  FLASHTILE_DEVICE uint32 query_full(uint32 buffer) const { return barrier(buffer); }
  FLASHTILE_DEVICE uint32 query_free(uint32 buffer) const { return barrier(kBuffers + buffer); }
  FLASHTILE_DEVICE uint32 results_full(uint32 slot) const { return barrier(2 * kBuffers + slot); }
  FLASHTILE_DEVICE uint32 key_full(uint32 stage) const { return barrier(kStageBarriers + stage); }
  FLASHTILE_DEVICE uint32 key_free(uint32 stage) const {
    return barrier(kStageBarriers + kStages + stage);
  }
  FLASHTILE_DEVICE uint32 value_full(uint32 stage) const {
    return barrier(kStageBarriers + 2 * kStages + stage);
  }
  FLASHTILE_DEVICE uint32 value_free(uint32 stage) const {
    return barrier(kStageBarriers + 3 * kStages + stage);
  }
  FLASHTILE_DEVICE uint32 tile_full(uint32 slot) const {
    return barrier(kStageBarriers + 4 * kStages + slot);
  }
  FLASHTILE_DEVICE uint32 tile_free(uint32 slot) const {
    return barrier(kStageBarriers + 4 * kStages + kSlots + slot);
  }
  FLASHTILE_DEVICE uint32 list_full() const {
    return barrier(kStageBarriers + 4 * kStages + 2 * kSlots);
  }

  FLASHTILE_DEVICE uint32 terms_full(uint32 stage) const {
    return barrier(kStageBarriers + 4 * kStages + 2 * kSlots + 1 + stage);
  }
  FLASHTILE_DEVICE uint32 terms_free(uint32 stage) const { return terms_full(kTermStages + stage); }

  FLASHTILE_DEVICE uint32 tile_slot(uint32 slot) const {
    return base + static_cast<uint32>(kShape.slots_begin()) + slot * Sm90Shape::kTileSlotBytes;
  }
  /// Not 0: a row of the tile with results there is out of range.
  FLASHTILE_DEVICE uint32 failed_flag(uint32 slot) const {
    return base + static_cast<uint32>(kShape.flags_begin()) + slot * 4;
  }
  FLASHTILE_DEVICE uint32 list_head() const {
    return base + static_cast<uint32>(kShape.list_begin());
  }
  /// The word of the key block that a stage holds (Sm90Block); there with its keys.
  FLASHTILE_DEVICE uint32 block_word(uint32 stage) const {
    return base + static_cast<uint32>(kShape.blocks_begin()) + stage * 4;
  }

  /// What is added to scores of a key block by distance.
  FLASHTILE_DEVICE uint32 terms(uint32 stage) const {
    return base + static_cast<uint32>(kShape.terms_begin()) +
           stage * static_cast<uint32>(2 * kShape.term_copy_bytes());
  }

  /// By one thread; a barrier of the CTA follows.
  FLASHTILE_DEVICE void init() const {
    for (uint32 i = 0; i < kBuffers; ++i) {
      init_barrier(query_full(i), 1);
      init_barrier(query_free(i), Config::kWarpsStore ? kComputingWarps : 1);
    }
    for (uint32 i = 0; i < kResultSlots; ++i) {
      init_barrier(results_full(i), kComputingWarps);
      store_shared(failed_flag(i), uint32{0});
    }
    for (uint32 i = 0; i < kStages; ++i) {
      init_barrier(key_full(i), 1);
      init_barrier(key_free(i), kComputingWarps);
      init_barrier(value_full(i), 1);
      init_barrier(value_free(i), kComputingWarps);
    }
    for (uint32 i = 0; i < kSlots; ++i) {
      init_barrier(tile_full(i), 1);
      init_barrier(tile_free(i), kComputingWarps + kWarpsOfTerms + 1);
    }
    init_barrier(list_full(), 1);
    if constexpr (Config::kAddsByDistance) {
      for (uint32 i = 0; i < kTermStages; ++i) {
        init_barrier(terms_full(i), kWarpsOfTerms);
        init_barrier(terms_free(i), kComputingWarps);
      }
    }
    fence_barrier_init();
  }
};

/// A key block as the loader chooses it where masks are not all by position.
struct Sm90Block {
  uint32 word;

  FLASHTILE_DEVICE static Sm90Block of(int n_block, Cover cover, bool is_last) {
    return {static_cast<uint32>(n_block) << 3 | static_cast<uint32>(is_last) << 2 |
            static_cast<uint32>(cover)};
  }
  FLASHTILE_DEVICE int n_block() const { return static_cast<int>(word >> 3); }
  FLASHTILE_DEVICE bool is_last() const { return (word & 4u) != 0; }  ///< of its tile
  FLASHTILE_DEVICE Cover cover() const { return static_cast<Cover>(word & 3u); }
};

/// Goes through the entries of the queue of tiles, for a warp.
template <class Config>
struct Sm90TileReader {
  using Memory = Sm90Memory<Config>;
  uint32 num_read = 0;

  FLASHTILE_DEVICE Sm90Tile next(const Memory& memory) {
    const uint32 slot = num_read % Memory::kSlots;
    wait(memory.tile_full(slot), num_read / Memory::kSlots % 2);
    const Vector4 entry = load_shared_vector(memory.tile_slot(slot));
    ++num_read;
    // The same in every lane, and the compiler knows it. All lanes have read the entry then.
    Sm90Tile tile;
    tile.m_block = static_cast<int>(shuffle(entry.x, 0));
    tile.head = static_cast<int>(shuffle(entry.y, 0));
    tile.batch = static_cast<int>(shuffle(entry.z, 0));
    tile.kind = shuffle(entry.w, 0);
    tile.value_part = 0;
    if constexpr (Config::kNumValueParts > 1) {
      const uint32 tile_idx = shuffle(load_shared_word(memory.tile_slot(slot) + 16), 0);
      tile.value_part = static_cast<int>(tile_idx) % Config::kNumValueParts;
    }
    if constexpr (Config::kHasLengths) {
      const Vector4 lengths = load_shared_vector(memory.tile_slot(slot) + 32);
      tile.seqlen_q = static_cast<int>(shuffle(lengths.x, 0));
      tile.seqlen_k = static_cast<int>(shuffle(lengths.y, 0));
      tile.diagonal = static_cast<int>(shuffle(lengths.z, 0));
      tile.q_begin = static_cast<int>(shuffle(lengths.w, 0));
      const auto word = [&](uint32 place) {
        return static_cast<int>(shuffle(load_shared_word(memory.tile_slot(slot) + place), 0));
      };
      if constexpr (Config::kHasLower) tile.lower = word(20);
      if constexpr (Config::kHasChunk) tile.offset = word(52);
      if constexpr (Config::kNeedsSequence) {
        tile.batch_idx = word(24);
        tile.num_keys = word(28);
        tile.leftpad = word(48);
      }
    }
    arrive_if(memory.tile_free(slot), lane_idx() == 0);
    return tile;
  }
};

}  // namespace flashtile::device
