# SPDX-License-Identifier: Apache-2.0
"""What the interfaces of FlashAttention 2, 3 and 4 share here."""

import contextlib

import torch

import flashtile.torch


@contextlib.contextmanager
def runtime_errors():
    """flash_attn raises RuntimeError also for arguments that are wrong."""
    try:
        yield
    except ValueError as error:
        raise RuntimeError(str(error)) from error


def window(left, right):
    """-1 (or None) is an open side there."""
    left, right = (None if side is None or side < 0 else int(side) for side in (left, right))
    return left, right


def options(softmax_scale, causal, window_size, softcap, alibi_slopes=None, deterministic=False,
            attention_chunk=0):
    """flashtile's names for options."""
    return {"softmax_scale": softmax_scale, "causal": bool(causal), "window": window(*window_size),
            "softcap": softcap or None, "alibi_slopes": alibi_slopes,
            "deterministic": True if deterministic else None,
            "attention_chunk": attention_chunk or None}


def packed(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, block_table=None,
           seqused_k=None, leftpad_k=None):
    """flashtile's names for where sequences lie. In pages lengths of keys come as starts, too."""
    if block_table is not None:
        if seqused_k is None:
            seqused_k = cu_seqlens_k.diff()
        cu_seqlens_k = max_seqlen_k = None
    return {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k,
            "max_seqlen_q": None if max_seqlen_q is None else int(max_seqlen_q),
            "max_seqlen_k": None if max_seqlen_k is None else int(max_seqlen_k),
            "block_table": block_table, "seqused_k": seqused_k, "leftpad_k": leftpad_k}


def attention(q, k, v, **given):
    """(out, lse) with gradients of q, k, v and a sink; lse has none there."""
    with runtime_errors():
        out, lse = flashtile.torch.attention(q, k, v, return_lse=True, **given)
    return out, lse.detach()


def with_cache(q, k_cache, v_cache, k, v, cache_seqlens, **given):
    """(out, lse) of a cache that grows by k and v where those are given; no gradients."""
    if isinstance(cache_seqlens, int):
        starts = given.get("cu_seqlens_q")
        batch_size = q.shape[0] if starts is None else starts.shape[0] - 1
        cache_seqlens = torch.full((batch_size,), cache_seqlens, dtype=torch.int32,
                                   device=k_cache.device)
    if k is not None and cache_seqlens is None:
        raise RuntimeError("flash_attn_with_kvcache: k is given, but cache_seqlens is not")
    pages = given.get("block_table")
    with torch.no_grad(), runtime_errors():
        if pages is not None and cache_seqlens is not None and not cache_seqlens.is_cuda:
            new = 0 if k is None else k.shape[1]
            room = pages.shape[1] * k_cache.shape[1]
            if (cache_seqlens + new).max() > room:
                raise ValueError(f"flash_attn_with_kvcache: cache_seqlens with {new} new keys "
                                 f"exceed the {room} slots of the pages in block_table")
        return flashtile.attention(q, k_cache, v_cache, k_new=k, v_new=v,
                                   seqused_k=cache_seqlens, return_lse=True, **given)
