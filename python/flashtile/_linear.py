# SPDX-License-Identifier: Apache-2.0
"""Linear attention's operators as Python sees them, read off the operator table.

Three modules have one function for each operator, with the same arguments: flashtile.linear,
flashtile.torch.linear and flashtile.jax.linear. Their texts are made here, so that each function
is a plain one with a signature and a docstring; the .pyi files beside them, which editors read,
come from the same texts (scripts/linear_stubs.py)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flashtile._linear_formulas import FORMULAS
from flashtile._table import OpTable, OptionRow, TensorRow, tables

_PASSES = ("_fwd", "_bwd", "_step")
_OPTION_TYPES = {"bool": "bool", "int": "int | None", "float": "float | None", "str": "str | None"}


@dataclasses.dataclass(frozen=True)
class Operator:
    """An operator with its three tables."""

    name: str
    forward: OpTable
    backward: OpTable
    step: OpTable

    @functools.cached_property
    def inputs(self) -> tuple[TensorRow, ...]:
        """What forward reads, initial states and cu_seqlens among it."""
        return tuple(row for row in self.forward.tensors if row.is_input)

    @functools.cached_property
    def required(self) -> tuple[str, ...]:
        return tuple(row.name for row in self.inputs if row.required)

    @functools.cached_property
    def optional(self) -> tuple[str, ...]:
        return tuple(row.name for row in self.inputs if not row.required)

    @functools.cached_property
    def options(self) -> tuple[OptionRow, ...]:
        return self.forward.single_options()

    @functools.cached_property
    def states(self) -> tuple[str, ...]:
        """"state", "norm", ...: what goes from row to row."""
        return tuple(row.name for row in self.step.tensors if row.direction == "in-out")

    @functools.cached_property
    def places_of_states(self) -> tuple[int, ...]:
        """Among the inputs of a step."""
        rows = [row for row in self.step.tensors if row.is_input]
        return tuple(place for place, row in enumerate(rows) if row.direction == "in-out")

    @functools.cached_property
    def differentiable(self) -> frozenset[str]:
        """Inputs that have a gradient."""
        return frozenset(row.gradient_of for row in self.backward.tensors if row.gradient_of)

    def finals(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """The final states of a call with these options: some are there under `normalize`."""
        return tuple(f"final_{name}" for name in self.states
                     if self.step.tensor(name).required or options.get("normalize"))

    @functools.cached_property
    def final_gradients(self) -> tuple[str, ...]:
        """Incoming gradients of final states."""
        return tuple(row.name for row in self.backward.tensors if row.name.startswith("dfinal_"))


@functools.lru_cache(maxsize=None)
def operators() -> dict[str, Operator]:
    """All operators of linear attention by name: whatever has a step."""
    found = tables()
    return {name[:-len("_step")]: Operator(name[:-len("_step")], *[
        found[name[:-len("_step")] + suffix] for suffix in _PASSES])
        for name in found if name.endswith("_step")}


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of one of the modules: what its text is made of."""

    name: str
    parameters: tuple[str, ...]  # as they stand in a def
    result: str
    summary: str
    formula: str
    details: str
    call: str  # what its body returns

    def head(self) -> str:
        return f"def {self.name}({', '.join(self.parameters)}) -> {self.result}:"

    def doc(self) -> str:
        return "\n\n".join(part for part in (self.summary, self.formula, self.details) if part)


def _shape(row: TensorRow) -> str:
    forms = []
    for form in row.shape.split("; "):
        entries = form.split()
        is_packed = entries[0] == "@cu_seqlens:"
        if entries[0].startswith("@"):
            entries = entries[1:]
        forms.append(("packed " if is_packed else "") + f"({', '.join(entries)})")
    return "; ".join(dict.fromkeys(reversed(forms)))


def _tensor_lines(rows: Sequence[TensorRow]) -> list[str]:
    lines = []
    for row in rows:
        dtypes = ", ".join("as " + part[1:] if part.startswith("=") else part
                           for part in row.dtypes.split())
        lines.append(f"    {row.name}: {row.doc}. {_shape(row)}; {dtypes}.")
    return lines


def _option_lines(op: Operator) -> list[str]:
    return [f"    {row.name}: {row.doc}. Default {row.default or 'none'}." for row in op.options]


_COMMON_LINES = [
    "    out_dtype: dtype of out: that of the first argument, or float32.",
    "    implementation: force one, as flashtile.explain lists them."]
_RAISES = """Raises:
    ValueError: an argument is wrong; the text says which, what was found, and what expected.
    NotImplementedError: no implementation takes it; the text has the reason of each."""


def _parameters(op: Operator, array: str, positional: Sequence[str],
                optional: Sequence[str], own: Sequence[str]) -> tuple[str, ...]:
    options = [f"{row.name}: {_OPTION_TYPES[row.type]} = "
               f"{'False' if row.type == 'bool' else 'None'}" for row in op.options]
    return (*[f"{name}: {array}" for name in positional], "*",
            *[f"{name}: {array} | None = None" for name in optional], *options, *own)


def _names(names: Sequence[str]) -> str:
    return f"({''.join(name + ', ' for name in names)})"


def _sentence(doc: str) -> str:
    return f"{doc[0].upper()}{doc[1:]}."


