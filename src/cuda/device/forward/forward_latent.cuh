// SPDX-License-Identifier: Apache-2.0
//
// The inner part of the forward kernel where values are the first columns of keys (multi-head
// latent attention, for Hopper): a block of keys is one tile, copied once, that serves both
// products. Four warpgroups, which meet at barriers in shared memory:
//
//   3: copies keys --- keys_full ---> 2: products, weights --- weights_full ---> 0, 1: sums
//           ^                                   ^                                 |     |
//           |                                   '---------- weights_free ---------'     |
//           '----------------------------- keys_free -----------------------------------'
//
// Two warpgroups sum values, half of the columns each, because a thread has no registers for all.
// Weights reach them through shared memory, and so do factors of rows whose reference has moved.
#pragma once

#include "cuda/device/forward/forward_base.cuh"
#include "cuda/device/mma/tile_products.cuh"
#include "cuda/device/ptx/exchange.cuh"
#include "cuda/device/ptx/mbarrier.cuh"
#include "cuda/device/ptx/tensor_copy.cuh"
#include "cuda/device/ptx/warpgroup.cuh"
#include "cuda/device/ptx/wgmma.cuh"

namespace flashtile::device {

template <class Config>
struct ForwardLatent : ForwardBase<Config> {
  using Base = ForwardBase<Config>;
  using Base::acc;
  using Base::blocks;
  using Base::first_warp_row;
  using Base::kShape;
  using Base::kThreads;
  using Base::shared;
  using Base::softmax;
  using Base::stage_address;
  using Base::state;
  using Base::warp_n;
  using Scores = typename Base::Scores;
  static constexpr int kBlockM = Config::kBlockM;
  static constexpr int kBlockN = Config::kBlockN;
  static constexpr uint32 kStages = Config::kNumStages;
  static constexpr int kSummingWarps = Config::kWarpsM * Config::kWarpsN;
  static constexpr int kWeighingGroup = 2;
  /// Of each thread; for one thread of each of the four warpgroups 512.
  static constexpr int kSumRegisters = 176;
  static constexpr int kWeighRegisters = 96;
  static constexpr int kCopyRegisters = 64;
  static_assert(kBlockM == 64 && Config::kWarpsM == 4 && Config::kWarpsN == 2 &&
                    Config::kSlice == kBlockN && Base::kCopyThreads == kWarpgroupSize,
                "four warpgroups");

  using KeyTile = SwizzledTile<kBlockN, Config::kHeadDim>;
  using QueryTile = SwizzledTile<kBlockM, Config::kHeadDim>;
  using WeightTile = SwizzledTile<kBlockM, kBlockN>;
  using QueryCopy = TileCopy<Config::kElement, QueryTile, kBlockM, Config::kHeadDim,
                             Base::kCopyThreads, 16, Base::kFirstCopyThread>;
  using KeyCopy = TileCopy<Config::kElement, KeyTile, kBlockN, Config::kHeadDim, Base::kCopyThreads,
                           16, Base::kFirstCopyThread>;
  using HalfCopy = TileCopy<Config::kElement, KeyTile, kBlockN / 2, Config::kHeadDim,
                            Base::kCopyThreads, 16, Base::kFirstCopyThread>;
  using ScoreProduct = WarpgroupProduct<Config::kElement, kBlockN>;
  /// Columns of values that a product takes: the assembler wants registers for all of them within
  /// the share that threads have before they claim more.
  static constexpr int kProductCols = Base::kOwnCols % 128 == 0 ? 128 : 64;
  using ValueProduct = WarpgroupProduct<Config::kElement, kProductCols>;

  using Base::Base;

  // ---- Barriers

  FLASHTILE_DEVICE static uint32 barrier(uint32 number) {
    return shared_address(shared_memory()) + static_cast<uint32>(kShape.barriers_begin()) +
           number * kBarrierBytes;
  }
  FLASHTILE_DEVICE static uint32 keys_full(uint32 stage) { return barrier(stage); }
  /// Of the first or second half of its keys: what is used up first is copied first.
  FLASHTILE_DEVICE static uint32 keys_free(uint32 stage, uint32 half) {
    return barrier(kStages + 2 * stage + half);
  }
  FLASHTILE_DEVICE static uint32 weights_full() { return barrier(3 * kStages); }
  FLASHTILE_DEVICE static uint32 weights_free() { return barrier(3 * kStages + 1); }
  FLASHTILE_DEVICE static uint32 queries_full() { return barrier(3 * kStages + 2); }
  /// Not 0: the tile's result is out of range.
  FLASHTILE_DEVICE static uint32 failed_flag() { return barrier(3 * kStages + 3); }

