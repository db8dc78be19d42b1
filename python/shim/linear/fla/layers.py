# SPDX-License-Identifier: Apache-2.0
"""The layers that flashtile has."""

from flashtile.torch.layers import (
    DeltaNet,
    GatedDeltaNet,
    GatedLinearAttention,
    GatedSlotAttention,
    HGRN2Attention,
    HGRNAttention,
    KimiDeltaAttention,
    LinearAttention,
    Mamba,
    Mamba2,
    MultiScaleRetention,
    RWKV6Attention,
    RWKV7Attention,
    SimpleGatedLinearAttention,
)

__all__ = ["DeltaNet", "GatedDeltaNet", "GatedLinearAttention", "GatedSlotAttention",
           "HGRN2Attention", "HGRNAttention", "KimiDeltaAttention", "LinearAttention", "Mamba",
           "Mamba2", "MultiScaleRetention", "RWKV6Attention", "RWKV7Attention",
           "SimpleGatedLinearAttention"]
