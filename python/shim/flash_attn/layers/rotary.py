# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding in PyTorch, with flash_attn's functions.

Of each row of positions, pairs (x, y) of the first rotary_dim numbers become (x cos - y sin,
x sin + y cos). Worked out in float32 for 16-bit tensors.
Su et al. 2021 (arXiv:2104.09864); with scale_base, Sun et al. 2022 (arXiv:2212.10554).
"""

from typing import Optional, Tuple, Union

import torch
from torch import Tensor

Offsets = Union[int, Tensor]


def rotate_half(x, interleaved=False):
    """(-y, x) of pairs (x, y)."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def apply_rotary_emb_torch(x, cos, sin, interleaved=False):
    """x (batch, seqlen, heads, head_dim) by cos and sin (seqlen, rotary_dim / 2), or one table for
    each of the batch."""
    rotary_dim = 2 * cos.shape[-1]
    if rotary_dim > x.shape[-1]:
        raise ValueError(f"rotary_dim is {rotary_dim}, expected at most head_dim {x.shape[-1]}")

    def both(table):
        pairs = (table, table)
        whole = torch.stack(pairs, -1).flatten(-2) if interleaved else torch.cat(pairs, -1)
        return whole.unsqueeze(-2)

    turned, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    turned = turned * both(cos) + rotate_half(turned, interleaved) * both(sin)
    return torch.cat((turned.to(x.dtype), rest), dim=-1)


def _rows_of_tables(x, table, seqlen_offsets, cu_seqlens):
    """Rows of cos or sin for the rows of x, in float32 at least."""
    if cu_seqlens is not None:
        lengths = cu_seqlens.diff()
        batch = torch.repeat_interleave(torch.arange(len(lengths), device=x.device), lengths)
        rows = torch.arange(x.shape[0], device=x.device) - cu_seqlens[batch]
        rows = rows + (seqlen_offsets[batch] if isinstance(seqlen_offsets, Tensor)
                       else seqlen_offsets)
    else:
        rows = torch.arange(x.shape[1], device=x.device)
        rows = rows + (seqlen_offsets[:, None] if isinstance(seqlen_offsets, Tensor)
                       else seqlen_offsets)
    table = table[rows.long()]
    return table.float() if table.dtype in (torch.float16, torch.bfloat16) else table


def apply_rotary_emb(x, cos, sin, interleaved=False, inplace=False,
                     seqlen_offsets: Offsets = 0, cu_seqlens: Optional[Tensor] = None,
                     max_seqlen: Optional[int] = None):
    """Turns x, with gradients.

    Args:
        x: (batch, seqlen, heads, head_dim), or with cu_seqlens (total, heads, head_dim).
        cos, sin: (positions, rotary_dim / 2).
        interleaved: pairs (2n, 2n + 1) instead of (n, n + rotary_dim / 2).
        inplace: write the result over x.
        seqlen_offsets: position of row 0, an int or (batch).
        cu_seqlens: (batch + 1): starts of packed sequences; max_seqlen is not needed.
    """
    turned = apply_rotary_emb_torch(
        x, _rows_of_tables(x, cos, seqlen_offsets, cu_seqlens),
        _rows_of_tables(x, sin, seqlen_offsets, cu_seqlens), interleaved)
    return x.copy_(turned) if inplace else turned


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary_emb_qkv_(qkv, cos, sin, cos_k=None, sin_k=None, interleaved=False,
                          seqlen_offsets: Offsets = 0, num_heads_q: Optional[int] = None):
    """Turns q and k of qkv (batch, seqlen, 3, heads, head_dim), or with num_heads_q (batch, seqlen,
    num_heads_q + 2 * heads_kv, head_dim), in place; cos_k and sin_k are other tables for k."""
    if qkv.dim() == 5:
        q, k = qkv[:, :, 0], qkv[:, :, 1]
    else:
        num_heads_kv = (qkv.shape[2] - num_heads_q) // 2
        q, k = qkv[:, :, :num_heads_q], qkv[:, :, num_heads_q:num_heads_q + num_heads_kv]
    turned = [apply_rotary_emb(q, cos, sin, interleaved, seqlen_offsets=seqlen_offsets),
              apply_rotary_emb(k, cos if cos_k is None else cos_k, sin if sin_k is None else sin_k,
                               interleaved, seqlen_offsets=seqlen_offsets)]
    q.copy_(turned[0])
    k.copy_(turned[1])
    return qkv


