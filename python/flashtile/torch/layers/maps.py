# SPDX-License-Identifier: Apache-2.0
"""Layers whose queries and keys go through a feature map: linear attention, gated slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from flashtile.torch._rows import call, log_decay
from flashtile.torch.layers.base import RecurrentLayer, Rows, heads, whole_number
from flashtile.torch.layers.modules import RMSNorm

Tensor = torch.Tensor


class LearntMap(nn.Module):
    """relu of a projection within a head: parameter layer."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.layer = nn.Linear(head_dim, head_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.layer(x))


class ProductMap(nn.Module):
    """The product of two projections within a head: parameters layer1, layer2."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.layer1, self.layer2 = nn.Linear(head_dim, head_dim), nn.Linear(head_dim, head_dim)

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = self.layer1(x) * self.layer2(x)
        return product


class ElementMap(nn.Module):
    """A function of each element."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


_MAPS: dict[str, Callable[[int], nn.Module]] = {
    "elementwise_product": ProductMap, "t2r": LearntMap,
    "elu": lambda _: ElementMap(lambda x: functional.elu(x) + 1),
    "relu": lambda _: ElementMap(functional.relu),
    "swish": lambda _: ElementMap(functional.silu), "identity": lambda _: nn.Identity()}


def _feature_map(layer: str, name: str, known: tuple[str, ...], head_dim: int) -> nn.Module:
    if name not in known:
        raise ValueError(f"{layer}: feature_map is {name!r}, expected one of {', '.join(known)}")
    return _MAPS[name](head_dim)


class _MappedLayer(RecurrentLayer):
    """Widths of q, k and v, whose heads may be shared."""

    def set_widths(self, hidden_size: int, expand_k: float, expand_v: float, num_heads: int,
                   num_kv_heads: int | None) -> tuple[int, int, int]:
        """Channels of q, k and v."""
        self.hidden_size, self.num_heads = hidden_size, num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads % self.num_kv_heads:
            raise ValueError(f"{type(self).__name__}: num_heads is {num_heads}, expected a "
                             f"multiple of num_kv_heads, {self.num_kv_heads}")
        self.key_dim = whole_number("hidden_size * expand_k", hidden_size * expand_k)
        self.value_dim = whole_number("hidden_size * expand_v", hidden_size * expand_v)
        self.head_k_dim = whole_number("key dim of a head", self.key_dim / num_heads)
        self.head_v_dim = whole_number("value dim of a head", self.value_dim / num_heads)
        return (self.key_dim, self.head_k_dim * self.num_kv_heads,
                self.head_v_dim * self.num_kv_heads)

    def split(self, found: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = found
        return heads(q, self.head_k_dim), heads(k, self.head_k_dim), heads(v, self.head_v_dim)


class LinearAttention(_MappedLayer):
    """Linear attention (arXiv:2006.16236): parameters q_proj, k_proj, v_proj, norm, o_proj, and
    feature_map_q, feature_map_k where these have some.

    Args:
        hidden_size, expand_k, expand_v, num_heads, num_kv_heads: as for GatedLinearAttention.
        feature_map, tie_feature_map_qk: elementwise_product, t2r, elu, relu or identity, and
            whether q and k share one.
        output_norm: rmsnorm of each head, or identity.
        norm_q, norm_k: mapped queries, or keys, are divided by their sum + 1e-4.
        do_feature_map_norm: the output is divided by what q reads of the sum of keys.
    """

    def __init__(self, mode: str = "chunk", hidden_size: int = 1024, expand_k: float = 1.0,
                 expand_v: float = 1.0, num_heads: int = 8, num_kv_heads: int | None = None,
                 feature_map: str = "elementwise_product", tie_feature_map_qk: bool = False,
                 output_norm: str = "rmsnorm", norm_q: bool = False, norm_k: bool = False,
                 do_feature_map_norm: bool = False, elementwise_affine: bool = True,
                 norm_eps: float = 1e-5, layer_idx: int | None = None) -> None:
        super().__init__(layer_idx)
        dims = self.set_widths(hidden_size, expand_k, expand_v, num_heads, num_kv_heads)
        self.mode, self.norm_q, self.norm_k = mode, norm_q, norm_k
        self.do_feature_map_norm = do_feature_map_norm
        known = ("elementwise_product", "t2r", "elu", "relu", "identity")
        maps = [_feature_map("LinearAttention", feature_map, known, self.head_k_dim)
                for _ in range(1 if tie_feature_map_qk else 2)]
        self.feature_map_q, self.feature_map_k = maps[0], maps[-1]
        self.make_projections(hidden_size, dims)
        if output_norm not in ("rmsnorm", "identity"):
            raise ValueError(f"LinearAttention: output_norm is {output_norm!r}, expected rmsnorm "
                             "or identity")
        self.norm = nn.Identity() if output_norm == "identity" else RMSNorm(
            self.head_v_dim, elementwise_affine, norm_eps, dtype=torch.float32)
        self.o_proj = nn.Linear(self.value_dim, hidden_size, bias=False)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None,
                past_key_values: Any = None, use_cache: bool | None = False,
                output_attentions: bool | None = False,
                cu_seqlens: Tensor | None = None) -> tuple[Tensor, None, Any]:
        """(out, None, past_key_values); arguments as for GatedDeltaNet."""
        rows = Rows.of(hidden_states, attention_mask, cu_seqlens)
        before, wants = self.state(past_key_values), bool(use_cache)
        q, k, v = self.split(self.projected(rows, before, wants)[0])
        q, k = self.feature_map_q(q), self.feature_map_k(k)
        if self.norm_q:
            q = q / (q.sum(-1, keepdim=True) + 1e-4)
        if self.norm_k:
            k = k / (k.sum(-1, keepdim=True) + 1e-4)
        state, norm = before.get("recurrent_state") or (None, None)
        out, finals = call("linear_attention",
                           {"q": q, "k": k, "v": v, "initial_state": state, "initial_norm": norm},
                           cu_seqlens=rows.cu_seqlens, return_final_state=wants,
                           normalize=self.do_feature_map_norm)
        if wants:
            self.store(past_key_values, hidden_states.shape[1],
                       recurrent_state=(finals + (None,))[:2])
        return rows.padded(self.o_proj(self.norm(out).flatten(-2))), None, past_key_values


