// SPDX-License-Identifier: Apache-2.0
//
// What all threads of a backward CTA know in common, in shared memory.
#pragma once

#include "cuda/device/backward/padded_rows.cuh"
#include "cuda/device/schedule/query_blocks.cuh"
#include "cuda/device/score/score.cuh"

namespace flashtile::device {

template <class Config>
struct BackwardState {
  Sequence sequence;
  variant::PositionMask position;
  QueryBlocks<Config::kBlockM> blocks;
  int64 padded_row;  ///< of query 0
  int head_kv;
  int first_key;
  int num_keys;  ///< of this block; 0: none

  /// Fills the state of CTA `cta`; by one thread. The blocks of a head's keys follow each other,
  /// those that most queries see first.
  FLASHTILE_DEVICE void find(const AttentionParams& params,
                             const typename Config::Expressions::Params& user,
                             const BackwardParams& backward, int64 cta) {
    const uint32 num_blocks = static_cast<uint32>(backward.num_n_blocks);
    const uint32 pair = static_cast<uint32>(cta) / num_blocks;
    const int n_block = static_cast<int>(static_cast<uint32>(cta) % num_blocks);
    const uint32 heads_kv = static_cast<uint32>(params.num_heads_kv);
    head_kv = static_cast<int>(pair % heads_kv);
    sequence = load_sequence(params, static_cast<int>(pair / heads_kv));
    first_key = n_block * Config::kBlockN;
    num_keys = clamp(sequence.seqlen_k - first_key, 0, Config::kBlockN);
    if (num_keys == 0) return;
    position = find_position_mask<Config>(params, user, sequence, head_kv * params.group_size);
    blocks = QueryBlocks<Config::kBlockM>(position, sequence.seqlen_q, first_key, Config::kBlockN);
    padded_row = device::padded_row(params, sequence);
  }
};

}  // namespace flashtile::device
