# SPDX-License-Identifier: Apache-2.0
"""The API reference and the stubs of flashtile.ops are what the script writes."""

import os
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FLASHTILE_BUILD_DIR", ROOT / "build" / "release"))
sys.path.insert(0, str(ROOT / "scripts"))

import python_reference  # noqa: E402


class ReferenceTest(unittest.TestCase):
    def test_files_are_current(self):
        run = subprocess.run(
            [sys.executable, ROOT / "scripts" / "python_reference.py", "--build", BUILD, "--check"],
            stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(run.returncode, 0, run.stderr)

    def test_docstrings_become_lists(self):
        found = python_reference.prose("Adds.\n\nArgs:\n    a: one\n        more\n    b, c: two\n\n"
                                       "Returns:\n    The sum.\n\n>>> add(1)\n1")
        self.assertEqual(found, "Adds.\n\nArgs:\n- `a`: one more\n- `b, c`: two\n\n"
                                "Returns: The sum.\n\n```pycon\n>>> add(1)\n1\n```")

    def test_every_public_name_is_described(self):
        text = python_reference.REFERENCE.read_text(encoding="utf-8")
        for name in ("attention", "merge", "explain", "plot_mask", "torch.flex_attention",
                     "jax.attention", "transformers.register", "expressions.trace"):
            self.assertIn(f"\n### flashtile.{name}\n", text)


if __name__ == "__main__":
    unittest.main()
