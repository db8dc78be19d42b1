// SPDX-License-Identifier: Apache-2.0
//
// A computing warpgroup of attention_fwd_sm90: 64 rows of each tile. Products of a block's keys run
// beside those of the values of the block before, and softmax beside both; warpgroups take turns at
// the tensor cores. At the end of a tile the block before is that of another tile.
#pragma once

#include "cuda/device/hopper/row_softmax.cuh"
#include "cuda/device/hopper/sm90_memory.cuh"
#include "cuda/device/ptx/warpgroup.cuh"
#include "cuda/device/ptx/wgmma.cuh"

namespace flashtile::device {

template <class Config>
struct Sm90Compute {
  using Memory = Sm90Memory<Config>;
  using Softmax = RowSoftmax<Config::kReference>;
  static constexpr auto kShape = Memory::kShape;
  static constexpr int kBlockN = Config::kBlockN;
  static constexpr int kHeadDim = Config::kHeadDim;
  static constexpr int kHeadDimV = Config::kHeadDimV;
  static constexpr bool kFollows = Config::kReference == Sm90Reference::kMaximum;
  static constexpr bool kHasFailures = !kFollows;
  using ScoreProduct = WarpgroupProduct<Config::kElement, kBlockN>;
  using ValueProduct = WarpgroupProduct<Config::kElement, kHeadDimV>;

  const Sm90ForwardParams& params;
  Memory memory;
  Sm90TileReader<Config> reader;
  int group;            ///< of the warpgroups that compute
  uint32 num_keys = 0;  ///< key blocks whose products have been started
  uint32 num_tiles = 0;

  Sm90Tile tile;
  int end_of_plain;        ///< key blocks before this need neither mask nor reference
  int begin_of_plain = 0;  ///< those from this one on

  float scores[kBlockN / 2];
  float acc[kHeadDimV / 2];
  uint32 weights[kBlockN / 4];
  uint32 held[Config::kQueryInRegisters ? kHeadDim / 4 : 1];
  int adds = 0;  ///< 0: the next values are the first of a tile
  Softmax softmax;

  FLASHTILE_DEVICE Sm90Compute(const Sm90ForwardParams& p, const Memory& m) : params(p), memory(m) {
    group = warp_idx() / 4 - 1;
    FLASHTILE_UNROLL
    for (int i = 0; i < kHeadDimV / 2; ++i) acc[i] = 0.0f;
  }

  /// Of the 16 rows of a tile that are a warp's, the one with that number. From a thread's number
  /// anew: registers are dear.
  FLASHTILE_DEVICE static int tile_row(int thread, int number) {
    return (thread / kWarpSize - 4) * 16 + number;
  }
  FLASHTILE_DEVICE static int first_row(const Sm90Tile& of) {
    return of.m_block * kShape.block_m();
  }
  /// Keys from here on are not seen by the row.
  FLASHTILE_DEVICE int end_of_keys(const Sm90Tile& of, int row) const {
    const int seqlen_k = seqlen_k_of(of);
    if constexpr (!Config::kHasDiagonal) return seqlen_k;
    const int end = row + diagonal_of(of) + 1;
    return end < seqlen_k ? end : seqlen_k;
  }
  /// Keys before this are not seen by the row.
  FLASHTILE_DEVICE int begin_of_keys(const Sm90Tile& of, int row) const {
    if constexpr (!Config::kHasLower) return 0;
    const int begin = row + (Config::kHasLengths ? of.lower : params.lower);
    return begin < 0 ? 0 : begin;
  }
  FLASHTILE_DEVICE int seqlen_q_of(const Sm90Tile& of) const {
    return Config::kHasLengths ? of.seqlen_q : params.seqlen_q;
  }
  FLASHTILE_DEVICE int seqlen_k_of(const Sm90Tile& of) const {
    return Config::kHasLengths ? of.seqlen_k : params.seqlen_k;
  }
  FLASHTILE_DEVICE int diagonal_of(const Sm90Tile& of) const {
    return Config::kHasLengths ? of.diagonal : params.diagonal;
  }

