# SPDX-License-Identifier: Apache-2.0
"""Calls of flashtile.torch.linear as layers and other libraries' interfaces make them: rows always
(batch, seqlen, ...), packed ones as a batch of one, dtypes that do not fit brought together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from flashtile._linear import Operator, operators
from flashtile.torch import linear

Tensor = torch.Tensor


def _fitting(op: Operator, name: str, tensor: Tensor, first: Tensor) -> Tensor:
    """A tensor in a dtype that the table has beside the first input's."""
    dtypes = op.forward.tensor(name).dtypes.split()
    if not tensor.is_floating_point() or "f16" in dtypes:
        return tensor
    if any(part.startswith("=") for part in dtypes) and \
            ("f32" not in dtypes or tensor.dtype == first.dtype):
        return tensor.to(first.dtype)
    if tensor.dtype in (torch.float32, torch.float64):
        return tensor
    return tensor.float()


def _is_timed(op: Operator, name: str) -> bool:
    return "seqlen" in op.forward.tensor(name).shape


def call(name: str, tensors: Mapping[str, Tensor | None], *, cu_seqlens: Tensor | None = None,
         return_final_state: bool = False, is_reversed: bool = False,
         **options: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
    """(out, final states) of an operator.

    Args:
        name: of the operator.
        tensors: its inputs, those over time (batch, seqlen, ...), initial states among them.
        cu_seqlens: (sequences + 1): the batch is 1, and its rows are packed.
        return_final_state: else there are none.
        is_reversed: the last row of a sequence comes first.
        options: of the operator, and of each call.
    """
    op = operators()[name]
    given = {key: tensor for key, tensor in tensors.items() if tensor is not None}
    first = given[op.inputs[0].name]
    given = {key: _fitting(op, key, tensor, first) for key, tensor in given.items()}
    if cu_seqlens is not None and first.shape[0] != 1:
        raise ValueError(f"{name}: batch_size is {first.shape[0]}, expected 1 with cu_seqlens")
    if is_reversed:
        cu_seqlens = None if cu_seqlens is None else first.shape[1] - cu_seqlens.flip(0)
        given = _flipped(op, given, cu_seqlens is not None)
    if cu_seqlens is not None:
        given = {key: tensor.squeeze(0) if _is_timed(op, key) else tensor
                 for key, tensor in given.items()}
        given["cu_seqlens"] = cu_seqlens.to(torch.int32)
    if op.states:
        options["return_final_state"] = return_final_state
    found = getattr(linear, name)(**given, **options)
    out, finals = (found[0], tuple(found[1:])) if isinstance(found, tuple) else (found, ())
    if cu_seqlens is not None:
        out = out.unsqueeze(0)
    if is_reversed:
        out = out.flip(1)
        if cu_seqlens is not None:
            finals = tuple(final.flip(0) for final in finals)
    return out, finals


def _flipped(op: Operator, given: Mapping[str, Tensor], is_packed: bool) -> dict[str, Tensor]:
    """Inputs of the same sequences from their ends; packed ones change their order, too."""
    flipped = {}
    for name, tensor in given.items():
        if _is_timed(op, name):
            tensor = tensor.flip(1)
        elif is_packed and name.startswith("initial_"):
            tensor = tensor.flip(0)
        flipped[name] = tensor
    return flipped


#: Numbers from which on a call of log_decay_gate costs less than PyTorch's functions do.
_GATE_NUMBERS = 1 << 17


def log_decay(x: Tensor, A_log: Tensor | None, bias: Tensor | None = None, *,
              lower_bound: float | None = None, divisor: float | None = None,
              num_dims: int | None = None) -> Tensor:
    """Log decays, float32 at least, from what a layer projects: those of log_decay_gate, which is
    called where it has a kernel and there are many.

    Args:
        x: (batch, seqlen, heads) or (batch, seqlen, heads, head_dim).
        A_log, bias: (heads), and (heads) or (heads, head_dim), in any shape of as many numbers.
        lower_bound, divisor: as log_decay_gate has them.
        num_dims: of x behind time, for an x with other dimensions in front; 1: heads, 2: with
            head_dim.
    """
    num_dims = x.dim() - 2 if num_dims is None else num_dims
    shape = x.shape[x.dim() - num_dims:]
    rate = None if A_log is None else A_log.flatten()
    has_kernel = x.device.type == "cpu" and x.dtype != torch.float64
    if has_kernel and x.numel() >= _GATE_NUMBERS:
        heads = (*shape, 1)[:2]
        out, _ = call("log_decay_gate", {
            "x": x.reshape(1, -1, *heads), "A_log": rate,
            "bias": None if bias is None else bias.reshape(heads)},
            lower_bound=lower_bound, divisor=divisor, out_dtype=torch.float32)
        return out.reshape(x.shape)
    y = x.to(torch.promote_types(x.dtype, torch.float32))
    if bias is not None:
        y = y + bias.reshape(shape)
    rate = None if rate is None else rate.to(y.dtype).exp()
    if rate is not None and num_dims == 2:
        rate = rate.unsqueeze(-1)
    if lower_bound is not None:
        y = lower_bound * torch.sigmoid(y if rate is None else rate * y)
    else:
        y = functional.logsigmoid(y) if rate is None else -rate * functional.softplus(y)
    return y if divisor is None else y / divisor