class GatedSlotAttention(_MappedLayer):
    """Gated slot attention (arXiv:2409.07146): parameters q_proj, k_proj, v_proj, f_proj, g_norm,
    o_proj, feature_map where it has some, and convolutions with use_short_conv.

    Args:
        hidden_size, expand_k, expand_v, num_heads, num_kv_heads: as for GatedLinearAttention.
        num_slots: of each head; default: its key dim.
        gate_logit_normalizer: log decays of slots are logsigmoid of a projection over this.
        feature_map: swish, relu or t2r, of q and k.
        use_output_gate, use_norm: of no effect, as there.
        scale: multiplies q.
    """

    def __init__(self, mode: str = "chunk", hidden_size: int = 1024, expand_k: float = 1.0,
                 expand_v: float = 1.0, num_heads: int = 4, num_kv_heads: int | None = None,
                 use_short_conv: bool = False, conv_size: int = 4, conv_bias: bool = False,
                 num_slots: int | None = None, elementwise_affine: bool = True,
                 norm_eps: float = 1e-5, gate_logit_normalizer: int = 8,
                 feature_map: str = "swish", use_output_gate: bool = False, use_norm: bool = True,
                 layer_idx: int | None = None, scale: float | None = 1.0) -> None:
        super().__init__(layer_idx)
        dims = self.set_widths(hidden_size, expand_k, expand_v, num_heads, num_kv_heads)
        self.mode, self.scale = mode, scale
        self.gate_logit_normalizer = gate_logit_normalizer
        self.num_slots = self.head_k_dim if num_slots is None else num_slots
        self.feature_map = _feature_map("GatedSlotAttention", feature_map,
                                        ("swish", "relu", "t2r"), self.head_k_dim)
        self.make_projections(hidden_size, dims, use_short_conv=use_short_conv,
                              conv_size=conv_size, conv_bias=conv_bias)
        self.f_proj = nn.Linear(hidden_size, self.num_kv_heads * self.num_slots, bias=False)
        self.g_norm = RMSNorm(self.value_dim, elementwise_affine, norm_eps, dtype=torch.float32)
        self.o_proj = nn.Linear(self.value_dim, hidden_size, bias=False)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None,
                past_key_values: Any = None, use_cache: bool | None = False,
                output_attentions: bool | None = False,
                cu_seqlens: Tensor | None = None) -> tuple[Tensor, None, Any]:
        """(out, None, past_key_values); arguments as for GatedDeltaNet."""
        rows = Rows.of(hidden_states, attention_mask, cu_seqlens)
        before, wants = self.state(past_key_values), bool(use_cache)
        found, conv_state = self.projected(rows, before, wants)
        q, k, v = self.split(found)
        q, k, v = self.feature_map(q), self.feature_map(k), functional.silu(v)
        g = log_decay(heads(self.f_proj(rows.hidden), self.num_slots), None,
                      divisor=self.gate_logit_normalizer)
        state_k, state_v = before.get("recurrent_state") or (None, None)
        out, finals = call("gsa", {"q": q, "k": k, "v": v, "s": (1 - g.exp()).to(v.dtype), "g": g,
                                   "initial_state_k": state_k, "initial_state_v": state_v},
                           cu_seqlens=rows.cu_seqlens, return_final_state=wants, scale=self.scale)
        if wants:
            self.store(past_key_values, hidden_states.shape[1], recurrent_state=finals,
                       conv_state=conv_state)
        out = self.g_norm(functional.silu(out.flatten(-2)))
        return rows.padded(self.o_proj(out)), None, past_key_values
