// SPDX-License-Identifier: Apache-2.0
//
// The two threads of attention_fwd_sm90 that compute nothing: one hands out tiles and copies what
// they need, one stores results and remembers tiles that have to be done again.
#pragma once

#include "cuda/device/hopper/sm90_keys.cuh"
#include "cuda/device/ptx/exchange.cuh"
#include "cuda/device/ptx/tensor_copy.cuh"
#include "cuda/device/schedule/tile.cuh"
#include "cuda/device/score/score.cuh"

namespace flashtile::device {

template <class Config>
struct Sm90Loader {
  using Memory = Sm90Memory<Config>;
  static constexpr auto kShape = Memory::kShape;

  using Keys = Sm90Keys<Config>;
  using UserParams = typename Config::Expressions::Params;

  const Sm90ForwardParams& params;
  const UserParams& user;
  Memory memory;
  uint32 num_published = 0;
  uint32 num_tiles = 0;
  uint32 num_keys = 0;  ///< key blocks that have been asked for
  int first_key = 0;
  int num_listed = 0;  ///< query blocks of packed sequences, where they are listed

  /// Pieces of a key block that are copied by themselves: pages, or parts of one.
  static constexpr int kPieces = Config::kBlockN / Config::kPageRows;

  /// Where keys and values come from.
  struct Source {
    int key = 0;  ///< the first one
    int head = 0;
    int line = 0;             ///< of k and v; paged: of the table of pages
    int last_key = 0;         ///< paged: of the sequence
    int slot = 0;             ///< paged: where the first key lies in its page
    int column = 0;           ///< of values
    int pages[kPieces] = {};  ///< paged: of each piece
  };
  Source source;
  // The values of the last of them come behind the next one's keys.
  bool owes_values = false;
  Source owed;

  FLASHTILE_DEVICE Sm90Loader(const Sm90ForwardParams& p, const UserParams& u, const Memory& m)
      : params(p), user(u), memory(m) {}

  FLASHTILE_DEVICE void publish(const Sm90Tile& tile, int tile_idx) {
    const uint32 slot = num_published % Memory::kSlots;
    wait(memory.tile_free(slot), num_published / Memory::kSlots % 2 ^ 1);
    const uint32 address = memory.tile_slot(slot);
    store_shared(address + 16, static_cast<uint32>(tile_idx));
    if constexpr (Config::kHasLengths) {
      store_shared(address + 20, static_cast<uint32>(tile.lower));
      if constexpr (Config::kNeedsSequence) {
        store_shared(address + 24, static_cast<uint32>(tile.batch_idx));
        store_shared(address + 28, static_cast<uint32>(tile.num_keys));
        store_shared(address + 48, static_cast<uint32>(tile.leftpad));
      }
      if constexpr (Config::kHasChunk) store_shared(address + 52, static_cast<uint32>(tile.offset));
      store_shared(address + 32,
                   Vector4{static_cast<uint32>(tile.seqlen_q), static_cast<uint32>(tile.seqlen_k),
                           static_cast<uint32>(tile.diagonal), static_cast<uint32>(tile.q_begin)});
    }
    store_shared(address, Vector4{static_cast<uint32>(tile.m_block), static_cast<uint32>(tile.head),
                                  static_cast<uint32>(tile.batch), tile.kind});
    arrive(memory.tile_full(slot));
    ++num_published;
  }

  FLASHTILE_DEVICE void publish_end(uint32 kind) {
    Sm90Tile none = {};
    none.kind = kind;
    publish(none, 0);
  }

