# SPDX-License-Identifier: Apache-2.0
"""Layers with a decay and an output gate: gated linear attention with a decay for each key
dimension or for each head, and multi-scale retention."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from flashtile.torch._rows import call, log_decay
from flashtile.torch.layers.base import RecurrentLayer, Rows, activation_of, heads, whole_number
from flashtile.torch.layers.modules import FusedRMSNormGated, RMSNorm

Tensor = torch.Tensor


class _GatedLayer(RecurrentLayer):
    """q, k and v with grouped heads, a norm with a gate behind the recurrence."""

    op = ""

    def __init__(self, mode: str, hidden_size: int, expand_k: float, expand_v: float,
                 num_heads: int, num_kv_heads: int | None, feature_map: str | None,
                 use_short_conv: bool, conv_size: int, conv_bias: bool, use_output_gate: bool,
                 gate_fn: str, elementwise_affine: bool, norm_eps: float, fuse_norm: bool,
                 layer_idx: int | None) -> None:
        super().__init__(layer_idx)
        kind = type(self).__name__
        self.mode, self.hidden_size, self.num_heads = mode, hidden_size, num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads % self.num_kv_heads:
            raise ValueError(f"{kind}: num_heads is {num_heads}, expected a multiple of "
                             f"num_kv_heads, {self.num_kv_heads}")
        self.feature_map_fn = None if feature_map is None else \
            activation_of(kind, "feature_map", feature_map)
        self.gate_fn = activation_of(kind, "gate_fn", gate_fn)
        self.key_dim = whole_number("hidden_size * expand_k", hidden_size * expand_k)
        self.value_dim = whole_number("hidden_size * expand_v", hidden_size * expand_v)
        self.head_k_dim = whole_number("key dim of a head", self.key_dim / num_heads)
        self.head_v_dim = whole_number("value dim of a head", self.value_dim / num_heads)
        self.kv_key_dim = self.head_k_dim * self.num_kv_heads
        self.use_output_gate = use_output_gate
        self.make_projections(
            hidden_size, (self.key_dim, self.kv_key_dim, self.head_v_dim * self.num_kv_heads),
            use_short_conv=use_short_conv, conv_size=conv_size, conv_bias=conv_bias)
        if use_output_gate:
            self.g_proj = nn.Linear(hidden_size, self.value_dim, bias=False)
        self.o_proj = nn.Linear(self.value_dim, hidden_size, bias=False)
        if use_output_gate and fuse_norm and gate_fn == "swish":
            self.g_norm_swish_gate: FusedRMSNormGated | None = FusedRMSNormGated(
                self.head_v_dim, elementwise_affine, norm_eps)
        else:
            self.g_norm_swish_gate = None
            self.g_norm = RMSNorm(self.head_v_dim, elementwise_affine, norm_eps,
                                  dtype=torch.float32)

    def repeated(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Where the decay is that of q's head heads are repeated, not shared."""
        group = self.num_heads // self.num_kv_heads
        if group == 1:
            return k, v
        return k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)

    def operands(self, q: Tensor, k: Tensor, v: Tensor, rows: Rows,
                 seen: int) -> dict[str, Tensor]:
        """Of the recurrence, (batch, seqlen, heads, dim); `seen` rows have been before."""
        raise NotImplementedError

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None,
                past_key_values: Any = None, use_cache: bool | None = False,
                output_attentions: bool | None = False,
                cu_seqlens: Tensor | None = None) -> tuple[Tensor, None, Any]:
        """(out, None, past_key_values); arguments as for GatedDeltaNet."""
        rows = Rows.of(hidden_states, attention_mask, cu_seqlens)
        before, wants = self.state(past_key_values), bool(use_cache)
        (q, k, v), conv_state = self.projected(rows, before, wants)
        q, k = heads(q, self.head_k_dim), heads(k, self.head_k_dim)
        if self.feature_map_fn is not None:
            q, k = self.feature_map_fn(q), self.feature_map_fn(k)
        seen = past_key_values.get_seq_length(self.layer_idx) if before else 0
        out, finals = call(
            self.op, {**self.operands(q, k, heads(v, self.head_v_dim), rows, seen),
                      "initial_state": before.get("recurrent_state")},
            cu_seqlens=rows.cu_seqlens, return_final_state=wants)
        if wants:
            self.store(past_key_values, hidden_states.shape[1], recurrent_state=finals[0],
                       conv_state=conv_state)
        if not self.use_output_gate:
            out = self.g_norm(out).flatten(-2)
        elif self.g_norm_swish_gate is not None:
            gate = heads(self.g_proj(rows.hidden), self.head_v_dim)
            out = self.g_norm_swish_gate(out, gate).flatten(-2)
        else:
            out = self.g_norm(out).flatten(-2) * self.gate_fn(self.g_proj(rows.hidden))
        return rows.padded(self.o_proj(out)), None, past_key_values


