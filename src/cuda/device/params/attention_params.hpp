// SPDX-License-Identifier: Apache-2.0
//
// Arguments of the attention kernels, laid out alike for the host that fills them and for the
// device. Plain members of fixed width, no header. Strides count bytes.
#pragma once

namespace flashtile::device {

/// (batch, seqlen, heads, dim), or packed (total, heads, dim) with batch_stride 0; of paged keys
/// batch_stride is that of a page.
struct RowsParam {
  char* data = nullptr;
  long long batch_stride = 0;
  long long row_stride = 0;
  long long head_stride = 0;
  long long element_stride = 0;
};

/// (batch, heads, seqlen_q), or packed (heads, total_q) with batch_stride 0.
struct RowScalarsParam {
  float* data = nullptr;
  long long batch_stride = 0;
  long long head_stride = 0;
  long long row_stride = 0;
};

/// (batch, heads, seqlen_q, seqlen_k); a stride is 0 where the dimension is broadcast.
struct ScoresParam {
  char* data = nullptr;
  long long batch_stride = 0;
  long long head_stride = 0;
  long long row_stride = 0;
  long long key_stride = 0;
};

/// One number for each head, or each (batch, head); of scales of keys the batch may be a page.
struct HeadScalarsParam {
  float* data = nullptr;
  long long batch_stride = 0;
  long long head_stride = 0;
};

/// One int for each sequence; no data: there is none.
struct IntsParam {
  const char* data = nullptr;
  long long stride = 0;
};

/// A divisor of numbers below 2^31: n / value = (high half of n magic, + n) >> shift.
struct DivisorParam {
  unsigned int value = 1;
  unsigned int magic = 1;
  unsigned int shift = 0;
};

/// Which rows there are. What lies in device memory is clamped to what the tensors hold.
struct LengthsParam {
  IntsParam cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, cache_batch_idx;
  const char* block_table = nullptr;
  long long table_batch_stride = 0;
  long long table_stride = 0;
  int batch_size = 0;
  int max_seqlen_q = 0;
  int max_seqlen_k = 0;  ///< stored keys of a sequence at most
  DivisorParam page_size;
  int num_lines = 0;  ///< of k: batch entries, cache lines or pages
  long long total_q = 0;
  long long total_k = 0;
  // Keys that the call itself has stored behind those in use.
  IntsParam cu_seqlens_new;
  int seqlen_new = 0;  ///< of each sequence, or the most where they are packed
  int total_new = 0;   ///< packed rows
};

/// Masks by position: key - query lies in [lower, upper] once query_offset has been added.
struct PositionParam {
  long long query_offset = 0;
  long long lower = 0;  ///< minus window_left; -2^60: none
  long long upper = 0;  ///< window_right; 2^60: none
  long long chunk = 0;  ///< 0: none
  int has_query_offset = 0;
};

/// Lists of key blocks, and the map of what each query block visits that is made from all masks.
struct BlocksParam {
  const char* counts = nullptr;
  const char* indices = nullptr;
  long long counts_batch_stride = 0, counts_head_stride = 0, counts_row_stride = 0;
  long long indices_batch_stride = 0, indices_head_stride = 0, indices_row_stride = 0;
  long long indices_entry_stride = 0;
  int list_rows = 0;         ///< query blocks of a list
  int list_cols = 0;         ///< key blocks that can be listed
  int max_entries = 0;       ///< entries of indices
  long long block_rows = 0;  ///< queries of a listed block
  long long block_cols = 0;
  /// A bit for each (list batch, list head, query block, key block); rows of whole words.
  unsigned int* listed = nullptr;
  int list_batches = 0, list_heads = 0, list_words = 0;
  /// Two bits for each (map batch, map head, m_block, n_block): 0 skipped, 1 partial, 3 full.
  unsigned int* map = nullptr;
  int map_batches = 0, map_heads = 0, map_words = 0;
  /// The query blocks of each (map batch, map head), those that visit the most key blocks first.
  int* order = nullptr;
};

/// Kernels that sort blocks by how much there is to do: counts in shared memory.
struct CostCounts {
  static constexpr int kNumCosts = 256;  ///< blocks with about as many keys count as alike
  static constexpr int kBytes = kNumCosts * 4;
  static constexpr int kThreads = 1024;
};

/// attention_blocks: a CTA for each word of the map, a warp for each of its blocks.
struct BlockMapShape {
  static constexpr int kThreads = 512;
  static constexpr int kSharedBytes = 80;
};

/// What debug kernels write: (batch, heads, seqlen_q, seqlen_k), by stored key.
struct WeightsParam {
  ScoresParam weights;       ///< float32
  ScoresParam dropout_mask;  ///< a byte
  int weight_rows = 0, weight_cols = 0;
  int mask_rows = 0, mask_cols = 0;
};

struct DropoutParam {
  unsigned long long seed = 0;  ///< with Config::kHasSeedTensor the address of it
  unsigned int offset = 0;
  unsigned int threshold = 0;
  float gain = 1;
};

/// Parts of the keys at most.
constexpr int kMaxSplits = 128;

/// How the grid covers the work.
struct GridParam {
  /// A section: (batch, head) pairs whose keys stay in the L2 cache together.
  DivisorParam ctas_per_section, pairs_per_section, pairs_of_last_section;
  DivisorParam parts;  ///< of a query block: splits of keys times parts of head_dim_v
  DivisorParam splits, heads;
  unsigned int num_pairs = 0;
  int num_m_blocks = 0;          ///< of the longest sequence
  int num_splits = 1;            ///< parts of the keys
  int num_v_parts = 1;           ///< parts of head_dim_v
  int descending = 0;            ///< 1: query blocks with the most keys start first
  float* partial_out = nullptr;  ///< (split, total_q, heads, head_dim_v)
  float* partial_lse = nullptr;  ///< (split, total_q, heads), natural
  int combine_ctas = 1;          ///< CTAs of a sequence that combine its parts
  int combine_warps = 1;         ///< warps that share a row of parts: 1, or all 4 of a CTA
};

struct AttentionParams {
  RowsParam q, k, v, out;
  RowScalarsParam lse;
  ScoresParam bias;
  HeadScalarsParam alibi_slopes, sink, max_logit;
  HeadScalarsParam k_scale, v_scale;  ///< of each key head; no data: 1
  LengthsParam lengths;
  PositionParam position;
  BlocksParam blocks;
  DropoutParam dropout;
  WeightsParam debug;
  GridParam grid;
  int num_heads = 0;
  int num_heads_kv = 0;
  int group_size = 1;
  DivisorParam group;  ///< group_size
  int head_dim = 0;
  int head_dim_v = 0;
  float softmax_scale = 1;
  float softcap = 0;
  float inverse_softcap = 0;
  int* error = nullptr;  ///< gets an ErrorBit where device data was out of range; may be null
};

/// New keys and values, where they come from, and how they and the queries turn.
struct AppendParams {
  RowsParam k_new, v_new;
  RowsParam turned_q;  ///< where queries go; none: they do not turn
  const char* cos = nullptr;
  const char* sin = nullptr;
  long long cos_row_stride = 0, cos_stride = 0;
  long long sin_row_stride = 0, sin_stride = 0;
  int num_positions = 0;  ///< rows of the tables
  int num_pairs = 0;      ///< half of the elements that turn
  int is_interleaved = 0;
  int is_local = 0;  ///< each query turns by its own position
  IntsParam rotary_seqlens;
};

/// An aux tensor of a user expression.
struct AuxParam {
  const char* data = nullptr;
  int element_bytes = 4;
  int ndim = 0;
  long long shape[8] = {};
  long long strides[8] = {};
};

/// What user expressions read besides the variables; `kNumAux` and `kNumScalars` are the program's.
template <unsigned kNumAux, unsigned kNumScalars>
struct ExpressionParams {
  AuxParam aux[kNumAux > 0 ? kNumAux : 1];
  float scalars[kNumScalars > 0 ? kNumScalars : 1] = {};
};

}  // namespace flashtile::device
