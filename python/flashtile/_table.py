# SPDX-License-Identifier: Apache-2.0
"""The operator table as Python sees it. Signatures, docs and custom ops are made from it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flashtile import _core


@dataclasses.dataclass(frozen=True)
class TensorRow:
    """A tensor of an op; a name that ends in .* stands for any number of named ones."""

    name: str
    direction: str  # "in", "out", "in-out"
    required: bool
    shape: str
    dtypes: str
    gradient_of: str
    doc: str

    @property
    def is_family(self) -> bool:
        return self.name.endswith(".*")

    @property
    def is_input(self) -> bool:
        return self.direction != "out"


@dataclasses.dataclass(frozen=True)
class OptionRow:
    """An option of an op: `type` is "bool", "int", "float" or "str"."""

    name: str
    type: str
    default: str
    doc: str

    @property
    def is_family(self) -> bool:
        return self.name.endswith(".*")


@dataclasses.dataclass(frozen=True)
class OpTable:
    name: str
    doc: str
    tensors: tuple[TensorRow, ...]
    options: tuple[OptionRow, ...]
    implementations: tuple[str, ...]

    def tensor(self, name: str) -> TensorRow:
        """The row of a tensor; "aux.table" finds "aux.*"."""
        for row in self.tensors:
            if row.name == name or row.is_family and name.startswith(row.name[:-1]):
                return row
        raise ValueError(f"{self.name}: there is no tensor '{name}'")

    def singles(self) -> tuple[TensorRow, ...]:
        return tuple(row for row in self.tensors if not row.is_family)

    def single_options(self) -> tuple[OptionRow, ...]:
        return tuple(row for row in self.options if not row.is_family)


@functools.lru_cache(maxsize=None)
def tables() -> dict[str, OpTable]:
    """All ops of the library by name."""
    found = {}
    for table in _core.tables():
        found[table["name"]] = OpTable(
            table["name"], table["doc"],
            tuple(TensorRow(**row) for row in table["tensors"]),
            tuple(OptionRow(**row) for row in table["options"]),
            tuple(table["implementations"]))
    return found


@functools.lru_cache(maxsize=None)
def core_op(name: str) -> _core.Op:
    """The op with all its tensors and options in table order."""
    table = tables()[name]
    return _core.Op(name, [row.name for row in table.singles()],
                    [row.name for row in table.single_options()])


Form = tuple[str, tuple[str, ...]]


@functools.lru_cache(maxsize=None)
def _forms(shape: str) -> tuple[Form, ...]:
    forms = []
    for text in shape.split(";"):
        entries = text.split()
        condition = ""
        if entries and entries[0].startswith("@"):
            condition = entries[0][1:].rstrip(":")
            entries = entries[1:]
        forms.append((condition, tuple(entries)))
    return tuple(forms)


def _entry(text: str) -> tuple[str, int]:
    """"seqlen+1" as a name, or a number, and what is added to it."""
    return (text[:-2], 1) if text.endswith("+1") else (text, 0)


def _chosen_forms(shape: str, is_given: Callable[[str], bool]) -> list[tuple[str, ...]]:
    forms = _forms(shape)
    for condition, _ in forms:
        if not condition or is_given(condition):
            return [entries for other, entries in forms if other == condition]
    return []


def output_shape(table: OpTable, name: str, given: Mapping[str, Sequence[Any]]) -> list[Any]:
    """The shape of an output from the shapes of inputs, which may be symbolic numbers."""
    row = table.tensor(name)
    if row.gradient_of:
        of = row.gradient_of
        return list(given[of.replace(".*", "." + name.partition(".")[2])])
    sizes: dict[str, Any] = {}
    for other, shape in given.items():
        column = table.tensor(other).shape
        for entries in _chosen_forms(column, given.__contains__) if column else []:
            if len(entries) == len(shape):
                for entry, size in zip(entries, shape):
                    dim, plus_one = _entry(entry)
                    if dim.isidentifier():
                        sizes.setdefault(dim, size - plus_one)
    for entries in _chosen_forms(row.shape, given.__contains__):
        named = [_entry(entry) for entry in entries]
        if all(dim in sizes or dim.isdigit() for dim, _ in named):
            return [(int(dim) if dim.isdigit() else sizes[dim]) + plus_one
                    for dim, plus_one in named]
    raise ValueError(f"{table.name}: {name} has a shape that the inputs leave open")


def describe(table: OpTable) -> str:
    """Tensors and options of an op for a docstring."""
    lines = []
    for row in table.tensors:
        kind = {"in": "", "out": "result; ", "in-out": "read, and written by some calls; "}
        shape = row.shape.replace("@", "with ") or "any shape"
        lines.append(f"    {row.name}: {kind[row.direction]}{row.doc}.\n"
                     f"        ({shape}), {row.dtypes.replace('=', 'dtype of ')}")
    for option in table.options:
        default = f"; default {option.default}" if option.default else ""
        lines.append(f"    {option.name}: {option.type}{default}. {option.doc}")
    return "\n".join(lines)
