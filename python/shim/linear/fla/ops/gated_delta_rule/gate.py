# SPDX-License-Identifier: Apache-2.0
"""The gate of the gated delta rule."""

import torch

from flashtile.torch import _rows


def fused_gdn_gate(g, A_log, dt_bias=None, output_dtype=torch.float32):
    """Log decays of what a layer projects, (..., heads)."""
    return _rows.log_decay(g, A_log, dt_bias, num_dims=1).to(output_dtype)