def forward_function(op: Operator, array: str, own: Sequence[str] = (),
                     passed: Sequence[str] = (), notes: str = "") -> Function:
    """The function of an operator over whole sequences.

    Args:
        array: type of arrays, for annotations.
        own: parameters that one module alone has, with annotation and default.
        passed: their names; they are given to `forward` behind the others.
        notes: more about arguments, as lines of a docstring.
    """
    finals = op.finals({"normalize": True})
    asked = ["return_final_state: bool = False"] if finals else []
    rows = [op.forward.tensor(name) for name in (*op.required, *op.optional)]
    lines = [*_tensor_lines(rows), *_option_lines(op)]
    returns = "out"
    if finals:
        lines.append("    return_final_state: return final states, too.")
        of_option = "" if len(op.finals({})) == len(finals) else " (the last with normalize)"
        returns = f"out; or (out, {', '.join(finals)}){of_option}"
    shapes = [f"    {row.name}: {_shape(row)}." for row in op.forward.tensors if not row.is_input]
    details = "\n".join([
        "Args:", *lines, *([notes] if notes else []),
        *_COMMON_LINES, "", "Returns:", f"    {returns}.", *shapes, "", _RAISES])
    options = [row.name for row in op.options]
    return Function(
        op.name,
        _parameters(op, array, op.required, op.optional,
                    [*asked, "out_dtype: Any = None", *own, "implementation: str | None = None"]),
        "Any" if finals else array, _sentence(op.forward.doc), FORMULAS.get(op.name, ""), details,
        f"forward(op, {_names([row.name for row in op.inputs])}, {_names(options)}, "
        f"{'return_final_state' if finals else 'False'}, out_dtype, "
        f"{''.join(name + ', ' for name in passed)}implementation)")


def step_function(op: Operator, array: str, own: Sequence[str] = (),
                  passed: Sequence[str] = ()) -> Function:
    """The function that takes one row of each sequence and changes states in place."""
    rows = [row for row in op.step.tensors if row.is_input]
    required = [row.name for row in rows if row.required and row.direction == "in"]
    states = [row.name for row in rows if row.direction == "in-out" and row.required]
    optional = [row.name for row in rows if not row.required]
    ordered = [op.step.tensor(name) for name in (*required, *states, *optional)]
    details = "\n".join([
        "Args:", *_tensor_lines(ordered), *_option_lines(op),
        *_COMMON_LINES, "", "Returns:",
        f"    out, {_shape(op.step.tensor('out'))}. States are changed in place.", "", _RAISES])
    return Function(
        f"{op.name}_step",
        _parameters(op, array, [*required, *states], optional,
                    ["out_dtype: Any = None", *own, "implementation: str | None = None"]),
        array, _sentence(op.step.doc), FORMULAS.get(op.name, ""), details,
        f"step(op, {_names([row.name for row in rows])}, "
        f"{_names([row.name for row in op.options])}, out_dtype, "
        f"{''.join(name + ', ' for name in passed)}implementation)")


def backward_function(op: Operator, array: str, own: Sequence[str] = (),
                      passed: Sequence[str] = ()) -> Function:
    """The function with the gradients of an operator."""
    finals = op.final_gradients
    details = "\n".join([
        "Args:",
        "    dout: incoming gradient of out, like it.",
        f"    gradients: names of inputs, out of {', '.join(sorted(op.differentiable))}; default:",
        "        all of them that are given.",
        *_tensor_lines([op.backward.tensor(name) for name in finals]),
        "", f"Other arguments are those of {op.name}.", "", "Returns:",
        "    A dict of the wanted gradients by the names of the inputs, each with shape and dtype",
        "    of its input.", "", _RAISES])
    return Function(
        f"{op.name}_backward",
        _parameters(op, array, ["dout", *op.required], [*op.optional, *finals],
                    ["gradients: Sequence[str] | None = None", *own,
                     "implementation: str | None = None"]),
        f"dict[str, {array}]", f"Gradients of {op.name}: of sum(out * dout)"
        f"{' + sum(final * dfinal)' if finals else ''}.", "", details,
        f"backward(op, dout, {_names(finals)}, {_names([row.name for row in op.inputs])}, "
        f"{_names([row.name for row in op.options])}, gradients, "
        f"{''.join(name + ', ' for name in passed)}implementation)")


def make(function: Function, op: Operator, module: str,
         called: Mapping[str, Any]) -> Callable[..., Any]:
    """The function itself; `called` has forward, step and backward of its module."""
    names: dict[str, Any] = {"op": op, **called}
    text = f"from __future__ import annotations\n{function.head()}\n    return {function.call}\n"
    exec(compile(text, f"<{module}.{function.name}>", "exec"), names)
    made: Callable[..., Any] = names[function.name]
    made.__module__ = module
    made.__doc__ = function.doc()
    return made


def _wrapped(head: str, parts: Sequence[str], tail: str) -> str:
    """A def in lines of at most 100 characters."""
    lines, line = [], head
    for place, part in enumerate(parts):
        piece = part + (tail if place + 1 == len(parts) else ",")
        if not line.endswith(("(", "    ")):
            piece = " " + piece
        if len(line) + len(piece) > 100:
            lines.append(line)
            line, piece = "        ", piece.lstrip()
        line += piece
    return "\n".join([*lines, line])


def stub(function: Function) -> str:
    """The function as a .pyi file has it: with the beginning of its docstring."""
    formula = [f"    {line}" for line in function.formula.splitlines()]
    doc = [f'    """{function.summary}', "", *formula, '    """'] if formula else \
        [f'    """{function.summary}"""']
    return "\n".join([_wrapped(f"def {function.name}(", function.parameters,
                               f") -> {function.result}:"), *doc, "    ..."])


def stubs(head: str, functions: Mapping[str, tuple[Callable[[], Function], Operator]]) -> str:
    """The .pyi file of a module: what its functions' signatures need, and the functions."""
    made = [text() for text, _ in functions.values()]
    return "\n\n".join(["# SPDX-License-Identifier: Apache-2.0\n"
                        f"# Made by scripts/linear_stubs.py from the operator table.\n{head}",
                        *[stub(function) for function in made]]) + "\n"