def apply_rotary_emb_kv_(kv, cos, sin, interleaved=False, seqlen_offsets: Offsets = 0):
    """Turns k of kv (batch, seqlen, 2, heads, head_dim) in place."""
    k = kv[:, :, 0]
    k.copy_(apply_rotary_emb(k, cos, sin, interleaved, seqlen_offsets=seqlen_offsets))
    return kv


class RotaryEmbedding(torch.nn.Module):
    """Tables of cos and sin that grow with the length, and their use on qkv or q and kv.

    Args:
        dim: rotary_dim.
        base: wave lengths are 2 pi base^(2 n / dim).
        interleaved: pairs (2n, 2n + 1).
        scale_base: with it q grows and k shrinks with the position (xPos).
    """

    def __init__(self, dim: int, base=10000.0, interleaved=False, scale_base=None, device=None):
        super().__init__()
        self.dim, self.base = dim, float(base)
        self.interleaved, self.scale_base = interleaved, scale_base
        self.register_buffer("inv_freq", self._compute_inv_freq(device), persistent=False)
        scale = None
        if scale_base is not None:
            scale = (torch.arange(0, dim, 2, device=device, dtype=torch.float32) + 0.4 * dim) / \
                (1.4 * dim)
        self.register_buffer("scale", scale, persistent=False)
        self._tables = None

    def _compute_inv_freq(self, device=None):
        exponents = torch.arange(0, self.dim, 2, device=device, dtype=torch.float32) / self.dim
        return self.base ** -exponents

    def _tables_for(self, seqlen, device, dtype):
        """cos, sin, and those of k where they differ."""
        known = self._tables
        if known is not None and known[0].shape[0] >= seqlen and known[0].device == device and \
                known[0].dtype == dtype and not (self.training and known[0].is_inference()):
            return known
        # Products of positions and frequencies are large: never in 16 bits.
        frequencies = self.inv_freq
        if frequencies.dtype != torch.float32:
            frequencies = self._compute_inv_freq(device)
        angles = torch.outer(torch.arange(seqlen, device=device, dtype=torch.float32),
                             frequencies.to(device))
        tables = [angles.cos(), angles.sin()]
        if self.scale is not None:
            power = (torch.arange(seqlen, device=device) - seqlen // 2) / self.scale_base
            growth = self.scale.to(device) ** power[:, None]
            tables = [table * growth for table in tables] + [table / growth for table in tables]
        self._tables = tuple(table.to(dtype) for table in tables)
        return self._tables

    def forward(self, qkv: Tensor, kv: Optional[Tensor] = None, seqlen_offset: Offsets = 0,
                max_seqlen: Optional[int] = None, num_heads_q: Optional[int] = None,
                ) -> Union[Tensor, Tuple[Tensor, Tensor]]:
        """Turns qkv (see apply_rotary_emb_qkv_), or q = qkv and kv, in place.

        seqlen_offset as a tensor needs max_seqlen, the largest position + 1, or tables from an
        earlier call.
        """
        seqlen = max_seqlen
        if seqlen is None and isinstance(seqlen_offset, int):
            seqlen = qkv.shape[1] + seqlen_offset
        if seqlen is None and self._tables is None:
            raise ValueError("RotaryEmbedding: a tensor of seqlen_offset needs max_seqlen")
        cos, sin, *of_k = self._tables if seqlen is None else \
            self._tables_for(seqlen, qkv.device, qkv.dtype)
        cos_k, sin_k = of_k or (None, None)
        if kv is None:
            return apply_rotary_emb_qkv_(qkv, cos, sin, cos_k, sin_k, self.interleaved,
                                         seqlen_offset, num_heads_q)
        q = apply_rotary_emb_func(qkv, cos, sin, self.interleaved, inplace=True,
                                  seqlen_offsets=seqlen_offset)
        kv = apply_rotary_emb_kv_(kv, cos if cos_k is None else cos_k,
                                  sin if sin_k is None else sin_k, self.interleaved, seqlen_offset)
        return q, kv