  /// Values of keys that no row of the tile sees may be anything, and a weight of 0 hides nothing.
  /// Of the block whose keys were the last.
  FLASHTILE_DEVICE void clear_unseen_values(int n_block) {
    if constexpr (!Config::kHasDiagonal && !Config::kHasLengths) return;
    const int end = end_of_keys(tile, first_row(tile) + kShape.block_m() - 1);
    const int seen = end - n_block * kBlockN;
    if (seen < kBlockN) clear_values(seen < 0 ? 0 : seen, kBlockN);
  }
  /// The same of keys in front, of the last block.
  FLASHTILE_DEVICE void clear_values_before() {
    if constexpr (!Config::kHasLower) return;
    const int hidden =
        begin_of_keys(tile, first_row(tile)) - begin_of_key_blocks<Config>(params, tile) * kBlockN;
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
    const int first = first_row(tile) + group * 64;
    int plain = seqlen_k_of(tile);
    // One less than the first row sees: then each row sees a key in the blocks behind.
    if constexpr (Config::kHasDiagonal) {
      const int seen = first + diagonal_of(tile);
      plain = seen < plain ? (seen < 0 ? 0 : seen) : plain;
    }
    if constexpr (Config::kHasLower) {
      begin_of_plain = (begin_of_keys(tile, first + 63) + kBlockN - 1) / kBlockN;
    }
    end_of_plain = tile.kind == kTileToRedo ? 0 : plain / kBlockN;
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
  /// Of the block before the one whose keys are next (`behind` 1), or are under way (2).
  FLASHTILE_DEVICE void wait_for_values(uint32 behind) const {
    const uint32 number = num_keys - behind;
    wait(memory.value_full(number % Memory::kStages), number / Memory::kStages % 2);
  }
  FLASHTILE_DEVICE void release_keys() const {
    arrive_if(memory.key_free((num_keys - 1) % Memory::kStages), lane_idx() == 0);
  }
  FLASHTILE_DEVICE void release_values(uint32 behind) const {
    arrive_if(memory.value_free((num_keys - behind) % Memory::kStages), lane_idx() == 0);
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
        OperandAddress::of_columns(memory.values((num_keys - behind) % Memory::kStages),
                                   static_cast<uint32>(kShape.key_chunk_bytes()));
    FLASHTILE_UNROLL
    for (int step = 0; step < kBlockN / 16; ++step) {
      ValueProduct::template registers<1>(
          acc, weights[step * 4], weights[step * 4 + 1], weights[step * 4 + 2],
          weights[step * 4 + 3], (values + step * 16 * 128).descriptor(), step > 0 ? 1 : adds);
    }
    commit_products();
  }

  FLASHTILE_DEVICE void mask(int n_block) {
    const int thread = fresh(thread_idx());
    const int row = first_row(tile) + tile_row(thread, thread % kWarpSize / 4);
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int first_key = n_block * kBlockN + thread % 4 * 2;
      const int end = end_of_keys(tile, row + half * 8) - first_key;
      const int begin = begin_of_keys(tile, row + half * 8) - first_key;
      FLASHTILE_UNROLL
      for (int n = 0; n < kBlockN / 8; ++n) {
        FLASHTILE_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& score = scores[n * 4 + half * 2 + e];
          if (n * 8 + e >= end) score = -infinity();
          if (Config::kHasLower && n * 8 + e < begin) score = -infinity();
        }
      }
    }
  }

  /// Scores to weights, in place. Careful: with masks, and a reference that follows; true where
  /// sums must be multiplied by `factors` then.
  template <bool kIsCareful>
  FLASHTILE_DEVICE bool weigh(int n_block, float (&factors)[2]) {
    bool has_moved = false;
    const bool follows = Config::kReference != Sm90Reference::kZero || tile.kind == kTileToRedo;
    if constexpr (kIsCareful) {
      if (n_block >= end_of_plain || (Config::kHasLower && n_block < begin_of_plain)) mask(n_block);
      if (follows) has_moved = softmax.follow(scores, params.scale, factors);
      softmax.weigh(scores, params.scale, follows);
    } else {
      softmax.weigh(scores, params.scale, false);
    }
    return has_moved;
  }

  FLASHTILE_DEVICE void pack_weights() {
    FLASHTILE_UNROLL
    for (int i = 0; i < kBlockN / 4; ++i) {
      weights[i] = pack<Config::kElement>(scores[i * 2], scores[i * 2 + 1]);
    }
  }

  FLASHTILE_DEVICE void fence() {
    pin(acc);
    pin(weights);
    fence_products();
  }

