# SPDX-License-Identifier: Apache-2.0
"""Time mixing of RWKV-6 and RWKV-7."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from flashtile.torch._rows import call
from flashtile.torch.layers.base import (
    RecurrentLayer,
    Rows,
    activation_of,
    heads,
    whole_number,
    wide,
)
from flashtile.torch.layers.modules import short_conv

Tensor = torch.Tensor
_ACTIVATIONS = {"tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "identity": nn.Identity}
_RATE = -0.6065306597126334  # -exp(-1/2): the strongest log decay of a row


class LowRank(nn.Module):
    """A projection through few channels: parameters lora.0 and lora.2."""

    def __init__(self, hidden_size: int, out_size: int, rank: int, activation: str,
                 bias: bool = True) -> None:
        super().__init__()
        self.lora = nn.Sequential(nn.Linear(hidden_size, rank, bias=False),
                                  _ACTIVATIONS[activation](),
                                  nn.Linear(rank, out_size, bias=bias))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.lora(x)
        return out


def _rank(given: int | None, factor: float, hidden_size: int) -> int:
    return max(32, round(factor * hidden_size ** 0.5 / 32) * 32) if given is None else given


def towards_past(x: Tensor, cache: Tensor | None, cu_seqlens: Tensor | None,
                 wants_state: bool) -> tuple[Tensor, Tensor | None]:
    """What each row lacks to the one before it, of (batch, seqlen, hidden_size), and the last row:
    (sequences, hidden_size), as `cache` is."""
    taps = torch.tensor([[1.0, -1.0]], device=x.device).expand(x.shape[-1], 2)
    delta, last = short_conv(x, taps, cache=None if cache is None else cache.unsqueeze(-1),
                             cu_seqlens=cu_seqlens, cache_width=1, return_cache=wants_state)
    return delta, None if last is None else last.squeeze(-1)


class MixedLinear(nn.Module):
    """A projection of rows that are drawn towards the one before by a weight for each channel:
    parameters linear, or linear.lora with a rank, and mu where the weight is not given."""

    def __init__(self, hidden_size: int, out_size: int, rank: int | None = None,
                 has_mu: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, out_size, bias=False) if rank is None else \
            LowRank(hidden_size, out_size, rank, "tanh")
        if has_mu:
            self.mu = nn.Parameter(torch.zeros(hidden_size))

    def forward(self, x: Tensor, delta: Tensor, mu: Tensor | None = None) -> Tensor:
        out: Tensor = self.linear(x + delta * (self.mu if mu is None else mu))
        return out


class RWKV6Attention(RecurrentLayer):
    """RWKV-6's time mixing (arXiv:2404.05892): parameters x_proj, x_bias, r_proj, w_proj, k_proj,
    v_proj, g_proj, bonus, g_norm, o_proj.

    New weights are made for loading others into: mixing weights begin at 0.

    Args:
        hidden_size, expand_k, expand_v, num_heads: widths; keys have hidden_size * expand_k
            channels in all, values hidden_size * expand_v.
        gate_fn: of the output's gate.
        proj_low_rank_dim, gate_low_rank_dim: ranks of the mixing weights and of the decay.
    """

    def __init__(self, mode: str = "chunk", hidden_size: int = 1024, expand_k: float = 0.5,
                 expand_v: float = 1.0, num_heads: int = 4, gate_fn: str = "swish",
                 proj_low_rank_dim: int = 32, gate_low_rank_dim: int = 64, fuse_norm: bool = True,
                 elementwise_affine: bool | None = True, norm_eps: float = 1e-5,
                 layer_idx: int | None = None) -> None:
        super().__init__(layer_idx)
        self.mode, self.hidden_size, self.num_heads = mode, hidden_size, num_heads
        self.key_dim = whole_number("hidden_size * expand_k", hidden_size * expand_k)
        self.value_dim = whole_number("hidden_size * expand_v", hidden_size * expand_v)
        self.head_k_dim = whole_number("key dim of a head", self.key_dim / num_heads)
        self.head_v_dim = whole_number("value dim of a head", self.value_dim / num_heads)
        self.proj_low_rank_dim = proj_low_rank_dim
        self.gate_fn = activation_of("RWKV6Attention", "gate_fn", gate_fn)
        self.x_proj = nn.Sequential(
            MixedLinear(hidden_size, 5 * proj_low_rank_dim, has_mu=True), nn.Tanh(),
            nn.Linear(5 * proj_low_rank_dim, hidden_size, bias=False))
        self.x_bias = nn.Parameter(torch.zeros(5, hidden_size))
        self.r_proj = MixedLinear(hidden_size, self.key_dim)
        self.w_proj = MixedLinear(hidden_size, self.key_dim, gate_low_rank_dim)
        self.k_proj = MixedLinear(hidden_size, self.key_dim)
        self.v_proj = MixedLinear(hidden_size, self.value_dim)
        self.g_proj = MixedLinear(hidden_size, self.value_dim)
        self.bonus = nn.Parameter(torch.zeros(num_heads, self.head_k_dim))
        self.g_norm = nn.GroupNorm(num_heads, self.value_dim, eps=norm_eps,
                                   affine=bool(elementwise_affine))
        self.o_proj = nn.Linear(self.value_dim, hidden_size, bias=False)

    def _mixing(self, x: Tensor, delta: Tensor) -> tuple[Tensor, ...]:
        """Weights of r, w, k, v and g, which depend on the row."""
        first, tanh, last = self.x_proj
        narrow = heads(tanh(first(x, delta)), self.proj_low_rank_dim)
        spread = heads(last.get_parameter("weight"), self.proj_low_rank_dim)
        return (torch.einsum("btnr,hnr->btnh", narrow, spread) + self.x_bias).unbind(-2)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None,
                past_key_values: Any = None, use_cache: bool | None = False,
                output_attentions: bool | None = False,
                cu_seqlens: Tensor | None = None) -> tuple[Tensor, None, Any]:
        """(out, None, past_key_values); arguments as for GatedDeltaNet."""
        rows = Rows.of(hidden_states, attention_mask, cu_seqlens)
        before, wants = self.state(past_key_values), bool(use_cache)
        x = rows.hidden
        delta, conv_state = towards_past(x, before.get("conv_state"), rows.cu_seqlens, wants)
        r, w, k, v, g = (
            getattr(self, f"{name}_proj")(x, delta, mu)
            for name, mu in zip("rwkvg", self._mixing(x, delta)))
        w = -wide(w).exp()
        out, finals = call(
            "rwkv6", {"r": heads(r, self.head_k_dim), "k": heads(k, self.head_k_dim),
                      "v": heads(v, self.head_v_dim), "w": heads(w, self.head_k_dim),
                      "u_bonus": self.bonus, "initial_state": before.get("recurrent_state")},
            cu_seqlens=rows.cu_seqlens, return_final_state=wants, scale=1.0)
        if wants:
            self.store(past_key_values, hidden_states.shape[1], recurrent_state=finals[0],
                       conv_state=conv_state)
        normed = self.g_norm(out.reshape(-1, self.value_dim)).reshape(g.shape)
        return rows.padded(self.o_proj(normed * self.gate_fn(g))), None, past_key_values


class RWKV7Attention(RecurrentLayer):
    """RWKV-7's time mixing (arXiv:2503.14456): parameters x_r, x_w, x_k, x_v, x_a, x_g, k_k, k_a,
    r_k, r_proj, k_proj, v_proj, o_proj, w_lora, a_lora, g_lora, v_lora (not in layer 0), g_norm.

    New weights are made for loading others into: mixing weights begin at 0.

    Args:
        hidden_size, head_dim, num_heads, value_dim: widths.
        decay_low_rank_dim, gate_low_rank_dim, a_low_rank_dim, v_low_rank_dim: ranks; default: by
            hidden_size.
        norm_eps: times head_dim is the eps of g_norm.
    """

    def __init__(self, mode: str = "chunk", hidden_size: int = 1024, head_dim: int | None = 64,
                 num_heads: int | None = None, decay_low_rank_dim: int | None = None,
                 gate_low_rank_dim: int | None = None, a_low_rank_dim: int | None = None,
                 v_low_rank_dim: int | None = None, elementwise_affine: bool = True,
                 norm_eps: float = 1e-5, layer_idx: int | None = None,
                 value_dim: int | None = None) -> None:
        super().__init__(layer_idx)
        if head_dim is None and num_heads is None:
            raise ValueError("RWKV7Attention: neither head_dim nor num_heads is given")
        self.mode, self.hidden_size = mode, hidden_size
        self.head_dim = head_dim if head_dim is not None else \
            whole_number("head_dim", hidden_size / (num_heads or 1))
        self.num_heads = whole_number("num_heads", hidden_size / self.head_dim)
        self.value_dim = hidden_size if value_dim is None else value_dim
        self.head_v_dim = whole_number("value dim of a head", self.value_dim / self.num_heads)
        for name in "rwkvag":
            setattr(self, f"x_{name}", nn.Parameter(torch.zeros(1, 1, hidden_size)))
        self.k_k = nn.Parameter(torch.zeros(hidden_size))
        self.k_a = nn.Parameter(torch.zeros(hidden_size))
        self.r_k = nn.Parameter(torch.zeros(self.num_heads, self.head_dim))
        self.r_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, self.value_dim, bias=False)
        self.o_proj = nn.Linear(self.value_dim, hidden_size, bias=False)
        wide = self.head_dim / 64
        self.w_lora = LowRank(hidden_size, hidden_size,
                              _rank(decay_low_rank_dim, 2.5 * wide, hidden_size), "tanh")
        if layer_idx != 0:
            self.v_lora = LowRank(hidden_size, self.value_dim,
                                  _rank(v_low_rank_dim, 1.7 * wide, hidden_size), "identity")
        self.a_lora = LowRank(hidden_size, hidden_size,
                              _rank(a_low_rank_dim, 2.5 * wide, hidden_size), "identity")
        self.g_lora = LowRank(hidden_size, self.value_dim,
                              _rank(gate_low_rank_dim, 5, hidden_size), "sigmoid", bias=False)
        self.g_norm = nn.GroupNorm(self.num_heads, self.value_dim, eps=self.head_dim * norm_eps,
                                   affine=elementwise_affine)

    def _mixed(self, rows: Rows, cache: Tensor | None,
               wants_state: bool) -> tuple[dict[str, Tensor], Tensor | None]:
        """Each row drawn towards the one before it, for each use; and the last row."""
        x = rows.hidden
        delta, last = towards_past(x, cache, rows.cu_seqlens, wants_state)
        return {name: x + delta * getattr(self, f"x_{name}") for name in "rwkvag"}, last

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None,
                past_key_values: Any = None, use_cache: bool | None = False,
                output_attentions: bool | None = False, v_first: Tensor | None = None,
                cu_seqlens: Tensor | None = None) -> tuple[Tensor, None, Any, Tensor]:
        """(out, None, past_key_values, v_first); v_first is what layer 0 returned, other arguments
        are those of GatedDeltaNet."""
        rows = Rows.of(hidden_states, attention_mask, cu_seqlens)
        before, wants = self.state(past_key_values), bool(use_cache)
        mixed, conv_state = self._mixed(rows, before.get("conv_state"), wants)
        r, k, v = self.r_proj(mixed["r"]), self.k_proj(mixed["k"]), self.v_proj(mixed["v"])
        w = _RATE * wide(self.w_lora(mixed["w"])).sigmoid()
        a = self.a_lora(mixed["a"]).sigmoid()
        if self.layer_idx == 0:
            v_first = rows.padded(v)
        elif v_first is None:
            raise ValueError("RWKV7Attention: v_first is not given, expected that of layer 0")
        else:
            first = Rows.of(v_first, attention_mask, cu_seqlens).hidden
            v = torch.lerp(v, first, self.v_lora(mixed["v"]).sigmoid())
        removed = functional.normalize(heads(k * self.k_k, self.head_dim), dim=-1)
        k = k * (1 + (a - 1) * self.k_a)
        r, k, w, a = (heads(x, self.head_dim) for x in (r, k, w, a))
        v = heads(v, self.head_v_dim)
        out, finals = call(
            "rwkv7", {"r": r, "w": w, "k": k, "v": v, "a": -removed, "b": removed * a,
                      "initial_state": before.get("recurrent_state")},
            cu_seqlens=rows.cu_seqlens, return_final_state=wants)
        if wants:
            self.store(past_key_values, hidden_states.shape[1], recurrent_state=finals[0],
                       conv_state=conv_state)
        shape = (*out.shape[:2], self.value_dim)
        out = self.g_norm(out.reshape(-1, self.value_dim)).reshape(shape)
        out = out + ((r * k * self.r_k).sum(-1, keepdim=True) * v).reshape(shape)
        out = self.o_proj(out * self.g_lora(mixed["g"]))
        return rows.padded(out), None, past_key_values, v_first
