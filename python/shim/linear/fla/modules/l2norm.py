# SPDX-License-Identifier: Apache-2.0
"""Division by the norm."""

import torch

__all__ = ["l2_norm", "l2norm"]


def l2norm(x, eps=1e-6, output_dtype=None):
    """x / sqrt(sum of squares + eps) over the last dimension, in float32."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    found = wide * (wide.square().sum(-1, keepdim=True) + eps).rsqrt()
    return found.to(x.dtype if output_dtype is None else output_dtype)


l2_norm = l2norm
