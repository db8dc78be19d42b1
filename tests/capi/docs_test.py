#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The programs in docs/c-abi.md compile, run and succeed."""

import os
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


class DocsTest(unittest.TestCase):
    def test_programs_of_c_abi(self):
        script = ROOT / "scripts" / "readme_snippets.py"
        command = [sys.executable, script, "--build", os.environ["FLASHTILE_BUILD_DIR"],
                   ROOT / "docs" / "c-abi.md"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("3 passed, 0 failed", result.stdout + result.stderr)


if __name__ == "__main__":
    unittest.main()
