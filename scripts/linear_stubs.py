#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the .pyi files of flashtile.linear and its like in PyTorch and JAX, which editors read;
flashtile and those two have to be installed.

    scripts/linear_stubs.py            writes them into python/flashtile
    scripts/linear_stubs.py --check    exits with 1 where a file is not what it would write
"""

import importlib
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "python" / "flashtile"
HEADS = {
    "linear": "from collections.abc import Sequence\nfrom typing import Any\n\nArray = Any",
    "torch.linear": "from typing import Any\n\nimport torch",
    "jax.linear": "from typing import Any\n\nimport jax",
}


def text_of(module):
    """The file of a module."""
    from flashtile._linear import stubs
    return stubs(HEADS[module], importlib.import_module(f"flashtile.{module}").functions())


def main():
    status = 0
    for module in HEADS:
        path = FOLDER / f"{module.replace('.', '/')}.pyi"
        if "--check" not in sys.argv:
            path.write_text(text_of(module), encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text_of(module):
            print(f"{path} is not what scripts/linear_stubs.py writes")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
