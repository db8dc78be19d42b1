// SPDX-License-Identifier: Apache-2.0
//
// The two threads of attention_fwd_sm90 that compute nothing: one hands out tiles and copies what
// they need, one stores results and remembers tiles that have to be done again.
#pragma once

#include "cuda/device/hopper/sm90_memory.cuh"
#include "cuda/device/ptx/exchange.cuh"
#include "cuda/device/ptx/tensor_copy.cuh"
#include "cuda/device/schedule/tile.cuh"

namespace flashtile::device {

template <class Config>
struct Sm90Loader {
  using Memory = Sm90Memory<Config>;
  static constexpr auto kShape = Memory::kShape;

  const Sm90ForwardParams& params;
  Memory memory;
  uint32 num_published = 0;
  uint32 num_tiles = 0;
  uint32 num_keys = 0;  ///< key blocks that have been asked for
  // The values of the last of them come behind the next one's keys.
  bool owes_values = false;
  int value_block = 0, value_head = 0, value_line = 0;

  FLASHTILE_DEVICE Sm90Loader(const Sm90ForwardParams& p, const Memory& m) : params(p), memory(m) {}

  FLASHTILE_DEVICE void publish(const Sm90Tile& tile, int tile_idx) {
    const uint32 slot = num_published % Memory::kSlots;
    wait(memory.tile_free(slot), num_published / Memory::kSlots % 2 ^ 1);
    const uint32 address = memory.tile_slot(slot);
    store_shared(address + 16, static_cast<uint32>(tile_idx));
    store_shared(address, Vector4{static_cast<uint32>(tile.m_block), static_cast<uint32>(tile.head),
                                  static_cast<uint32>(tile.batch), tile.kind});
    arrive(memory.tile_full(slot));
    ++num_published;
  }

  FLASHTILE_DEVICE Sm90Tile find(int tile_idx, uint32 kind) const {
    const Sm90GridParam& grid = params.grid;
    uint32 rest, place, head;
    const uint32 section = divide(static_cast<uint32>(tile_idx), grid.tiles_per_section, rest);
    const uint32 first_pair = section * grid.pairs_per_section.value;
    const bool is_last = first_pair + grid.pairs_per_section.value > grid.num_pairs;
    const int rank = static_cast<int>(
        divide(rest, is_last ? grid.pairs_of_last_section : grid.pairs_per_section, place));
    const int batch = static_cast<int>(divide(first_pair + place, grid.heads, head));
    return {grid.descending ? grid.num_m_blocks - 1 - rank : rank, static_cast<int>(head), batch,
            kind};
  }

  FLASHTILE_DEVICE void load_queries(const Sm90Tile& tile) {
    const uint32 buffer = num_tiles % Memory::kBuffers;
    wait(memory.query_free(buffer), num_tiles / Memory::kBuffers % 2 ^ 1);
    const uint32 barrier = memory.query_full(buffer);
    arrive_expecting(barrier, Config::kHeadDim / 64 * kShape.query_chunk_bytes());
    FLASHTILE_UNROLL
    for (int chunk = 0; chunk < Config::kHeadDim / 64; ++chunk) {
      load_box(memory.queries(buffer) + static_cast<uint32>(chunk * kShape.query_chunk_bytes()),
               params.q, barrier, chunk * 64, tile.m_block * kShape.block_m(), tile.head,
               tile.batch, kEvictFirst);
    }
    ++num_tiles;
  }

  FLASHTILE_DEVICE void load_keys(int n_block, int head, int line) {
    const uint32 stage = num_keys % Memory::kStages;
    wait(memory.key_free(stage), num_keys / Memory::kStages % 2 ^ 1);
    const uint32 barrier = memory.key_full(stage);
    arrive_expecting(barrier, kShape.key_bytes());
    FLASHTILE_UNROLL
    for (int chunk = 0; chunk < Config::kHeadDim / 64; ++chunk) {
      load_box(memory.keys(stage) + static_cast<uint32>(chunk * kShape.key_chunk_bytes()), params.k,
               barrier, chunk * 64, n_block * Config::kBlockN, head, line, kEvictLast);
    }
    ++num_keys;
  }

  /// Of the block whose keys were asked for `behind` blocks ago.
  FLASHTILE_DEVICE void load_values(uint32 behind) {
    const uint32 number = num_keys - behind;
    const uint32 stage = number % Memory::kStages;
    wait(memory.value_free(stage), number / Memory::kStages % 2 ^ 1);
    const uint32 barrier = memory.value_full(stage);
    arrive_expecting(barrier, kShape.value_bytes());
    FLASHTILE_UNROLL
    for (int chunk = 0; chunk < Config::kHeadDimV / 64; ++chunk) {
      load_box(memory.values(stage) + static_cast<uint32>(chunk * kShape.key_chunk_bytes()),
               params.v, barrier, chunk * 64, value_block * Config::kBlockN, value_head, value_line,
               kEvictLast);
    }
  }

