# SPDX-License-Identifier: Apache-2.0
"""Layer and RMS norms behind a residual sum and dropout, in PyTorch, with the arguments of
flash_attn's Triton module. Sums are float32 for 16-bit tensors."""

import torch
from torch.nn import functional


def _normed(x, weight, bias, eps, is_rms_norm, zero_centered_weight, dtype):
    x = x.float() if x.dtype != torch.float64 else x
    if not is_rms_norm:
        x = x - x.mean(-1, keepdim=True)
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        x = x * (weight + 1 if zero_centered_weight else weight)
    return (x if bias is None else x + bias).to(dtype)


def _dropped(x, dropout_p):
    if dropout_p == 0:
        return x, None
    kept = torch.rand(x.shape, device=x.device) >= dropout_p
    return x.masked_fill(~kept, 0.0) / (1 - dropout_p), kept


def layer_norm_fn(x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-6,
                  dropout_p=0.0, rowscale=None, prenorm=False, residual_in_fp32=False,
                  zero_centered_weight=False, is_rms_norm=False, return_dropout_mask=False,
                  out_dtype=None, out=None, residual_out=None):
    """norm(dropout(x * rowscale) + dropout(x1) + residual), with gradients.

    Args:
        x, x1, residual: (..., features).
        weight, bias, weight1, bias1: (features); the second ones give a second result.
        rowscale: (...), a factor for each row of x.
        prenorm: also return the sum that is normed, in float32 with residual_in_fp32.
        zero_centered_weight: weight + 1 is meant.
        is_rms_norm: no mean is subtracted.
        return_dropout_mask: also return which numbers of x (and x1) were kept.
        out, residual_out: tensors to copy results into.

    Returns:
        out, followed by (a second out), (the sum), (masks).
    """
    if rowscale is not None:
        x = x * rowscale[..., None]
    total, kept = _dropped(x, dropout_p)
    kept1 = None
    if x1 is not None:
        added, kept1 = _dropped(x1, dropout_p)
        total = total + added
    if residual is not None:
        total = total.to(torch.promote_types(total.dtype, residual.dtype)) + residual
    dtype = out_dtype or x.dtype
    results = [_normed(total, weight, bias, eps, is_rms_norm, zero_centered_weight, dtype)]
    if out is not None:
        results[0] = out.copy_(results[0])
    if weight1 is not None:
        results.append(_normed(total, weight1, bias1, eps, is_rms_norm, zero_centered_weight,
                               dtype))
    if prenorm:
        wanted = residual.dtype if residual is not None else \
            torch.float32 if residual_in_fp32 else x.dtype
        total = total.to(wanted)
        results.append(total if residual_out is None else residual_out.copy_(total))
    if return_dropout_mask:
        ones = torch.ones(x.shape, dtype=torch.bool, device=x.device)
        results.append(ones if kept is None else kept)
        results.append(kept1)
    return results[0] if len(results) == 1 else tuple(results)


def rms_norm_fn(x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-6,
                dropout_p=0.0, rowscale=None, prenorm=False, residual_in_fp32=False,
                zero_centered_weight=False, return_dropout_mask=False, out_dtype=None, out=None,
                residual_out=None):
    """layer_norm_fn without the mean."""
    return layer_norm_fn(
        x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm,
        residual_in_fp32, zero_centered_weight, True, return_dropout_mask, out_dtype, out,
        residual_out)


class RMSNorm(torch.nn.Module):
    """rms_norm_fn with a weight of its own."""

    def __init__(self, hidden_size, eps=1e-5, dropout_p=0.0, zero_centered_weight=False,
                 device=None, dtype=None):
        super().__init__()
        self.eps, self.dropout_p = eps, dropout_p
        self.zero_centered_weight = zero_centered_weight
        self.weight = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self):
        torch.nn.init.constant_(self.weight, 0.0 if self.zero_centered_weight else 1.0)

    def forward(self, x, residual=None, prenorm=False, residual_in_fp32=False):
        return rms_norm_fn(
            x, self.weight, self.bias, residual, eps=self.eps,
            dropout_p=self.dropout_p if self.training else 0.0, prenorm=prenorm,
            residual_in_fp32=residual_in_fp32, zero_centered_weight=self.zero_centered_weight)


def layer_norm_linear_fn(x, norm_weight, norm_bias, linear_weight, linear_bias, residual=None,
                         eps=1e-6, prenorm=False, residual_in_fp32=False, is_rms_norm=False):
    """A norm and a linear layer: linear(norm(x + residual)), or with the sum."""
    result = layer_norm_fn(x, norm_weight, norm_bias, residual, eps=eps, prenorm=prenorm,
                           residual_in_fp32=residual_in_fp32, is_rms_norm=is_rms_norm)
    normed, *rest = result if prenorm else (result,)
    out = functional.linear(normed.to(linear_weight.dtype), linear_weight, linear_bias)
    return (out, *rest) if prenorm else out
