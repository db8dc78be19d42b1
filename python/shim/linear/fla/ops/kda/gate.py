# SPDX-License-Identifier: Apache-2.0
"""The gate of Kimi delta attention."""

import torch

from flashtile.torch import _rows


def fused_kda_gate(g, A_log=None, dt_bias=None, lower_bound=None, output_dtype=torch.float32):
    """Log decays of what a layer projects, (..., heads, head_dim)."""
    return _rows.log_decay(g, A_log, dt_bias, lower_bound=lower_bound, num_dims=2).to(output_dtype)
