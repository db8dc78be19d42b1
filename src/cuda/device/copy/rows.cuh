// SPDX-License-Identifier: Apache-2.0
//
// Where rows lie: the one place that knows dense, packed, padded, paged and indirect layouts.
#pragma once

#include "cuda/device/schedule/tile.cuh"

namespace flashtile::device {

/// Rows of keys or values by key index.
template <bool kPaged>
struct KeyRows {
  const char* data;  ///< of key 0; paged: of slot 0 of page 0
  int64 row_stride;
  const char* table;
  int64 table_stride;
  int64 page_stride;
  DivisorParam page_size;
  int num_pages;
  int leftpad;

  KeyRows() = default;
  FLASHTILE_DEVICE KeyRows(const RowsParam& rows, const LengthsParam& lengths,
                           const Sequence& sequence, int head_kv, int first_column)
      : data(rows.data + head_kv * rows.head_stride + first_column * rows.element_stride),
        row_stride(rows.row_stride),
        table(lengths.block_table + sequence.batch_idx * lengths.table_batch_stride),
        table_stride(lengths.table_stride),
        page_stride(rows.batch_stride),
        page_size(lengths.page_size),
        num_pages(lengths.num_lines),
        leftpad(sequence.leftpad) {
    if constexpr (!kPaged) {
      data += sequence.line * rows.batch_stride +
              (sequence.k_begin + sequence.leftpad) * rows.row_stride;
    }
  }

  FLASHTILE_DEVICE const char* row(int key) const {
    if constexpr (!kPaged) return data + key * row_stride;
    return row(place_of(key));
  }

  /// Paged: where the table says that a key lies, in keys and in values.
  struct Place {
    int page;
    uint32 slot;
  };
  FLASHTILE_DEVICE Place place_of(int key) const {
    Place place;
    const uint32 entry = divide(static_cast<uint32>(key + leftpad), page_size, place.slot);
    place.page = load_global(reinterpret_cast<const int*>(table + entry * table_stride));
    return place;
  }
  FLASHTILE_DEVICE const char* row(const Place& place) const {
    return data + clamp(place.page, 0, num_pages - 1) * page_stride + place.slot * row_stride;
  }
};

/// The scale of a key head, of a sequence or cache line or of a page. There is one.
FLASHTILE_DEVICE const float* scale_of(const HeadScalarsParam& scales, int line, int head_kv) {
  return reinterpret_cast<const float*>(reinterpret_cast<const char*>(scales.data) +
                                        line * scales.batch_stride + head_kv * scales.head_stride);
}
/// The line of a sequence where scales are not those of pages.
FLASHTILE_DEVICE int scale_line(const LengthsParam& lengths, const Sequence& sequence) {
  return lengths.cache_batch_idx.data ? sequence.line : sequence.batch_idx;
}
/// What the stored numbers of a key are multiplied by.
template <bool kPaged>
FLASHTILE_DEVICE float scale_of_key(const HeadScalarsParam& scales, const LengthsParam& lengths,
                                    const Sequence& sequence, const KeyRows<kPaged>& keys,
                                    int head_kv, int key) {
  if (scales.data == nullptr) return 1.0f;
  int line = scale_line(lengths, sequence);
  if constexpr (kPaged) line = clamp(keys.place_of(key).page, 0, keys.num_pages - 1);
  return load_global(scale_of(scales, line, head_kv));
}

/// The address of a row of q, out or a gradient of q: query q_idx of a head.
FLASHTILE_DEVICE char* query_row(const RowsParam& rows, const Sequence& sequence, int q_idx,
                                 int head) {
  return rows.data + sequence.batch_idx * rows.batch_stride +
         (sequence.q_begin + q_idx) * rows.row_stride + head * rows.head_stride;
}

/// What a head has besides its keys to weigh; -inf: nothing.
FLASHTILE_DEVICE float sink_of(const AttentionParams& params, int head) {
  if (params.sink.data == nullptr) return -infinity();
  return load_global(reinterpret_cast<const float*>(
      reinterpret_cast<const char*>(params.sink.data) + head * params.sink.head_stride));
}

/// The place of a query in lse and the like.
FLASHTILE_DEVICE float* query_scalar(const RowScalarsParam& rows, const Sequence& sequence,
                                     int q_idx, int head) {
  return reinterpret_cast<float*>(reinterpret_cast<char*>(rows.data) +
                                  sequence.batch_idx * rows.batch_stride + head * rows.head_stride +
                                  (sequence.q_begin + q_idx) * rows.row_stride);
}

/// Its place among all query rows, for temporaries: ((packed or batch-major) row, head).
FLASHTILE_DEVICE int64 flat_row(const AttentionParams& params, const Sequence& sequence, int q_idx,
                                int head) {
  const int64 row =
      params.lengths.cu_seqlens_q.data
          ? sequence.q_begin + q_idx
          : static_cast<int64>(sequence.batch_idx) * params.lengths.max_seqlen_q + q_idx;
  return row * params.num_heads + head;
}

}  // namespace flashtile::device
