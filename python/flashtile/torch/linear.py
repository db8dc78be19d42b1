# SPDX-License-Identifier: Apache-2.0
"""flashtile.linear with gradients: every operator of docs/linear.md for PyTorch.

    out, state = flashtile.torch.linear.gated_delta_rule(q, k, v, g, beta, return_final_state=True)

Each operator is three custom ops of torch.library (flashtile::NAME_fwd, _bwd and _step) with fake
kernels and autograd, made from the operator table: gradients reach every input that has one,
initial states among them, and come from final states as well. torch.compile takes calls in one
graph; torch.func.vmap runs one after the other. Under autocast queries, keys and values, and what
has their dtype, are cast as operands of products are; gates and states stay as they are. Second
derivatives are refused."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from flashtile import _linear
from flashtile._attention import dtype_name
from flashtile._linear import Operator
from flashtile._table import OptionRow, TensorRow, core_op, output_shape
from flashtile._torch_op import LIBRARY, SCHEMA_TYPES, TORCH_DTYPES, autocast, is_seen_by_others

_PASSED_ON = "str? out_dtype, str? implementation"


def _tensor_arguments(rows: Sequence[TensorRow]) -> list[str]:
    """Of a schema; tensors that an op changes have alias sets, a, b, ..."""
    changed = [row.name for row in rows if row.direction == "in-out"]
    return [f"Tensor{'(' + chr(97 + changed.index(row.name)) + '!)' if row.name in changed else ''}"
            f"{'' if row.required else '?'} {row.name}" for row in rows]


def _option_arguments(rows: Sequence[OptionRow]) -> list[str]:
    return [f"{SCHEMA_TYPES[row.type]} {row.name}" for row in rows]


def _vmap(op: Any) -> Callable[..., Any]:
    """The rule of an op: one call after the other."""
    def rule(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
        found = [op(*[
            value.select(dim, n) if isinstance(value, torch.Tensor) and dim is not None else value
            for value, dim in zip(arguments, in_dims)]) for n in range(info.batch_size)]
        if isinstance(found[0], torch.Tensor):
            return torch.stack(found), 0
        stacked = [torch.stack(parts) for parts in zip(*found)]
        if isinstance(found[0], list):
            return stacked, [0] * len(stacked)
        return tuple(stacked), (0,) * len(stacked)
    return rule


class _Ops:
    """The custom ops of an operator. Arguments of forward are inputs and options in table order,
    return_final_state, out_dtype, implementation; its results out and the final states of every
    state, empty where they are not there or not wanted."""

    def __init__(self, op: Operator) -> None:
        self.op = op
        self.num_inputs = len(op.inputs)
        self.input_names = tuple(row.name for row in op.inputs)
        self.option_names = tuple(row.name for row in op.options)
        self.step_rows = tuple(row for row in op.step.tensors if row.is_input)
        self.names_of_step = tuple(row.name for row in self.step_rows)
        self.names_of_backward = tuple(row.name for row in op.backward.singles())
        self.num_results = 1 + len(op.states)
        self._define()

    def _define(self) -> None:
        op = self.op
        inputs, options = _tensor_arguments(op.inputs), _option_arguments(op.options)
        results = ", ".join(["Tensor"] * self.num_results)
        LIBRARY.define(
            f"{op.forward.name}({', '.join([*inputs, *options])}, bool return_final_state, "
            f"{_PASSED_ON}) -> {results if self.num_results == 1 else f'({results})'}")
        dfinals = [f"Tensor? {name}" for name in op.final_gradients]
        LIBRARY.define(
            f"{op.backward.name}(str[] gradients, "
            f"{', '.join(['Tensor dout', *dfinals, *inputs, *options])}, str? implementation) "
            "-> Tensor[]")
        kernels = [(op.forward.name, self._forward_op, self.forward_fake),
                   (op.backward.name, self.backward, self.backward_fake)]
        if op.states:
            LIBRARY.define(
                f"{op.step.name}("
                f"{', '.join([*_tensor_arguments(self.step_rows), *options])}, {_PASSED_ON}) "
                "-> Tensor")
            kernels.append((op.step.name, self.step, self.step_fake))
        for name, kernel, fake in kernels:
            for device in ("CPU", "CUDA"):
                LIBRARY.impl(name, kernel, device)
            torch.library.register_fake(f"flashtile::{name}", fake, lib=LIBRARY)
        torch.library.register_autograd(
            f"flashtile::{op.forward.name}", self.autograd, setup_context=self.setup_context,
            lib=LIBRARY)
        torch.library.register_autograd(f"flashtile::{op.backward.name}", self._no_second,
                                        lib=LIBRARY)
        for table in (op.forward, op.backward):
            torch.library.register_vmap(f"flashtile::{table.name}", _vmap(self.seen(table.name)),
                                        lib=LIBRARY)

    def seen(self, table_name: str) -> Any:
        """An op as others see it."""
        return getattr(torch.ops.flashtile, table_name)

    def _final_names(self, arguments: Sequence[Any]) -> tuple[str, ...]:
        """The final states that a call gives."""
        if not arguments[-3]:
            return ()
        return self.op.finals(dict(zip(self.option_names, arguments[self.num_inputs:])))

    def forward(self, *arguments: Any) -> tuple[torch.Tensor, ...]:
        tensors = arguments[:self.num_inputs]
        results = ("out", *self._final_names(arguments))
        dtypes = dict.fromkeys(results[1:], _state_dtype(tensors[0]))
        if arguments[-2] is not None:
            dtypes["out"] = arguments[-2]
        with torch.no_grad():
            found: dict[str, torch.Tensor] = dict(zip(results, core_op(self.op.forward.name).run(
                (*tensors, *[None] * self.num_results), arguments[self.num_inputs:-3], None,
                results, dtypes, arguments[-1], 0)))
        return (found["out"], *[
            found.get(f"final_{name}", tensors[0].new_empty(0)) for name in self.op.states])

    def _forward_op(self, *arguments: Any) -> Any:
        found = self.forward(*arguments)
        return found if self.num_results > 1 else found[0]

    def _shapes(self, tensors: Sequence[Any]) -> dict[str, Any]:
        return {name: tensor.shape for name, tensor in zip(self.input_names, tensors)
                if tensor is not None}

    def _out_like(self, tensors: Sequence[Any], out_dtype: str | None) -> tuple[Any, torch.dtype]:
        shape = output_shape(self.op.forward, "out", self._shapes(tensors))
        return shape, tensors[0].dtype if out_dtype is None else TORCH_DTYPES[out_dtype]

    def forward_fake(self, *arguments: Any) -> Any:
        tensors = arguments[:self.num_inputs]
        finals = self._final_names(arguments)
        shape, dtype = self._out_like(tensors, arguments[-2])
        found = [tensors[0].new_empty(shape, dtype=dtype)]
        state_dtype = TORCH_DTYPES[_state_dtype(tensors[0])]
        for state in self.op.states:
            name = f"final_{state}"
            found.append(tensors[0].new_empty(0) if name not in finals else tensors[0].new_empty(
                output_shape(self.op.forward, name, self._shapes(tensors)), dtype=state_dtype))
        return tuple(found) if self.num_results > 1 else found[0]

    def backward(self, gradients: Sequence[str], dout: torch.Tensor,
                 *rest: Any) -> list[torch.Tensor]:
        dfinals = rest[:len(self.op.final_gradients)]
        tensors = rest[len(dfinals):len(dfinals) + self.num_inputs]
        given = dict(zip(self.input_names, tensors))
        dtypes = {f"d{name}": dtype_name(given[name].dtype) for name in gradients
                  if name.startswith("initial_")}
        given.update(zip(self.op.final_gradients, dfinals), dout=dout)
        with torch.no_grad():
            return list(core_op(self.op.backward.name).run(
                tuple(map(given.get, self.names_of_backward)),
                rest[len(dfinals) + self.num_inputs:-1], None,
                tuple(f"d{name}" for name in gradients), dtypes or None, rest[-1], 0))

    def backward_fake(self, gradients: Sequence[str], dout: torch.Tensor,
                      *rest: Any) -> list[torch.Tensor]:
        given = dict(zip(self.input_names, rest[len(self.op.final_gradients):]))
        return [given[name].new_empty(given[name].shape) for name in gradients]

    def step(self, *arguments: Any) -> torch.Tensor:
        tensors = arguments[:len(self.step_rows)]
        dtypes = None if arguments[-2] is None else {"out": arguments[-2]}
        found: torch.Tensor = core_op(self.op.step.name).run(
            (*tensors, None), arguments[len(tensors):-2], None, ("out",), dtypes, arguments[-1],
            0)[0]
        return found

    def step_fake(self, *arguments: Any) -> torch.Tensor:
        shapes = {name: tensor.shape for name, tensor in zip(self.names_of_step, arguments)
                  if tensor is not None}
        dtype = arguments[0].dtype if arguments[-2] is None else TORCH_DTYPES[arguments[-2]]
        out: torch.Tensor = arguments[0].new_empty(output_shape(self.op.step, "out", shapes),
                                                   dtype=dtype)
        return out

    def setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:self.num_inputs])
        ctx.rest = inputs[self.num_inputs:-3], inputs[-2], inputs[-1]

    def gradients(self, ctx: Any, needs: Sequence[bool], cotangents: Sequence[Any],
                  run: Callable[..., Any]) -> list[torch.Tensor | None]:
        """Of the inputs."""
        tensors = ctx.saved_tensors
        options, out_dtype, implementation = ctx.rest
        wanted = [name for name, is_needed in zip(self.input_names, needs)
                  if is_needed and name in self.op.differentiable]
        dout, named = cotangents[0], dict(zip(self.op.states, cotangents[1:]))
        dfinals = [named.get(name[len("dfinal_"):]) for name in self.op.final_gradients]
        if not wanted or dout is None and all(dfinal is None for dfinal in dfinals):
            return [None] * self.num_inputs
        if dout is None:
            shape, dtype = self._out_like(tensors, out_dtype)
            dout = tensors[0].new_zeros(shape, dtype=dtype)
        found = dict(zip(wanted, run(wanted, dout, *dfinals, *tensors, *options, implementation)))
        return [found.get(name) for name in self.input_names]

    def autograd(self, ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        found = self.gradients(ctx, ctx.needs_input_grad, cotangents,
                               self.seen(self.op.backward.name))
        return (*found, *[None] * (len(self.option_names) + 3))

    def _no_second(self, ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError(f"flashtile: {self.op.name} has no second derivatives")


def _state_dtype(first: torch.Tensor) -> str:
    return "f64" if first.dtype == torch.float64 else "f32"


class _AtOnce(torch.autograd.Function):
    """Autograd without torch.library, which takes milliseconds for ops of many arguments."""

    @staticmethod
    def forward(ctx: Any, ops: _Ops, arguments: tuple[Any, ...], *tensors: Any) -> Any:
        output = ops.forward(*arguments)
        ops.setup_context(ctx, arguments, output)
        ctx.ops = ops
        return output

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        ops: _Ops = ctx.ops
        # With create_graph the op says that it has no second derivatives.
        run = ops.seen(ops.op.backward.name) if torch.is_grad_enabled() else ops.backward
        return (None, None, *ops.gradients(ctx, ctx.needs_input_grad[2:], cotangents, run))


_OPS = {name: _Ops(op) for name, op in _linear.operators().items()}


def _by_autocast(rows: Sequence[TensorRow], tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """What has the first input's dtype is cast as it is; other 16-bit floats become f32 where they
    would not fit beside it."""
    if not torch.is_autocast_enabled(tensors[0].device.type):
        return tensors
    first = autocast(tensors[0])
    cast = [first]
    for row, tensor in zip(rows[1:], tensors[1:]):
        if tensor is not None and tensor.is_floating_point() and row.direction == "in":
            if row.dtypes.startswith("=") and "f32" not in row.dtypes:
                tensor = tensor.to(first.dtype)
            elif tensor.dtype not in (torch.float32, torch.float64) and \
                    (tensor.dtype != first.dtype or "=" not in row.dtypes):
                tensor = tensor.float()
        cast.append(tensor)
    return tuple(cast)


def _dtype(out_dtype: Any) -> str | None:
    return None if out_dtype is None else dtype_name(out_dtype)


def _forward(op: Operator, tensors: tuple[Any, ...], options: tuple[Any, ...],
             return_final_state: bool, out_dtype: Any, implementation: str | None) -> Any:
    ops = _OPS[op.name]
    tensors = _by_autocast(op.inputs, tensors)
    arguments = (*tensors, *options, return_final_state, _dtype(out_dtype), implementation)
    given = [tensor for tensor in tensors if tensor is not None]
    if is_seen_by_others(given):
        found = ops.seen(op.forward.name)(*arguments)
        found = found if ops.num_results > 1 else (found,)
    elif torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
        found = _AtOnce.apply(ops, arguments, *tensors)
    else:
        found = ops.forward(*arguments)
    if not return_final_state:
        return found[0]
    finals = op.finals(dict(zip(ops.option_names, options)))
    return (found[0], *[tensor for name, tensor in zip(op.states, found[1:])
                        if f"final_{name}" in finals])


def _step(op: Operator, tensors: tuple[Any, ...], options: tuple[Any, ...], out_dtype: Any,
          implementation: str | None) -> torch.Tensor:
    ops = _OPS[op.name]
    tensors = _by_autocast(ops.step_rows, tensors)
    arguments = (*tensors, *options, _dtype(out_dtype), implementation)
    is_seen = is_seen_by_others([tensor for tensor in tensors if tensor is not None])
    found: torch.Tensor = (ops.seen(op.step.name) if is_seen else ops.step)(*arguments)
    return found


_CALLED: dict[str, Any] = {"forward": _forward, "step": _step}


def functions() -> dict[str, tuple[Callable[[], _linear.Function], Operator]]:
    """What makes the texts of this module's functions, by name."""
    found: dict[str, tuple[Callable[[], _linear.Function], Operator]] = {}
    for op in _linear.operators().values():
        found[op.name] = functools.partial(_linear.forward_function, op, "torch.Tensor"), op
        if op.states:
            found[f"{op.name}_step"] = functools.partial(
                _linear.step_function, op, "torch.Tensor"), op
    return found


_FUNCTIONS = functions()
__all__ = list(_FUNCTIONS)
for _name, (_text, _op) in _FUNCTIONS.items():
    globals()[_name] = _linear.make(_text(), _op, __name__, _CALLED)
