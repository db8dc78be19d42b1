# SPDX-License-Identifier: Apache-2.0
"""Mamba over whole sequences: channels before time, (batch, channels, seqlen)."""

from causal_conv1d import causal_conv1d_fn
from torch.nn import functional

from flashtile.torch import _rows


def _by_time(name, matrix, u):
    """B or C as (batch, seqlen, groups, state_size)."""
    if matrix.is_complex():
        raise NotImplementedError(f"selective_scan_fn: flashtile has no complex {name}")
    if matrix.dim() == 2:  # constant, of each channel
        return matrix.expand(u.shape[0], u.shape[2], *matrix.shape).to(u.dtype)
    if matrix.dim() == 3:
        matrix = matrix.unsqueeze(1)
    return matrix.permute(0, 3, 1, 2).to(u.dtype)


def selective_scan_fn(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False,
                      return_last_state=False):
    """out (batch, channels, seqlen), or (out, last state (batch, channels, state_size)).

    B and C are (channels, state_size), (batch, state_size, seqlen) or (batch, groups, state_size,
    seqlen).
    """
    B, C = _by_time("B", B, u), _by_time("C", C, u)
    groups = max(B.shape[2], C.shape[2])
    B, C = (x.repeat_interleave(groups // x.shape[2], 2) for x in (B, C))
    out, finals = _rows.call(
        "mamba1", {"u": u.transpose(1, 2), "dt": delta.transpose(1, 2), "A": A, "B": B, "C": C,
                   "D": D,
                   "z": None if z is None else z.transpose(1, 2), "dt_bias": delta_bias},
        return_final_state=return_last_state, dt_softplus=delta_softplus)
    out = out.transpose(1, 2)
    return (out, finals[0]) if return_last_state else out


def _normed(x, weight, eps):
    if weight is None:
        return x
    wide = x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight).to(x.dtype)


def mamba_inner_fn(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight,
                   out_proj_weight, out_proj_bias, A, B=None, C=None, D=None, delta_bias=None,
                   B_proj_bias=None, C_proj_bias=None, delta_softplus=True, checkpoint_lvl=1,
                   b_rms_weight=None, c_rms_weight=None, dt_rms_weight=None,
                   b_c_dt_rms_eps=1e-6):
    """A whole layer behind its projection xz (batch, 2 channels, seqlen): (batch, seqlen,
    hidden_size). B and C are projected where they are not given."""
    x, z = xz.chunk(2, 1)
    x = causal_conv1d_fn(x, conv1d_weight.squeeze(1), conv1d_bias, activation="silu")
    rank, size = delta_proj_weight.shape[1], A.shape[-1]
    if dt_rms_weight is not None and dt_rms_weight.shape[0] != rank:
        raise NotImplementedError(
            f"mamba_inner_fn: dt_rms_weight has {dt_rms_weight.shape[0]} channels: flashtile has "
            f"the norm in front of delta's projection only, of {rank}")
    projected = functional.linear(x.transpose(1, 2), x_proj_weight)
    delta = _normed(projected[..., :rank], dt_rms_weight, b_c_dt_rms_eps)
    delta = functional.linear(delta, delta_proj_weight).transpose(1, 2)
    place = rank
    if B is None:
        B = projected[..., place:place + size]
        B = B if B_proj_bias is None else B + B_proj_bias.to(B.dtype)
        B, place = _normed(B, b_rms_weight, b_c_dt_rms_eps).transpose(1, 2), place + size
    if C is None:
        C = projected[..., place:place + size]
        C = C if C_proj_bias is None else C + C_proj_bias.to(C.dtype)
        C = _normed(C, c_rms_weight, b_c_dt_rms_eps).transpose(1, 2)
    out = selective_scan_fn(x, delta, A, B, C, D, z, delta_bias, delta_softplus)
    return functional.linear(out.transpose(1, 2), out_proj_weight, out_proj_bias)
