# SPDX-License-Identifier: Apache-2.0
"""Mamba-2 over whole sequences. States are (batch, heads, head_dim, state_size) there."""

import math

import torch
from causal_conv1d import causal_conv1d_fn, starts_of
from torch.nn import functional

from flashtile.torch import _rows
from flashtile.torch.layers.modules import gated_rms_norm


def mamba_chunk_scan_combined(x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None,
                              initial_states=None, seq_idx=None, cu_seqlens=None,
                              dt_softplus=False, dt_limit=(0.0, math.inf),
                              return_final_states=False, return_varlen_states=False):
    """out (batch, seqlen, heads, head_dim), or (out, final states).

    seq_idx (batch, seqlen) tells packed sequences apart; z is a gate, out silu(z).
    """
    if return_varlen_states or cu_seqlens is not None:
        raise NotImplementedError("mamba_chunk_scan_combined: flashtile tells sequences apart by "
                                  "seq_idx, and has no cu_seqlens and return_varlen_states")
    tensors = {"x": x, "dt": dt, "B": B, "C": C}
    starts = None
    if seq_idx is not None:
        if initial_states is not None or return_final_states:
            raise NotImplementedError("mamba_chunk_scan_combined: flashtile has no states with "
                                      "seq_idx")
        starts = starts_of(seq_idx)
        tensors = {name: tensor.flatten(0, 1).unsqueeze(0) for name, tensor in tensors.items()}
    state = None if initial_states is None else initial_states.transpose(-1, -2)
    out, finals = _rows.call(
        "mamba2", {**tensors, "A": A, "D": D, "dt_bias": dt_bias, "initial_state": state},
        cu_seqlens=starts, return_final_state=return_final_states, dt_softplus=dt_softplus,
        dt_min=dt_limit[0], dt_max=dt_limit[1])
    out = out.reshape(x.shape)
    if z is not None:
        out = out * functional.silu(z)
    if not return_final_states:
        return out
    return out, finals[0].transpose(-1, -2).contiguous()


def mamba_split_conv1d_scan_combined(
        zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, chunk_size, initial_states=None,
        seq_idx=None, dt_limit=(0.0, math.inf), return_final_states=False, activation="silu",
        rmsnorm_weight=None, rmsnorm_eps=1e-6, outproj_weight=None, outproj_bias=None,
        headdim=None, ngroups=1, norm_before_gate=True):
    """A whole layer behind its projection (z, x, B, C, dt): out, or (out, final states)."""
    num_heads = D.shape[0]
    head_dim = D.shape[1] if D.dim() == 2 else headdim
    if head_dim is None:
        raise ValueError("mamba_split_conv1d_scan_combined: headdim is not given")
    inner = num_heads * head_dim
    shared = (conv1d_weight.shape[0] - inner) // 2
    if zxbcdt.shape[-1] != 2 * inner + 2 * shared + num_heads:
        raise NotImplementedError(
            f"mamba_split_conv1d_scan_combined: zxbcdt has {zxbcdt.shape[-1]} channels, expected "
            f"{2 * inner + 2 * shared + num_heads}: flashtile has no MLP beside the scan")
    z, xBC, dt = zxbcdt.split([inner, inner + 2 * shared, num_heads], -1)
    xBC = causal_conv1d_fn(xBC.transpose(1, 2), conv1d_weight, conv1d_bias, seq_idx=seq_idx,
                           activation=activation).transpose(1, 2)
    x, B, C = xBC.split([inner, shared, shared], -1)
    found = mamba_chunk_scan_combined(
        x.unflatten(-1, (num_heads, head_dim)), dt, A, B.unflatten(-1, (ngroups, -1)),
        C.unflatten(-1, (ngroups, -1)), chunk_size, D=D, dt_bias=dt_bias,
        initial_states=initial_states, seq_idx=seq_idx, dt_softplus=True, dt_limit=dt_limit,
        return_final_states=return_final_states)
    out, final = found if return_final_states else (found, None)
    out = out.flatten(-2)
    if rmsnorm_weight is None:
        out = out * functional.silu(z)
    else:
        groups = (ngroups, inner // ngroups)
        out = gated_rms_norm(out.unflatten(-1, groups), z.unflatten(-1, groups), eps=rmsnorm_eps,
                             gate_first=not norm_before_gate).flatten(-2)
        out = (out * rmsnorm_weight).to(zxbcdt.dtype)
    if outproj_weight is not None:
        dtype = torch.get_autocast_dtype(out.device.type) if \
            torch.is_autocast_enabled(out.device.type) else outproj_weight.dtype
        out = functional.linear(out.to(dtype), outproj_weight, outproj_bias)
    return (out, final) if return_final_states else out
