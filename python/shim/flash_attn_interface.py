# SPDX-License-Identifier: Apache-2.0
"""FlashAttention 3's functions by flashtile.

num_splits, pack_gqa, sm_margin and scheduler_metadata say how kernels of flash_attn run; flashtile
chooses for itself. fp8 with descale is refused, and so is qv where keys are stored. Rows that see
no key have lse -inf.
"""

from typing import Optional, Tuple, Union

import torch
from flash_attn import _common

import flashtile


def _refuse(**given):
    for name, value in given.items():
        if value is not None:
            raise NotImplementedError(f"flash_attn_interface: {name} is not taken by flashtile")


def _with_values(q, qv, k, v):
    """Queries and keys whose products are q . k + qv . v; a copy of both."""
    if qv is None:
        return q, k
    if qv.shape != (*q.shape[:-1], v.shape[-1]):
        raise RuntimeError(f"flash_attn_interface: qv has the shape {tuple(qv.shape)}, expected "
                           f"{(*q.shape[:-1], v.shape[-1])}")
    return torch.cat((q, qv), -1), torch.cat((k, v), -1)


class _UsedRows:
    """Of packed or padded queries those that seqused_q leaves, as packed ones."""

    def __init__(self, q, cu_seqlens_q, seqused_q):
        batch_size = seqused_q.shape[0]
        if cu_seqlens_q is None:
            cu_seqlens_q = torch.arange(batch_size + 1, device=q.device) * q.shape[1]
        starts = cu_seqlens_q[:-1].long()
        self.shape = q.shape[:-2]
        longest = int(seqused_q.max().item()) if batch_size > 0 else 0
        row = torch.arange(longest, device=q.device)
        self.rows = (starts[:, None] + row)[row < seqused_q[:, None]]
        self.cu_seqlens = torch.nn.functional.pad(seqused_q.cumsum(0), (1, 0)).int()
        self.longest = longest

    def taken(self, q):
        return q.flatten(0, -3)[self.rows]

    def put_back(self, out, lse):
        """0 and -inf for rows that are not used, in the form of the queries."""
        total = 1
        for size in self.shape:
            total *= size
        whole = out.new_zeros(total, *out.shape[1:]).index_copy(0, self.rows, out)
        sums = lse.new_full((lse.shape[0], total), -torch.inf).index_copy(1, self.rows, lse)
        if len(self.shape) == 2:
            whole = whole.unflatten(0, self.shape)
            sums = sums.unflatten(1, self.shape).transpose(0, 1)
        return whole, sums


def _attention(q, k, v, return_attn_probs, options, places=None, seqused_q=None):
    places = dict(places or {})
    used = None
    if seqused_q is not None:
        used = _UsedRows(q, places.get("cu_seqlens_q"), seqused_q)
        q = used.taken(q)
        places.update(cu_seqlens_q=used.cu_seqlens, max_seqlen_q=used.longest)
    out, lse = _common.attention(q, k, v, **places, **options)
    if used is not None:
        out, lse = used.put_back(out, lse)
    return (out, lse) if return_attn_probs else out


