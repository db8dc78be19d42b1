# SPDX-License-Identifier: Apache-2.0
"""Hierarchically gated layers: HGRN, whose channels have a state each, and HGRN2."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from flashtile.torch._rows import call
from flashtile.torch.layers.base import RecurrentLayer, Rows, heads, whole_number
from flashtile.torch.layers.modules import FusedRMSNormGated, RMSNorm

Tensor = torch.Tensor


class _HgrnLayer(RecurrentLayer):
    """What both have in common: the decay, and what it leaves to the input."""

    o_proj: nn.Module
    op = ""

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None,
                past_key_values: Any = None, use_cache: bool | None = False,
                output_attentions: bool | None = False, lower_bound: Tensor | None = None,
                cu_seqlens: Tensor | None = None) -> tuple[Tensor, None, Any]:
        """(out, None, past_key_values); arguments as for GatedDeltaNet. lower_bound is what a
        channel keeps at least, for layers behind the first one."""
        rows = Rows.of(hidden_states, attention_mask, cu_seqlens)
        before, wants = self.state(past_key_values), bool(use_cache)
        found, conv_state = self.projected(rows, before, wants)
        by_name = dict(zip(self.projections, found))
        g = functional.logsigmoid(by_name["f"])
        if lower_bound is not None and (self.layer_idx or 0) > 0:
            g = torch.logaddexp(lower_bound.log(), torch.log1p(-lower_bound) + g).to(g.dtype)
        out, finals = call(
            self.op, {**self.operands(by_name, g), "initial_state": before.get("recurrent_state")},
            cu_seqlens=rows.cu_seqlens, return_final_state=wants)
        if wants:
            self.store(past_key_values, hidden_states.shape[1], recurrent_state=finals[0],
                       conv_state=conv_state)
        return rows.padded(self.o_proj(self.normed(out, rows))), None, past_key_values

    def operands(self, found: dict[str, Tensor], g: Tensor) -> dict[str, Tensor]:
        """Of the recurrence, from the projections by their letters and the log decay."""
        raise NotImplementedError

    def normed(self, out: Tensor, rows: Rows) -> Tensor:
        raise NotImplementedError


class HGRNAttention(_HgrnLayer):
    """Hierarchically gated recurrent network (arXiv:2311.04823): parameters i_proj, f_proj, g_proj,
    g_norm, o_proj, and convolutions i_conv1d, f_conv1d with use_short_conv.

    Args:
        hidden_size, expand_ratio: there are hidden_size * expand_ratio channels.
    """

    op = "hgrn"
    projections = "if"

    def __init__(self, mode: str = "chunk", hidden_size: int = 1024, expand_ratio: float | None = 1,
                 use_short_conv: bool = False, conv_size: int = 4, conv_bias: bool = False,
                 elementwise_affine: bool = True, norm_eps: float = 1e-5,
                 layer_idx: int | None = None) -> None:
        super().__init__(layer_idx)
        self.mode, self.hidden_size = mode, hidden_size
        ratio = 1 if expand_ratio is None else expand_ratio
        self.input_dim = whole_number("hidden_size * expand_ratio", hidden_size * ratio)
        self.make_projections(hidden_size, (self.input_dim, self.input_dim),
                              use_short_conv=use_short_conv, conv_size=conv_size,
                              conv_bias=conv_bias, qk_activation=None)
        self.g_proj = nn.Linear(hidden_size, self.input_dim, bias=False)
        self.g_norm = FusedRMSNormGated(self.input_dim, elementwise_affine, norm_eps)
        self.o_proj = nn.Linear(self.input_dim, hidden_size, bias=False)

    def operands(self, found: dict[str, Tensor], g: Tensor) -> dict[str, Tensor]:
        return {"x": functional.silu(found["i"]) * (1 - g.exp()), "g": g}

    def normed(self, out: Tensor, rows: Rows) -> Tensor:
        normed: Tensor = self.g_norm(out, self.g_proj(rows.hidden))
        return normed


class HGRN2Attention(_HgrnLayer):
    """HGRN2 (arXiv:2404.07904): parameters q_proj, f_proj, i_proj, g_norm, o_proj, and convolutions
    q_conv1d, f_conv1d, i_conv1d with use_short_conv.

    Args:
        hidden_size, num_heads, expand_ratio: key dims of a head are expand_ratio; without it
            hidden_size / num_heads.
    """

    op = "gla"
    projections = "qfi"

    def __init__(self, mode: str = "chunk", hidden_size: int = 1024, num_heads: int | None = None,
                 expand_ratio: int | None = 128, use_short_conv: bool = False, conv_size: int = 4,
                 conv_bias: bool = False, elementwise_affine: bool = True, norm_eps: float = 1e-5,
                 layer_idx: int | None = None) -> None:
        super().__init__(layer_idx)
        if expand_ratio is None:
            if num_heads is None:
                raise ValueError("HGRN2Attention: expand_ratio and num_heads are both None")
            expand_ratio = whole_number("hidden_size / num_heads", hidden_size / num_heads)
        self.mode, self.hidden_size = mode, hidden_size
        self.num_heads = hidden_size // expand_ratio
        self.head_f_dim = expand_ratio
        self.head_i_dim = whole_number("value dim of a head", hidden_size / self.num_heads)
        forget_dim = self.num_heads * expand_ratio
        self.make_projections(hidden_size, (forget_dim, forget_dim, hidden_size),
                              use_short_conv=use_short_conv, conv_size=conv_size,
                              conv_bias=conv_bias, qk_activation=None)
        self.g_norm = RMSNorm(hidden_size, elementwise_affine, norm_eps, dtype=torch.float32)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def operands(self, found: dict[str, Tensor], g: Tensor) -> dict[str, Tensor]:
        k = (1 - g.exp()).to(found["i"].dtype)
        return {"q": heads(functional.silu(found["q"]), self.head_f_dim),
                "k": heads(k, self.head_f_dim), "v": heads(found["i"], self.head_i_dim),
                "g": heads(g, self.head_f_dim)}

    def normed(self, out: Tensor, rows: Rows) -> Tensor:
        normed: Tensor = self.g_norm(out.flatten(-2))
        return normed