  /// The next key block of the tile, and the values of the one before.
  template <bool kIsCareful>
  FLASHTILE_DEVICE void next_block(int n_block) {
    wait_for_keys();
    take_turn();
    fence();
    start_scores();
    wait_for_values(2);
    fence_products();
    start_values(2);
    pass_turn();
    wait_for_products<1>();
    pin(scores);
    release_keys();
    float factors[2];
    const bool has_moved = weigh < kIsCareful || kFollows > (n_block, factors);
    if constexpr (Config::kHoldsBack) {
      // Never: a sum is not negative. It ends a basic block, so that the assembler cannot move the
      // wait for values in front of the exponentials.
      if (static_cast<int>(bits_of_float(softmax.sum[0])) < 0) wait_for_values(2);
    }
    wait_for_products<0>();
    pin(acc);
    pin(weights);
    release_values(2);
    adds = 1;
    if (kIsCareful || kFollows) {
      if (has_moved) scale_rows(factors);
    }
    pack_weights();
  }

  FLASHTILE_DEVICE void scale_rows(const float (&factors)[2]) {
    FLASHTILE_UNROLL
    for (int i = 0; i < kHeadDimV / 2; ++i) acc[i] *= factors[i / 2 % 2];
  }

  /// The first key block of a tile, with nothing beside it.
  FLASHTILE_DEVICE int first_block(const Sm90Tile& first) {
    start_tile(first);
    const int n_block = end_of_key_blocks<Config>(params, tile) - 1;
    take_queries();
    wait_for_keys();
    take_turn();
    if constexpr (Config::kQueryInRegisters) pin(held);
    fence_products();
    start_scores();
    pass_turn();
    wait_for_products<0>();
    pin(scores);
    release_keys();
    softmax.reset(kFollows || Config::kReference == Sm90Reference::kFirstBlock ||
                  tile.kind == kTileToRedo);
    float factors[2];
    weigh<true>(n_block, factors);
    pack_weights();
    adds = 0;
    clear_unseen_values(n_block);
    return n_block;
  }

  /// The first key block of the next tile, beside the last values of this one.
  FLASHTILE_DEVICE int cross_tiles(const Sm90Tile& next) {
    const uint32 old_buffer = query_buffer();
    take_queries();
    wait_for_keys();
    take_turn();
    if constexpr (Config::kQueryInRegisters) pin(held);
    fence();
    start_scores();
    wait_for_values(2);
    fence_products();
    start_values(2);
    pass_turn();
    wait_for_products<1>();
    pin(scores);
    release_keys();
    Softmax old = softmax;
    const Sm90Tile old_tile = tile;
    start_tile(next);
    const int n_block = end_of_key_blocks<Config>(params, tile) - 1;
    softmax.reset(kFollows || Config::kReference == Sm90Reference::kFirstBlock ||
                  tile.kind == kTileToRedo);
    float factors[2];
    weigh<true>(n_block, factors);
    wait_for_products<0>();
    pin(acc);
    pin(weights);
    release_values(2);
    finish(old_tile, old, old_buffer);
    pack_weights();
    adds = 0;
    clear_unseen_values(n_block);
    return n_block;
  }

  /// The last values, with nothing beside them.
  FLASHTILE_DEVICE void last_values() {
    wait_for_values(1);
    fence();
    start_values(1);
    wait_for_products<0>();
    pin(acc);
    pin(weights);
    release_values(1);
    finish(tile, softmax, query_buffer());
  }

