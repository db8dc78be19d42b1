// SPDX-License-Identifier: Apache-2.0
//
// attention_prepare: what must stand in memory before other kernels run: the bits of listed blocks,
// and -inf as every head's largest logit.
//
// listed: a bit for each (batch, head, query block, key block) of the lists, in rows of whole
// words. A warp owns a row: it clears it and then sets the bits of the first `count` entries; what
// lies behind them, and blocks that do not exist, are passed over.
#pragma once

#include "cuda/device/params/attention_params.hpp"
#include "cuda/device/ptx/math.cuh"
#include "cuda/device/ptx/memory.cuh"
#include "cuda/device/ptx/thread.cuh"

namespace flashtile::device {

constexpr int kPrepareThreads = 128;

FLASHTILE_DEVICE void set_listed_blocks(const BlocksParam& blocks, int64 line) {
  uint32* words = blocks.listed + line * blocks.list_words;
  for (int word = lane_idx(); word < blocks.list_words; word += kWarpSize) words[word] = 0;
  sync_warp();
  const int64 row = line % blocks.list_rows;
  const int64 head = line / blocks.list_rows % blocks.list_heads;
  const int64 batch = line / blocks.list_rows / blocks.list_heads;
  const char* count_address = blocks.counts + batch * blocks.counts_batch_stride +
                              head * blocks.counts_head_stride + row * blocks.counts_row_stride;
  const int count = load_global(reinterpret_cast<const int*>(count_address));
  const char* entries = blocks.indices + batch * blocks.indices_batch_stride +
                        head * blocks.indices_head_stride + row * blocks.indices_row_stride;
  for (int i = lane_idx(); i < count && i < blocks.max_entries; i += kWarpSize) {
    const int col =
        load_global(reinterpret_cast<const int*>(entries + i * blocks.indices_entry_stride));
    if (col >= 0 && col < blocks.list_cols) atomic_or(words + col / 32, 1u << (col % 32));
  }
}

}  // namespace flashtile::device

FLASHTILE_KERNEL FLASHTILE_LAUNCH_BOUNDS(flashtile::device::kPrepareThreads, 4)
    attention_prepare(FLASHTILE_PARAMETER flashtile::device::AttentionParams params) {
  using namespace flashtile::device;
  const int64 num_warps = num_ctas() * (kPrepareThreads / kWarpSize);
  const int64 warp = cta_idx() * (kPrepareThreads / kWarpSize) + warp_idx();
  const BlocksParam& blocks = params.blocks;
  const int64 num_lines =
      static_cast<int64>(blocks.list_batches) * blocks.list_heads * blocks.list_rows;
  for (int64 line = warp; line < num_lines; line += num_warps) set_listed_blocks(blocks, line);
  if (params.max_logit.data == nullptr) return;
  for (int64 head = warp * kWarpSize + lane_idx(); head < params.num_heads;
       head += num_warps * kWarpSize) {
    *reinterpret_cast<float*>(reinterpret_cast<char*>(params.max_logit.data) +
                              head * params.max_logit.head_stride) = -infinity();
  }
}
