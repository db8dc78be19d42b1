# SPDX-License-Identifier: Apache-2.0
"""One token of Mamba or Mamba-2."""

import torch
from torch.nn import functional

from flashtile.torch import linear


def _is_tied(*tensors):
    """Whether all channels of a head have the same numbers, by strides."""
    return all(tensor is None or tensor.stride(-1) == 0 for tensor in tensors)


def _floats(*tensors):
    return [None if tensor is None else tensor.to(
        torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]


@torch.no_grad()
def selective_state_update(state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False,
                           state_batch_indices=None):
    """out, like x; the state changes in place.

    Args:
        state: (lines, channels, state_size) or (lines, heads, channels, state_size).
        x, dt, z: (batch, channels) or (batch, heads, channels).
        A: (channels, state_size) or (heads, channels, state_size).
        B, C: (batch, state_size) or (batch, groups, state_size).
        D, dt_bias: (channels) or (heads, channels).
        state_batch_indices: (batch), the lines of the sequences.
    """
    slots = None if state_batch_indices is None else state_batch_indices.to(torch.int32)
    if B.dim() == 2:
        B, C = B.unsqueeze(1), C.unsqueeze(1)
    wide = state if state.dtype in (torch.float32, torch.float64) else state.float()
    B, C = B.to(x.dtype), C.to(x.dtype)
    if x.dim() == 3 and _is_tied(dt, dt_bias) and A.stride(-1) == A.stride(-2) == 0:
        steps, bias, rates, skip = _floats(
            dt[..., 0], None if dt_bias is None else dt_bias[..., 0], A[..., 0, 0], D)
        out = linear.mamba2_step(x, steps, B, C, rates, wide.transpose(-1, -2), D=skip,
                                 dt_bias=bias, state_slots=slots, dt_softplus=dt_softplus)
        if wide is not state:
            state.copy_(wide)
        return out if z is None else (out * functional.silu(z)).to(x.dtype)
    # Channels of all heads beside each other: a group of them has its own B and C.
    steps, bias, skip = (None if tensor is None else tensor.flatten(-2) if x.dim() == 3 else tensor
                         for tensor in _floats(dt, dt_bias, D))
    flat = x.flatten(1)
    states = wide.reshape(wide.shape[0], -1, wide.shape[-1])
    out = linear.mamba1_step(
        flat, steps, B, C, *_floats(A.reshape(-1, A.shape[-1])), states, D=skip, dt_bias=bias,
        z=None if z is None else z.flatten(1).to(x.dtype), state_slots=slots,
        dt_softplus=dt_softplus)
    if states.data_ptr() != state.data_ptr():
        state.copy_(states.reshape(state.shape))
    return out.reshape(x.shape)
