# SPDX-License-Identifier: Apache-2.0
"""What the layers share: the cache of states between calls, padding, projections with a short
convolution behind each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from flashtile.torch.layers.modules import ShortConvolution

Tensor = torch.Tensor
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "swish": functional.silu, "silu": functional.silu, "sigmoid": torch.sigmoid,
    "relu": functional.relu, "gelu": functional.gelu, "elu": functional.elu}


class LayerCache:
    """States of a model's layers between calls, with the methods of flash-linear-attention's
    Cache: cache[layer_idx] is a dict with recurrent_state, conv_state and what else it stored."""

    def __init__(self) -> None:
        self._layers: list[dict[str, Any]] = []
        self._seen: list[int] = []

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, layer_idx: int) -> dict[str, Any]:
        return self._layers[layer_idx]

    def update(self, layer_idx: int, offset: int = 0, **states: Any) -> dict[str, Any]:
        """Stores what a layer goes on from, `offset` rows later."""
        while len(self._layers) <= layer_idx:
            self._layers.append({})
            self._seen.append(0)
        self._layers[layer_idx].update(states)
        self._seen[layer_idx] += offset
        return self._layers[layer_idx]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Rows that a layer has seen."""
        return self._seen[layer_idx] if layer_idx < len(self._seen) else 0


@dataclasses.dataclass
class Rows:
    """Hidden states without padding: packed where there is any, or was."""

    hidden: Tensor  # (batch, seqlen, hidden_size), packed (1, total, hidden_size)
    cu_seqlens: Tensor | None
    kept: Tensor | None  # place of each row among (batch * seqlen)
    shape: tuple[int, int]
    past: Tensor | None = None  # rows that were no padding before these, where a mask says so

    @classmethod
    def of(cls, hidden: Tensor, attention_mask: Tensor | None, cu_seqlens: Tensor | None) -> Rows:
        batch_size, seqlen, _ = hidden.shape
        shape = (batch_size, seqlen)
        if attention_mask is None:
            return cls(hidden, cu_seqlens, None, shape)
        if cu_seqlens is not None:
            raise ValueError("attention_mask and cu_seqlens are both given")
        if attention_mask.dim() != 2:
            raise ValueError(f"attention_mask has {attention_mask.dim()} dimensions, expected "
                             "(batch, seqlen) with 0 for padding")
        seen = attention_mask[:, -seqlen:] != 0
        kept = seen.flatten().nonzero().squeeze(1)
        starts = functional.pad(seen.sum(1).cumsum(0), (1, 0)).to(torch.int32)
        wide = attention_mask.shape[1] > seqlen
        past = (attention_mask[:, :-seqlen] != 0).sum(1) if wide else None
        return cls(hidden.flatten(0, 1)[kept].unsqueeze(0), starts, kept, shape, past)

    def padded(self, out: Tensor) -> Tensor:
        """A result where the hidden states were; padding is 0."""
        if self.kept is None:
            return out
        whole = out.new_zeros(self.shape[0] * self.shape[1], out.shape[-1])
        return whole.index_copy(0, self.kept, out.squeeze(0)).reshape(*self.shape, -1)


def heads(x: Tensor, head_dim: int) -> Tensor:
    """(..., heads * head_dim) as (..., heads, head_dim)."""
    return x.reshape(*x.shape[:-1], -1, head_dim)


def wide(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def whole_number(name: str, value: float) -> int:
    """A width that a ratio gives."""
    if not math.isclose(value, round(value), rel_tol=1e-5):
        raise ValueError(f"{name} is {value}, expected a whole number")
    return round(value)


def activation_of(layer: str, argument: str, name: str) -> Callable[[Tensor], Tensor]:
    """The function that an argument of a layer names."""
    if name not in _ACTIVATIONS:
        raise ValueError(f"{layer}: {argument} is {name!r}, expected one of "
                         f"{', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def log_step_sizes(count: int, least: float = 0.001, most: float = 0.1,
                   floor: float = 1e-4) -> Tensor:
    """What softplus takes to step sizes between `least` and `most`, even in their logarithms, but
    none below `floor`."""
    steps = torch.exp(torch.rand(count) * math.log(most / least) + math.log(least))
    steps = steps.clamp(min=floor)
    return steps + torch.log(-torch.expm1(-steps))


class RecurrentLayer(nn.Module):
    """(batch, seqlen, hidden_size) to the same, with q_proj, k_proj and v_proj and, with
    use_short_conv, q_conv1d, k_conv1d and v_conv1d behind them; or with other letters."""

    projections = "qkv"

    def __init__(self, layer_idx: int | None) -> None:
        super().__init__()
        self.layer_idx = layer_idx

    def make_projections(self, hidden_size: int, dims: tuple[int, ...], *,
                         use_short_conv: bool = False, conv_size: int = 4, conv_bias: bool = False,
                         qk_activation: str | None = "silu") -> None:
        self.use_short_conv = use_short_conv
        for name, dim in zip(self.projections, dims):
            self.add_module(f"{name}_proj", nn.Linear(hidden_size, dim, bias=False))
        if use_short_conv:
            for name, dim in zip(self.projections, dims):
                self.add_module(f"{name}_conv1d", ShortConvolution(
                    dim, conv_size, bias=conv_bias,
                    activation="silu" if name == "v" else qk_activation))

    def state(self, cache: Any) -> dict[str, Any]:
        """What the last call stored, or nothing."""
        if cache is None:
            return {}
        if self.layer_idx is None:
            raise ValueError(f"{type(self).__name__}: past_key_values is given, but layer_idx was "
                             "not")
        found: dict[str, Any] = cache[self.layer_idx] if len(cache) > self.layer_idx else {}
        return found

    def store(self, cache: Any, offset: int, **states: Any) -> None:
        if cache is not None:
            cache.update(layer_idx=self.layer_idx, offset=offset, **states)

    def projected(self, rows: Rows, before: dict[str, Any],
                  wants_state: bool) -> tuple[list[Tensor], tuple[Tensor | None, ...] | None]:
        """q, k and v behind their convolutions, and the convolutions' states."""
        names = self.projections
        found = [getattr(self, f"{name}_proj")(rows.hidden) for name in names]
        if not self.use_short_conv:
            return found, None
        past = before.get("conv_state") or (None,) * len(names)
        pairs = [getattr(self, f"{name}_conv1d")(x, cache=cache, output_final_state=wants_state,
                                                 cu_seqlens=rows.cu_seqlens)
                 for name, x, cache in zip(names, found, past)]
        return [out for out, _ in pairs], tuple(state for _, state in pairs)
