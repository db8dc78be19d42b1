# SPDX-License-Identifier: Apache-2.0
"""Attention for PyTorch, with gradients.

The ops flashtile::attention_fwd and flashtile::attention_bwd are custom ops of torch.library, made
from the operator table, with fake kernels and autograd: torch.compile, export, opcheck and
gradcheck see them as they see PyTorch's own. Above them stand `attention`, a function shaped like
PyTorch's scaled_dot_product_attention with a context manager that puts it in its place, and one
shaped like flex_attention.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

try:
    import torch
    import torch.nn.functional
    from torch.overrides import TorchFunctionMode
except ImportError as error:
    raise ImportError("flashtile.torch needs PyTorch: pip install torch") from error

from flashtile import _torch_sdpa, expressions
from flashtile._attention import (CACHE_NAMES, ScoreOrMask, Window, checked_text, dtype_name,
                                   window_ends)
from flashtile._torch_op import INPUT_NAMES, OPTION_PLACES, autocast, run_forward
from flashtile._torch_sdpa import added_mask, new_seed

__all__ = ["attention", "flex_attention", "scaled_dot_product_attention", "sdpa"]

try:
    from torch.nn.attention.flex_attention import noop_mask as _noop_mask
except ImportError:  # before PyTorch 2.5, which has no BlockMask
    _noop_mask = None  # type: ignore[assignment]


def _traced(given: ScoreOrMask, slot: str, aux: dict[str, torch.Tensor],
            params: Mapping[str, float]) -> str | None:
    if not callable(given):
        return checked_text(slot, given)
    text, captured = expressions.trace(given, slot, aux=aux, params=params)
    aux.update(captured)
    return text


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False,
              window: Window | None = None, score: ScoreOrMask = None, mask: ScoreOrMask = None,
              aux: Mapping[str, torch.Tensor] | None = None,
              params: Mapping[str, float] | None = None, dropout_p: float = 0.0,
              dropout_seed: int | torch.Tensor | None = None, return_lse: bool = False,
              out_dtype: torch.dtype | None = None, implementation: str | None = None,
              **others: Any) -> Any:
    """flashtile.attention with gradients for q, k, v, bias, alibi_slopes, sink and f32 aux tensors.

    Works under autocast and torch.compile. lse has a gradient, too. Second derivatives
    are refused.

    Args:
        q, k, v, causal, window, score, mask, aux, params, return_lse: as for flashtile.attention.
            Functions may also read tensors of their closure, which get gradients as aux tensors do.
            Inside torch.compile, give texts: flashtile.trace makes them of functions.
        dropout_seed: default: drawn from PyTorch's generator of the device of q. A tensor (1) of
            int64 is read when the op runs: by each run of a compiled graph, and where it lies on
            the device of q by each replay of a CUDA graph.
        out_dtype: that of q, or torch.float32.
        others: all other inputs and options of flashtile.attention but those that write (k_new,
            rotary_*, arrays for results), which flashtile.attention takes without gradients.

    Returns:
        out, or (out, lse).

    Raises:
        ValueError, NotImplementedError, RuntimeError: as flashtile.attention does.

    >>> q = torch.ones(1, 3, 2, 8, requires_grad=True)
    >>> flashtile.torch.attention(q, q, q, causal=True).sum().backward()
    >>> q.grad.shape
    torch.Size([1, 3, 2, 8])
    """
    tensors = {"q": q, "k": k, "v": v}
    if torch.is_autocast_enabled(q.device.type):
        tensors = {name: autocast(tensor) for name, tensor in tensors.items()}
    read = dict(aux or {})
    scalars = params or {}
    options: dict[str, Any] = {"score": _traced(score, "score", read, scalars),
                               "mask": _traced(mask, "mask", read, scalars), "causal": causal}
    if window is not None:
        options["window_left"], options["window_right"] = window_ends(
            "flashtile.torch.attention", window)
    if dropout_p > 0:
        options["dropout_p"] = dropout_p
        if dropout_seed is None:
            dropout_seed = new_seed(q.device)
        if isinstance(dropout_seed, torch.Tensor):
            tensors["dropout_seed_tensor"] = dropout_seed.reshape(1)
        else:
            options["dropout_seed"] = dropout_seed
    for name, value in others.items():
        if name in OPTION_PLACES:
            options[name] = value
        elif name in INPUT_NAMES:
            tensors[name] = value
        elif name in CACHE_NAMES:
            raise TypeError(f"flashtile.torch.attention has no argument '{name}': calls that store "
                            "or turn keys have no gradient, and are flashtile.attention's")
        else:
            raise TypeError(f"flashtile.torch.attention has no argument '{name}'")
    out, lse = run_forward((
        *map(tensors.get, INPUT_NAMES), list(read.values()), list(read),
        [float(value) for value in scalars.values()], list(scalars),
        *map(options.get, OPTION_PLACES), None if out_dtype is None else dtype_name(out_dtype),
        implementation))
    return (out, lse) if return_lse else out


def scaled_dot_product_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                                 attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0,
                                 is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False) -> torch.Tensor:
    """torch.nn.functional.scaled_dot_product_attention by flashtile, argument for argument.

    Args:
        query, key, value: (..., heads, seqlen, head_dim); seqlen_q and head_dim_v may differ.
        attn_mask: bool (True: seen) or float (added), broadcast to (..., heads, seqlen_q,
            seqlen_k). A float one gets its gradient. A row that sees nothing gives 0.
        dropout_p: probability of dropping a weight.
        is_causal: aligned top-left, as PyTorch's is.
        scale: default 1/sqrt(head_dim).
        enable_gqa: key and value may have fewer heads, of which the query's is a multiple.

    Raises:
        ValueError: a shape is wrong, or attn_mask and is_causal are both given.
    """
    if attn_mask is not None and is_causal:
        raise ValueError("scaled_dot_product_attention: attn_mask and is_causal are both given")
    if query.dim() < 2 or not query.dim() == key.dim() == value.dim():
        raise ValueError(f"scaled_dot_product_attention: query, key and value have {query.dim()}, "
                         f"{key.dim()} and {value.dim()} dimensions, expected as many, at least 2")
    if query.dim() >= 3 and query.shape[-3] != key.shape[-3] and not enable_gqa:
        raise ValueError(f"scaled_dot_product_attention: query has {query.shape[-3]} heads, key "
                         f"{key.shape[-3]}, expected as many without enable_gqa")
    shape = query.shape

    def rows(tensor: torch.Tensor) -> torch.Tensor:
        while tensor.dim() < 4:
            tensor = tensor.unsqueeze(0)
        return tensor.flatten(0, -4).transpose(1, 2)

    bias = None if attn_mask is None else added_mask(attn_mask)
    if bias is not None:
        while bias.dim() < 4:
            bias = bias.unsqueeze(0)
        if query.dim() > 4:
            bias = bias.expand(*shape[:-3], *bias.shape[-3:]).flatten(0, -4)
        bias = bias.expand(*bias.shape[:-1], key.shape[-2])
    out: torch.Tensor = attention(
        rows(query), rows(key), rows(value), causal=is_causal, bias=bias, softmax_scale=scale,
        dropout_p=dropout_p, query_offset=0 if is_causal else None)
    return out.transpose(1, 2).reshape(*shape[:-1], value.shape[-1])


_torch_sdpa.register()
_TORCH_SDPA = torch.nn.functional.scaled_dot_product_attention


class _InPlaceOfSdpa(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _TORCH_SDPA:
            func = scaled_dot_product_attention
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def sdpa() -> Iterator[None]:
    """Inside, torch.nn.functional.scaled_dot_product_attention is flashtile's, for all callers.

    Callers that look the function up in its module get it in other threads, too.

    >>> q = torch.ones(1, 2, 3, 8)
    >>> with flashtile.torch.sdpa():
    ...     torch.nn.functional.scaled_dot_product_attention(q, q, q).shape
    torch.Size([1, 2, 3, 8])
    """
    functional: Any = torch.nn.functional
    before = functional.scaled_dot_product_attention
    # Functions of PyTorch itself that call it are not seen by the mode, which is off inside them.
    functional.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        with _InPlaceOfSdpa():
            yield
    finally:
        functional.scaled_dot_product_attention = before


def _block_lists(block_mask: Any) -> dict[str, Any]:
    """The blocks of a BlockMask, those that it calls full among the others."""
    rows, columns = block_mask.BLOCK_SIZE
    listed = block_mask.to_dense() > 0
    return {"block_counts": listed.sum(-1, dtype=torch.int32), "block_rows": rows,
            "block_indices": listed.to(torch.int8).argsort(dim=-1, descending=True,
                                                           stable=True).int(),
            "block_cols": columns}


def flex_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                   score_mod: Callable[..., Any] | None = None, block_mask: Any = None,
                   scale: float | None = None, enable_gqa: bool = False,
                   return_lse: bool = False, kernel_options: Any = None) -> Any:
    """torch.nn.attention.flex_attention.flex_attention by flashtile.

    score_mod and the block mask's mask_mod are traced to expressions, once a call; tensors that
    they index get gradients. `block_mask` may also be a mask_mod itself, whose expression says
    which blocks are visited. A BlockMask may have no mask_mod; where it has one, its pairs are
    those in the blocks that it lists for which mask_mod is true, also in blocks that it calls full.

    Args:
        query, key, value: (batch, heads, seqlen, head_dim).
        score_mod: f(score, batch, head, q_idx, k_idx) -> score.
        block_mask: a BlockMask, or f(batch, head, q_idx, k_idx) -> bool.
        scale: default 1/sqrt(head_dim).
        enable_gqa: key and value may have fewer heads.
        return_lse: return (out, lse), lse (batch, heads, seqlen_q), f32.
        kernel_options: must be None: they are of PyTorch's kernels.

    Raises:
        TraceError: (a ValueError) a function cannot be an expression.
    """
    if kernel_options is not None:
        raise ValueError("flex_attention: kernel_options are given, expected None")
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ValueError(f"flex_attention: query has {query.shape[1]} heads, key {key.shape[1]}, "
                         "expected as many without enable_gqa")
    mask, blocks = block_mask, {}
    if hasattr(block_mask, "kv_num_blocks"):
        blocks = _block_lists(block_mask)
        mask = None if block_mask.mask_mod is _noop_mask else block_mask.mask_mod
    out, lse = attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
                         score=score_mod, mask=mask, softmax_scale=scale, return_lse=True,
                         **blocks)
    out = out.transpose(1, 2)
    return (out, lse) if return_lse else out
