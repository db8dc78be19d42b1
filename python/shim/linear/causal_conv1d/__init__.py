# SPDX-License-Identifier: Apache-2.0
"""causal-conv1d's interface by flashtile: channels before time, (batch, channels, seqlen)."""

import torch

from flashtile.torch.layers import modules

__version__ = "1.7.0+flashtile"
__all__ = ["causal_conv1d_fn", "causal_conv1d_update"]


def starts_of(seq_idx):
    """First rows of the runs of equal numbers in (batch, seqlen), and its end, over all rows."""
    changes = torch.ones_like(seq_idx, dtype=torch.bool)
    changes[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
    first = changes.flatten().nonzero().squeeze(1)
    return torch.cat([first, first.new_tensor([seq_idx.numel()])]).to(torch.int32)


def causal_conv1d_fn(x, weight, bias=None, seq_idx=None, initial_states=None,
                     return_final_states=False, final_states_out=None, activation=None):
    """out, or (out, the last width - 1 inputs).

    seq_idx (batch, seqlen) tells packed sequences apart, each of which begins with zeros;
    initial_states and final states are (batch, channels, width - 1).
    """
    rows = x.transpose(1, 2)
    width = weight.shape[1]
    if seq_idx is not None:
        if initial_states is not None or return_final_states:
            raise NotImplementedError("causal_conv1d_fn: flashtile has no states with seq_idx")
        out, _ = modules.short_conv(rows.reshape(1, -1, x.shape[1]), weight, bias,
                                    activation=activation, cu_seqlens=starts_of(seq_idx))
        return out.reshape(rows.shape).transpose(1, 2)
    out, state = modules.short_conv(rows, weight, bias, activation=activation,
                                    cache=initial_states, cache_width=width - 1,
                                    return_cache=return_final_states)
    out = out.transpose(1, 2)
    if not return_final_states:
        return out
    if final_states_out is not None:
        state = final_states_out.copy_(state)
    return out, state


def causal_conv1d_update(x, conv_state, weight, bias=None, activation=None, cache_seqlens=None,
                         conv_state_indices=None):
    """out of x, (batch, channels) or (batch, channels, seqlen); conv_state (lines, channels, at
    least width - 1), the last inputs, changes in place.

    conv_state_indices (batch) are the lines of the sequences.
    """
    if cache_seqlens is not None:
        raise NotImplementedError("causal_conv1d_update: flashtile has no cache_seqlens")
    slots = None if conv_state_indices is None else conv_state_indices.to(torch.int32)
    is_row = x.dim() == 2
    rows = x.unsqueeze(1) if is_row else x.transpose(1, 2)
    wants_gradient = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (x, weight, bias))
    if rows.shape[1] == 1 and not wants_gradient:
        out = modules.short_conv_step(rows.squeeze(1), conv_state, weight, bias,
                                      activation=activation, slots=slots).unsqueeze(1)
    else:
        cache = conv_state.clone() if slots is None else conv_state[slots.long()]
        out, after = modules.short_conv(rows, weight, bias, activation=activation, cache=cache,
                                        return_cache=True)
        with torch.no_grad():
            if slots is None:
                conv_state.copy_(after)
            else:
                conv_state[slots.long()] = after
    return out.squeeze(1) if is_row else out.transpose(1, 2)
