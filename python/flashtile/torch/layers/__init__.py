# SPDX-License-Identifier: Apache-2.0
"""Layers of linear attention for PyTorch: hidden states (batch, seqlen, hidden_size) to the same.

    layer = flashtile.torch.layers.GatedDeltaNet(hidden_size=256, head_dim=64, num_heads=3,
                                                 layer_idx=0)
    out, _, _ = layer(hidden)

Arguments and names of parameters are those of flash-linear-attention's layers, so that their state
dicts load. A LayerCache holds what a layer goes on from: layer(token, past_key_values=cache,
use_cache=True). Padding is told by attention_mask, packed sequences by cu_seqlens."""

from flashtile.torch.layers.base import LayerCache
from flashtile.torch.layers.delta import DeltaNet, GatedDeltaNet, KimiDeltaAttention
from flashtile.torch.layers.gated import (
    GatedLinearAttention,
    MultiScaleRetention,
    SimpleGatedLinearAttention,
)
from flashtile.torch.layers.hgrn import HGRN2Attention, HGRNAttention
from flashtile.torch.layers.mamba import Mamba, Mamba2
from flashtile.torch.layers.maps import GatedSlotAttention, LinearAttention
from flashtile.torch.layers.modules import FusedRMSNormGated, RMSNorm, ShortConvolution
from flashtile.torch.layers.rwkv import RWKV6Attention, RWKV7Attention

__all__ = ["DeltaNet", "FusedRMSNormGated", "GatedDeltaNet", "GatedLinearAttention",
           "GatedSlotAttention", "HGRN2Attention", "HGRNAttention", "KimiDeltaAttention",
           "LayerCache", "LinearAttention", "Mamba", "Mamba2", "MultiScaleRetention", "RMSNorm",
           "RWKV6Attention", "RWKV7Attention", "ShortConvolution", "SimpleGatedLinearAttention"]
