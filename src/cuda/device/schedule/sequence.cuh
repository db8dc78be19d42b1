// SPDX-License-Identifier: Apache-2.0
//
// One sequence of the batch: where its rows begin and how many there are. What device memory says
// is clamped, so that no value there makes a kernel leave its tensors.
#pragma once

#include "cuda/device/params/attention_params.hpp"
#include "cuda/device/ptx/memory.cuh"
#include "variant/position_mask.hpp"

namespace flashtile::device {

FLASHTILE_DEVICE int load_int(const IntsParam& ints, int64 index) {
  return load_global(reinterpret_cast<const int*>(ints.data + index * ints.stride));
}

template <class T>
FLASHTILE_DEVICE T clamp(T value, T low, T high) {
  return value < low ? low : value > high ? high : value;
}

/// Keys are counted from 0 = the first one that is there (stored index `leftpad`).
struct Sequence {
  int batch_idx = 0;
  int line = 0;       ///< batch entry or cache line of k and v; 0 where they are packed or paged
  int64 q_begin = 0;  ///< packed: its first row of q; else 0
  int64 k_begin = 0;  ///< packed: its first row of k; else 0
  int seqlen_q = 0;
  int seqlen_k = 0;
  int leftpad = 0;
  int64 query_offset = 0;
};

/// Rows [begin, begin + length) of a packed tensor.
FLASHTILE_DEVICE void load_packed(const IntsParam& cu_seqlens, int batch_idx, int64 total,
                                  int max_length, int64& begin, int& length) {
  begin = clamp<int64>(load_int(cu_seqlens, batch_idx), 0, total);
  const int64 end = clamp<int64>(load_int(cu_seqlens, batch_idx + 1), begin, total);
  length = static_cast<int>(clamp<int64>(end - begin, 0, max_length));
}

/// The keys that the call stores for a sequence, and where they begin among the packed ones.
FLASHTILE_DEVICE int load_new_keys(const LengthsParam& lengths, int batch_idx, int64& begin) {
  int count = lengths.seqlen_new;
  begin = 0;
  if (lengths.cu_seqlens_new.data) {
    load_packed(lengths.cu_seqlens_new, batch_idx, lengths.total_new, lengths.seqlen_new, begin,
                count);
  }
  return count;
}

/// True when device memory says where a sequence lies, or how long it is.
FLASHTILE_DEVICE bool reads_lengths(const LengthsParam& lengths) {
  return lengths.cu_seqlens_q.data || lengths.cu_seqlens_k.data || lengths.seqused_k.data ||
         lengths.leftpad_k.data || lengths.cache_batch_idx.data;
}

/// kHasLengths: device memory may say which rows a sequence has.
template <bool kHasLengths = true>
FLASHTILE_DEVICE Sequence load_sequence(const LengthsParam& lengths, const PositionParam& position,
                                        int batch_idx) {
  Sequence sequence;
  sequence.batch_idx = batch_idx;
  sequence.line = lengths.cu_seqlens_k.data || lengths.block_table ? 0 : batch_idx;
  sequence.seqlen_q = lengths.max_seqlen_q;
  sequence.seqlen_k = lengths.max_seqlen_k;
  if (lengths.cache_batch_idx.data) {
    sequence.line = clamp(load_int(lengths.cache_batch_idx, batch_idx), 0, lengths.num_lines - 1);
  }
  if constexpr (kHasLengths) {
    if (lengths.cu_seqlens_q.data) {
      load_packed(lengths.cu_seqlens_q, batch_idx, lengths.total_q, lengths.max_seqlen_q,
                  sequence.q_begin, sequence.seqlen_q);
    }
    if (lengths.cu_seqlens_k.data) {
      load_packed(lengths.cu_seqlens_k, batch_idx, lengths.total_k, lengths.max_seqlen_k,
                  sequence.k_begin, sequence.seqlen_k);
    }
    if (lengths.seqused_k.data) {
      int64 begin = 0;
      const int64 used = static_cast<int64>(load_int(lengths.seqused_k, batch_idx)) +
                         load_new_keys(lengths, batch_idx, begin);
      sequence.seqlen_k = static_cast<int>(clamp<int64>(used, 0, sequence.seqlen_k));
    }
    if (lengths.leftpad_k.data) {
      sequence.leftpad = clamp(load_int(lengths.leftpad_k, batch_idx), 0, sequence.seqlen_k);
      sequence.seqlen_k -= sequence.leftpad;
    }
  }
  sequence.query_offset = position.has_query_offset
                              ? position.query_offset
                              : static_cast<int64>(sequence.seqlen_k) - sequence.seqlen_q;
  return sequence;
}
template <bool kHasLengths = true>
FLASHTILE_DEVICE Sequence load_sequence(const AttentionParams& params, int batch_idx) {
  return load_sequence<kHasLengths>(params.lengths, params.position, batch_idx);
}

/// The masks by position that a problem's options make; a user's bands are not among them.
FLASHTILE_DEVICE variant::PositionMask position_mask(const PositionParam& position,
                                                     const Sequence& sequence) {
  constexpr int64 kUnbounded = variant::PositionMask::kUnbounded;
  variant::PositionMask mask;
  mask.query_offset = sequence.query_offset;
  mask.seqlen_k = sequence.seqlen_k;
  mask.chunk = position.chunk;
  if (position.lower > -kUnbounded) mask.lower = sequence.query_offset + position.lower;
  if (position.upper < kUnbounded) mask.upper = sequence.query_offset + position.upper;
  return mask;
}

}  // namespace flashtile::device
