# SPDX-License-Identifier: Apache-2.0
"""The layers that flashtile has."""

from flashtile.torch.layers import (
    DeltaNet,
    GatedDeltaNet,
    GatedLinearAttention,
    KimiDeltaAttention,
    Mamba2,
    MultiScaleRetention,
    RWKV7Attention,
)

__all__ = ["DeltaNet", "GatedDeltaNet", "GatedLinearAttention", "KimiDeltaAttention", "Mamba2",
           "MultiScaleRetention", "RWKV7Attention"]
