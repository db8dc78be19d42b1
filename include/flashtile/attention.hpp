// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "flashtile/context.hpp"
#include "flashtile/error.hpp"
#include "flashtile/explain.hpp"
#include "flashtile/export.hpp"
#include "flashtile/tensor.hpp"

namespace flashtile {

/// A tensor that a score or mask expression reads as `name[...]`, and where its gradient goes.
struct AuxTensor {
  std::string name;
  TensorView tensor;    ///< f32, i32 or i64, one dimension or more for each index in the expression
  TensorView gradient;  ///< attention_bwd: same shape, f32; only for f32 tensors the score reads

  bool operator==(const AuxTensor&) const = default;
};

/// A scalar that an expression reads as `param.name`. Changing it never recompiles anything.
struct ScalarParam {
  std::string name;
  double value = 0;

  bool operator==(const ScalarParam&) const = default;
};

/// Everything about attention besides q, k, v and the results. Every member has a default that
/// means "not used"; what is set is either honoured or refused, but for the results and gradients
/// of the other op, so that both take the same options. Names are letters, digits and _, each given
/// once and read by an expression.
///
/// For one sequence of lengths sq, sk, query i has position p = i + query_offset, and
///
///   s = q.k softmax_scale -> softcap tanh(s / softcap) -> score expression
///       -> + bias - slope |p - j| -> masks -> softmax with exp(sink) in the denominator
///       -> dropout -> out = weights . v
///
/// A row that sees no key has out 0 and lse -inf (or the sink), and no gradient passes through it.
struct AttentionOptions {
  // The scale and what acts on scores.
  std::optional<double> softmax_scale;  ///< any finite number; default 1/sqrt(head_dim)
  std::optional<double> softcap;        ///< > 0
  std::string score;                    ///< expression: the new score from `score` and indices
  std::string mask;                     ///< expression: a key is seen where it is not 0
  std::vector<AuxTensor> aux;
  std::vector<ScalarParam> params;

  // Masks. Positions are aligned bottom-right unless query_offset says otherwise.
  bool causal = false;                     ///< j <= p
  std::optional<int64_t> window_left;      ///< p - window_left <= j; counts *other* keys; >= 0
  std::optional<int64_t> window_right;     ///< j <= p + window_right; >= 0; causal makes it 0
  std::optional<int64_t> query_offset;     ///< position of query 0; default sk - sq
  std::optional<int64_t> attention_chunk;  ///< floor(p / chunk) == floor(j / chunk); > 0

  // Tensors that change scores.
  TensorView bias;          ///< (batch|1, heads|1, seqlen_q|1, seqlen_k), any float; -inf masks
  TensorView alibi_slopes;  ///< (heads) or (batch, heads), f32
  TensorView sink;          ///< (heads), f32; -inf is none

  // Which keys there are. All i32.
  TensorView cu_seqlens_q;     ///< (batch + 1): q is packed, (total_q, heads, head_dim)
  TensorView cu_seqlens_k;     ///< (batch + 1): k and v are packed, (total_k, heads_kv, ...)
  TensorView seqused_k;        ///< (batch): only the first seqused_k[b] stored keys are there
  TensorView leftpad_k;        ///< (batch): the first leftpad_k[b] stored keys are not there
  TensorView block_table;      ///< (batch, pages): k, v are (num_pages, page_size, heads_kv, ...)
  TensorView cache_batch_idx;  ///< (batch): sequence b reads line cache_batch_idx[b] of k and v
  std::optional<int64_t> max_seqlen_q;  ///< packed q only: no sequence is longer; default: longest
  std::optional<int64_t> max_seqlen_k;  ///< packed k only: likewise

  // New keys and values, which the call stores behind the ones in use (all seqused_k[b] of them,
  // counted from slot 0 also with leftpad_k) before it attends: k and v are then in-out. Only the
  // new slots are written. Forward only; needs seqused_k; not with cu_seqlens_k.
  TensorView k_new;           ///< (batch, seqlen_new, heads_kv, head_dim); packed (total_new, ...)
  TensorView v_new;           ///< like k_new, with head_dim_v
  TensorView cu_seqlens_new;  ///< (batch + 1): k_new and v_new are packed

  // Rotary embedding of q and k_new, (a, b) -> (a cos - b sin, b cos + a sin), rounded to their
  // dtype. New key n turns by row seqused_k[b] + n; query i by row seqused_k[b] + i with causal or
  // a window, else by row seqused_k[b]. Needs k_new.
  TensorView rotary_cos;            ///< (positions, rotary_dim / 2), dtype of q, or f32
  TensorView rotary_sin;            ///< like rotary_cos
  TensorView rotary_seqlens;        ///< (batch), i32: first row of the tables instead of seqused_k
  bool rotary_interleaved = false;  ///< pairs (2n, 2n + 1) instead of (n, n + rotary_dim / 2)

  // Block-sparse lists: query i sees key j only if j / block_cols is among the first
  // block_counts[b, h, m] entries of block_indices[b, h, m], m = i / block_rows.
  TensorView block_counts;   ///< (batch|1, heads|1, M), i32
  TensorView block_indices;  ///< (batch|1, heads|1, M, N), i32
  int64_t block_rows = 0;
  int64_t block_cols = 0;

