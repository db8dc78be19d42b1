# SPDX-License-Identifier: Apache-2.0
"""The snippets of README.md work, and scripts/readme_snippets.py tells those that do not."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import readme_snippets  # noqa: E402

BUILD = os.environ.get("FLASHTILE_BUILD_DIR", str(ROOT / "build" / "release"))
INCLUDE = '#include "flashtile/dtype.hpp"\n'


def run(*files):
    return subprocess.run([sys.executable, ROOT / "scripts" / "readme_snippets.py", "--build",
                           BUILD, *files], stdout=subprocess.PIPE, text=True, check=False)


class SnippetsTest(unittest.TestCase):
    def run_text(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "a.md")
            path.write_text(text, encoding="utf-8")
            return run(path)

    def test_extracts_blocks_that_are_to_be_run(self):
        text = ("```cpp\nint a;\n```\n\n<!-- not run: long -->\n```sh\nmake\n```\n"
                "```\nplain\n```\n```sh\nls\n```\n")
        found = readme_snippets.extract("a.md", text)
        self.assertEqual([(s.language, s.line, s.text) for s in found],
                         [("cpp", 1, "int a;\n"), ("sh", 12, "ls\n")])

    def test_wraps_what_has_no_main(self):
        snippet = readme_snippets.Snippet("a.md", 1, "cpp", "#include <a>\nf();\n")
        self.assertEqual(readme_snippets.program_of(snippet),
                         "#include <a>\n\nint main() {\n  f();\n  return 0;\n}\n")

    def test_good_snippets_pass(self):
        result = self.run_text(
            f"```cpp\n{INCLUDE}return flashtile::dtype_bytes(flashtile::DType::kF32) != 4;\n```\n"
            "```sh\ntest -e CMakeLists.txt\ntest -e build/release/CMakeCache.txt\n```\n")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertIn("2 passed, 0 failed", result.stdout)

    def test_bad_snippets_fail(self):
        for block in (f"cpp\n{INCLUDE}flashtile::no_such_function();", "cpp\nint unused;",
                      "cpp\nreturn 3;", "c\nreturn 3;", "sh\nfalse\ntrue", "sh\nno-such-command"):
            result = self.run_text(f"```{block}\n```\n")
            self.assertEqual(result.returncode, 1, block)
            self.assertIn("0 passed, 1 failed", result.stdout)

    def test_readme(self):
        result = run(ROOT / "README.md")
        self.assertEqual(result.returncode, 0, result.stdout)


if __name__ == "__main__":
    unittest.main()
