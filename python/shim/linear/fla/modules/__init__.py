# SPDX-License-Identifier: Apache-2.0
"""Modules around the operators."""

from flashtile.torch.layers import FusedRMSNormGated, RMSNorm, ShortConvolution

FusedRMSNormSwishGate = FusedRMSNormGated

__all__ = ["FusedRMSNormGated", "FusedRMSNormSwishGate", "RMSNorm", "ShortConvolution"]