  // Dropout of weights: Philox4x32-7, the same mask on every device and tiling.
  double dropout_p = 0;  ///< in [0, 1)
  uint64_t dropout_seed = 0;
  int64_t dropout_offset = 0;  ///< in [0, 2^32)
  /// (1), i64: the seed, read when the call runs, in the place of dropout_seed. Each replay of a
  /// captured CUDA graph reads it.
  TensorView dropout_seed_tensor;

  /// Same bits in every run. The CPU kernels always are; elsewhere it may cost time.
  bool deterministic = false;

  /// The bits of a row of out and lse depend on its query, the keys that it sees and their places,
  /// and on nothing else: not on the batch, on other queries of the call, on pages or threads. So
  /// keys that are appended token by token give what one call for all of them gives, to the bit.
  /// Of attention_bwd, what a sequence gives does not depend on other sequences. Decoding packs
  /// keys then, some five times as long. Refused on a GPU.
  bool batch_invariant = false;

  // What k and v of i8 or e4m3 are multiplied by, f32, finite: (heads_kv); by sequence, or line of
  // cache_batch_idx, (batch, heads_kv); by page (num_pages, heads_kv). 1 where it is left out. New
  // keys are divided by it, rounded to nearest, and saturate. Only attention_fwd reads such keys.
  TensorView k_scale, v_scale;

  // Further results of attention_fwd. They may be left out. attention_bwd, which takes the same
  // options, does not look at them.
  TensorView max_logit;     ///< (heads), f32: largest masked score of each head; -inf if none
  TensorView weights;       ///< (batch, heads, seqlen_q, seqlen_k): what v is multiplied by
  TensorView dropout_mask;  ///< (batch, heads, seqlen_q, seqlen_k), u8: 1 keeps, by dropout alone

  // Further inputs and results of attention_bwd. They may be left out. attention_fwd does not look
  // at them, nor at AuxTensor::gradient.
  TensorView dlse;           ///< like lse: incoming gradient of lse
  TensorView dbias;          ///< like bias
  TensorView dalibi_slopes;  ///< like alibi_slopes
  TensorView dsink;          ///< like sink

  bool operator==(const AttentionOptions&) const = default;
};

/// Exact attention, tile by tile: out = softmax(mask(score(q k^T))) v, memory O(seqlen).
///
/// \param q    (batch, seqlen_q, heads, head_dim); packed (total_q, heads, head_dim)
/// \param k    (batch, seqlen_k, heads_kv, head_dim); packed or paged as the options say
/// \param v    like k, with head_dim_v. Query head h reads key head h / (heads / heads_kv)
/// \param out  like q, with head_dim_v; dtype of q, or f32
/// \param lse  (batch, heads, seqlen_q) or (heads, total_q), f32, natural logarithm of the softmax
///             denominator, sink included; a default-constructed view where it is not wanted
///
/// With AttentionOptions::k_new the call appends to k and v first. Two sequences must not append to
/// the same slot.
///
/// q, k, v are f32, f16 or bf16 (f64: by the reference), all alike, or k and v both i8 or e4m3 with
/// AttentionOptions::k_scale and v_scale; any strides; head_dim and head_dim_v from 1 to 1024.
/// Throws Error; nothing has been written then, but where an expression has read an aux tensor
/// outside its shape by an index that depends on the score, or where memory has run out: that may
/// show on the way. FlashAttention-2, Dao 2023 (arXiv:2307.08691); online softmax, Milakov and
/// Gimelshein 2018.
FLASHTILE_API void attention_fwd(const TensorView& q, const TensorView& k, const TensorView& v,
                                 const TensorView& out, const TensorView& lse,
                                 const AttentionOptions& options = {}, const Context& context = {});

/// Gradients of the sum of out * dout (and lse * dlse) with respect to q, k, v, and to bias, sink,
/// ALiBi slopes and aux tensors where the options give a place for them.
///
/// \param dout  like out
/// \param out, lse  what attention_fwd gave for the same inputs and options
/// \param dq, dk, dv  like q, k, v; a default-constructed view where it is not wanted
///
/// Paged keys and cache_batch_idx have no backward. Throws Error, as attention_fwd does.
FLASHTILE_API void attention_bwd(const TensorView& dout, const TensorView& q, const TensorView& k,
                                 const TensorView& v, const TensorView& out, const TensorView& lse,
                                 const TensorView& dq, const TensorView& dk, const TensorView& dv,
                                 const AttentionOptions& options = {}, const Context& context = {});

/// What attention_fwd would do with these arguments: the implementation and plan that it would
/// use, and for each other one the first condition that it fails. Throws Error for invalid ones.
FLASHTILE_API Explanation explain_attention_fwd(const TensorView& q, const TensorView& k,
                                                const TensorView& v, const TensorView& out,
                                                const TensorView& lse,
                                                const AttentionOptions& options = {},
                                                const Context& context = {});

/// The same for attention_bwd.
FLASHTILE_API Explanation explain_attention_bwd(
    const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
    const TensorView& out, const TensorView& lse, const TensorView& dq, const TensorView& dk,
    const TensorView& dv, const AttentionOptions& options = {}, const Context& context = {});

}  // namespace flashtile