  /// Which query block of which sequence and head a tile is.
  FLASHTILE_DEVICE void find_place(int tile_idx, Sm90Tile& tile) const {
    const Sm90GridParam& grid = params.grid;
    if constexpr (Config::kListsTiles) {
      const Sm90TileList& list = grid.list;
      const int section = tile_idx / (num_listed * list.heads_per_section);
      const int first_head = section * list.heads_per_section;
      const int rest = tile_idx - first_head * num_listed;
      const int left = params.call.num_heads - first_head;
      const int heads = left < list.heads_per_section ? left : list.heads_per_section;
      const int* entry = list.entries + 2 * (rest / heads);
      tile.head = first_head + rest % heads;
      tile.batch = load_fresh(entry);
      tile.m_block = load_fresh(entry + 1);
    } else {
      uint32 rest, place, head;
      uint32 section = divide(static_cast<uint32>(tile_idx), grid.tiles_per_section, rest);
      const bool is_last = section >= grid.last_section;
      if (is_last) {
        section = grid.last_section;
        rest = static_cast<uint32>(tile_idx) - section * grid.tiles_per_section.value;
      }
      const uint32 first_pair = section * grid.pairs_per_section.value;
      const int rank = static_cast<int>(
          divide(rest, is_last ? grid.pairs_of_last_section : grid.pairs_per_section, place));
      tile.batch = static_cast<int>(divide(first_pair + place, grid.heads, head));
      tile.m_block = grid.descending ? grid.num_m_blocks - 1 - rank : rank;
      tile.head = static_cast<int>(head);
    }
  }

  FLASHTILE_DEVICE Sm90Tile find(int tile_idx, uint32 kind) {
    Sm90Tile tile = {};
    find_place(tile_idx / Config::kNumValueParts, tile);
    tile.value_part = tile_idx % Config::kNumValueParts;
    tile.kind = kind;
    tile.batch_idx = tile.batch;
    const Sequence sequence =
        load_sequence<Config::kHasLengths>(params.call.lengths, params.call.position, tile.batch);
    source.line = Config::kPaged ? tile.batch : sequence.line;
    if constexpr (Config::kPaged) source.last_key = sequence.seqlen_k - 1;
    if constexpr (Config::kHasLengths) find_lengths(sequence, tile);
    return tile;
  }

  FLASHTILE_DEVICE void find_lengths(const Sequence& sequence, Sm90Tile& tile) {
    if constexpr (Config::kPackedQ) tile.batch = 0;
    tile.seqlen_q = sequence.seqlen_q;
    tile.seqlen_k = tile.num_keys = sequence.seqlen_k;
    tile.leftpad = sequence.leftpad;
    tile.q_begin = static_cast<int>(sequence.q_begin);
    first_key = static_cast<int>(sequence.k_begin) + sequence.leftpad;
    constexpr int64 kFar = 1 << 30;
    const variant::PositionMask position =
        find_position_mask<Config>(params.call, user, sequence, tile.head);
    if constexpr (Config::kHasLower) {
      tile.lower = static_cast<int>(clamp<int64>(position.lower, -kFar, kFar - 1));
    }
    if constexpr (Config::kHasDiagonal) {
      tile.diagonal = static_cast<int>(clamp<int64>(position.upper, -kFar, kFar - 1));
      tile.seqlen_k = clamp(tile.seqlen_q + tile.diagonal, 0, tile.seqlen_k);
    }
    if constexpr (Config::kHasChunk) {
      tile.offset = static_cast<int>(clamp<int64>(sequence.query_offset, -kFar / 2, kFar / 2));
    }
  }

  /// False where a sequence has ended before: longer ones have tiles there.
  FLASHTILE_DEVICE bool is_there(const Sm90Tile& tile) const {
    return !Config::kPackedQ || Config::kListsTiles ||
           tile.m_block * kShape.block_m() < tile.seqlen_q;
  }

  FLASHTILE_DEVICE static int first_row(const Sm90Tile& tile) {
    return (Config::kPackedQ ? tile.q_begin : 0) + tile.m_block * kShape.block_m();
  }

  FLASHTILE_DEVICE void load_queries(const Sm90Tile& tile) {
    const uint32 buffer = num_tiles % Memory::kBuffers;
    wait(memory.query_free(buffer), num_tiles / Memory::kBuffers % 2 ^ 1);
    const uint32 barrier = memory.query_full(buffer);
    arrive_expecting(barrier, Config::kHeadDim / 64 * kShape.query_chunk_bytes());
    FLASHTILE_UNROLL
    for (int chunk = 0; chunk < Config::kHeadDim / 64; ++chunk) {
      load_box(memory.queries(buffer) + static_cast<uint32>(chunk * kShape.query_chunk_bytes()),
               params.q, barrier, chunk * 64, first_row(tile), tile.head, tile.batch, kEvictFirst);
    }
    ++num_tiles;
  }

