# SPDX-License-Identifier: Apache-2.0
"""Linear layers under flash_attn's names, of one process."""

import torch
from torch.nn import functional


def fused_dense_func(x, weight, bias=None, return_residual=False, process_group=None,
                     sequence_parallel=True):
    """x weight^T + bias; with return_residual also x."""
    if process_group is not None:
        raise NotImplementedError("flash_attn: layers split over processes are not taken by "
                                  "flashtile")
    out = functional.linear(x, weight, bias)
    return (out, x) if return_residual else out


class FusedDense(torch.nn.Linear):
    """torch.nn.Linear that can return its input, too."""

    def __init__(self, in_features, out_features, bias=True, return_residual=False, device=None,
                 dtype=None):
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.return_residual = return_residual

    def forward(self, x, process_group=None):
        return fused_dense_func(x, self.weight, self.bias, self.return_residual, process_group)
