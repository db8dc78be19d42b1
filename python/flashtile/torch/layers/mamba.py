# SPDX-License-Identifier: Apache-2.0
"""Layers of Mamba and Mamba-2."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from flashtile.torch._rows import call
from flashtile.torch.layers.base import (
    RecurrentLayer,
    Rows,
    heads,
    log_step_sizes,
    whole_number,
    wide,
)
from flashtile.torch.layers.modules import gated_rms_norm, short_conv

Tensor = torch.Tensor


def check_silu(layer: str, hidden_act: str) -> None:
    """What the convolution and the gate go through, which has no other form."""
    if hidden_act not in ("silu", "swish"):
        raise ValueError(f"{layer}: hidden_act is {hidden_act!r}, expected 'silu'")


class _ConvolvedLayer(RecurrentLayer):
    """What both have in front of the recurrence: a causal convolution of each channel, `conv1d`."""

    def make_convolution(self, num_channels: int, kernel_size: int, has_bias: bool) -> None:
        self.conv1d = nn.Conv1d(num_channels, num_channels, kernel_size, groups=num_channels,
                                bias=has_bias, padding=kernel_size - 1)

    def convolved(self, x: Tensor, rows: Rows, before: dict[str, Any],
                  wants: bool) -> tuple[Tensor, Tensor | None]:
        """(rows, state behind the last one if it is wanted)."""
        return short_conv(
            x, self.conv1d.weight.squeeze(1), self.conv1d.bias, activation="silu",
            cache=before.get("conv_state"), cu_seqlens=rows.cu_seqlens, return_cache=wants)


class Mamba(_ConvolvedLayer):
    """Mamba's selective scan (arXiv:2312.00752): parameters in_proj (x, gate), conv1d, x_proj (dt,
    B, C), dt_proj, A_log, D, out_proj.

    Args:
        hidden_size, intermediate_size, state_size: widths; each of intermediate_size channels has
            a state of state_size numbers.
        dt_rank: of the projection to step sizes; "auto": hidden_size / 16.
        dt_min, dt_max, dt_init_floor: step sizes of new weights, even in their logarithms, and the
            least of them.
        dt_init, dt_scale: "random" or "constant" new weights of dt_proj, and their size.
    """

    def __init__(self, hidden_size: int = 2048, state_size: int = 16, conv_kernel: int = 4,
                 use_conv_bias: bool = True, intermediate_size: int = 2048,
                 dt_rank: int | str = "auto", dt_min: float = 0.001, dt_max: float = 0.1,
                 dt_init: str = "random", dt_scale: float = 1.0, dt_init_floor: float = 1e-4,
                 use_bias: bool = False, hidden_act: str = "silu",
                 layer_idx: int | None = None) -> None:
        super().__init__(layer_idx)
        check_silu("Mamba", hidden_act)
        if dt_init not in ("random", "constant"):
            raise ValueError(f"Mamba: dt_init is {dt_init!r}, expected 'random' or 'constant'")
        self.hidden_size, self.intermediate_size = hidden_size, intermediate_size
        self.state_size = state_size
        self.dt_rank = math.ceil(hidden_size / 16) if dt_rank == "auto" else int(dt_rank)
        self.make_convolution(intermediate_size, conv_kernel, use_conv_bias)
        self.in_proj = nn.Linear(hidden_size, 2 * intermediate_size, bias=use_bias)
        self.x_proj = nn.Linear(intermediate_size, self.dt_rank + 2 * state_size, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, intermediate_size)
        size = dt_scale * self.dt_rank ** -0.5
        with torch.no_grad():
            self.dt_proj.weight.uniform_(size if dt_init == "constant" else -size, size)
            self.dt_proj.bias.copy_(
                log_step_sizes(intermediate_size, dt_min, dt_max, dt_init_floor))
        rates = torch.arange(1.0, state_size + 1)
        self.A_log = nn.Parameter(rates.log().repeat(intermediate_size, 1))
        self.D = nn.Parameter(torch.ones(intermediate_size))
        self.out_proj = nn.Linear(intermediate_size, hidden_size, bias=use_bias)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None,
                past_key_values: Any = None, use_cache: bool | None = False,
                output_attentions: bool | None = False,
                cu_seqlens: Tensor | None = None) -> tuple[Tensor, None, Any]:
        """(out, None, past_key_values); arguments as for GatedDeltaNet."""
        rows = Rows.of(hidden_states, attention_mask, cu_seqlens)
        before, wants = self.state(past_key_values), bool(use_cache)
        u, gate = self.in_proj(rows.hidden).chunk(2, -1)
        u, conv_state = self.convolved(u, rows, before, wants)
        dt, B, C = torch.split(self.x_proj(u), [self.dt_rank, *2 * [self.state_size]], -1)
        out, finals = call(
            "mamba1", {
                "u": u, "dt": nn.functional.linear(dt, self.dt_proj.weight),
                "B": heads(B, self.state_size), "C": heads(C, self.state_size), "z": gate,
                "A": -wide(self.A_log).exp(), "D": self.D, "dt_bias": self.dt_proj.bias,
                "initial_state": before.get("recurrent_state")},
            cu_seqlens=rows.cu_seqlens, return_final_state=wants, dt_softplus=True)
        if wants:
            self.store(past_key_values, hidden_states.shape[1], recurrent_state=finals[0],
                       conv_state=conv_state)
        return rows.padded(self.out_proj(out)), None, past_key_values


class GroupedNorm(nn.Module):
    """RMS norm of groups of channels with a gate before it or behind it: `weight`."""

    def __init__(self, hidden_size: int, eps: float, group_size: int,
                 norm_before_gate: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps, self.group_size, self.norm_before_gate = eps, group_size, norm_before_gate

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        out = gated_rms_norm(heads(x, self.group_size), heads(gate, self.group_size), eps=self.eps,
                             gate_first=not self.norm_before_gate)
        return (out.flatten(-2) * self.weight).to(x.dtype)


class Mamba2(_ConvolvedLayer):
    """Mamba-2 (arXiv:2405.21060): parameters in_proj (z, x B C, dt), conv1d, dt_bias, A_log, D,
    norm, out_proj.

    Args:
        hidden_size, expand, head_dim, num_heads, state_size, n_groups: widths; expand *
            hidden_size channels in heads of head_dim, states of state_size for each, B and C
            shared by the heads of a group.
        dt_limit: (least, most) step size.
        rmsnorm, norm_before_gate: the output's norm, and whether its gate comes behind it.
        D_has_hdim: the skip differs between the channels of a head.
    """

    def __init__(self, num_heads: int | None = None, head_dim: int = 64, hidden_size: int = 2048,
                 state_size: int = 128, expand: float = 2, n_groups: int = 1, conv_kernel: int = 4,
                 use_conv_bias: bool = True, hidden_act: str = "silu",
                 A_init_range: tuple[float, float] = (1, 16), D_has_hdim: bool = False,
                 rmsnorm: bool = True, norm_before_gate: bool = False,
                 dt_limit: tuple[float, float] = (0.0, math.inf), use_bias: bool = False,
                 norm_eps: float = 1e-5, chunk_size: int = 256,
                 layer_idx: int | None = None) -> None:
        super().__init__(layer_idx)
        self.hidden_size, self.head_dim, self.state_size = hidden_size, head_dim, state_size
        self.intermediate_size = whole_number("hidden_size * expand", hidden_size * expand)
        self.num_heads = whole_number("heads", self.intermediate_size / head_dim)
        if num_heads not in (None, 0, self.num_heads):
            raise ValueError(f"Mamba2: num_heads is {num_heads}, expected {self.num_heads}, which "
                             "expand * hidden_size / head_dim is")
        check_silu("Mamba2", hidden_act)
        self.n_groups, self.hidden_act, self.dt_limit = n_groups, hidden_act, dt_limit
        self.D_has_hdim, self.chunk_size = D_has_hdim, chunk_size
        self.conv_dim = self.intermediate_size + 2 * n_groups * state_size
        self.make_convolution(self.conv_dim, conv_kernel, use_conv_bias)
        self.in_proj = nn.Linear(
            hidden_size, self.intermediate_size + self.conv_dim + self.num_heads, bias=use_bias)
        self.dt_bias = nn.Parameter(log_step_sizes(self.num_heads))
        self.A_log = nn.Parameter(torch.empty(self.num_heads).uniform_(*A_init_range).log())
        self.D = nn.Parameter(
            torch.ones(self.intermediate_size if D_has_hdim else self.num_heads))
        self.norm = GroupedNorm(self.intermediate_size, norm_eps,
                                self.intermediate_size // n_groups,
                                norm_before_gate) if rmsnorm else None
        self.out_proj = nn.Linear(self.intermediate_size, hidden_size, bias=use_bias)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None,
                past_key_values: Any = None, use_cache: bool | None = False,
                output_attentions: bool | None = False,
                cu_seqlens: Tensor | None = None) -> tuple[Tensor, None, Any]:
        """(out, None, past_key_values); arguments as for GatedDeltaNet."""
        rows = Rows.of(hidden_states, attention_mask, cu_seqlens)
        before, wants = self.state(past_key_values), bool(use_cache)
        gate, inner, dt = torch.split(
            self.in_proj(rows.hidden), [self.intermediate_size, self.conv_dim, self.num_heads], -1)
        inner, conv_state = self.convolved(inner, rows, before, wants)
        shared = self.n_groups * self.state_size
        x, B, C = torch.split(inner, [self.intermediate_size, shared, shared], -1)
        out, finals = call(
            "mamba2", {
                "x": heads(x, self.head_dim), "dt": dt, "B": heads(B, self.state_size),
                "C": heads(C, self.state_size), "A": -wide(self.A_log).exp(),
                "D": heads(self.D, self.head_dim) if self.D_has_hdim else self.D,
                "dt_bias": self.dt_bias, "initial_state": before.get("recurrent_state")},
            cu_seqlens=rows.cu_seqlens, return_final_state=wants, dt_softplus=True,
            dt_min=self.dt_limit[0], dt_max=self.dt_limit[1])
        if wants:
            self.store(past_key_values, hidden_states.shape[1], recurrent_state=finals[0],
                       conv_state=conv_state)
        out = out.flatten(-2)
        out = out * nn.functional.silu(gate) if self.norm is None else self.norm(out, gate)
        return rows.padded(self.out_proj(out)), None, past_key_values
