# SPDX-License-Identifier: Apache-2.0
"""What would run, and on what."""

from __future__ import annotations

import dataclasses
from typing import Any

from flashtile import _attention, _core
from flashtile._table import tables


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What the library would do with a problem; str() gives many lines for a person."""

    problem: str  #: its text form (docs/problems.md)
    chosen: str  #: the implementation; "" where none takes it
    plan: str  #: how it would run: tiles, splits, workspace
    workspace_bytes: int
    candidates: tuple[tuple[str, str], ...]  #: (implementation, first refusal or "")
    text: str

    def __str__(self) -> str:
        return self.text


def explain(problem: Any, *arrays: Any, arch: str = "", **options: Any) -> Explanation:
    """The implementation and plan for a problem, and what each other implementation refuses.

    Args:
        problem: a problem text, such as "attention_fwd:b2:hq8:sq129:d64:causal:bf16", which needs
            no arrays; or q, followed by k, v and the options of attention, which are looked at and
            not attended to (memory for the results is allocated).
        arch: plan a problem text for a GPU of this architecture, such as "sm_90".

    Raises:
        ValueError: the text cannot be read, or an argument is wrong.

    >>> flashtile.explain("attention_fwd:b1:hq8:sq64:d64:bf16", arch="sm_90").chosen
    'attention_fwd_sm90'
    """
    if isinstance(problem, str):
        if arrays or options:
            raise TypeError("explain: a problem text has its options in it")
        return Explanation(**_core.explain(problem, arch))
    if arch:
        raise TypeError("explain: arch goes with a problem text")
    return Explanation(**_attention.explain_call(problem, *arrays, **options))


def supports(problem: Any, *arrays: Any, **options: Any) -> bool:
    """True when an implementation (any, or the one after @ or in `implementation`) takes it.

    Arguments are those of explain. Raises ValueError for what is wrong rather than unsupported.

    >>> flashtile.supports("attention_bwd:b1:hq2:sq9:d64:causal")
    True
    """
    if isinstance(problem, str):
        return _core.supports(problem)
    try:
        return bool(explain(problem, *arrays, **options).chosen)
    except NotImplementedError:  # all implementations refuse it alike
        return False


def warmup(problem: str) -> None:
    """Compiles and loads the GPU kernels of a problem text, so that the first call does neither."""
    _core.warmup(problem)


def info() -> dict[str, Any]:
    """The library's version, the machine, and the implementations of each op, best first.

    Keys: version, cpu, instruction_sets, threads, cuda_devices ((name, architecture) of each),
    cuda_fault (why there are none), implementations (by op).
    """
    return {**_core.machine(),
            "implementations": {name: table.implementations for name, table in tables().items()}}
