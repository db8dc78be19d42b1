# SPDX-License-Identifier: Apache-2.0
"""The stubs of flashtile.ops say what the functions are."""

import ast
import inspect
import re
import subprocess
import sys

import plain
import pytest

from flashtile import ops

STUBS = plain.ROOT / "python" / "flashtile" / "ops.pyi"
SAMPLE = """
import flashtile
from flashtile import ops

def right(q: object) -> object:
    out, lse = ops.attention_fwd(q, q, q, causal=True, softcap=3, results=("out", "lse"))
    flashtile.attention(q, q, q, window=(3, None), score=lambda s, b, h, i, j: s)
    return ops.attention_merge(out, lse, implementation="reference")

def wrong(q: object) -> None:
    ops.attention_fwd(q, q)  # call-arg
    ops.attention_fwd(q, q, q, causal="yes")  # arg-type
    ops.attention_fwd(q, q, q, aux=[q])  # arg-type
    ops.no_such(q)  # attr-defined
    flashtile.attention(q, q, q, window=3)  # arg-type
"""


def test_stubs_have_the_parameters_of_the_functions():
    found = {node.name: node.args for node in ast.parse(STUBS.read_text()).body
             if isinstance(node, ast.FunctionDef)}
    assert list(found) == ops.__all__
    for name, arguments in found.items():
        parameters = inspect.signature(getattr(ops, name)).parameters.values()
        positional = [one.name for one in parameters if one.kind == one.POSITIONAL_OR_KEYWORD]
        assert [one.arg for one in arguments.args] == positional
        assert [one.arg for one in arguments.kwonlyargs] == [
            one.name for one in parameters if one.kind == one.KEYWORD_ONLY]


def test_a_type_checker_reads_them(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    (tmp_path / "sample.py").write_text(SAMPLE)
    run = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent",
                          f"--cache-dir={tmp_path}", "sample.py"], cwd=tmp_path, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    errors = re.findall(r"^sample.py:(\d+): error: .*\[([\w-]+)\]$", run.stdout, re.MULTILINE)
    expected = [(str(number), line.partition("# ")[2]) for number, line in
                enumerate(SAMPLE.splitlines(), 1) if "# " in line]
    assert errors == expected, run.stdout
