# SPDX-License-Identifier: Apache-2.0
"""The ops of PyTorch behind scaled_dot_product_attention and torch.nn.attention.varlen, by
flashtile.

PyTorch chooses among its backends as before; where it chooses flash attention, these run:
torch.nn.attention.activate_flash_attention_impl("flashtile") puts them there.
"""

from __future__ import annotations

from typing import Any

import torch

from flashtile._attention import attention, attention_backward

NAME = "flashtile"
Tensor = torch.Tensor


def _positive(side: int | None) -> int | None:
    return None if side is None or side < 0 else side


def new_seed(device: torch.device, size: int = 1) -> Tensor:
    """A seed for dropout from PyTorch's generator of a device. In a captured CUDA graph each replay
    draws its own."""
    return torch.randint(0, 2**62, (size,), dtype=torch.int64, device=device)


def added_mask(mask: Tensor) -> Tensor:
    """A bool mask (True: seen) as numbers to add to scores; one of floats as it is."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, -torch.inf)


def _out_like(query: Tensor, value: Tensor) -> Tensor | None:
    """Memory for out that is laid out as the query, which PyTorch's is; None: as it comes."""
    return torch.empty_like(query) if query.shape[-1] == value.shape[-1] else None


def rounded(length: int) -> int:
    """Up to a multiple of 128, as the rows and columns of signed_weights are."""
    return (length + 127) // 128 * 128


def signed_weights(q: Tensor, k: Tensor, v: Tensor, dropout_p: float, seed: Any,
                   **given: Any) -> Tensor:
    """exp(score - maximum of the row), negative where dropped: what flash attention's tests see of
    dropout. (batch, heads, seqlen_q, seqlen_k) with lengths rounded up; quadratic in memory.

    Args:
        q, k, v: as for flashtile.attention; may be packed.
        given: options of flashtile.attention.
    """
    batch_size, seqlen_q, seqlen_k = q.shape[0], q.shape[1], k.shape[1]
    if given.get("cu_seqlens_q") is not None:
        batch_size = given["cu_seqlens_q"].shape[0] - 1
        seqlen_q, seqlen_k = given["max_seqlen_q"], given["max_seqlen_k"]
    shape = batch_size, q.shape[-2], seqlen_q, seqlen_k
    weights = torch.zeros(shape, dtype=torch.float32, device=q.device)
    kept = torch.ones(shape, dtype=torch.uint8, device=q.device)
    with torch.no_grad():
        attention(q, k, v, weights=weights, **given)
        attention(q, k, v, dropout_mask=kept, dropout_p=dropout_p, dropout_seed=seed, **given)
    largest = weights.amax(-1, keepdim=True)
    weights = weights / torch.where(largest == 0, 1, largest)
    result = q.new_zeros(*shape[:2], rounded(seqlen_q), rounded(seqlen_k))
    result[..., :seqlen_q, :seqlen_k] = torch.where(kept == 0, -weights, weights).to(q.dtype)
    return result


def _options(is_causal: bool, scale: float | None, dropout_p: float, seed: Tensor | None,
             **others: Any) -> dict[str, Any]:
    return {"causal": is_causal, "softmax_scale": scale, "dropout_p": dropout_p or None,
            "dropout_seed": seed if dropout_p else None, **others}


def _packed(cum_seq_q: Tensor | None, cum_seq_k: Tensor | None, max_q: int,
            max_k: int) -> dict[str, Any]:
    if cum_seq_q is None:
        return {}
    return {"cu_seqlens_q": cum_seq_q, "cu_seqlens_k": cum_seq_k, "max_seqlen_q": max_q,
            "max_seqlen_k": max_k}


def flash_forward(query: Tensor, key: Tensor, value: Tensor, cum_seq_q: Tensor | None,
                  cum_seq_k: Tensor | None, max_q: int, max_k: int, dropout_p: float,
                  is_causal: bool, return_debug_mask: bool, *, scale: float | None = None,
                  window_size_left: int | None = None, window_size_right: int | None = None,
                  seqused_k: Tensor | None = None, alibi_slopes: Tensor | None = None,
                  out: Tensor | None = None, block_table: Tensor | None = None,
                  num_splits: int | None = None,
                  query_offset: int | None = None) -> tuple[Tensor, ...]:
    """aten::_flash_attention_forward: (batch, seqlen, heads, head_dim), or packed.

    Returns:
        (out, lse, two u64 of which the first is the seed, an empty tensor, with return_debug_mask
        and dropout signed_weights, else an empty tensor).
    """
    places = _packed(cum_seq_q, cum_seq_k, max_q, max_k)
    if block_table is not None:
        places.pop("cu_seqlens_k", None)
        places.pop("max_seqlen_k", None)
    device = query.device
    seed = new_seed(device, 2) if dropout_p else torch.zeros(2, dtype=torch.int64, device=device)
    given = dict(places, seqused_k=seqused_k, block_table=block_table, **_options(
        is_causal, scale, dropout_p, seed[:1], alibi_slopes=alibi_slopes,
        query_offset=query_offset,
        window=(_positive(window_size_left), _positive(window_size_right))))
    if out is None:
        out = _out_like(query, value)
    out, lse = attention(query, key, value, out=out, return_lse=True, **given)
    debug_mask = query.new_empty(0)
    if return_debug_mask and dropout_p:
        places = {name: given[name] for name in given if not name.startswith("dropout")}
        debug_mask = signed_weights(query, key, value, dropout_p, seed[:1], **places)
    return (out, lse, seed.view(torch.uint64),
            torch.empty((), dtype=torch.uint64, device=device), debug_mask)