  /// By one thread; a barrier of the CTA follows.
  FLASHTILE_DEVICE static void init_barriers() {
    for (uint32 i = 0; i < kStages; ++i) {
      init_barrier(keys_full(i), Base::kCopyThreads);
      init_barrier(keys_free(i, 0), kSummingWarps);
      init_barrier(keys_free(i, 1), kSummingWarps);
    }
    init_barrier(queries_full(), Base::kCopyThreads);
    init_barrier(weights_full(), Config::kWarpsM);
    init_barrier(weights_free(), kSummingWarps);
    store_shared(failed_flag(), uint32{0});
    fence_barrier_init();
  }
  /// By one lane for its warp.
  FLASHTILE_DEVICE static void arrive_as_warp(uint32 at) {
    sync_warp();
    arrive_if(at, lane_idx() == 0);
  }

  /// All threads have ended an attempt, and sums of weights are published. True where `is_good` is
  /// false for some thread, and the tile has to be worked out again.
  FLASHTILE_DEVICE static bool has_failed(bool is_good) {
    if (!is_good) store_shared(failed_flag(), uint32{1});
    sync_group(1, kThreads);
    return load_shared_word(failed_flag()) != 0;
  }

  // ---- The warpgroup that copies

  /// Where the copy engine takes a block's keys from, in boxes of kBoxRows keys by 64 columns.
  struct Boxes {
    static constexpr int kBoxRows = Config::kBoxRows > 0 ? Config::kBoxRows : kBlockN;
    static constexpr int kCount = kBlockN / kBoxRows;
    int row;
    int lines[kCount];
  };

  /// Asks for the pages of a block, if there is one and it is whole.
  FLASHTILE_DEVICE void find_boxes(Boxes& boxes, int n_block) const {
    const Sequence& sequence = state().sequence;
    const KeyRows<Config::kPaged>& keys = state().keys;
    boxes.row = static_cast<int>(sequence.k_begin) + sequence.leftpad + n_block * kBlockN;
    boxes.lines[0] = sequence.line;
    if constexpr (Config::kPaged) {
      if (!blocks.holds(n_block) || !blocks.is_whole(n_block)) return;
      FLASHTILE_UNROLL
      for (int i = 0; i < Boxes::kCount; ++i) {
        const auto place = keys.place_of(n_block * kBlockN + i * Boxes::kBoxRows);
        if (i == 0) boxes.row = static_cast<int>(place.slot);
        boxes.lines[i] = place.page;
      }
    }
  }

  /// By one thread.
  FLASHTILE_DEVICE void copy_boxes(const TensorMapParam& map, const Boxes& boxes, uint32 tile,
                                   uint32 barrier_of_tile) const {
    arrive_expecting(barrier_of_tile, KeyTile::kBytes);
    uint32 unused;
    const int head = static_cast<int>(
        divide(static_cast<uint32>(state().tile.head), this->params.group, unused));
    // Tiles of other queries of the sequence read the same keys at about the same time.
    const uint64 policy = this->params.grid.num_m_blocks > 1 ? kEvictNormal : kEvictFirst;
    FLASHTILE_UNROLL
    for (int i = 0; i < Boxes::kCount; ++i) {
      const int line =
          Config::kPaged ? clamp(boxes.lines[i], 0, state().keys.num_pages - 1) : boxes.lines[0];
      FLASHTILE_UNROLL
      for (int chunk = 0; chunk < Config::kHeadDim / 64; ++chunk) {
        const int skipped = chunk * KeyTile::kGroupBytes + i * Boxes::kBoxRows * 128;
        load_box(tile + static_cast<uint32>(skipped), map, barrier_of_tile, chunk * 64, boxes.row,
                 head, line, policy);
      }
    }
  }

