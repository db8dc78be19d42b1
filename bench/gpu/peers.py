# SPDX-License-Identifier: Apache-2.0
"""Attention as PyTorch offers it, for timing beside flashtile: one function for each backend."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = {"sdpa-fa2": SDPBackend.FLASH_ATTENTION, "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
            "sdpa-efficient": SDPBackend.EFFICIENT_ATTENTION}


def forward(name, q, k, v, causal):
    """A function without arguments that runs the forward; q, k, v are (batch, seqlen, heads, dim),
    given to PyTorch as the transposed views that it wants."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))

    def run():
        with sdpa_kernel(BACKENDS[name]), torch.no_grad():
            return scaled_dot_product_attention(q, k, v, is_causal=causal)
    return run


def backward(name, q, k, v, dout, causal):
    """The same for the backward alone; inputs must want gradients."""
    leaves = [x.detach().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    with sdpa_kernel(BACKENDS[name]):
        out = scaled_dot_product_attention(*leaves, is_causal=causal)
    seed = dout.transpose(1, 2)

    def run():
        return torch.autograd.grad(out, leaves, seed, retain_graph=True)
    return run


def gemm(n=8192):
    """A matrix product that shows what the card gives at this moment, and its operations."""
    a = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
    return (lambda: a @ b), 2 * n**3
