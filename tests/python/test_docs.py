# SPDX-License-Identifier: Apache-2.0
"""The Python blocks of the documents run as they stand."""

import doctest
import importlib
import importlib.util
import subprocess
import sys

import plain
import pytest

sys.path.insert(0, str(plain.ROOT / "scripts"))
import readme_snippets  # noqa: E402

FILES = ("README.md", "docs/python.md")
BLOCKS = [block for name in FILES for block in readme_snippets.extract(
    name, (plain.ROOT / name).read_text(encoding="ascii"), ("python",))]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.path}:{block.line}")
def test_block(block, tmp_path):
    for name in ("torch", "transformers", "jax"):
        if f"flashtile.{name}" in block.text and importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    run = subprocess.run([sys.executable, "-c", block.text], cwd=tmp_path, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert run.returncode == 0, run.stdout


PACKAGE = plain.ROOT / "python" / "flashtile"
MODULES = sorted(".".join(path.relative_to(PACKAGE).with_suffix("").parts)
                 for path in PACKAGE.rglob("*.py") if ">>> " in path.read_text(encoding="ascii"))


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    names = {"flashtile": importlib.import_module("flashtile"), "np": importlib.import_module(
        "numpy")}
    name = name.replace(".__init__", "")
    for library in {"torch": ["torch"], "jax": ["jax", "jax.numpy"]}.get(name, ()):
        names[library.replace("jax.numpy", "jnp")] = pytest.importorskip(
            library, reason=f"{library} is not installed")
    found = doctest.testmod(importlib.import_module(f"flashtile.{name}"), globs=names)
    assert found.attempted > 0 and found.failed == 0


def test_there_are_blocks():
    assert {"_attention", "_explain", "_plot", "expressions", "jax.__init__", "ops",
            "torch.__init__"} <= {*MODULES}
    assert {block.path for block in BLOCKS} == set(FILES)
