// SPDX-License-Identifier: Apache-2.0
//
// The query blocks that see a block of keys: the other direction of key_blocks.cuh.
#pragma once

#include "cuda/device/schedule/key_blocks.cuh"

namespace flashtile::device {

template <int kBlockM>
struct QueryBlocks {
  int begin = 0, end = 0;            ///< visited blocks lie in [begin, end)
  int full_begin = 0, full_end = 0;  ///< positions hide nothing in these

  QueryBlocks() = default;
  FLASHTILE_DEVICE QueryBlocks(const variant::PositionMask& mask, int seqlen_q, int first_key,
                               int num_keys) {
    const int last_key = first_key + num_keys - 1;
    const auto clamped = [&](int64 q_idx) {
      return static_cast<int>(clamp<int64>(q_idx, 0, seqlen_q));
    };
    // Both ends of what sees a key only move forward from one key to the next.
    const variant::KeyRange first = mask.queries(first_key);
    const variant::KeyRange last = mask.queries(last_key);
    const int q_begin = clamped(first.begin);
    const int q_end = clamped(last.end);
    if (first_key >= mask.seqlen_k || q_end <= q_begin) return;
    begin = q_begin / kBlockM;
    end = (q_end + kBlockM - 1) / kBlockM;
    if (last_key >= mask.seqlen_k) return;
    full_begin = (clamped(last.begin) + kBlockM - 1) / kBlockM;
    full_end = clamped(first.end) / kBlockM;
  }

  FLASHTILE_DEVICE bool is_full(int m_block) const {
    return m_block >= full_begin && m_block < full_end;
  }
};

}  // namespace flashtile::device
