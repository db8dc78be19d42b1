# SPDX-License-Identifier: Apache-2.0
"""flash_attn's fused dropout, sum and RMS norm, in PyTorch."""

import torch
from flash_attn.ops.layer_norm import DropoutAddLayerNorm, dropout_add_norm
from flash_attn.ops.triton.layer_norm import rms_norm_fn


def rms_norm(x, weight, epsilon):
    """x / sqrt(mean(x^2) + epsilon) * weight."""
    return rms_norm_fn(x, weight, None, eps=epsilon)


def dropout_add_rms_norm(x0, residual, weight, bias, dropout_p, epsilon, rowscale=None,
                         layerscale=None, prenorm=False, residual_in_fp32=False,
                         return_dropout_mask=False):
    """norm(dropout(x0) + residual); with prenorm also the sum, then the mask."""
    return dropout_add_norm(True, x0, residual, weight, bias, dropout_p, epsilon, rowscale,
                            layerscale, prenorm, residual_in_fp32, return_dropout_mask)


class RMSNorm(torch.nn.Module):
    """rms_norm with a weight of its own."""

    def __init__(self, hidden_size, eps=1e-5, device=None, dtype=None):
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self):
        torch.nn.init.ones_(self.weight)

    def forward(self, x):
        return rms_norm(x, self.weight, self.eps)


class DropoutAddRMSNorm(DropoutAddLayerNorm):
    """dropout_add_rms_norm with a weight of its own."""

    is_rms_norm = True
