# SPDX-License-Identifier: Apache-2.0
"""flash_attn's fused dropout, sum and layer norm, in PyTorch."""

import torch
from flash_attn.ops.triton.layer_norm import layer_norm_fn


def dropout_add_norm(is_rms_norm, x0, residual, weight, bias, dropout_p, epsilon, rowscale,
                     layerscale, prenorm, residual_in_fp32, return_dropout_mask):
    """norm(dropout(x0 * layerscale * rowscale) + residual)."""
    x = x0 if layerscale is None else x0 * layerscale
    result = layer_norm_fn(
        x, weight, bias, residual, eps=epsilon, dropout_p=dropout_p, rowscale=rowscale,
        prenorm=prenorm, residual_in_fp32=residual_in_fp32, is_rms_norm=is_rms_norm,
        return_dropout_mask=return_dropout_mask)
    return result[:-1] if return_dropout_mask else result  # there is no mask of a second input


def layer_norm(x, weight, bias, epsilon):
    """The layer norm of x (..., features)."""
    return layer_norm_fn(x, weight, bias, eps=epsilon)


def dropout_add_layer_norm(x0, residual, weight, bias, dropout_p, epsilon, rowscale=None,
                           layerscale=None, prenorm=False, residual_in_fp32=False,
                           return_dropout_mask=False):
    """norm(dropout(x0) + residual); with prenorm also the sum, then the mask."""
    return dropout_add_norm(False, x0, residual, weight, bias, dropout_p, epsilon, rowscale,
                            layerscale, prenorm, residual_in_fp32, return_dropout_mask)


class DropoutAddLayerNorm(torch.nn.Module):
    """dropout_add_layer_norm with weights of its own."""

    is_rms_norm = False

    def __init__(self, hidden_size, prenorm=False, p=0.0, eps=1e-5, residual_in_fp32=False,
                 device=None, dtype=None):
        super().__init__()
        self.prenorm, self.p, self.eps = prenorm, p, eps
        self.residual_in_fp32 = residual_in_fp32
        self.weight = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        bias = None if self.is_rms_norm else torch.nn.Parameter(torch.empty_like(self.weight))
        self.register_parameter("bias", bias)
        self.reset_parameters()

    def reset_parameters(self):
        torch.nn.init.ones_(self.weight)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(self, x0, residual=None):
        return dropout_add_norm(
            self.is_rms_norm, x0, residual, self.weight, self.bias,
            self.p if self.training else 0.0, self.eps, None, None, self.prenorm,
            self.residual_in_fp32, False)
