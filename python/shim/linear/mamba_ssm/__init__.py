# SPDX-License-Identifier: Apache-2.0
"""mamba-ssm's functions by flashtile."""

from mamba_ssm.ops.selective_scan_interface import mamba_inner_fn, selective_scan_fn

__version__ = "2.2.4+flashtile"
__all__ = ["mamba_inner_fn", "selective_scan_fn"]