  /// Half of a block whose keys are all there, by all threads.
  FLASHTILE_DEVICE void load_half(int n_block, uint32 tile, int half) const {
    const int64 element_stride = this->params.k.element_stride;
    const uint32 target = tile + static_cast<uint32>(half * kBlockN / 2 * 128);
    const KeyRows<Config::kPaged>& keys = state().keys;
    if constexpr (Base::kKeepsPages) {
      const auto known = reinterpret_cast<int64>(keys.row(this->known_place));
      const int first_step = half * kBlockN / 2 / Base::kRowsAtOnce;
      HalfCopy::template copy<true>(target, Config::kHeadDim, element_stride, [&](int, int step) {
        return reinterpret_cast<const char*>(
            shuffle(known, lane_idx() / 8 * 8 + first_step + step));
      });
    } else {
      const int first_key = n_block * kBlockN + half * kBlockN / 2;
      HalfCopy::copy_strided(target, Config::kHeadDim, element_stride,
                             keys.row(first_key + HalfCopy::first_row()), keys.row_stride);
    }
  }

  /// Any block, with zeros for keys that are not there.
  FLASHTILE_DEVICE void load_keys(int n_block, uint32 tile) const {
    const int first_key = n_block * kBlockN;
    KeyCopy::copy_range(tile, Config::kHeadDim, this->params.k.element_stride,
                        blocks.key_begin - first_key, blocks.key_end - first_key,
                        [&](int row) { return state().keys.row(first_key + row); });
  }

  /// The copy engine takes whole blocks; others get zeros for what is not there.
  FLASHTILE_DEVICE void copy_blocks(const TensorMapParam& map) {
    const bool is_first = thread_idx() == Base::kFirstCopyThread;
    uint32 count = 0;
    this->template load_query_rows<QueryCopy>(shared, Config::kHeadDim);
    arrive_behind_copies(queries_full());
    FLASHTILE_NO_UNROLL
    for (int attempt = 0; attempt < 2; ++attempt) {
      int n_block = blocks.before(blocks.end);
      Boxes boxes;
      this->find_pages(n_block);
      if (Config::kBoxRows > 0 && is_first) find_boxes(boxes, n_block);
      FLASHTILE_NO_UNROLL
      for (; blocks.holds(n_block); ++count) {
        const uint32 stage = count % kStages;
        const uint32 tile = stage_address(static_cast<int>(stage));
        const uint32 parity = (count / kStages + 1) % 2;
        const bool is_plain = attempt == 0 && blocks.is_whole(n_block);
        wait(keys_free(stage, 0), parity);
        if (Config::kBoxRows == 0 && is_plain) load_half(n_block, tile, 0);
        wait(keys_free(stage, 1), parity);
        const int next = blocks.before(n_block);
        if (Config::kBoxRows > 0 && is_plain) {
          if (is_first) {
            copy_boxes(map, boxes, tile, keys_full(stage));
          } else {
            arrive(keys_full(stage));
          }
        } else {
          if (is_plain) {
            load_half(n_block, tile, 1);
          } else {
            load_keys(n_block, tile);
          }
          this->find_pages(next);
          if (attempt == 1) {
            clear_values(n_block, tile);
            arrive(keys_full(stage));
          } else {
            arrive_behind_copies(keys_full(stage));
          }
        }
        if (Config::kBoxRows > 0 && is_first) find_boxes(boxes, next);
        n_block = next;
      }
      copy_async_commit();
      copy_async_wait<0>();
      sync_group(1, kThreads);
      if (!has_failed(true)) break;
    }
  }

  /// Values of keys that no query sees become 0, as soon as they are there.
  FLASHTILE_DEVICE void clear_values(int n_block, uint32 tile) {
    copy_async_commit();
    copy_async_wait<0>();
    this->find_seen_keys(n_block);
    Base::template clear_unseen_values<KeyTile, Config::kHeadDimV>(tile);
  }

  // ---- The warpgroup that makes weights

