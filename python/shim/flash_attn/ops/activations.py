# SPDX-License-Identifier: Apache-2.0
"""Activations under flash_attn's names."""

from torch.nn import functional


def swiglu(x, y):
    """silu(x) * y."""
    return functional.silu(x) * y


def bias_gelu_impl(y, bias):
    """gelu(y + bias), by tanh."""
    return functional.gelu(y + bias, approximate="tanh")


def fast_gelu_impl(x):
    """gelu, by tanh."""
    return functional.gelu(x, approximate="tanh")
