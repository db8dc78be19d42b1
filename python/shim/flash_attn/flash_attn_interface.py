# SPDX-License-Identifier: Apache-2.0
"""FlashAttention 2's functions by flashtile.

Beyond what flash_attn takes: CPU tensors, float32, any head_dim (also of v alone), pages of any
size. Rows that see no key have out 0 and, as flash_attn 2 says it, lse +inf.
"""

from typing import Optional, Tuple, Union

import torch

import flash_attn_2_cuda as flash_attn_gpu
from flash_attn import _common
from flashtile._torch_sdpa import new_seed

USE_TRITON_ROCM = False


def _get_block_size_n(device, head_dim, is_dropout, is_causal):
    """Keys that S_dmask is scaled by the maximum of at a time: here all."""
    return 1 << 30


@torch.library.custom_op("flash_attn::_flash_attn_forward", mutates_args=(),
                         device_types=("cpu", "cuda"))
def _flash_attn_forward(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float, softmax_scale: float,
        causal: bool, window_size_left: int, window_size_right: int, softcap: float,
        alibi_slopes: Optional[torch.Tensor], return_softmax: bool,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    return flash_attn_gpu.fwd(
        q, k, v, None, alibi_slopes, dropout_p, softmax_scale, causal, window_size_left,
        window_size_right, softcap, return_softmax, None)


@_flash_attn_forward.register_fake
def _(q, k, v, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap,
      alibi_slopes, return_softmax):
    batch_size, seqlen_q, num_heads = q.shape[:3]
    return _fake_results(q, v, (batch_size, num_heads, seqlen_q),
                         (batch_size, num_heads, seqlen_q, k.shape[1]) if return_softmax else None)


def _fake_results(q, v, lse_shape, weights_shape):
    s_dmask = (0,)
    if weights_shape is not None:
        *outer, rows, columns = weights_shape
        s_dmask = (*outer, flash_attn_gpu.rounded(rows), flash_attn_gpu.rounded(columns))
    return (q.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(lse_shape, dtype=torch.float32),
            q.new_empty(s_dmask), q.new_empty((2,), dtype=torch.int64))


@torch.library.custom_op("flash_attn::_flash_attn_varlen_forward", mutates_args=(),
                         device_types=("cpu", "cuda"))
def _flash_attn_varlen_forward(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float,
        softmax_scale: float, causal: bool, window_size_left: int = -1,
        window_size_right: int = -1, softcap: float = 0.0,
        alibi_slopes: Optional[torch.Tensor] = None, return_softmax: bool = False,
        block_table: Optional[torch.Tensor] = None, leftpad_k: Optional[torch.Tensor] = None,
        seqused_k: Optional[torch.Tensor] = None, zero_tensors: bool = False, num_splits: int = 0,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    return flash_attn_gpu.varlen_fwd(
        q, k, v, None, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, block_table, alibi_slopes,
        max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, zero_tensors, causal,
        window_size_left, window_size_right, softcap, return_softmax, None, num_splits)


@_flash_attn_varlen_forward.register_fake
def _(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale,
      causal, window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None,
      return_softmax=False, block_table=None, leftpad_k=None, seqused_k=None, zero_tensors=False,
      num_splits=0):
    total_q, num_heads = q.shape[:2]
    batch_size = cu_seqlens_q.shape[0] - 1
    return _fake_results(
        q, v, (num_heads, total_q),
        (batch_size, num_heads, max_seqlen_q, max_seqlen_k) if return_softmax else None)


@torch.library.custom_op("flash_attn::_flash_attn_backward", mutates_args=("dq", "dk", "dv"),
                         device_types=("cpu", "cuda"))
def _flash_attn_backward(
        dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
        softmax_lse: torch.Tensor, dq: Optional[torch.Tensor], dk: Optional[torch.Tensor],
        dv: Optional[torch.Tensor], dropout_p: float, softmax_scale: float, causal: bool,
        window_size_left: int, window_size_right: int, softcap: float,
        alibi_slopes: Optional[torch.Tensor], deterministic: bool,
        rng_state: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    return flash_attn_gpu.bwd(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, alibi_slopes, dropout_p, softmax_scale,
        causal, window_size_left, window_size_right, softcap, deterministic, None, rng_state)[3]


@_flash_attn_backward.register_fake
def _(dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal,
      window_size_left, window_size_right, softcap, alibi_slopes, deterministic, rng_state=None):
    batch_size, seqlen_q, num_heads = q.shape[:3]
    return q.new_empty((batch_size, num_heads, flash_attn_gpu.rounded(seqlen_q)),
                       dtype=torch.float32)


@torch.library.custom_op("flash_attn::_flash_attn_varlen_backward",
                         mutates_args=("dq", "dk", "dv"), device_types=("cpu", "cuda"))
def _flash_attn_varlen_backward(
        dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
        softmax_lse: torch.Tensor, dq: Optional[torch.Tensor], dk: Optional[torch.Tensor],
        dv: Optional[torch.Tensor], cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int, max_seqlen_k: int, dropout_p: float, softmax_scale: float, causal: bool,
        window_size_left: int, window_size_right: int, softcap: float,
        alibi_slopes: Optional[torch.Tensor], deterministic: bool,
        rng_state: Optional[torch.Tensor] = None, zero_tensors: bool = False,
) -> torch.Tensor:
    return flash_attn_gpu.varlen_bwd(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, alibi_slopes,
        max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, zero_tensors, causal,
        window_size_left, window_size_right, softcap, deterministic, None, rng_state)[3]


@_flash_attn_varlen_backward.register_fake
def _(dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
      max_seqlen_k, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap,
      alibi_slopes, deterministic, rng_state=None, zero_tensors=False):
    return q.new_empty(softmax_lse.shape, dtype=torch.float32)


_wrapped_flash_attn_forward = torch.ops.flash_attn._flash_attn_forward
_wrapped_flash_attn_varlen_forward = torch.ops.flash_attn._flash_attn_varlen_forward
_wrapped_flash_attn_backward = torch.ops.flash_attn._flash_attn_backward
_wrapped_flash_attn_varlen_backward = torch.ops.flash_attn._flash_attn_varlen_backward


def _attention(q, k, v, dropout_p, return_attn_probs, places, options):
    seed = None
    if dropout_p > 0:
        seed = new_seed(q.device)
    out, lse = _common.attention(q, k, v, dropout_p=dropout_p, dropout_seed=seed, **places,
                                 **options)
    if not return_attn_probs:
        return out
    s_dmask = q.new_empty((0,))
    if dropout_p > 0:
        with _common.runtime_errors():
            s_dmask = flash_attn_gpu.signed_weights(q, k, v, dropout_p, seed, **places, **options)
    return out, flash_attn_gpu.infinite_where_empty(lse), s_dmask


def flash_attn_func(
        q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
        softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """Attention with gradients.

    Args:
        q: (batch, seqlen_q, heads, head_dim), f16, bf16 or f32.
        k, v: (batch, seqlen_k, heads_kv, head_dim); heads is a multiple of heads_kv.
        dropout_p: probability of dropping a weight; the seed comes from PyTorch's generator.
        softmax_scale: default 1/sqrt(head_dim).
        causal: aligned bottom-right.
        window_size: (left, right) other keys that a query sees; -1: all.
        softcap: softcap * tanh(s / softcap); 0: none.
        alibi_slopes: (heads) or (batch, heads), f32: slope * |distance| is subtracted.
        deterministic: gradients have the same bits in every run.
        return_attn_probs: also return lse (batch, heads, seqlen_q) and, with dropout, the weights
            before normalisation (exp(score - maximum)), negative where dropped, with both
            lengths rounded up to 128. Quadratic in memory.

    Returns:
        out, like q; or (out, lse, S_dmask).

    Raises:
        RuntimeError: an argument is wrong, or nothing takes it (NotImplementedError).
    """
    return _attention(q, k, v, dropout_p, return_attn_probs, {}, _common.options(
        softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic))


def flash_attn_kvpacked_func(
        q, kv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
        softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """flash_attn_func of kv (batch, seqlen_k, 2, heads_kv, head_dim)."""
    return flash_attn_func(q, *kv.unbind(2), dropout_p, softmax_scale, causal, window_size,
                           softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_qkvpacked_func(
        qkv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
        softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """flash_attn_func of qkv (batch, seqlen, 3, heads, head_dim)."""
    return flash_attn_func(*qkv.unbind(2), dropout_p, softmax_scale, causal, window_size,
                           softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
        softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
        deterministic=False, return_attn_probs=False, block_table=None):
    """flash_attn_func of packed sequences.

    Args:
        q: (total_q, heads, head_dim); k, v: (total_k, heads_kv, head_dim), or with block_table
            (pages, page_size, heads_kv, head_dim).
        cu_seqlens_q, cu_seqlens_k: (batch + 1), i32: starts of the sequences.
        max_seqlen_q, max_seqlen_k: the longest ones.
        block_table: (batch, pages of a sequence), i32; forward only.

    Returns:
        out (total_q, heads, head_dim); lse (heads, total_q); S_dmask (batch, heads, ...).
    """
    places = _common.packed(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, block_table)
    return _attention(q, k, v, dropout_p, return_attn_probs, places, _common.options(
        softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic))


def flash_attn_varlen_kvpacked_func(
        q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
        softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
        deterministic=False, return_attn_probs=False):
    """flash_attn_varlen_func of kv (total_k, 2, heads_kv, head_dim)."""
    return flash_attn_varlen_func(
        q, *kv.unbind(1), cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
        softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs)


def flash_attn_varlen_qkvpacked_func(
        qkv, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None, causal=False,
        window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
        return_attn_probs=False):
    """flash_attn_varlen_func of qkv (total, 3, heads, head_dim)."""
    return flash_attn_varlen_func(
        *qkv.unbind(1), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale,
        causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None,
        cache_seqlens: Optional[Union[int, torch.Tensor]] = None,
        cache_batch_idx: Optional[torch.Tensor] = None,
        cache_leftpad: Optional[torch.Tensor] = None,
        block_table: Optional[torch.Tensor] = None, softmax_scale=None, causal=False,
        window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None,
        num_splits=0, return_softmax_lse=False):
    """Attention to a cache, into which k and v are stored first where they are given.

    Args:
        q: (batch, seqlen_q, heads, head_dim).
        k_cache, v_cache: (batch of the cache, slots, heads_kv, head_dim), or with block_table
            (pages, page_size, heads_kv, head_dim); written.
        k, v: (batch, seqlen_new, heads_kv, head_dim).
        rotary_cos, rotary_sin: (positions, rotary_dim / 2): turn k and q from cache_seqlens on.
        cache_seqlens: keys in use before the call, an int or (batch), i32.
        cache_batch_idx: (batch), i32: lines of the cache.
        cache_leftpad: (batch), i32: slots before the first key.
        num_splits: is for flashtile to choose.
        Others as for flash_attn_func. No gradients.

    Returns:
        out, like q; or (out, lse) with lse (batch, heads, seqlen_q).
    """
    given = _common.options(softmax_scale, causal, window_size, softcap, alibi_slopes)
    out, lse = _common.with_cache(
        q, k_cache, v_cache, k, v, cache_seqlens, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
        rotary_interleaved=rotary_interleaved if rotary_cos is not None else None,
        cache_batch_idx=cache_batch_idx, leftpad_k=cache_leftpad, block_table=block_table, **given)
    return (out, flash_attn_gpu.infinite_where_empty(lse)) if return_softmax_lse else out
