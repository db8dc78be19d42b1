# SPDX-License-Identifier: Apache-2.0
"""What stands around the recurrences of the layers: short convolutions and norms with gates. Names
of parameters, arguments and caches are flash-linear-attention's, so that its models load."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from flashtile.torch import linear
from flashtile.torch._rows import call

Tensor = torch.Tensor
_ACTIVATIONS = (None, "silu", "swish")


def _widened(weight: Tensor, cache_width: int) -> Tensor:
    """With a tap of 0 for each column that a cache has beyond what the convolution reads."""
    return functional.pad(weight, (cache_width + 1 - weight.shape[1], 0))


def short_conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, *,
               activation: str | None = None, cache: Tensor | None = None,
               cu_seqlens: Tensor | None = None, cache_width: int | None = None,
               return_cache: bool = False) -> tuple[Tensor, Tensor | None]:
    """Causal convolution of each channel, and the inputs that a later call goes on from.

    Args:
        x: (batch, seqlen, channels).
        weight: (channels, width), oldest row first.
        bias: (channels).
        activation: None, "silu" or "swish", its other name.
        cache: (sequences, channels, cache_width): the last inputs before x, oldest first.
        cu_seqlens: (sequences + 1): rows are packed, the batch is 1.
        cache_width: of cache and what is returned, at least width - 1; default: that of cache, or
            width.
        return_cache: return the last inputs up to the end of x.
    """
    if activation not in _ACTIVATIONS:
        raise ValueError(f"short_conv: activation is {activation!r}, expected one of "
                         f"{_ACTIVATIONS}")
    width = weight.shape[1]
    if cache is not None:
        cache_width = cache.shape[2]
    elif cache_width is None:
        cache_width = width
    has_kernel = x.device.type == "cpu" and x.dtype != torch.float64
    if cu_seqlens is None and not has_kernel:
        past = x.new_zeros(x.shape[0], x.shape[2], cache_width) if cache is None else cache
        joined = torch.cat([past.to(x.dtype), x.transpose(1, 2)], -1)
        bias = None if bias is None else bias.to(x.dtype)
        out = functional.conv1d(joined[..., cache_width + 1 - width:],
                                weight.to(x.dtype).unsqueeze(1), bias, groups=x.shape[2])
        out = (out if activation is None else functional.silu(out)).transpose(1, 2)
        # Not a view, which would keep all rows.
        last = joined[..., joined.shape[2] - cache_width:].clone() if return_cache else None
        return out, last if last is None or cache is None else last.to(cache.dtype)
    has_state = cache is not None or return_cache
    taps = _widened(weight, cache_width) if has_state else weight
    out, finals = call(
        "short_conv", {"x": x, "weight": taps, "bias": bias, "initial_state": cache},
        cu_seqlens=cu_seqlens, return_final_state=return_cache, silu=activation is not None)
    return out, finals[0].to(x.dtype if cache is None else cache.dtype) if finals else None


def short_conv_step(x: Tensor, cache: Tensor, weight: Tensor, bias: Tensor | None = None, *,
                    activation: str | None = None, slots: Tensor | None = None) -> Tensor:
    """One row of each sequence, (batch, channels); the cache changes in place. No gradient is
    recorded: what wants one is refused.

    Args:
        cache: (lines, channels, cache_width), as for short_conv.
        slots: (batch), i32: the line of each sequence.
        x, weight, bias, activation: as for short_conv.
    """
    if activation not in _ACTIVATIONS:
        raise ValueError(f"short_conv: activation is {activation!r}, expected one of "
                         f"{_ACTIVATIONS}")
    taps = _widened(weight, cache.shape[2])
    if taps.dtype not in (torch.float32, x.dtype):
        taps = taps.float()
    if bias is not None:
        bias = bias if bias.dtype in (torch.float32, x.dtype) else bias.float()
    state = cache if cache.dtype == torch.float32 else cache.float()
    out = linear.short_conv_step(x, taps, state, bias=bias, silu=activation is not None,
                                 state_slots=slots)
    if state is not cache:
        cache.copy_(state)
    return out


class ShortConvolution(nn.Conv1d):
    """Depthwise causal convolution with an activation: `weight` (channels, 1, width), `bias`.

    A cache is (sequences, channels, width), the last inputs. Of one row without autograd it
    changes in place; else the new one is returned where output_final_state asks for it.
    """

    def __init__(self, hidden_size: int, kernel_size: int, bias: bool = False,
                 activation: str | None = "silu", backend: str | None = None,
                 device: Any = None, dtype: torch.dtype | None = None) -> None:
        super().__init__(hidden_size, hidden_size, kernel_size, padding=kernel_size - 1,
                         groups=hidden_size, bias=bias, device=device, dtype=dtype)
        if activation not in _ACTIVATIONS:
            raise ValueError(f"ShortConvolution: activation is {activation!r}, expected one of "
                             f"{_ACTIVATIONS}")
        self.hidden_size, self.activation = hidden_size, activation

    def forward(self, x: Tensor, residual: Tensor | None = None,  # type: ignore[override]
                mask: Tensor | None = None, cache: Tensor | None = None,
                output_final_state: bool = False, cu_seqlens: Tensor | None = None,
                chunk_indices: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """x is (batch, seqlen, channels); residual is added, mask (batch, seqlen) multiplies x.

        Returns (out, cache or None)."""
        if mask is not None:
            if cu_seqlens is not None:
                raise ValueError("ShortConvolution: mask and cu_seqlens are both given")
            x = x * mask.unsqueeze(-1)
        weight = self.weight.squeeze(1)
        is_step = cache is not None and cu_seqlens is None and x.shape[1] == 1 and \
            not torch.is_grad_enabled()
        if is_step and cache is not None:
            out = short_conv_step(x.squeeze(1), cache, weight, self.bias,
                                  activation=self.activation).unsqueeze(1)
            found = cache if output_final_state else None
        else:
            out, found = short_conv(x, weight, self.bias, activation=self.activation, cache=cache,
                                    cu_seqlens=cu_seqlens, return_cache=output_final_state)
        return out if residual is None else out + residual, found


def gated_rms_norm(x: Tensor, gate: Tensor | None = None, weight: Tensor | None = None, *,
                   eps: float = 1e-5, activation: str = "swish",
                   gate_first: bool = False) -> Tensor:
    """x / sqrt(mean of x^2 + eps) weight over the last dimension, times silu(gate) or, with
    activation "sigmoid", sigmoid(gate); with gate_first the norm is that of x silu(gate). In plain
    PyTorch, in float32 at least."""
    if activation not in ("swish", "silu", "sigmoid"):
        raise ValueError(f"gated_rms_norm: activation is {activation!r}, expected 'swish', "
                         "'silu' or 'sigmoid'")
    wide = torch.promote_types(x.dtype, torch.float32)
    out = x.to(wide)
    factor = None
    if gate is not None:
        factor = (torch.sigmoid if activation == "sigmoid" else functional.silu)(gate.to(wide))
    if factor is not None and gate_first:
        out = out * factor
    out = out * (out.square().mean(-1, keepdim=True) + eps).rsqrt()
    if weight is not None:
        out = out * weight.to(wide)
    if factor is not None and not gate_first:
        out = out * factor
    return out.to(x.dtype)


class RMSNorm(nn.Module):
    """RMS norm over the last dimension: `weight` (hidden_size)."""

    def __init__(self, hidden_size: int, elementwise_affine: bool = True, eps: float = 1e-5,
                 device: Any = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.hidden_size, self.eps = hidden_size, eps
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype)) \
            if elementwise_affine else None

    def forward(self, x: Tensor) -> Tensor:
        return gated_rms_norm(x, None, self.weight, eps=self.eps)


class FusedRMSNormGated(nn.Module):
    """RMS norm over the last dimension, times silu or sigmoid of a gate: `weight`."""

    def __init__(self, hidden_size: int, elementwise_affine: bool = True, eps: float = 1e-5,
                 activation: str = "swish", device: Any = None,
                 dtype: torch.dtype | None = None) -> None:
        super().__init__()
        if activation not in ("swish", "silu", "sigmoid"):
            raise ValueError(f"FusedRMSNormGated: activation is {activation!r}, expected 'swish', "
                             "'silu' or 'sigmoid'")
        self.hidden_size, self.eps, self.activation = hidden_size, eps, activation
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype)) \
            if elementwise_affine else None

    def forward(self, x: Tensor, g: Tensor, residual: Tensor | None = None,
                prenorm: bool = False, residual_in_fp32: bool = False) -> Any:
        """norm(x + residual) activation(g); with prenorm (that, x + residual)."""
        total = x
        if residual is not None:
            total = x.float() + residual.float()
            total = total if residual_in_fp32 else total.to(x.dtype)
        out = gated_rms_norm(total, g, self.weight, eps=self.eps,
                             activation=self.activation).to(x.dtype)
        if not prenorm:
            return out
        return out, total.float() if residual_in_fp32 else total
