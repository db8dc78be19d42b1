// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flashtile/context.hpp"
#include "flashtile/export.hpp"
#include "flashtile/tensor.hpp"

namespace flashtile {

/// Joins the results of attention over parts of the keys (splits, ring steps, shared prefixes) to
/// that over all of them:
///
///   lse = log sum_p exp(lse_parts[p]),  out = sum_p exp(lse_parts[p] - lse) out_parts[p]
///
/// A part that saw no key has lse -inf; what its out holds is not read. Where all are such, out is
/// 0 and lse -inf; where all but one are, out and lse are that one's, bit for bit. An lse of +inf
/// is no empty part: it is refused. NaN comes through. Sums run over the parts in their order.
///
/// \param out_parts  (parts, batch, seqlen_q, heads, head_dim_v) or (parts, total_q, heads,
///                   head_dim_v); f32, f16 or bf16 (f64: by the reference); any strides
/// \param lse_parts  (parts, batch, heads, seqlen_q) or (parts, heads, total_q), f32
/// \param out        like one part; dtype of out_parts, or f32, f16, bf16
/// \param lse        like lse_parts without the parts; a default-constructed view where it is not
///                   wanted
///
/// With a sink, give it to one of the parts alone. Throws Error; nothing has been written then.
FLASHTILE_API void attention_merge(const TensorView& out_parts, const TensorView& lse_parts,
                                   const TensorView& out, const TensorView& lse,
                                   const Context& context = {});

}  // namespace flashtile
