# SPDX-License-Identifier: Apache-2.0
"""Linear attention for numpy, PyTorch, JAX and CuPy arrays: every operator of docs/linear.md.

    out = flashtile.linear.gla(q, k, v, g)
    out, final_state = flashtile.linear.gated_delta_rule(q, k, v, g, beta, return_final_state=True)
    out = flashtile.linear.gated_delta_rule_step(q, k, v, g, beta, state)  # state changes in place
    gradients = flashtile.linear.gla_backward(dout, q, k, v, g)

Rows are (batch, seqlen, heads, dim), or packed (total, heads, dim) with cu_seqlens. Arrays are used
in place, with any strides; results are of the library of the first argument. No gradient is
recorded: flashtile.torch.linear and flashtile.jax.linear do that."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from flashtile import _linear
from flashtile._arrays import library_of
from flashtile._attention import dtype_name
from flashtile._linear import Operator
from flashtile._table import core_op

Array = Any


def _tensors(table: Any, given: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(given.get(row.name) for row in table.singles())


def _dtypes(names: Sequence[str], first: Any, out_dtype: Any) -> dict[str, str] | None:
    """States of f64 inputs are f64."""
    dtypes = {} if out_dtype is None else {"out": dtype_name(out_dtype)}
    if len(names) > 1 and dtype_name(getattr(first, "dtype", "")) == "f64":
        dtypes.update(dict.fromkeys(names[1:], "f64"))
    return dtypes or None


def _forward(op: Operator, tensors: tuple[Array, ...], options: tuple[Any, ...],
             return_final_state: bool, out_dtype: Any, out: Array | None, max_workers: int,
             implementation: str | None) -> Any:
    results: tuple[str, ...] = ("out",)
    if return_final_state:
        results += op.finals(dict(zip((row.name for row in op.options), options)))
    # Inputs come first in the table, then results.
    others = len(op.forward.singles()) - len(tensors) - 1
    found = core_op(op.forward.name).run(
        (*tensors, out, *[None] * others), options, None, results,
        _dtypes(results, tensors[0], out_dtype), implementation, max_workers)
    return found if return_final_state else found[0]


def _check_changeable(op: Operator, name: str, state: Array) -> None:
    if library_of(state) == "jax":
        raise ValueError(f"{op.step.name}: {name} is an array of JAX, which cannot change: "
                         "flashtile.jax.linear takes one row and returns the state behind it")


def _step(op: Operator, tensors: tuple[Array, ...], options: tuple[Any, ...], out_dtype: Any,
          out: Array | None, max_workers: int, implementation: str | None) -> Array:
    for name, place in zip(op.states, op.places_of_states):
        if tensors[place] is not None:
            _check_changeable(op, name, tensors[place])
    return core_op(op.step.name).run(
        (*tensors, out), options, None, ("out",), _dtypes(("out",), None, out_dtype),
        implementation, max_workers)[0]


def _backward(op: Operator, dout: Array, dfinals: tuple[Array, ...], tensors: tuple[Array, ...],
              options: tuple[Any, ...], gradients: Sequence[str] | None, max_workers: int,
              implementation: str | None) -> dict[str, Array]:
    given = {row.name: array for row, array in zip(op.inputs, tensors) if array is not None}
    wanted = [name for name in given if name in op.differentiable] if gradients is None else \
        list(gradients)
    for name in wanted:
        if name not in op.differentiable:
            raise ValueError(f"{op.backward.name}: there is no gradient of '{name}'")
    # A state's gradient may be f32 or f64: it is what the state is.
    dtypes = {f"d{name}": dtype_name(given[name].dtype) for name in wanted
              if name.startswith("initial_") and hasattr(given.get(name), "dtype")}
    given.update(zip(op.final_gradients, dfinals), dout=dout)
    found = core_op(op.backward.name).run(
        _tensors(op.backward, given), options, None, tuple(f"d{name}" for name in wanted),
        dtypes or None, implementation, max_workers)
    return dict(zip(wanted, found))


_CALLED: dict[str, Any] = {"forward": _forward, "step": _step, "backward": _backward}
_OWN = ("out: Array | None = None", "max_workers: int = 0")
_NOTES = """    out: array to write the result into.
    max_workers: threads at most; 0: all."""


def functions() -> dict[str, tuple[Callable[[], _linear.Function], Operator]]:
    """What makes the texts of this module's functions, by name."""
    found: dict[str, tuple[Callable[[], _linear.Function], Operator]] = {}
    for op in _linear.operators().values():
        found[op.name] = (functools.partial(_linear.forward_function, op, "Array", _OWN,
                                            ("out", "max_workers"), _NOTES), op)
        if op.states:
            found[f"{op.name}_step"] = (functools.partial(
                _linear.step_function, op, "Array", _OWN, ("out", "max_workers")), op)
        found[f"{op.name}_backward"] = (functools.partial(
            _linear.backward_function, op, "Array", _OWN[1:], ("max_workers",)), op)
    return found


_FUNCTIONS = functions()
__all__ = list(_FUNCTIONS)


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in _FUNCTIONS:
        raise AttributeError(f"flashtile.linear has no '{name}'")
    text, op = _FUNCTIONS[name]
    made = _linear.make(text(), op, __name__, _CALLED)
    globals()[name] = made
    return made


def __dir__() -> list[str]:
    return __all__