def flash_forward_into(out: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The same into a given `out`; lse alone is returned."""
    return flash_forward(*args, out=out, **kwargs)[1]


def flash_backward(grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor,
                   lse: Tensor, cum_seq_q: Tensor | None, cum_seq_k: Tensor | None,
                   max_q: int, max_k: int, dropout_p: float, is_causal: bool, rng_state: Tensor,
                   unused: Tensor, *, scale: float | None = None,
                   window_size_left: int | None = None, window_size_right: int | None = None,
                   query_offset: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """aten::_flash_attention_backward: (dq, dk, dv)."""
    seed = rng_state[:1].view(torch.int64) if dropout_p else None
    found = attention_backward(
        grad_out, query, key, value, out, lse,
        window=(_positive(window_size_left), _positive(window_size_right)),
        deterministic=torch.are_deterministic_algorithms_enabled() or None,
        **_packed(cum_seq_q, cum_seq_k, max_q, max_k),
        **_options(is_causal, scale, dropout_p, seed, query_offset=query_offset))
    return found["q"], found["k"], found["v"]


def _heads_second(*tensors: Tensor) -> list[Tensor]:
    return [tensor.transpose(1, 2) for tensor in tensors]


def sdpa_forward(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0,
                 is_causal: bool = False, return_debug_mask: bool = False, *,
                 scale: float | None = None) -> tuple[Any, ...]:
    """aten::_scaled_dot_product_flash_attention, of (batch, heads, seqlen, head_dim); causal is
    aligned top-left."""
    max_q, max_k = query.shape[2], key.shape[2]
    q, k, v = _heads_second(query, key, value)
    out, lse, rng_state, offset, none = flash_forward(
        q, k, v, None, None, max_q, max_k, dropout_p, is_causal,
        return_debug_mask, scale=scale, query_offset=0 if is_causal else None)
    return out.transpose(1, 2), lse, None, None, max_q, max_k, rng_state, offset, none


def sdpa_backward(grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor,
                  lse: Tensor, cum_seq_q: Tensor | None, cum_seq_k: Tensor | None,
                  max_q: int, max_k: int, dropout_p: float, is_causal: bool, philox_seed: Tensor,
                  philox_offset: Tensor, *, scale: float | None = None) -> tuple[Tensor, ...]:
    """aten::_scaled_dot_product_flash_attention_backward."""
    dout, q, k, v, out = _heads_second(grad_out, query, key, value, out)
    return tuple(_heads_second(*flash_backward(
        dout, q, k, v, out, lse, None, None, max_q, max_k, dropout_p, is_causal,
        philox_seed, philox_offset, scale=scale, query_offset=0 if is_causal else None)))


def _cpu_bias(attn_mask: Tensor | None, key: Tensor) -> Tensor | None:
    if attn_mask is None:
        return None
    mask = added_mask(attn_mask)[(None,) * (4 - attn_mask.dim())]
    return mask.expand(*mask.shape[:-1], key.shape[-2])


def cpu_forward(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0,
                is_causal: bool = False, *, attn_mask: Tensor | None = None,
                scale: float | None = None) -> tuple[Tensor, Tensor]:
    """aten::_scaled_dot_product_flash_attention_for_cpu: (out, lse)."""
    q, k, v = _heads_second(query, key, value)
    out, lse = attention(q, k, v, out=_out_like(q, v), return_lse=True,
                         bias=_cpu_bias(attn_mask, key),
                         **_options(is_causal, scale, 0.0, None,
                                    query_offset=0 if is_causal else None))
    return out.transpose(1, 2), lse


def cpu_backward(grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor,
                 lse: Tensor, dropout_p: float, is_causal: bool, *,
                 attn_mask: Tensor | None = None,
                 scale: float | None = None) -> tuple[Tensor, ...]:
    """aten::_scaled_dot_product_flash_attention_for_cpu_backward."""
    dout, q, k, v, out = _heads_second(grad_out, query, key, value, out)
    found = attention_backward(
        dout, q, k, v, out, lse, bias=_cpu_bias(attn_mask, key),
        **_options(is_causal, scale, 0.0, None, query_offset=0 if is_causal else None))
    return tuple(_heads_second(*found.values()))


_KERNELS = {
    "CUDA": {"_flash_attention_forward": flash_forward,
             "_flash_attention_forward_no_dropout_inplace": flash_forward_into,
             "_flash_attention_backward": flash_backward,
             "_scaled_dot_product_flash_attention": sdpa_forward,
             "_scaled_dot_product_flash_attention_backward": sdpa_backward},
    "CPU": {"_scaled_dot_product_flash_attention_for_cpu": cpu_forward,
            "_scaled_dot_product_flash_attention_for_cpu_backward": cpu_backward},
}


class _Active:
    """The ops are flashtile's as long as this is not removed."""

    def __init__(self) -> None:
        self._libraries: list[Any] = []
        for device, kernels in _KERNELS.items():
            library: Any = torch.library.Library(  # type: ignore[no-untyped-call]
                "aten", "IMPL", device)
            for name, kernel in kernels.items():
                if hasattr(torch.ops.aten, name):
                    library.impl(name, kernel, device, allow_override=True)
            self._libraries.append(library)

    def remove(self) -> None:
        for library in self._libraries:
            library._destroy()
        self._libraries = []


def register() -> None:
    """Makes the name known to torch.nn.attention, where that has a list of names (2.10)."""
    add: Any = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if add is not None:
        add(NAME, register_fn=_Active)