class GatedLinearAttention(_GatedLayer):
    """Gated linear attention (arXiv:2312.06635): parameters q_proj, k_proj, v_proj, gk_proj.0 and
    .1, g_proj, g_norm_swish_gate (or g_norm), o_proj, and convolutions with use_short_conv.

    Args:
        hidden_size, expand_k, expand_v, num_heads, num_kv_heads: widths; keys have hidden_size *
            expand_k channels in all, values hidden_size * expand_v, before heads are shared.
        feature_map, gate_fn: names of activations, of q and k and of the output's gate.
        gate_logit_normalizer, gate_low_rank_dim, clamp_min: log decays are logsigmoid of a
            projection of low rank, over the normalizer, at least clamp_min.
    """

    op = "gla"

    def __init__(self, mode: str = "chunk", hidden_size: int = 1024, expand_k: float = 0.5,
                 expand_v: float = 1.0, num_heads: int = 4, num_kv_heads: int | None = None,
                 feature_map: str | None = None, use_short_conv: bool = False, conv_size: int = 4,
                 conv_bias: bool = False, use_output_gate: bool = True, gate_fn: str = "swish",
                 elementwise_affine: bool = True, norm_eps: float = 1e-5,
                 gate_logit_normalizer: int = 16, gate_low_rank_dim: int = 16,
                 clamp_min: float | None = None, fuse_norm: bool = True,
                 layer_idx: int | None = None) -> None:
        super().__init__(mode, hidden_size, expand_k, expand_v, num_heads, num_kv_heads,
                         feature_map, use_short_conv, conv_size, conv_bias, use_output_gate,
                         gate_fn, elementwise_affine, norm_eps, fuse_norm, layer_idx)
        self.gate_logit_normalizer, self.clamp_min = gate_logit_normalizer, clamp_min
        self.gk_proj = nn.Sequential(nn.Linear(hidden_size, gate_low_rank_dim, bias=False),
                                     nn.Linear(gate_low_rank_dim, self.kv_key_dim, bias=True))

    def operands(self, q: Tensor, k: Tensor, v: Tensor, rows: Rows,
                 seen: int) -> dict[str, Tensor]:
        g = log_decay(heads(self.gk_proj(rows.hidden), self.head_k_dim), None,
                      divisor=self.gate_logit_normalizer)
        if self.clamp_min is not None:
            g = g.clamp(min=self.clamp_min)
        return {"q": q, "k": k, "v": v, "g": g}


class SimpleGatedLinearAttention(_GatedLayer):
    """Gated linear attention with one decay for each head: parameters q_proj, k_proj, v_proj,
    gk_proj, g_proj, g_norm_swish_gate (or g_norm), o_proj, and convolutions with use_short_conv.

    Arguments are those of GatedLinearAttention.
    """

    op = "simple_gla"

    def __init__(self, mode: str = "chunk", hidden_size: int = 1024, expand_k: float = 1.0,
                 expand_v: float = 1.0, num_heads: int = 4, num_kv_heads: int | None = None,
                 feature_map: str | None = None, use_short_conv: bool = True, conv_size: int = 4,
                 conv_bias: bool = False, gate_fn: str = "swish", elementwise_affine: bool = True,
                 norm_eps: float = 1e-5, gate_logit_normalizer: int = 16, fuse_norm: bool = True,
                 layer_idx: int | None = None) -> None:
        super().__init__(mode, hidden_size, expand_k, expand_v, num_heads, num_kv_heads,
                         feature_map, use_short_conv, conv_size, conv_bias, True, gate_fn,
                         elementwise_affine, norm_eps, fuse_norm, layer_idx)
        self.gate_logit_normalizer = gate_logit_normalizer
        self.gk_proj = nn.Linear(hidden_size, num_heads)

    def operands(self, q: Tensor, k: Tensor, v: Tensor, rows: Rows,
                 seen: int) -> dict[str, Tensor]:
        k, v = self.repeated(k, v)
        g = log_decay(self.gk_proj(rows.hidden), None, divisor=self.gate_logit_normalizer)
        return {"q": q, "k": k, "v": v, "g": g}


class MultiScaleRetention(_GatedLayer):
    """Multi-scale retention (RetNet, arXiv:2307.08621) with rotary positions: parameters q_proj,
    k_proj, v_proj, g_proj, g_norm_swish_gate (or g_norm), o_proj, and convolutions.

    Arguments are those of GatedLinearAttention.
    """

    op = "retention"

    def __init__(self, mode: str = "chunk", hidden_size: int = 1024, expand_k: float = 1.0,
                 expand_v: float = 2.0, num_heads: int = 8, num_kv_heads: int | None = None,
                 feature_map: str | None = None, use_short_conv: bool = False, conv_size: int = 4,
                 conv_bias: bool = False, use_output_gate: bool = True, gate_fn: str = "swish",
                 elementwise_affine: bool = True, norm_eps: float = 1e-5, fuse_norm: bool = True,
                 layer_idx: int | None = None) -> None:
        super().__init__(mode, hidden_size, expand_k, expand_v, num_heads, num_kv_heads,
                         feature_map, use_short_conv, conv_size, conv_bias, use_output_gate,
                         gate_fn, elementwise_affine, norm_eps, fuse_norm, layer_idx)
        if self.head_k_dim % 2:
            raise ValueError(f"MultiScaleRetention: key dim of a head is {self.head_k_dim}, "
                             "expected an even number")

    def operands(self, q: Tensor, k: Tensor, v: Tensor, rows: Rows,
                 seen: int) -> dict[str, Tensor]:
        positions = torch.arange(q.shape[1], device=q.device) + seen
        if rows.cu_seqlens is not None:
            starts = rows.cu_seqlens.long()
            first = starts[:-1] if rows.past is None else starts[:-1] - rows.past + seen
            positions = positions - first.repeat_interleave(starts.diff())
        q, k = (_turned(x, positions) for x in (q, k))
        k, v = self.repeated(k, v)
        return {"q": q, "k": k, "v": v}


def _turned(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary positions, base 10000, of pairs (n, n + head_dim / 2)."""
    half = x.shape[-1] // 2
    rates = 10000 ** -(torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = (positions[:, None] * rates)[None, :, None]
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :half].float(), x[..., half:2 * half].float()
    turned = torch.cat([first * cos - second * sin, first * sin + second * cos], -1).to(x.dtype)
    return turned
