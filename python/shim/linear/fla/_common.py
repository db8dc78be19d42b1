# SPDX-License-Identifier: Apache-2.0
"""What the functions share: how an argument there becomes one here."""

import warnings

import torch

from flashtile.torch import _rows

# They tell kernels there how to run, and change no result.
_ONLY_HOW = {"cu_seqlens_cpu", "chunk_indices", "chunk_size", "safe_gate", "disable_recompute",
             "checkpoint_level", "use_graph", "max_num_seqs"}
_LAYOUT = "expected (batch, seqlen, heads, dim), without head_first"


def takes(name, others, *refused, state_v_first=False):
    """Checks the keyword arguments beyond those of a signature. Returns state_v_first, which may be
    among them by its old name."""
    for key, value in others.items():
        if key == "head_first":
            if value:
                raise ValueError(f"{name}: head_first is given, {_LAYOUT}")
        elif key == "transpose_state_layout":
            if state_v_first:
                raise ValueError(f"{name}: state_v_first and transpose_state_layout are both "
                                 "given, expected one: they are the same")
            warnings.warn(f"{name}: transpose_state_layout is now state_v_first",
                          DeprecationWarning, stacklevel=3)
        elif key in refused or key == "cp_context":
            if value is not None and value is not False:
                raise NotImplementedError(f"{name}: flashtile has no {key}")
        elif key not in _ONLY_HOW:
            raise TypeError(f"{name}() got an unexpected keyword argument '{key}'")
    return bool(others.get("transpose_state_layout", state_v_first))


def run(name, op, tensors, initial_state=None, output_final_state=False, cu_seqlens=None,
        state_v_first=False, reverse=False, **options):
    """(out, final state or None) of an operator with one state."""
    if state_v_first and initial_state is not None:
        initial_state = initial_state.transpose(-1, -2)
    out, finals = several(name, op, {**tensors, "initial_state": initial_state},
                          output_final_state, cu_seqlens, reverse, **options)
    if not output_final_state:
        return out, None
    return out, finals[0].transpose(-1, -2).contiguous() if state_v_first else finals[0]


def several(name, op, tensors, output_final_state, cu_seqlens, reverse=False, **options):
    """(out, final states) of an operator; initial states are among the tensors."""
    try:
        return _rows.call(op, tensors, cu_seqlens=cu_seqlens, is_reversed=reverse,
                          return_final_state=bool(output_final_state), **options)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def decays(g, A_log, dt_bias, use_gate_in_kernel, lower_bound=None):
    """Log decays; with use_gate_in_kernel from what a layer projects."""
    if not use_gate_in_kernel:
        return g
    return _rows.log_decay(g, A_log, dt_bias, lower_bound=lower_bound)


def strength(beta, like, use_sigmoid=False, allow_neg_eigval=False):
    """beta, of ones where it is None, a number for each head."""
    if beta is None:
        return torch.ones_like(like[..., 0])
    if beta.dim() != 3:
        raise NotImplementedError("flashtile has one beta for a head, (batch, seqlen, heads)")
    if use_sigmoid:
        beta = beta.to(torch.promote_types(beta.dtype, torch.float32)).sigmoid()
        beta = beta * 2 if allow_neg_eigval else beta
    return beta