  FLASHTILE_DEVICE void finish(const Sm90Tile& done, Softmax& rows, uint32 buffer) {
    rows.finish_sums();
    const int thread = fresh(thread_idx());
    const int row = first_row(done) + tile_row(thread, thread % kWarpSize / 4);
    bool is_good = true;
    float factors[2];
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float sum = rows.sum[half];
      is_good = is_good && rows.is_in_range(half, end_of_keys(done, row + half * 8) >
                                                      begin_of_keys(done, row + half * 8));
      // A row that sees nothing has the sum 0 and gives 0.
      factors[half] = sum == 0.0f ? 0.0f : reciprocal_approx(sum);
      if (thread % 4 == 0 && params.lse.data != nullptr && row + half * 8 < seqlen_q_of(done)) {
        const float base =
            rows.reference[half] == -infinity() ? 0.0f : rows.reference[half] * params.scale;
        char* address =
            reinterpret_cast<char*>(params.lse.data) + done.batch * params.lse.batch_stride +
            done.head * params.lse.head_stride +
            ((Config::kPackedQ ? done.q_begin : 0) + row + half * 8) * params.lse.row_stride;
        *reinterpret_cast<float*>(address) =
            sum == 0.0f ? -infinity() : (base + log2_approx(sum)) * kLn2;
      }
    }
    if constexpr (kHasFailures) {
      // 0 times a finite number is 0, times any other it is NaN.
      float probes[4] = {};
      FLASHTILE_UNROLL
      for (int i = 0; i < kHeadDimV / 2; ++i) {
        probes[i % 4] = fused_multiply_add(acc[i], 0.0f, probes[i % 4]);
      }
      is_good = is_good && (probes[0] + probes[1]) + (probes[2] + probes[3]) == 0.0f;
      const bool has_failed = done.kind == kTileToDo && any_lane(!is_good);
      if (has_failed && thread % kWarpSize == 0)
        store_shared(memory.failed_flag(buffer), uint32{1});
    }
    // Of the tile in 16-byte pieces: row `number` of the warp's, half `side` of 16 columns.
    const auto piece_address = [&](int number, int step, int side) {
      const int stored = tile_row(thread, number);
      return memory.queries(buffer) +
             static_cast<uint32>(step / 4 * kShape.query_chunk_bytes() + stored * 128 +
                                 ((step % 4 * 2 + side) ^ (stored % 8)) * 16);
    };
    FLASHTILE_UNROLL
    for (int step = 0; step < kHeadDimV / 16; ++step) {
      uint32 fragment[4];
      FLASHTILE_UNROLL
      for (int r = 0; r < 4; ++r) {
        fragment[r] = pack<Config::kElement>(acc[step * 8 + r * 2] * factors[r % 2],
                                             acc[step * 8 + r * 2 + 1] * factors[r % 2]);
      }
      store_matrices(piece_address(thread % 16, step, thread % kWarpSize / 16), fragment,
                     [&](int i) {
                       return piece_address(i % 2 * 8 + thread % kWarpSize / 4, step, i / 2) +
                              static_cast<uint32>(thread % 4 * 4);
                     });
    }
    if constexpr (Config::kPackedQ) store_last_rows(done, thread, piece_address);
    fence_shared_for_async();
    sync_warp();
    arrive_if(memory.results_full(buffer), thread % kWarpSize == 0);
  }

  /// Where the sequence ends in the tile, its rows are stored by the warps that hold them, and not
  /// by the copy engine: others follow.
  template <class PieceAddress>
  FLASHTILE_DEVICE void store_last_rows(const Sm90Tile& done, int thread,
                                        const PieceAddress& piece_address) const {
    const int rows_left = done.seqlen_q - first_row(done);
    if (rows_left >= kShape.block_m()) return;
    sync_warp();
    constexpr int kPieces = kHeadDimV / 8;
    FLASHTILE_NO_UNROLL
    for (int i = thread % kWarpSize; i < 16 * kPieces; i += kWarpSize) {
      const int number = i / kPieces;
      const int piece = i % kPieces;
      const int row = tile_row(thread, number);
      if (row >= rows_left || piece * 8 >= params.head_dim_v) continue;
      store_vector(params.out_rows.data + done.head * params.out_rows.head_stride +
                       (done.q_begin + first_row(done) + row) * params.out_rows.row_stride +
                       piece * 16,
                   load_shared_vector(piece_address(number, piece / 2, piece % 2)));
    }
  }

  /// The blocks of a tile behind its first.
  FLASHTILE_DEVICE void visit_blocks(int n_block) {
    const int last = begin_of_key_blocks<Config>(params, tile);
    const int end = Config::kHasLower && last > end_of_plain ? last : end_of_plain;
    FLASHTILE_NO_UNROLL
    for (--n_block; n_block >= end; --n_block) next_block<true>(n_block);
    if constexpr (!kFollows) {
      const int begin = Config::kHasLower && begin_of_plain > last ? begin_of_plain : last;
      FLASHTILE_NO_UNROLL
      for (; n_block >= begin; --n_block) next_block<false>(n_block);
    }
    if constexpr (kFollows || Config::kHasLower) {
      FLASHTILE_NO_UNROLL
      for (; n_block >= last; --n_block) next_block<true>(n_block);
    }
    clear_values_before();
  }

  FLASHTILE_DEVICE void run() {
    if (group == Config::kNumWarpgroups - 1) pass_turn();
    FLASHTILE_NO_UNROLL
    while (true) {
      Sm90Tile next = reader.next(memory);
      if (next.kind == kNoTileEver) break;
      if (!next.is_tile()) continue;
      int n_block = first_block(next);
      FLASHTILE_NO_UNROLL
      while (true) {
        visit_blocks(n_block);
        if constexpr (Config::kNumQueryBuffers == 1) break;
        next = reader.next(memory);
        if (!next.is_tile()) break;
        n_block = cross_tiles(next);
      }
      last_values();
      if (next.kind == kNoTileEver) break;
    }
  }
};

}  // namespace flashtile::device
