# SPDX-License-Identifier: Apache-2.0
"""The ops flashtile::attention_fwd and flashtile::attention_bwd of torch.library, made from the
operator table: schemas, kernels, fake kernels, autograd, rules for vmap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from flashtile._attention import gradient_name
from flashtile._table import core_op, output_shape, tables
from flashtile._vmap import folded, folds, unfolded

_FORWARD = tables()["attention_fwd"]
_BACKWARD = tables()["attention_bwd"]
# Inputs that both ops have: those that are written, and what goes with them, have no gradients.
_SHARED = {row.name for row in _BACKWARD.tensors}
_INPUTS = tuple(row for row in _FORWARD.singles()
                if row.is_input and row.name in _SHARED)
_OPTIONS = _FORWARD.single_options()
SCHEMA_TYPES = {"bool": "bool?", "int": "SymInt?", "float": "float?", "str": "str?"}
TORCH_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
                 "f64": torch.float64, "u8": torch.uint8}
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
# Arguments of both ops behind the tensors: what has no place in the table comes last.
_NUM_INPUTS = len(_INPUTS)
INPUT_NAMES = tuple(row.name for row in _INPUTS)
_NUM_OPTIONS = len(_OPTIONS)
OPTION_PLACES = {row.name: place for place, row in enumerate(_OPTIONS)}
_NAMES = {table.name: tuple(row.name for row in table.singles())
          for table in (_FORWARD, _BACKWARD)}

_ARGUMENTS = ", ".join(
    [f"Tensor{'' if row.required else '?'} {row.name}" for row in _INPUTS] +
    ["Tensor[] aux", "str[] aux_names", "float[] params", "str[] param_names"] +
    [f"{SCHEMA_TYPES[row.type]} {row.name}" for row in _OPTIONS] +
    ["str? out_dtype", "str? implementation"])

LIBRARY: Any = torch.library.Library(  # type: ignore[no-untyped-call]
    "flashtile", "DEF")
LIBRARY.define(f"attention_fwd({_ARGUMENTS}) -> (Tensor, Tensor)")
LIBRARY.define("attention_bwd(str[] gradients, Tensor dout, Tensor? dlse, Tensor out, Tensor lse, "
                f"{_ARGUMENTS}) -> Tensor[]")


class _Arguments:
    """The arguments that both ops share, taken apart."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.inputs = arguments[:_NUM_INPUTS]
        (self.aux, self.aux_names, self.params,
         self.param_names) = arguments[_NUM_INPUTS:_NUM_INPUTS + 4]
        self.options = list(arguments[_NUM_INPUTS + 4:_NUM_INPUTS + 4 + _NUM_OPTIONS])
        self.out_dtype, self.implementation = arguments[-2:]

    def named_inputs(self) -> dict[str, torch.Tensor]:
        named = {row.name: tensor for row, tensor in zip(_INPUTS, self.inputs)
                 if tensor is not None}
        named.update(self.named_aux())
        return named

    def named_aux(self) -> dict[str, torch.Tensor]:
        return {f"aux.{name}": tensor for name, tensor in zip(self.aux_names, self.aux)}

    def run(self, op: str, given: Mapping[str, torch.Tensor], results: tuple[str, ...],
            dtypes: dict[str, str] | None) -> tuple[torch.Tensor, ...]:
        tensors: dict[str, torch.Tensor] = {**self.named_inputs(), **given}
        seed = tensors.get("dropout_seed_tensor")
        if seed is not None and seed.device != self.inputs[0].device:
            place = OPTION_PLACES["dropout_seed"]
            self.options[place] = int(tensors.pop("dropout_seed_tensor").item())
        families: dict[str, Any] = {
            f"param.{name}": value for name, value in zip(self.param_names, self.params)}
        families.update(self.named_aux())
        with torch.no_grad():
            return core_op(op).run(
                tuple(map(tensors.get, _NAMES[op])), tuple(self.options), families or None,
                results, dtypes, self.implementation, 0)


def _lse_dtype(q: torch.Tensor) -> str:
    return "f64" if q.dtype == torch.float64 else "f32"