  /// Which pages hold a block. All are asked for at once, before the copy waits for its stage.
  FLASHTILE_DEVICE void find_pages() {
    const LengthsParam& lengths = params.call.lengths;
    FLASHTILE_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      // Behind the last key there may be no entry.
      const int key =
          clamp(source.key + i * Config::kPageRows, 0, source.last_key < 0 ? 0 : source.last_key);
      uint32 slot;
      const uint32 entry = divide(static_cast<uint32>(key), lengths.page_size, slot);
      if (kPieces == 1) source.slot = static_cast<int>(slot);
      source.pages[i] = load_global(reinterpret_cast<const int*>(
          lengths.block_table + source.line * lengths.table_batch_stride +
          entry * lengths.table_stride));
    }
  }

  /// Rows of a key block.
  template <int kColumns>
  FLASHTILE_DEVICE void copy_rows(uint32 target, const TensorMapParam& map, uint32 barrier,
                                  const Source& from, int column) const {
    FLASHTILE_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      const int row = Config::kPaged ? from.slot : from.key;
      const int line =
          Config::kPaged ? clamp(from.pages[i], 0, params.call.lengths.num_lines - 1) : from.line;
      FLASHTILE_UNROLL
      for (int chunk = 0; chunk < kColumns / 64; ++chunk) {
        const int bytes = chunk * kShape.key_chunk_bytes() + i * Config::kPageRows * 128;
        load_box(target + static_cast<uint32>(bytes), map, barrier, column + chunk * 64, row,
                 from.head, line, kEvictLast);
      }
    }
  }

  /// What is added to the scores of a block.
  FLASHTILE_DEVICE void load_bias(const Sm90Tile& tile, int n_block, uint32 stage) const {
    const ScoresParam& bias = params.call.bias;
    FLASHTILE_UNROLL
    for (int chunk = 0; chunk < Config::kBlockN / Sm90Shape::kBiasColumns; ++chunk) {
      load_box(memory.bias(stage) + static_cast<uint32>(chunk * kShape.bias_chunk_bytes()),
               params.bias, memory.key_full(stage),
               n_block * Config::kBlockN + chunk * Sm90Shape::kBiasColumns,
               tile.m_block * kShape.block_m(), bias.head_stride == 0 ? 0 : tile.head,
               bias.batch_stride == 0 ? 0 : tile.batch_idx, kEvictLast);
    }
  }

  FLASHTILE_DEVICE void load_keys(const Sm90Tile& tile, Sm90Block block) {
    const uint32 stage = num_keys % Memory::kStages;
    wait(memory.key_free(stage), num_keys / Memory::kStages % 2 ^ 1);
    const uint32 barrier = memory.key_full(stage);
    if constexpr (Config::kIsMapped) store_shared(memory.block_word(stage), block.word);
    arrive_expecting(barrier, kShape.key_bytes() + kShape.bias_bytes());
    copy_rows<Config::kHeadDim>(memory.keys(stage), params.k, barrier, source, 0);
    if constexpr (Config::kCopiesBias) load_bias(tile, block.n_block(), stage);
    ++num_keys;
  }

  /// Of the block whose keys were asked for `behind` blocks ago.
  FLASHTILE_DEVICE void load_values(uint32 behind) {
    const uint32 number = num_keys - behind;
    const uint32 stage = number % Memory::kStages;
    wait(memory.value_free(stage), number / Memory::kStages % 2 ^ 1);
    const uint32 barrier = memory.value_full(stage);
    arrive_expecting(barrier, kShape.value_bytes());
    copy_rows<Config::kHeadDimV>(memory.values(stage), params.v, barrier, owed,
                                 Config::kNumValueParts > 1 ? owed.column : 0);
  }

  /// A block's keys, and the values of the one before.
  FLASHTILE_DEVICE void load_block(const Sm90Tile& tile, Sm90Block block, bool& has_queries) {
    source.key = (Config::kHasLengths ? first_key : 0) + block.n_block() * Config::kBlockN;
    if constexpr (Config::kPaged) find_pages();
    load_keys(tile, block);
    if (owes_values) load_values(2);
    if (!has_queries) load_queries(tile);
    has_queries = true;
    owes_values = true;
    owed = source;
  }

  /// Everything that a tile needs, in the order in which it is used, but the values of its last
  /// block.
  FLASHTILE_DEVICE void load(const Sm90Tile& tile, int tile_idx) {
    publish(tile, tile_idx);
    uint32 unused;
    source.head =
        static_cast<int>(divide(static_cast<uint32>(tile.head), params.grid.group_size, unused));
    source.column = tile.value_part * Config::kHeadDimV;
    // With one buffer, queries can come only when the tile before has all its values.
    if (Memory::kBuffers > 1) load_queries(tile);
    bool has_queries = Memory::kBuffers > 1;
    const Keys keys(params, tile);
    const int begin = keys.begin_of_blocks();
    int n_block = keys.end_of_blocks() - 1;
    if constexpr (Config::kIsMapped) {
      KeyBlocks<Config::kBlockN> blocks;
      blocks.begin = begin;
      blocks.map = map_row(params.call.blocks, tile.batch_idx, tile.head, tile.m_block,
                           params.grid.num_m_blocks);
      const int last = n_block;
      n_block = blocks.before(n_block + 1);
      if (!blocks.holds(n_block)) {
        load_block(tile, Sm90Block::of(last, Cover::kNone, true), has_queries);
      }
      FLASHTILE_NO_UNROLL
      while (blocks.holds(n_block)) {
        const int next = blocks.before(n_block);
        load_block(tile, Sm90Block::of(n_block, blocks.mapped_cover(n_block), !blocks.holds(next)),
                   has_queries);
        n_block = next;
      }
    } else {
      FLASHTILE_NO_UNROLL
      for (; n_block >= begin; --n_block) {
        load_block(tile, Sm90Block::of(n_block, Cover::kFull, false), has_queries);
      }
    }
  }

  FLASHTILE_DEVICE void pay_values() {
    if (owes_values) load_values(1);
    owes_values = false;
  }

  /// The common counter of tiles becomes that of this launch.
  FLASHTILE_DEVICE void claim_counter() const {
    Sm90TileCounter& counter = *params.grid.counter;
    const uint64 launch = params.grid.launch;
    const uint64 being_cleared = launch + 1;
    uint64 found = load_acquire(&counter.launch);
    while (found != launch) {
      if (found != being_cleared && exchange_if(&counter.launch, found, being_cleared)) {
        counter.num_taken = 0;
        store_release(&counter.launch, launch);
      }
      found = load_acquire(&counter.launch);
    }
  }
  FLASHTILE_DEVICE int take_tile() const {
    return static_cast<int>(num_ctas()) +
           static_cast<int>(atomic_increment(&params.grid.counter->num_taken));
  }

  FLASHTILE_DEVICE void run() {
    int tile_idx = static_cast<int>(cta_idx());
    bool has_counter = false;
    int num_tiles_of_grid = params.grid.num_tiles;
    if constexpr (Config::kListsTiles) {
      num_listed = load_fresh(params.grid.list.num_entries);
      num_tiles_of_grid = num_listed * params.call.num_heads * Config::kNumValueParts;
    }
    FLASHTILE_NO_UNROLL
    while (tile_idx < num_tiles_of_grid) {
      int next = tile_idx + static_cast<int>(num_ctas());
      // Beside the tile's copies, but for the first, which does not wait for the counter.
      if (Config::kIsDynamic && has_counter) next = take_tile();
      const Sm90Tile tile = find(tile_idx, kTileToDo);
      if (is_there(tile)) load(tile, tile_idx);
      if (Config::kIsDynamic && !has_counter) {
        claim_counter();
        has_counter = true;
        next = take_tile();
      }
      tile_idx = next;
    }
    if constexpr (Config::kIsDynamic) {
      // Each CTA comes once when none is left. Behind the last one the counter belongs to no
      // launch: a graph may bring this one again.
      const int end = num_tiles_of_grid + static_cast<int>(num_ctas());
      if (tile_idx + 1 == end) store_release(&params.grid.counter->launch, 0);
    }
    pay_values();
    if constexpr (Config::kCanFail) {
      publish_end(kNoTileYet);
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
    publish_end(kNoTileEver);
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
                tile.value_part * Config::kHeadDimV + chunk * 64,
                Sm90Loader<Config>::first_row(tile), tile.head, tile.batch);
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
      Sm90Tile tile = {};
      tile.m_block = static_cast<int>(entry.x);
      tile.head = static_cast<int>(entry.y);
      tile.batch = static_cast<int>(entry.z);
      tile.kind = entry.w;
      tile.value_part = tile_idx % Config::kNumValueParts;
      bool is_whole = true;
      if constexpr (Config::kPackedQ) {
        tile.q_begin = static_cast<int>(load_shared_word(memory.tile_slot(slot) + 44));
        const uint32 seqlen_q = load_shared_word(memory.tile_slot(slot) + 32);
        is_whole = (tile.m_block + 1) * kShape.block_m() <= static_cast<int>(seqlen_q);
      }
      // Where warps store, they are never further ahead than there are slots for results.
      if (!Config::kWarpsStore || tile.kind > kTileToRedo) arrive(memory.tile_free(slot));
      ++num_read;
      if (tile.kind == kNoTileEver) break;
      if (tile.kind == kNoTileYet) {
        store_shared(memory.list_head(), static_cast<uint32>(last_failed));
        arrive(memory.list_full());
        continue;
      }
      const uint32 results = num_tiles % Memory::kResultSlots;
      wait(memory.results_full(results), num_tiles / Memory::kResultSlots % 2);
      ++num_tiles;
      if (load_shared_word(memory.failed_flag(results)) != 0) {
        // What is done again is stored then; two stores of one place have no order.
        store_shared(memory.failed_flag(results), uint32{0});
        params.grid.next_failed[tile_idx] = last_failed;
        last_failed = tile_idx;
      } else if (is_whole && !Config::kWarpsStore) {
        store(tile, results);
      }
      arrive(Config::kWarpsStore ? memory.tile_free(slot) : memory.query_free(results));
    }
    wait_for_stores();
  }
};

