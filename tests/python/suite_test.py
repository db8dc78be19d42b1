# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the Python package where this Python has it; ./test.sh --python makes one."""

import importlib.util
import os
import subprocess
import sys
import unittest
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
NEEDED = ("flashtile", "numpy", "ml_dtypes", "pytest")


class SuiteTest(unittest.TestCase):
    def test_suite(self):
        missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            self.skipTest(f"this Python has no {', '.join(missing)}: ./test.sh --python makes one")
        run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                              str(FOLDER)], cwd=FOLDER, env=dict(os.environ), text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        self.assertEqual(run.returncode, 0, run.stdout)


if __name__ == "__main__":
    unittest.main()
