# SPDX-License-Identifier: Apache-2.0
"""FlashAttention 4's functions by flashtile.

num_splits, pack_gqa and what belongs to its scheduler are for flashtile to choose. Functions for
its compiler (score_mod, mask_mod), block lists, qv and gathered keys are refused: flashtile.torch
has its own score and mask functions.
"""

from typing import Callable, Optional, Tuple

import torch
from flash_attn import _common


def _refuse(given):
    for name, value in given.items():
        if value is not None:
            raise NotImplementedError(f"flash_attn.cute: {name} is not taken by flashtile")


def _sink(learnable_sink):
    return None if learnable_sink is None else learnable_sink.float()


def flash_attn_func(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, qv: Optional[torch.Tensor] = None,
        gather_kv_indices: Optional[torch.Tensor] = None, softmax_scale: Optional[float] = None,
        causal: bool = False,
        window_size: Tuple[Optional[int], Optional[int]] = (None, None),
        learnable_sink: Optional[torch.Tensor] = None, softcap: float = 0.0, num_splits: int = 1,
        pack_gqa: Optional[bool] = None, deterministic: bool = False,
        score_mod: Optional[Callable] = None, score_mod_bwd: Optional[Callable] = None,
        mask_mod: Optional[Callable] = None, aux_tensors: Optional[list] = None,
        aux_scalars: Optional[tuple] = None, block_sparse_tensors=None,
        block_sparse_tensors_bwd=None, return_lse: bool = False):
    """Attention with gradients of q (batch, seqlen_q, heads, head_dim), k and v (batch, seqlen_k,
    heads_kv, head_dim or another one); learnable_sink: (heads).

    Returns:
        (out, lse), lse None unless return_lse, else (batch, heads, seqlen_q).

    Raises:
        RuntimeError: an argument is wrong, or nothing takes it (NotImplementedError).
    """
    _refuse({"qv": qv, "gather_kv_indices": gather_kv_indices, "score_mod": score_mod,
             "score_mod_bwd": score_mod_bwd, "mask_mod": mask_mod, "aux_tensors": aux_tensors,
             "aux_scalars": aux_scalars, "block_sparse_tensors": block_sparse_tensors,
             "block_sparse_tensors_bwd": block_sparse_tensors_bwd})
    out, lse = _common.attention(q, k, v, sink=_sink(learnable_sink), **_common.options(
        softmax_scale, causal, window_size, softcap, None, deterministic))
    return out, lse if return_lse else None


def flash_attn_varlen_func(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, qv: Optional[torch.Tensor] = None,
        cu_seqlens_q: Optional[torch.Tensor] = None, cu_seqlens_k: Optional[torch.Tensor] = None,
        max_seqlen_q: Optional[int] = None, max_seqlen_k: Optional[int] = None,
        min_seqlen_k: Optional[int] = None, seqused_q: Optional[torch.Tensor] = None,
        seqused_k: Optional[torch.Tensor] = None, gather_kv_indices: Optional[torch.Tensor] = None,
        page_table: Optional[torch.Tensor] = None, softmax_scale: Optional[float] = None,
        causal: bool = False,
        window_size: Tuple[Optional[int], Optional[int]] = (None, None),
        learnable_sink: Optional[torch.Tensor] = None, softcap: float = 0.0, num_splits: int = 1,
        pack_gqa: Optional[bool] = None, deterministic: bool = False,
        score_mod: Optional[Callable] = None, score_mod_bwd: Optional[Callable] = None,
        mask_mod: Optional[Callable] = None, block_sparse_tensors=None,
        aux_tensors: Optional[list] = None, aux_scalars: Optional[tuple] = None,
        return_lse: bool = False, scheduler_metadata=None,
        seqlen_k_per_split: Optional[int] = None, disable_scheduler_metadata: bool = False):
    """flash_attn_func of packed q, k and v, or of some of them; keys may lie in pages.

    Returns:
        (out, lse), lse None unless return_lse, else (heads, total_q) or (batch, heads, seqlen_q).
    """
    _refuse({"qv": qv, "gather_kv_indices": gather_kv_indices, "seqused_q": seqused_q,
             "score_mod": score_mod, "score_mod_bwd": score_mod_bwd, "mask_mod": mask_mod,
             "aux_tensors": aux_tensors, "aux_scalars": aux_scalars,
             "block_sparse_tensors": block_sparse_tensors})
    places = _common.packed(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, page_table,
                            seqused_k)
    out, lse = _common.attention(q, k, v, sink=_sink(learnable_sink), **places, **_common.options(
        softmax_scale, causal, window_size, softcap, None, deterministic))
    return out, lse if return_lse else None