def _forward(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    call = _Arguments(arguments)
    dtypes = {"lse": _lse_dtype(arguments[0])}
    if call.out_dtype is not None:
        dtypes["out"] = call.out_dtype
    out, lse = call.run("attention_fwd", {}, ("out", "lse"), dtypes)
    return out, lse


def _forward_fake(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    call = _Arguments(arguments)
    q = arguments[0]
    shapes = {name: tensor.shape for name, tensor in call.named_inputs().items()}
    dtype = q.dtype if call.out_dtype is None else TORCH_DTYPES[call.out_dtype]
    return (q.new_empty(output_shape(_FORWARD, "out", shapes), dtype=dtype),
            q.new_empty(output_shape(_FORWARD, "lse", shapes),
                        dtype=TORCH_DTYPES[_lse_dtype(q)]))


def _backward(gradients: list[str], dout: torch.Tensor, dlse: torch.Tensor | None,
              out: torch.Tensor, lse: torch.Tensor, *arguments: Any) -> list[torch.Tensor]:
    given = {"dout": dout, "out": out, "lse": lse}
    if dlse is not None:
        given["dlse"] = dlse
    return list(_Arguments(arguments).run(
        "attention_bwd", given, tuple(gradient_name(name) for name in gradients), None))


def _backward_fake(gradients: list[str], dout: torch.Tensor, dlse: torch.Tensor | None,
                   out: torch.Tensor, lse: torch.Tensor, *arguments: Any) -> list[torch.Tensor]:
    inputs = _Arguments(arguments).named_inputs()
    return [inputs[name].new_empty(inputs[name].shape) for name in gradients]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    call = _Arguments(inputs)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*call.inputs, *call.aux, *output)
    ctx.rest = inputs[_NUM_INPUTS + 1:-2], call.implementation


def _gradients(ctx: Any, needs: Sequence[bool], dout: torch.Tensor | None,
               dlse: torch.Tensor | None, run: Callable[..., Any]) -> list[torch.Tensor | None]:
    """Gradients of inputs and aux tensors, in that order."""
    *saved, out, lse = ctx.saved_tensors
    rest, implementation = ctx.rest
    names = [*INPUT_NAMES, *[f"aux.{name}" for name in rest[0]]]
    wanted = [name for name, is_needed in zip(names, needs) if is_needed]
    if not wanted or dout is None and dlse is None:
        return [None] * len(names)
    if dout is None:
        dout = torch.zeros_like(out)
    if dlse is not None:
        dlse = dlse.float()  # of f64, too, which the table does not have here
    found = dict(zip(wanted, run(
        wanted, dout, dlse, out, lse, *saved[:_NUM_INPUTS], list(saved[_NUM_INPUTS:]), *rest, None,
        implementation)))
    return [found.get(name) for name in names]


def _autograd(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:
    needs = [*ctx.needs_input_grad[:_NUM_INPUTS], *(ctx.needs_input_grad[_NUM_INPUTS] or ())]
    found = _gradients(ctx, needs, dout, dlse, torch.ops.flashtile.attention_bwd)
    # An empty list counts as one of tensors, and wants one.
    others = (*ctx.rest[0], None, None)
    return (*found[:_NUM_INPUTS], found[_NUM_INPUTS:],
            *[[] if isinstance(part, (list, tuple)) and not part else None for part in others])


class _AtOnce(torch.autograd.Function):
    """Autograd without torch.library, which takes milliseconds for ops of many arguments."""

    @staticmethod
    def forward(ctx: Any, arguments: tuple[Any, ...], *tensors: Any) -> Any:
        output = _forward(*arguments)
        _setup_context(ctx, arguments, output)
        return output

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        dout, dlse = cotangents
        # With create_graph the op says that it has no second derivatives.
        run = torch.ops.flashtile.attention_bwd if torch.is_grad_enabled() else _backward
        return (None, *_gradients(ctx, ctx.needs_input_grad[1:], dout, dlse, run))


def _no_second(ctx: Any, *gradients: Any) -> Any:
    raise NotImplementedError("flashtile: attention has no second derivatives")


_OF_BACKWARD = ("dout", "dlse", "out", "lse")  # in front of the shared arguments


class _Batched:
    """Arguments of one of the ops under vmap: the axis in front, and which tensors have it."""

    def __init__(self, in_dims: tuple[Any, ...], arguments: tuple[Any, ...],
                 is_backward: bool) -> None:
        self.arguments = [self._moved(*pair) for pair in zip(arguments, in_dims)]
        self.dims = in_dims
        self.names = (*(_OF_BACKWARD if is_backward else ()), *INPUT_NAMES)
        self.first = 1 if is_backward else 0  # the names of gradients come before the tensors
        self.place_of_aux = self.first + len(self.names)
        self.call = _Arguments(tuple(self.arguments[self.place_of_aux - _NUM_INPUTS:]))

    @classmethod
    def _moved(cls, value: Any, dim: Any) -> Any:
        if isinstance(value, list):
            return [cls._moved(*pair) for pair in zip(value, dim or [None] * len(value))]
        return value if dim is None else value.movedim(dim, 0)

    def places(self) -> Iterator[tuple[str, Any, bool]]:
        """Name, tensor and whether it has the axis."""
        for name, tensor, dim in zip(self.names, self.arguments[self.first:],
                                     self.dims[self.first:]):
            if tensor is not None:
                yield name, tensor, dim is not None
        dims = self.dims[self.place_of_aux] or [None] * len(self.call.aux)
        for name, tensor, dim in zip(self.call.aux_names, self.call.aux, dims):
            yield f"aux.{name}", tensor, dim is not None

    def with_tensors(self, change: Callable[[str, Any, bool], Any]) -> list[Any]:
        """The arguments with other tensors."""
        changed = {name: change(name, tensor, is_batched)
                   for name, tensor, is_batched in self.places()}
        given = list(self.arguments)
        given[self.first:self.place_of_aux] = map(changed.get, self.names)
        given[self.place_of_aux] = [changed[f"aux.{name}"] for name in self.call.aux_names]
        return given

    def uses_random_numbers(self) -> bool:
        return bool(self.call.options[OPTION_PLACES["dropout_p"]])

    def texts(self) -> list[str]:
        named = zip((row.name for row in _OPTIONS), self.call.options)
        return [text for name, text in named if name in ("score", "mask") and text]


def _vmap(op: Any, is_backward: bool) -> Callable[..., Any]:
    """The rule of an op: one call for the whole axis, or one after the other."""
    def rule(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
        size = info.batch_size
        given = _Batched(in_dims, arguments, is_backward)
        wanted = arguments[0] if is_backward else []
        batched = {name: is_batched for name, _, is_batched in given.places()}
        if given.uses_random_numbers() or not folds(batched, wanted, given.texts()):
            parts = []
            for n in range(size):
                parts.append(op(*given.with_tensors(
                    lambda _, tensor, has: tensor[n] if has else tensor)))
            found = [torch.stack(results) for results in zip(*parts)]
        else:
            shapes = {name: tensor.shape[1 if has else 0:] for name, tensor, has in given.places()}
            batch_size = shapes["q"][0]
            results = op(*given.with_tensors(
                lambda name, tensor, has: folded(name, tensor, has, name in wanted, size,
                                                 batch_size, torch.broadcast_to)))
            known = [shapes[name] for name in wanted] or [None] * len(results)
            found = [unfolded(*pair) for pair in zip(results, [size] * len(results), known)]
        if is_backward:
            return found, [0] * len(found)
        return tuple(found), (0,) * len(found)
    return rule


for _name, _kernel, _fake in (("attention_fwd", _forward, _forward_fake),
                              ("attention_bwd", _backward, _backward_fake)):
    for _device in ("CPU", "CUDA"):
        LIBRARY.impl(_name, _kernel, _device)
    torch.library.register_fake(f"flashtile::{_name}", _fake, lib=LIBRARY)
torch.library.register_autograd("flashtile::attention_fwd", _autograd,
                                setup_context=_setup_context, lib=LIBRARY)
torch.library.register_autograd("flashtile::attention_bwd", _no_second, lib=LIBRARY)
torch.library.register_vmap("flashtile::attention_fwd",
                            _vmap(torch.ops.flashtile.attention_fwd, False), lib=LIBRARY)
torch.library.register_vmap("flashtile::attention_bwd",
                            _vmap(torch.ops.flashtile.attention_bwd, True), lib=LIBRARY)


def autocast(tensor: torch.Tensor) -> torch.Tensor:
    """What autocast does to operands of products."""
    if tensor.is_floating_point() and tensor.dtype != torch.float64:
        return tensor.to(torch.get_autocast_dtype(tensor.device.type))
    return tensor


def is_seen_by_others(tensors: list[torch.Tensor]) -> bool:
    """Whether a compiler, a mode, a transform or a subclass of Tensor has to see the op of a call;
    where none has, the long way through torch.library is left out."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None or \
        bool(torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()) or \
        torch._C._are_functorch_transforms_active() or \
        any(type(tensor) not in _PLAIN_TENSORS for tensor in tensors)


def run_forward(arguments: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """The op attention_fwd, by the shortest way."""
    tensors = [tensor for tensor in (*arguments[:_NUM_INPUTS], *arguments[_NUM_INPUTS])
               if tensor is not None]
    if is_seen_by_others(tensors):
        result = torch.ops.flashtile.attention_fwd(*arguments)
    elif torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        result = _AtOnce.apply(arguments, *arguments[:_NUM_INPUTS], *arguments[_NUM_INPUTS])
    else:
        result = _forward(*arguments)
    out, lse = result
    return out, lse
