# SPDX-License-Identifier: Apache-2.0
"""PyTorch's functions and tensors in functions that are traced to expressions."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any, Callable

import torch
from torch.overrides import TorchFunctionMode

from flashtile.expressions import Aux, Expression, TraceError, apply_named, lift

# Which name a tensor has in the expression that is being traced.
_names: contextvars.ContextVar[Callable[[torch.Tensor], Aux] | None] = contextvars.ContextVar(
    "flashtile_names", default=None)


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in a dtype that expressions read; gradients go through the conversion."""
    if tensor.dtype in (torch.float32, torch.int32, torch.int64):
        return tensor
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.int32)


def element(value: Any) -> Expression:
    """A tensor without dimensions, which may have a gradient, as a symbol."""
    named = _names.get()
    if not isinstance(value, torch.Tensor):
        raise TraceError(f"cannot trace: found a {type(value).__name__}, expected a number")
    if named is None or value.dim() != 0:
        raise TraceError(f"cannot trace: found a tensor of shape {tuple(value.shape)}, expected "
                         "an element of it (index it)")
    return lift(named(value))


def _without_tensors(value: Any) -> Any:
    return element(value) if isinstance(value, torch.Tensor) else value


def apply(func: Any, args: Any, kwargs: Any) -> Any:
    """torch's function of symbols."""
    name = getattr(func, "__name__", str(func))
    if name == "__getitem__" and isinstance(args[0], torch.Tensor):
        named = _names.get()
        if named is None:
            raise TraceError("cannot trace: a tensor is indexed outside of a trace")
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return named(args[0])[tuple(_without_tensors(entry) for entry in index)]
    if name == "to" or name in ("float", "int", "long", "double"):
        raise TraceError(f"cannot trace: .{name}() (use to_float or to_int)")
    if kwargs:
        raise TraceError(f"cannot trace: torch.{name} with keywords")
    return apply_named(name, "torch", [_without_tensors(value) for value in args])


class _Indexing(TorchFunctionMode):
    """Sees tensor[symbol], which PyTorch itself does not hand to the index."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(entry, Expression) for entry in index):
                return apply(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def capturing(captured: dict[str, Any], prefix: str) -> Iterator[None]:
    """Tensors that are read inside go to `captured`, under new names."""
    known: dict[int, tuple[torch.Tensor, Aux]] = {}

    def named(tensor: torch.Tensor) -> Aux:
        if id(tensor) not in known:
            readable = _readable(tensor)
            name = f"{prefix}_tensor{len(known)}"
            kind = "float" if readable.is_floating_point() else "int"
            if tensor.dtype == torch.bool:
                kind = "bool"
            captured[name] = readable
            known[id(tensor)] = tensor, Aux(name, kind, readable.dim())
        return known[id(tensor)][1]

    token = _names.set(named)
    try:
        with _Indexing():
            yield
    finally:
        _names.reset(token)