  FLASHTILE_DEVICE void multiply_keys(Scores& scores, uint32 stage) const {
    const OperandAddress queries = OperandAddress::of_rows(shared);
    const OperandAddress keys = OperandAddress::of_rows(stage_address(static_cast<int>(stage)));
    float products[kBlockN / 2];
    fence_products();
    FLASHTILE_UNROLL
    for (int step = 0; step < Config::kHeadDim / 16; ++step) {
      const int column_bytes = step % 4 * 32;
      ScoreProduct::shared(
          products, (queries + (step / 4 * QueryTile::kGroupBytes + column_bytes)).descriptor(),
          (keys + (step / 4 * KeyTile::kGroupBytes + column_bytes)).descriptor(), step > 0);
    }
    commit_products();
    wait_for_products<0>();
    pin(products);
    FLASHTILE_UNROLL
    for (int i = 0; i < kBlockN / 2; ++i) scores[0][i / 4][i % 4] = products[i];
  }

  /// What those who sum have to know of a warp's weights, besides these.
  enum Notice : uint32 {
    kHasMoved = 1,   ///< references have moved: there are factors of what has been summed
    kIsWritten = 2,  ///< threads have written the block's keys, not the copy engine
    kIsLast = 4,     ///< no block follows
  };
  FLASHTILE_DEVICE uint32 notice_address() const {
    return this->exchange_address(1, first_warp_row);
  }
  FLASHTILE_DEVICE uint32 factor_address(int row) const { return this->exchange_address(0, row); }

  /// Leaves factors of rows whose references were `before`; true where there are any.
  FLASHTILE_DEVICE bool publish_factors(const float (&before)[2]) const {
    float factors[2];
    bool has_moved = false;
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float now = softmax.reference[0][half];
      const bool moves = before[half] != now && before[half] != -infinity();
      factors[half] = moves ? exp2_approx((before[half] - now) * softmax.scale) : 1.0f;
      has_moved = has_moved || moves;
    }
    has_moved = any_lane(has_moved);
    if (!has_moved) return false;
    for_each_row<1>(first_warp_row, [&](int, int half, int row) {
      if (lane_idx() % 4 == 0) store_shared(factor_address(row), factors[half]);
    });
    return true;
  }

  /// True where threads write the keys of a block.
  FLASHTILE_DEVICE bool is_written(int n_block, int attempt) const {
    return Config::kBoxRows == 0 || attempt == 1 || !blocks.is_whole(n_block);
  }

  /// Scores to weights. Most blocks need nothing but exponentials: `is_settled` says that rows have
  /// references, and becomes true where they do.
  FLASHTILE_DEVICE void weigh_block(typename Base::SliceWeights& weights, Scores& scores,
                                    int n_block, int attempt, bool& is_settled) {
    constexpr bool kMayBePlain = Base::kFixedReference && !Base::kIsGeneral && !Base::kIsTilted;
    if (kMayBePlain && is_settled && blocks.cover(n_block) == Cover::kFull) {
      this->template prepare<true>(scores, {}, n_block, 0);
      this->template weigh<true>(weights, scores, {}, n_block, 0, 0);
    } else {
      const typename Base::Treatment treatment = this->treatment_of(n_block, attempt == 1);
      this->template prepare<false>(scores, treatment, n_block, 0);
      this->template weigh<false>(weights, scores, treatment, n_block, 0, 0);
      is_settled = attempt == 0 && softmax.is_settled();
    }
  }

  FLASHTILE_DEVICE void make_weights() {
    const uint32 tile = shared + static_cast<uint32>(kShape.weights_begin());
    uint32 count = 0;
    wait(queries_full(), 0);
    FLASHTILE_NO_UNROLL
    for (int attempt = 0; attempt < 2; ++attempt) {
      this->reset();
      bool is_settled = false;
      FLASHTILE_NO_UNROLL
      for (int n_block = blocks.before(blocks.end); blocks.holds(n_block); ++count) {
        const uint32 stage = count % kStages;
        wait(keys_full(stage), count / kStages % 2);
        uint32 notice = is_written(n_block, attempt) ? kIsWritten : 0;
        if (notice != 0 || count == 0) fence_shared_for_async();
        Scores scores;
        multiply_keys(scores, stage);
        const float before[2] = {softmax.reference[0][0], softmax.reference[0][1]};
        typename Base::SliceWeights weights;
        weigh_block(weights, scores, n_block, attempt, is_settled);
        n_block = blocks.before(n_block);
        if (!blocks.holds(n_block)) notice |= kIsLast;
        wait(weights_free(), (count + 1) % 2);
        store_weights<WeightTile>(tile, weights, first_warp_row, 0);
        if (publish_factors(before)) notice |= kHasMoved;
        if (lane_idx() == 0) store_shared(notice_address(), notice);
        arrive_as_warp(weights_full());
      }
      softmax.finish_sums();
      wait(weights_free(), (count + 1) % 2);
      for_each_row<1>(first_warp_row, [&](int, int half, int row) {
        if (lane_idx() % 4 != 0) return;
        store_shared(this->exchange_address(0, row), softmax.reference[0][half]);
        store_shared(this->exchange_address(1, row), softmax.sum[0][half]);
      });
      sync_group(1, kThreads);
      if (!has_failed(true)) break;
    }
  }

