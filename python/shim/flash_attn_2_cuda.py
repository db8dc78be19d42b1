# SPDX-License-Identifier: Apache-2.0
"""The names of FlashAttention 2's extension module, by flashtile, for CPU and GPU tensors alike.

Argument lists are those of the extension, by position; what it writes into is written into.
"""

import math

import torch
from flash_attn import _common

import flashtile
from flashtile._torch_sdpa import new_seed, rounded, signed_weights


def infinite_where_empty(lse):
    """lse of rows that see no key as flash_attn 2 has it: +inf, and -inf in flashtile."""
    return lse.masked_fill(lse == -math.inf, math.inf)


def _refuse_generator(generator):
    if generator is not None:
        raise RuntimeError("flash_attn: the `generator` argument is no longer supported, and must "
                           "be None")


def _forward(q, k, v, out, dropout_p, return_softmax, generator, places, options):
    _refuse_generator(generator)
    if return_softmax and dropout_p == 0:
        raise RuntimeError("flash_attn: return_softmax is only supported when p_dropout > 0.0")
    rng_state = torch.zeros(2, dtype=torch.int64, device=q.device)
    if dropout_p > 0:
        rng_state = new_seed(q.device, 2)
    seed = rng_state[:1] if dropout_p > 0 else None
    with torch.no_grad(), _common.runtime_errors():
        out, lse = flashtile.attention(
            q, k, v, out=out, return_lse=True, dropout_p=dropout_p or None,
            dropout_seed=seed, **places, **options)
    s_dmask = q.new_empty((0,))
    if return_softmax:
        with _common.runtime_errors():
            s_dmask = signed_weights(q, k, v, dropout_p, seed, **places, **options)
    return out, infinite_where_empty(lse), s_dmask, rng_state


def fwd(q, k, v, out, alibi_slopes, p_dropout, softmax_scale, is_causal, window_size_left,
        window_size_right, softcap, return_softmax, generator):
    """(out, lse, S_dmask, rng_state) of (batch, seqlen, heads, head_dim)."""
    return _forward(q, k, v, out, p_dropout, return_softmax, generator, {}, _common.options(
        softmax_scale, is_causal, (window_size_left, window_size_right), softcap, alibi_slopes))


def varlen_fwd(q, k, v, out, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, block_table,
               alibi_slopes, max_seqlen_q, max_seqlen_k, p_dropout, softmax_scale, zero_tensors,
               is_causal, window_size_left, window_size_right, softcap, return_softmax, generator,
               num_splits=0):
    """(out, lse, S_dmask, rng_state) of packed sequences; lse (heads, total_q)."""
    if num_splits > 1 and block_table is not None:
        raise RuntimeError("flash_attn: num_splits > 1 is not supported for varlen paged KV")
    places = _common.packed(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, block_table,
                            seqused_k, leftpad_k)
    options = _common.options(softmax_scale, is_causal, (window_size_left, window_size_right),
                              softcap, alibi_slopes)
    return _forward(q, k, v, out, p_dropout, return_softmax, generator, places, options)


def _backward(dout, q, k, v, out, lse, dq, dk, dv, dropout_p, generator, rng_state, places,
              options):
    _refuse_generator(generator)
    seed = None
    if dropout_p > 0:
        if rng_state is None:
            raise RuntimeError("flash_attn: dropout needs the rng_state of the forward call")
        seed = rng_state[:1].to(q.device)
    given = {name: array for name, array in (("q", dq), ("k", dk), ("v", dv)) if array is not None}
    with torch.no_grad(), _common.runtime_errors():
        found = flashtile.attention_backward(
            dout, q, k, v, out, lse.masked_fill(lse == math.inf, -math.inf), into=given,
            dropout_p=dropout_p or None, dropout_seed=seed, **places, **options)
    softmax_d = (dout.float() * out.float()).sum(-1).transpose(-1, -2).contiguous()
    return found["q"], found["k"], found["v"], softmax_d


def bwd(dout, q, k, v, out, softmax_lse, dq, dk, dv, alibi_slopes, p_dropout, softmax_scale,
        is_causal, window_size_left, window_size_right, softcap, deterministic, generator,
        rng_state):
    """(dq, dk, dv, softmax_d); softmax_d is the sum of dout * out, (batch, heads, rows)."""
    options = _common.options(softmax_scale, is_causal, (window_size_left, window_size_right),
                              softcap, alibi_slopes, deterministic)
    *found, softmax_d = _backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, p_dropout,
                                  generator, rng_state, {}, options)
    rows = softmax_d.shape[-1]
    return *found, torch.nn.functional.pad(softmax_d, (0, rounded(rows) - rows))


def varlen_bwd(dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k,
               alibi_slopes, max_seqlen_q, max_seqlen_k, p_dropout, softmax_scale, zero_tensors,
               is_causal, window_size_left, window_size_right, softcap, deterministic, generator,
               rng_state):
    """(dq, dk, dv, softmax_d) of packed sequences; softmax_d (heads, total_q)."""
    places = _common.packed(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    options = _common.options(softmax_scale, is_causal, (window_size_left, window_size_right),
                              softcap, alibi_slopes, deterministic)
    return _backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, p_dropout, generator, rng_state,
                     places, options)


def fwd_kvcache(q, kcache, vcache, k, v, seqlens_k, rotary_cos, rotary_sin, cache_batch_idx,
                leftpad_k, block_table, alibi_slopes, out, softmax_scale, is_causal,
                window_size_left, window_size_right, softcap, is_rotary_interleaved, num_splits):
    """(out, lse) of a cache that grows by k and v."""
    options = _common.options(softmax_scale, is_causal, (window_size_left, window_size_right),
                              softcap, alibi_slopes)
    out, lse = _common.with_cache(
        q, kcache, vcache, k, v, seqlens_k, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
        rotary_interleaved=is_rotary_interleaved if rotary_cos is not None else None,
        cache_batch_idx=cache_batch_idx, leftpad_k=leftpad_k, block_table=block_table, out=out,
        **options)
    return out, infinite_where_empty(lse)