/// Rows of packed queries that no sequence covers: out 0, lse -inf. By two warps.
template <class Config>
FLASHTILE_DEVICE void fill_uncovered_rows(const Sm90ForwardParams& params) {
  const LengthsParam& lengths = params.call.lengths;
  const int64 first =
      clamp<int64>(load_int(lengths.cu_seqlens_q, lengths.batch_size), 0, lengths.total_q);
  const int thread = thread_idx() % (2 * kWarpSize);
  const int pieces = (params.call.head_dim_v + 7) / 8;
  FLASHTILE_NO_UNROLL
  for (int64 row = first + cta_idx(); row < lengths.total_q; row += num_ctas()) {
    char* out = params.call.out.data + row * params.call.out.row_stride;
    FLASHTILE_NO_UNROLL
    for (int i = thread; i < params.call.num_heads * pieces; i += 2 * kWarpSize) {
      store_vector(out + i / pieces * params.call.out.head_stride + i % pieces * 16,
                   Vector4{0, 0, 0, 0});
    }
    const RowScalarsParam& lse = params.call.lse;
    if (lse.data == nullptr) continue;
    FLASHTILE_NO_UNROLL
    for (int head = thread; head < params.call.num_heads; head += 2 * kWarpSize) {
      *reinterpret_cast<float*>(reinterpret_cast<char*>(lse.data) + head * lse.head_stride +
                                row * lse.row_stride) = -infinity();
    }
  }
}

}  // namespace flashtile::device