  /// Everything that a tile needs, in the order in which it is used, but the values of its last
  /// block.
  FLASHTILE_DEVICE void load(const Sm90Tile& tile, int tile_idx) {
    publish(tile, tile_idx);
    uint32 unused;
    const int head_kv =
        static_cast<int>(divide(static_cast<uint32>(tile.head), params.grid.group_size, unused));
    int line = tile.batch;
    if (params.cache_batch_idx.data != nullptr) {
      line = clamp(load_int(params.cache_batch_idx, line), 0, params.num_lines - 1);
    }
    // With one buffer, queries can come only when the tile before has all its values.
    if (Memory::kBuffers > 1) load_queries(tile);
    bool has_queries = Memory::kBuffers > 1;
    FLASHTILE_NO_UNROLL
    for (int n_block = end_of_key_blocks<Config>(params, tile.m_block) - 1; n_block >= 0;
         --n_block) {
      load_keys(n_block, head_kv, line);
      if (owes_values) load_values(2);
      if (!has_queries) load_queries(tile);
      has_queries = true;
      owes_values = true;
      value_block = n_block;
      value_head = head_kv;
      value_line = line;
    }
  }

  FLASHTILE_DEVICE void pay_values() {
    if (owes_values) load_values(1);
    owes_values = false;
  }

  FLASHTILE_DEVICE void run() {
    int tile_idx = static_cast<int>(cta_idx());
    FLASHTILE_NO_UNROLL
    while (tile_idx < params.grid.num_tiles) {
      int next = tile_idx + static_cast<int>(num_ctas());
      if constexpr (Config::kIsDynamic) {
        next = static_cast<int>(num_ctas()) +
               static_cast<int>(atomic_increment(params.grid.num_taken));
      }
      load(find(tile_idx, kTileToDo), tile_idx);
      tile_idx = next;
    }
    pay_values();
    if constexpr (Config::kReference != Sm90Reference::kMaximum) {
      publish({0, 0, 0, kNoTileYet}, 0);
      wait(memory.list_full(), 0);
      tile_idx = static_cast<int>(load_shared_word(memory.list_head()));
      if (tile_idx >= 0) {
        FLASHTILE_NO_UNROLL
        while (tile_idx >= 0) {
          const int next = load_fresh(params.grid.next_failed + tile_idx);
          load(find(tile_idx, kTileToRedo), tile_idx);
          tile_idx = next;
        }
        pay_values();
      }
    }
    publish({0, 0, 0, kNoTileEver}, 0);
  }
};

template <class Config>
struct Sm90Storer {
  using Memory = Sm90Memory<Config>;
  static constexpr auto kShape = Memory::kShape;

  const Sm90ForwardParams& params;
  Memory memory;

  FLASHTILE_DEVICE Sm90Storer(const Sm90ForwardParams& p, const Memory& m) : params(p), memory(m) {}

  FLASHTILE_DEVICE void store(const Sm90Tile& tile, uint32 buffer) const {
    FLASHTILE_UNROLL
    for (int chunk = 0; chunk < Config::kHeadDimV / 64; ++chunk) {
      store_box(params.out,
                memory.queries(buffer) + static_cast<uint32>(chunk * kShape.query_chunk_bytes()),
                chunk * 64, tile.m_block * kShape.block_m(), tile.head, tile.batch);
    }
    commit_stores();
    wait_until_stores_have_read();
  }

  FLASHTILE_DEVICE void run() {
    uint32 num_read = 0;
    uint32 num_tiles = 0;
    int last_failed = -1;
    FLASHTILE_NO_UNROLL
    while (true) {
      const uint32 slot = num_read % Memory::kSlots;
      wait(memory.tile_full(slot), num_read / Memory::kSlots % 2);
      const Vector4 entry = load_shared_vector(memory.tile_slot(slot));
      const int tile_idx = static_cast<int>(load_shared_word(memory.tile_slot(slot) + 16));
      arrive(memory.tile_free(slot));
      ++num_read;
      const Sm90Tile tile = {static_cast<int>(entry.x), static_cast<int>(entry.y),
                             static_cast<int>(entry.z), entry.w};
      if (tile.kind == kNoTileEver) break;
      if (tile.kind == kNoTileYet) {
        store_shared(memory.list_head(), static_cast<uint32>(last_failed));
        arrive(memory.list_full());
        continue;
      }
      const uint32 buffer = num_tiles % Memory::kBuffers;
      wait(memory.results_full(buffer), num_tiles / Memory::kBuffers % 2);
      ++num_tiles;
      if (load_shared_word(memory.failed_flag(buffer)) != 0) {
        // What is done again is stored then; two stores of one place have no order.
        store_shared(memory.failed_flag(buffer), uint32{0});
        params.grid.next_failed[tile_idx] = last_failed;
        last_failed = tile_idx;
      } else {
        store(tile, buffer);
      }
      arrive(memory.query_free(buffer));
    }
    wait_for_stores();
  }
};

}  // namespace flashtile::device
