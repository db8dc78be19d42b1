// SPDX-License-Identifier: Apache-2.0
//
// What kernels that own keys know of a block of queries, in shared memory: lse, delta (float32),
// and the range of the CTA's keys that each query sees (pairs of ints).
#pragma once

#include "cuda/device/backward/backward_state.cuh"
#include "cuda/device/ptx/thread.cuh"

namespace flashtile::device {

/// Starts copying lse and delta of query block `m_block` of a head, and writes ranges where some
/// pair is hidden.
template <class Config>
FLASHTILE_DEVICE void load_query_vectors(const BackwardParams& backward,
                                         const BackwardState<Config>& state, int head, int m_block,
                                         bool is_full, uint32 vectors) {
  constexpr int kBlockM = Config::kBlockM;
  constexpr int kBlockN = Config::kBlockN;
  const int first = m_block * kBlockM;
  const int num_rows = state.sequence.seqlen_q - first;
  const int thread = thread_idx();
  if (thread < kBlockM / 2) {  // four rows of lse or delta
    const int row = thread % (kBlockM / 4) * 4;
    const bool is_delta = thread >= kBlockM / 4;
    const int64 from = head * backward.padded_rows + state.padded_row + first;
    const int count = num_rows - row;
    copy_async<16>(vectors + static_cast<uint32>((is_delta ? kBlockM : 0) * 4 + row * 4),
                   (is_delta ? backward.delta : backward.lse) + from + (count > 0 ? row : 0),
                   count <= 0  ? 0
                   : count < 4 ? count * 4
                               : 16);
  }
  if (thread < kBlockM && !is_full) {
    const bool is_there = thread < num_rows;
    const variant::KeyRange range = state.position.keys(first + thread);
    const int64 begin = is_there ? range.begin - state.first_key : 0;
    const int64 end = is_there ? range.end - state.first_key : 0;
    store_shared(vectors + static_cast<uint32>(kBlockM * 8 + thread * 8),
                 static_cast<uint32>(static_cast<int>(clamp<int64>(begin, 0, kBlockN))));
    store_shared(vectors + static_cast<uint32>(kBlockM * 8 + thread * 8 + 4),
                 static_cast<uint32>(static_cast<int>(clamp<int64>(end, 0, kBlockN))));
  }
}

}  // namespace flashtile::device
