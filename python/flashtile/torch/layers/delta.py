# SPDX-License-Identifier: Apache-2.0
"""Layers of the delta rules: DeltaNet, Gated DeltaNet, Kimi Delta Attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from flashtile.torch._rows import call, log_decay
from flashtile.torch.layers.base import (
    RecurrentLayer,
    Rows,
    heads,
    log_step_sizes,
    whole_number,
)
from flashtile.torch.layers.modules import FusedRMSNormGated, RMSNorm

Tensor = torch.Tensor
_DELTA_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu, "elu": lambda x: functional.elu(x) + 1, "identity": lambda x: x}


class _DeltaLayer(RecurrentLayer):
    """What the three have in common: the recurrence between projections and the norm."""

    head_k_dim: int
    head_v_dim: int
    g_proj: nn.Module
    o_norm: nn.Module
    o_proj: nn.Module
    op = ""
    use_gate = True
    uses_l2norm = True

    def make_heads(self, hidden_size: int, head_dim: int, expand_v: float, num_heads: int,
                   num_v_heads: int | None, **convolutions: Any) -> None:
        """Widths and projections where values have their own heads, and a gate."""
        self.hidden_size, self.head_dim, self.num_heads = hidden_size, head_dim, num_heads
        self.num_v_heads = num_heads if num_v_heads is None else num_v_heads
        self.head_k_dim = head_dim
        self.head_v_dim = whole_number("head_dim * expand_v", head_dim * expand_v)
        self.key_dim = num_heads * self.head_k_dim
        self.value_dim = self.num_v_heads * self.head_v_dim
        self.make_projections(hidden_size, (self.key_dim, self.key_dim, self.value_dim),
                              **convolutions)

    def gates(self, hidden: Tensor, k: Tensor) -> dict[str, Tensor]:
        """beta, and g where there is one."""
        raise NotImplementedError

    def normed(self, out: Tensor, hidden: Tensor) -> Tensor:
        """What o_proj takes: each head's norm, with a gate where there is one."""
        if not self.use_gate:
            normed: Tensor = self.o_norm(out)
            return normed
        gated: Tensor = self.o_norm(out, heads(self.g_proj(hidden), self.head_v_dim))
        return gated

    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Behind their convolutions, which have silu; without them it is still to come."""
        if not self.use_short_conv:
            q, k, v = functional.silu(q), functional.silu(k), functional.silu(v)
        return heads(q, self.head_k_dim), heads(k, self.head_k_dim), heads(v, self.head_v_dim)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None,
                past_key_values: Any = None, use_cache: bool | None = False,
                output_attentions: bool | None = False,
                cu_seqlens: Tensor | None = None) -> tuple[Tensor, None, Any]:
        """(out, None, past_key_values) of hidden states (batch, seqlen, hidden_size).

        Args:
            attention_mask: (batch, seqlen), 0 for padding.
            past_key_values: a LayerCache (or one of flash-linear-attention's): the call goes on
                from what the layer stored, and with use_cache stores what comes next.
            cu_seqlens: (sequences + 1): packed sequences in a batch of 1.
            output_attentions: there are none: None is returned in their place.
        """
        rows = Rows.of(hidden_states, attention_mask, cu_seqlens)
        before, wants = self.state(past_key_values), bool(use_cache)
        projected, conv_state = self.projected(rows, before, wants)
        q, k, v = self.operands(*projected)
        out, finals = call(
            self.op, {"q": q, "k": k, "v": v, **self.gates(rows.hidden, k),
                      "initial_state": before.get("recurrent_state")},
            cu_seqlens=rows.cu_seqlens, return_final_state=wants, qk_l2norm=self.uses_l2norm)
        if wants:
            self.store(past_key_values, hidden_states.shape[1], recurrent_state=finals[0],
                       conv_state=conv_state)
        out = self.o_proj(self.normed(out, rows.hidden).flatten(-2))
        return rows.padded(out), None, past_key_values


class DeltaNet(_DeltaLayer):
    """DeltaNet (arXiv:2406.06484): parameters q_proj, k_proj, v_proj, b_proj, q_conv1d, k_conv1d,
    v_conv1d, g_proj, o_norm, o_proj, as options have them.

    Args:
        hidden_size, expand_k, expand_v, num_heads: widths; keys have hidden_size * expand_k
            channels in all, values hidden_size * expand_v.
        use_beta: beta is projected, else 1. allow_neg_eigval doubles it.
        use_gate: the output's norm has a gate.
        qk_activation: "silu", "relu", "elu" (+ 1) or "identity".
        qk_norm: "l2", or "sum": divided by the sum of elements.
    """

    op = "delta_rule"

    def __init__(self, mode: str = "chunk", d_model: int | None = None, hidden_size: int = 1024,
                 expand_k: float = 1.0, expand_v: float = 1.0, num_heads: int = 4,
                 use_beta: bool = True, use_gate: bool = False, use_short_conv: bool = True,
                 conv_size: int = 4, conv_bias: bool = False, allow_neg_eigval: bool = False,
                 layer_idx: int | None = None, qk_activation: str = "silu", qk_norm: str = "l2",
                 norm_eps: float = 1e-5) -> None:
        super().__init__(layer_idx)
        if qk_activation != "silu" and qk_activation not in _DELTA_ACTIVATIONS:
            raise ValueError(f"DeltaNet: qk_activation is {qk_activation!r}, expected 'silu', "
                             "'relu', 'elu' or 'identity'")
        if qk_norm not in ("l2", "sum"):
            raise ValueError(f"DeltaNet: qk_norm is {qk_norm!r}, expected 'l2' or 'sum'")
        hidden_size = hidden_size if d_model is None else d_model
        self.mode, self.hidden_size, self.num_heads = mode, hidden_size, num_heads
        self.allow_neg_eigval, self.use_beta, self.use_gate = allow_neg_eigval, use_beta, use_gate
        self.qk_norm, self.uses_l2norm = qk_norm, qk_norm == "l2"
        self.key_dim = whole_number("hidden_size * expand_k", hidden_size * expand_k)
        self.value_dim = whole_number("hidden_size * expand_v", hidden_size * expand_v)
        self.head_k_dim = whole_number("key dim of a head", self.key_dim / num_heads)
        self.head_v_dim = whole_number("value dim of a head", self.value_dim / num_heads)
        self.make_projections(
            hidden_size, (self.key_dim, self.key_dim, self.value_dim),
            use_short_conv=use_short_conv, conv_size=conv_size, conv_bias=conv_bias,
            qk_activation="silu" if qk_activation == "silu" else None)
        self.activation_name = qk_activation
        if use_beta:
            self.b_proj = nn.Linear(hidden_size, num_heads, bias=False)
        if use_gate:
            self.g_proj = nn.Linear(hidden_size, self.value_dim, bias=False)
        self.o_norm = FusedRMSNormGated(self.head_v_dim, eps=norm_eps) if use_gate else \
            RMSNorm(self.head_v_dim, eps=norm_eps, dtype=torch.float32)
        self.o_proj = nn.Linear(self.value_dim, hidden_size, bias=False)

    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.activation_name == "silu":
            q, k, v = super().operands(q, k, v)
        else:
            activation = _DELTA_ACTIVATIONS[self.activation_name]
            v = v if self.use_short_conv else functional.silu(v)
            q, k = (activation(heads(x, self.head_k_dim)) for x in (q, k))
            v = heads(v, self.head_v_dim)
        if self.qk_norm == "sum":
            q, k = (x / x.sum(-1, keepdim=True) for x in (q, k))
        return q, k, v

    def gates(self, hidden: Tensor, k: Tensor) -> dict[str, Tensor]:
        beta = self.b_proj(hidden).sigmoid() if self.use_beta else torch.ones_like(k[..., 0])
        return {"beta": beta * 2 if self.allow_neg_eigval else beta}


class GatedDeltaNet(_DeltaLayer):
    """Gated DeltaNet (arXiv:2412.06464): parameters q_proj, k_proj, v_proj, a_proj, b_proj, A_log,
    dt_bias, q_conv1d, k_conv1d, v_conv1d, g_proj, o_norm, o_proj, as options have them.

    Args:
        hidden_size, head_dim, num_heads, num_v_heads, expand_v: widths; values have head_dim *
            expand_v channels in a head, and num_v_heads (default num_heads) heads.
        use_gate: the output's norm has a gate, through output_gate_activation.
        allow_neg_eigval: beta is doubled.
    """

    op = "gated_delta_rule"

    def __init__(self, hidden_size: int = 2048, expand_v: float = 2, head_dim: int = 256,
                 num_heads: int = 6, num_v_heads: int | None = None, mode: str = "chunk",
                 use_gate: bool = True, use_short_conv: bool = True,
                 allow_neg_eigval: bool = False, conv_size: int = 4, conv_bias: bool = False,
                 layer_idx: int | None = None, norm_eps: float = 1e-5,
                 output_gate_activation: str = "swish") -> None:
        super().__init__(layer_idx)
        self.mode, self.allow_neg_eigval, self.use_gate = mode, allow_neg_eigval, use_gate
        self.make_heads(hidden_size, head_dim, expand_v, num_heads, num_v_heads,
                        use_short_conv=use_short_conv, conv_size=conv_size, conv_bias=conv_bias)
        self.a_proj = nn.Linear(hidden_size, self.num_v_heads, bias=False)
        self.b_proj = nn.Linear(hidden_size, self.num_v_heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(self.num_v_heads).uniform_(0, 16).log())
        self.dt_bias = nn.Parameter(log_step_sizes(self.num_v_heads))
        if use_gate:
            self.g_proj = nn.Linear(hidden_size, self.value_dim, bias=False)
            self.o_norm: nn.Module = FusedRMSNormGated(self.head_v_dim, eps=norm_eps,
                                                       activation=output_gate_activation)
        else:
            self.o_norm = RMSNorm(self.head_v_dim, eps=norm_eps, dtype=torch.float32)
        self.o_proj = nn.Linear(self.value_dim, hidden_size, bias=False)

    def gates(self, hidden: Tensor, k: Tensor) -> dict[str, Tensor]:
        beta = self.b_proj(hidden).sigmoid()
        return {"beta": beta * 2 if self.allow_neg_eigval else beta,
                "g": log_decay(self.a_proj(hidden), self.A_log, self.dt_bias)}


class KimiDeltaAttention(_DeltaLayer):
    """Kimi Delta Attention (arXiv:2510.26692): parameters q_proj, k_proj, v_proj, f_proj.0 and .1,
    b_proj, A_log, dt_bias, q_conv1d, k_conv1d, v_conv1d, g_proj.0 and .1, o_norm, o_proj.

    Args:
        hidden_size, head_dim, num_heads, num_v_heads, expand_v: as for GatedDeltaNet.
        lower_bound: log decays are between this and 0.
        safe_gate: the initial decay is 1 for all heads; it changes nothing else.
        allow_neg_eigval: beta is doubled.
    """

    op = "kda"

    def __init__(self, hidden_size: int = 2048, expand_v: float = 1, head_dim: int = 128,
                 num_heads: int = 16, num_v_heads: int | None = None, mode: str = "chunk",
                 use_short_conv: bool = True, allow_neg_eigval: bool = False,
                 safe_gate: bool = False, lower_bound: float | None = None, conv_size: int = 4,
                 conv_bias: bool = False, layer_idx: int | None = None,
                 norm_eps: float = 1e-5) -> None:
        super().__init__(layer_idx)
        self.mode, self.allow_neg_eigval, self.lower_bound = mode, allow_neg_eigval, lower_bound
        self.make_heads(hidden_size, head_dim, expand_v, num_heads, num_v_heads,
                        use_short_conv=use_short_conv, conv_size=conv_size, conv_bias=conv_bias)
        gate_dim = self.num_v_heads * self.head_k_dim
        self.f_proj = nn.Sequential(nn.Linear(hidden_size, self.head_v_dim, bias=False),
                                    nn.Linear(self.head_v_dim, gate_dim, bias=False))
        self.b_proj = nn.Linear(hidden_size, self.num_v_heads, bias=False)
        rates = torch.ones(self.num_v_heads)
        self.A_log = nn.Parameter((rates if safe_gate else rates.uniform_(1, 16)).log())
        self.dt_bias = nn.Parameter(log_step_sizes(gate_dim))
        self.g_proj = nn.Sequential(nn.Linear(hidden_size, self.head_v_dim, bias=False),
                                    nn.Linear(self.head_v_dim, self.value_dim, bias=True))
        self.o_norm = FusedRMSNormGated(self.head_v_dim, eps=norm_eps, activation="sigmoid")
        self.o_proj = nn.Linear(self.value_dim, hidden_size, bias=False)

    def gates(self, hidden: Tensor, k: Tensor) -> dict[str, Tensor]:
        beta = self.b_proj(hidden).sigmoid()
        return {"beta": beta * 2 if self.allow_neg_eigval else beta,
                "g": log_decay(heads(self.f_proj(hidden), self.head_k_dim), self.A_log,
                               self.dt_bias, lower_bound=self.lower_bound)}