def flash_attn_func(
        q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None,
        v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1,
        pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False):
    """Attention with gradients of q (batch, seqlen_q, heads, head_dim), k and v (batch, seqlen_k,
    heads_kv, head_dim or another one); options as in flash_attn.

    Args:
        qv: (batch, seqlen_q, heads, head_dim of v): scores are (q . k + qv . v) * softmax_scale,
            by default 1 / sqrt(head_dim + head_dim of v). Has a gradient.

    Returns:
        out, or (out, lse) with lse (batch, heads, seqlen_q).

    Raises:
        RuntimeError: an argument is wrong, or nothing takes it (NotImplementedError).
    """
    _refuse(q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    q, k = _with_values(q, qv, k, v)
    return _attention(q, k, v, return_attn_probs, _common.options(
        softmax_scale, causal, window_size, softcap, None, deterministic, attention_chunk))


def flash_attn_qkvpacked_func(
        qkv, softmax_scale=None, causal=False, q_descale=None, k_descale=None, v_descale=None,
        window_size=(-1, -1), attention_chunk=0, softcap=0.0, deterministic=False,
        num_heads_q=None, sm_margin=0, return_attn_probs=False):
    """flash_attn_func of qkv (batch, seqlen, 3, heads, head_dim), or with num_heads_q (batch,
    seqlen, num_heads_q + 2 * heads_kv, head_dim)."""
    if num_heads_q is None:
        q, k, v = qkv.unbind(2)
    else:
        num_heads_kv = (qkv.shape[2] - num_heads_q) // 2
        q, k, v = qkv.split((num_heads_q, num_heads_kv, num_heads_kv), 2)
    return flash_attn_func(
        q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale, window_size,
        attention_chunk, softcap, deterministic=deterministic,
        return_attn_probs=return_attn_probs)


def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None,
        seqused_k=None, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None,
        v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1,
        pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False):
    """flash_attn_func of packed q (total_q, heads, head_dim), k and v (total_k, heads_kv, ...).

    Args:
        seqused_q, seqused_k: (batch), i32: rows of each sequence that count. Others have out 0 and
            lse -inf.

    Returns:
        out, or (out, lse) with lse (heads, total_q).
    """
    _refuse(q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    q, k = _with_values(q, qv, k, v)
    places = _common.packed(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
                            seqused_k=seqused_k)
    return _attention(q, k, v, return_attn_probs, _common.options(
        softmax_scale, causal, window_size, softcap, None, deterministic, attention_chunk), places,
        seqused_q)


def flash_attn_combine(out_partial, lse_partial, out=None, out_dtype=None):
    """Joins results over parts of the keys.

    Args:
        out_partial: (parts, batch, seqlen_q, heads, head_dim) or (parts, total_q, heads, head_dim).
        lse_partial: (parts, batch, seqlen_q, heads) or (parts, total_q, heads), f32.

    Returns:
        (out, lse), lse (batch, seqlen_q, heads) or (total_q, heads).
    """
    with torch.no_grad(), _common.runtime_errors():
        out, lse = flashtile.merge(out_partial, lse_partial.transpose(-1, -2), out=out,
                                   out_dtype=out_dtype)
    return out, lse.transpose(-1, -2)


def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None,
        cache_seqlens: Optional[Union[int, torch.Tensor]] = None,
        cache_batch_idx: Optional[torch.Tensor] = None,
        cache_leftpad: Optional[torch.Tensor] = None, page_table: Optional[torch.Tensor] = None,
        cu_seqlens_q: Optional[torch.Tensor] = None,
        cu_seqlens_k_new: Optional[torch.Tensor] = None, max_seqlen_q: Optional[int] = None,
        rotary_seqlens: Optional[torch.Tensor] = None, q_descale: Optional[torch.Tensor] = None,
        k_descale: Optional[torch.Tensor] = None, v_descale: Optional[torch.Tensor] = None,
        softmax_scale=None, causal=False, window_size=(-1, -1), attention_chunk=0, softcap=0.0,
        rotary_interleaved=True, scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0,
        return_softmax_lse=False):
    """Attention to a cache, into which k and v are stored first where they are given; q and the new
    keys may be packed (cu_seqlens_q, cu_seqlens_k_new), the cache in pages (page_table).

    Returns:
        out, like q; or (out, lse).
    """
    _refuse(q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    if k is not None:
        _refuse(qv=qv)
    q, k_cache = _with_values(q, qv, k_cache, v_cache)
    options = _common.options(softmax_scale, causal, window_size, softcap, None, False,
                              attention_chunk)
    if page_table is not None and cache_batch_idx is not None:
        page_table, cache_batch_idx = page_table[cache_batch_idx.long()], None
    if rotary_cos is None:
        rotary_seqlens = rotary_interleaved = None
    out, lse = _common.with_cache(
        q, k_cache, v_cache, k, v, cache_seqlens, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
        rotary_interleaved=rotary_interleaved, rotary_seqlens=rotary_seqlens,
        cache_batch_idx=cache_batch_idx, leftpad_k=cache_leftpad, block_table=page_table,
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_new=cu_seqlens_k_new, max_seqlen_q=max_seqlen_q,
        **options)
    return (out, lse) if return_softmax_lse else out


def get_scheduler_metadata(
        batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim,
        cache_seqlens: torch.Tensor, qkv_dtype=torch.bfloat16, headdim_v=None,
        cu_seqlens_q: Optional[torch.Tensor] = None,
        cu_seqlens_k_new: Optional[torch.Tensor] = None,
        cache_leftpad: Optional[torch.Tensor] = None, page_size: Optional[int] = None,
        max_seqlen_k_new=0, causal=False, window_size=(-1, -1), attention_chunk=0,
        has_softcap=False, num_splits=0, pack_gqa=None, sm_margin=0):
    """A tensor to give as scheduler_metadata. It is empty: flashtile schedules in the call."""
    return torch.empty((0,), dtype=torch.int32, device=cache_seqlens.device)


def _flash_attn_forward(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, k_new: Optional[torch.Tensor] = None,
        v_new: Optional[torch.Tensor] = None, qv: Optional[torch.Tensor] = None,
        out_: Optional[torch.Tensor] = None, cu_seqlens_q: Optional[torch.Tensor] = None,
        cu_seqlens_k: Optional[torch.Tensor] = None,
        cu_seqlens_k_new: Optional[torch.Tensor] = None, seqused_q: Optional[torch.Tensor] = None,
        seqused_k: Optional[torch.Tensor] = None, max_seqlen_q: Optional[int] = None,
        max_seqlen_k: Optional[int] = None, page_table: Optional[torch.Tensor] = None,
        kv_batch_idx: Optional[torch.Tensor] = None, leftpad_k: Optional[torch.Tensor] = None,
        rotary_cos: Optional[torch.Tensor] = None, rotary_sin: Optional[torch.Tensor] = None,
        seqlens_rotary: Optional[torch.Tensor] = None, q_descale: Optional[torch.Tensor] = None,
        k_descale: Optional[torch.Tensor] = None, v_descale: Optional[torch.Tensor] = None,
        softmax_scale: Optional[float] = None, causal: bool = False, window_size_left: int = -1,
        window_size_right: int = -1, attention_chunk: int = 0, softcap: float = 0.0,
        rotary_interleaved: bool = True, scheduler_metadata: Optional[torch.Tensor] = None,
        num_splits: int = 1, pack_gqa: Optional[bool] = None, sm_margin: int = 0,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(out, lse, empty, empty) without gradients: what the functions above are made of."""
    _refuse(seqused_q=seqused_q, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    if k_new is not None:
        _refuse(qv=qv)
    q, k = _with_values(q, qv, k, v)
    options = _common.options(softmax_scale, causal, (window_size_left, window_size_right),
                              softcap, None, False, attention_chunk)
    places = _common.packed(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, page_table,
                            seqused_k, leftpad_k)
    with torch.no_grad(), _common.runtime_errors():
        out, lse = flashtile.attention(
            q, k, v, k_new=k_new, v_new=v_new, out=out_, cu_seqlens_new=cu_seqlens_k_new,
            cache_batch_idx=kv_batch_idx, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
            rotary_seqlens=seqlens_rotary, return_lse=True,
            rotary_interleaved=rotary_interleaved if rotary_cos is not None else None, **places,
            **options)
    return out, lse, lse.new_empty((0,)), lse.new_empty((0,))


def _flash_attn_backward(
        dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
        softmax_lse: torch.Tensor, cu_seqlens_q: Optional[torch.Tensor] = None,
        cu_seqlens_k: Optional[torch.Tensor] = None, sequed_q: Optional[torch.Tensor] = None,
        sequed_k: Optional[torch.Tensor] = None, max_seqlen_q: Optional[int] = None,
        max_seqlen_k: Optional[int] = None, dq: Optional[torch.Tensor] = None,
        dk: Optional[torch.Tensor] = None, dv: Optional[torch.Tensor] = None,
        softmax_scale: Optional[float] = None, is_causal: bool = False,
        window_size_left: int = -1, window_size_right: int = -1, softcap: float = 0.0,
        deterministic: bool = False, sm_margin: int = 0,
) -> torch.Tensor:
    """Writes gradients into dq, dk and dv; returns the sums of dout * out by row, like lse."""
    _refuse(sequed_q=sequed_q)
    options = _common.options(softmax_scale, is_causal, (window_size_left, window_size_right),
                              softcap, None, deterministic)
    places = _common.packed(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
                            seqused_k=sequed_k)
    given = {name: array for name, array in (("q", dq), ("k", dk), ("v", dv)) if array is not None}
    with torch.no_grad(), _common.runtime_errors():
        flashtile.attention_backward(dout, q, k, v, out, softmax_lse, into=given, **places,
                                     **options)
    return (dout.float() * out.float()).sum(-1).transpose(-1, -2)
