# SPDX-License-Identifier: Apache-2.0
"""Every op of the library as a function, made from the operator table: what the library learns to
do is here without a line of Python. `flashtile.attention` and its like are friendlier.

A function takes the op's tensors and options by name (families such as aux.* as a mapping), and
`results`, the names of the outputs to return. An output that is given as an array is written into,
one that is not is allocated.

>>> from flashtile import ops
>>> q = np.ones((1, 3, 2, 8), np.float32)
>>> out, lse = ops.attention_fwd(q, q, q, results=("out", "lse"))
>>> lse.shape
(1, 2, 3)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from flashtile._table import OpTable, core_op, describe, tables

_TYPES = {"bool": bool, "int": int, "float": float, "str": str}


def _families(table: OpTable) -> list[str]:
    """Names in front of the dot: aux, daux, param."""
    return [row.name[:-2] for row in table.tensors if row.is_family] + \
        [row.name[:-2] for row in table.options if row.is_family]


def _signature(table: OpTable) -> inspect.Signature:
    parameter = inspect.Parameter
    rows = sorted(table.singles(), key=lambda row: not (row.required and row.is_input))
    parameters = [
        parameter(row.name, parameter.POSITIONAL_OR_KEYWORD) if row.required and row.is_input
        else parameter(row.name, parameter.KEYWORD_ONLY, default=None) for row in rows]
    for name in _families(table):
        parameters.append(parameter(name, parameter.KEYWORD_ONLY, default=None))
    for option in table.single_options():
        parameters.append(parameter(option.name, parameter.KEYWORD_ONLY, default=None,
                                    annotation=_TYPES[option.type]))
    required = tuple(row.name for row in table.tensors if row.required and not row.is_input)
    parameters += [parameter("results", parameter.KEYWORD_ONLY, default=required),
                   parameter("dtypes", parameter.KEYWORD_ONLY, default=None),
                   parameter("implementation", parameter.KEYWORD_ONLY, default=None),
                   parameter("max_workers", parameter.KEYWORD_ONLY, default=0)]
    return inspect.Signature(parameters)


def _function(table: OpTable) -> Callable[..., tuple[Any, ...]]:
    signature = _signature(table)
    tensors = [row.name for row in table.singles()]
    options = [row.name for row in table.single_options()]
    families = _families(table)

    def call(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        named = {f"{family}.{name}": value for family in families
                 for name, value in (given[family] or {}).items()}
        results: Sequence[str] = given["results"]
        return core_op(table.name).run(
            tuple(given[name] for name in tensors), tuple(given[name] for name in options),
            named or None, tuple(results), given["dtypes"], given["implementation"],
            given["max_workers"])

    call.__name__ = call.__qualname__ = table.name
    call.__module__ = __name__
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__doc__ = f"""{table.doc}.

Returns a tuple of the outputs in `results`. `dtypes` maps outputs to dtype names ("f32").

Args:
{describe(table)}
    results: names of the outputs to return
    implementation: force one: {', '.join(table.implementations)}
    max_workers: threads at most; 0: all

Raises:
    ValueError: an argument is wrong.
    NotImplementedError: nothing takes it; the text has a line for each implementation.
"""
    return call


__all__ = list(tables())
globals().update({name: _function(table) for name, table in tables().items()})


def __getattr__(name: str) -> Callable[..., tuple[Any, ...]]:
    raise AttributeError(f"flashtile has no op '{name}'; it has {', '.join(__all__)}")