  // ---- The warpgroups that sum values

  FLASHTILE_DEVICE void scale_sums() {
    for_each_row<1>(first_warp_row, [&](int, int half, int row) {
      const float factor = load_shared(factor_address(row));
      FLASHTILE_UNROLL
      for (int v = 0; v < Base::kTilesV; ++v) {
        acc[0][v][half * 2] *= factor;
        acc[0][v][half * 2 + 1] *= factor;
      }
    });
  }

  /// Gives the stage's keys back.
  FLASHTILE_DEVICE void add_values(const HalfRows<1, kBlockN>& weights, uint32 stage) {
    const OperandAddress values = OperandAddress::of_columns(
        stage_address(static_cast<int>(stage)) +
            static_cast<uint32>(warp_n * (Base::kOwnCols / 64) * KeyTile::kGroupBytes),
        static_cast<uint32>(KeyTile::kGroupBytes));
    using Sums = float[Base::kOwnCols / kProductCols][kProductCols / 2];
    auto& sums = reinterpret_cast<Sums&>(acc);
    fence_products();
    FLASHTILE_UNROLL
    for (int step = 0; step < kBlockN / 16; ++step) {
      const uint32(&a)[4] = weights.fragments[step][0];
      FLASHTILE_UNROLL
      for (int part = 0; part < Base::kOwnCols / kProductCols; ++part) {
        const int skipped = step * 16 * 128 + part * (kProductCols / 64) * KeyTile::kGroupBytes;
        ValueProduct::template registers<1>(sums[part], a[0], a[1], a[2], a[3],
                                            (values + skipped).descriptor(), 1);
      }
      if (step + 1 == kBlockN / 32) commit_products();
    }
    commit_products();
    wait_for_products<1>();
    arrive_as_warp(keys_free(stage, 0));
    wait_for_products<0>();
    arrive_as_warp(keys_free(stage, 1));
    FLASHTILE_UNROLL
    for (int part = 0; part < Base::kOwnCols / kProductCols; ++part) pin(sums[part]);
  }

  FLASHTILE_DEVICE void sum_values() {
    const uint32 tile = shared + static_cast<uint32>(kShape.weights_begin());
    const bool has_blocks = state().blocks.holds(state().blocks.before(state().blocks.end));
    uint32 count = 0;
    FLASHTILE_NO_UNROLL
    for (int attempt = 0; attempt < 2; ++attempt) {
      this->reset();
      uint32 notice = has_blocks ? 0 : kIsLast;
      FLASHTILE_NO_UNROLL
      for (; (notice & kIsLast) == 0; ++count) {
        const uint32 stage = count % kStages;
        wait(keys_full(stage), count / kStages % 2);
        wait(weights_full(), count % 2);
        HalfRows<1, kBlockN> weights;
        weights.template load<WeightTile>(tile, first_warp_row);
        // By lane 0 alone, which arrives for all below.
        if (lane_idx() == 0) notice = load_shared_word(notice_address());
        notice = shuffle(notice, 0);
        if ((notice & kIsWritten) != 0) fence_shared_for_async();
        if ((notice & kHasMoved) != 0) scale_sums();
        arrive_as_warp(weights_free());
        add_values(weights, stage);
      }
      sync_group(1, kThreads);
      for_each_row<1>(first_warp_row, [&](int, int half, int row) {
        softmax.reference[0][half] = load_shared(this->exchange_address(0, row));
        softmax.sum[0][half] = load_shared(this->exchange_address(1, row));
      });
      if (!has_failed(softmax.is_in_range(acc))) break;
    }
  }
};

}  // namespace flashtile::device
