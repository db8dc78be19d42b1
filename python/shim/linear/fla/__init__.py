# SPDX-License-Identifier: Apache-2.0
"""flash-linear-attention's interface by flashtile: fla.ops, fla.modules and fla.layers."""

from fla import layers, modules, ops

__version__ = "0.6.0+flashtile"
__all__ = ["layers", "modules", "ops"]
