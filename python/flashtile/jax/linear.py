# SPDX-License-Identifier: Apache-2.0
"""flashtile.linear in programs of JAX, with gradients: every operator of docs/linear.md.

    out, state = flashtile.jax.linear.gated_delta_rule(q, k, v, g, beta, return_final_state=True)

Each call is one of XLA's foreign function interface with a custom_vjp: under jit and grad, and,
one after the other, under vmap. Gradients reach every input that has one, initial states among
them, and come from final states as well. Options are known at compile time. Arrays do not change,
so a step is a call with one row and the state before it. Second derivatives and jvp are refused by
JAX."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from flashtile import _linear
from flashtile._attention import dtype_name
from flashtile._linear import Operator
from flashtile._table import output_shape
from flashtile.jax import _JAX_DTYPES, _array_type, _axes, _ffi_call, _Known, _option_text, _vary


@dataclasses.dataclass(frozen=True)
class _Call(_Known):
    """A call of an operator."""

    name: str
    finals: tuple[str, ...]

    @property
    def op(self) -> Operator:
        return _linear.operators()[self.name]


def _out_type(call: _Call, inputs: dict[str, jax.Array]) -> Any:
    shapes = {name: array.shape for name, array in inputs.items()}
    return _array_type(tuple(output_shape(call.op.forward, "out", shapes)),
                       _JAX_DTYPES[call.out_dtype])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(call: _Call, inputs: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
    shapes = {name: array.shape for name, array in inputs.items()}
    first = next(iter(inputs.values()))
    state_dtype = jnp.float64 if first.dtype == jnp.float64 else jnp.float32
    results = {"out": _out_type(call, inputs)}
    for name in call.finals:
        results[name] = _array_type(tuple(output_shape(call.op.forward, name, shapes)),
                                    state_dtype)
    return tuple(_ffi_call(call, call.op.forward.name, inputs, results).values())


def _run_fwd(call: _Call, inputs: dict[str, Any]) -> tuple[Any, Any]:
    values = {name: entry.value for name, entry in inputs.items()}
    wanted = {name: None for name, entry in inputs.items()
              if entry.perturbed and name in call.op.differentiable}
    return _run(call, values), (values, wanted)


def _run_bwd(call: _Call, kept: Any, cotangents: tuple[Any, ...]) -> tuple[Any]:
    values, wanted = kept
    found: dict[str, Any] = {
        name: None if jnp.issubdtype(array.dtype, jnp.integer) else jnp.zeros_like(array)
        for name, array in values.items()}
    given = dict(values)
    for name, cotangent in zip(("out", *call.finals), cotangents):
        is_zero = isinstance(cotangent, jax.custom_derivatives.SymbolicZero)
        if name == "out":
            like = _out_type(call, values)
            given["dout"] = jnp.zeros(like.shape, like.dtype) if is_zero else cotangent
        elif not is_zero and f"d{name}" in call.op.final_gradients:
            given[f"d{name}"] = cotangent
    if wanted:
        results = {f"d{name}": _array_type(values[name].shape, values[name].dtype)
                   for name in wanted}
        gradients = _ffi_call(call, call.op.backward.name, given, results)
        found.update({name: gradients[f"d{name}"] for name in wanted})
    return (found,)


_run.defvjp(_run_fwd, _run_bwd, symbolic_zeros=True)


def _forward(op: Operator, tensors: tuple[Any, ...], options: tuple[Any, ...],
             return_final_state: bool, out_dtype: Any, implementation: str | None) -> Any:
    inputs = {}
    for row, array in zip(op.inputs, tensors):
        if array is not None:
            inputs[row.name] = jnp.asarray(array)
        elif row.required:
            raise ValueError(f"{op.forward.name}: {row.name} is not given")
    named = {row.name: value for row, value in zip(op.options, options) if value is not None}
    texts = tuple((row.name, _option_text(row, named[row.name])) for row in op.options
                  if row.name in named)
    first = next(iter(inputs.values()))
    dtype = dtype_name(first.dtype if out_dtype is None else out_dtype)
    if dtype not in _JAX_DTYPES:
        raise ValueError(f"{op.forward.name}: dtype of out is {dtype}, expected one of "
                         f"{', '.join(_JAX_DTYPES)}")
    axes = _axes(inputs)
    inputs = {name: _vary(array, axes) for name, array in inputs.items()}
    finals = op.finals(named) if return_final_state else ()
    found = _run(_Call(texts, implementation or "", dtype, op.name, finals), inputs)
    return found if return_final_state else found[0]


def functions() -> dict[str, tuple[Callable[[], _linear.Function], Operator]]:
    """What makes the texts of this module's functions, by name."""
    return {op.name: (functools.partial(_linear.forward_function, op, "jax.Array"), op)
            for op in _linear.operators().values()}


_FUNCTIONS = functions()
__all__ = list(_FUNCTIONS)
for _name, (_text, _op) in _FUNCTIONS.items():
    globals()[_name] = _linear.make(_text(), _op, __name__, {"forward": _forward})
