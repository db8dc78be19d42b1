# SPDX-License-Identifier: Apache-2.0
"""Each rule of scripts/lint.py finds what it forbids and nothing else; the tree has no findings."""

import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import lint  # noqa: E402

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"


class LintTest(unittest.TestCase):
    def findings(self, **files):
        """Findings of a tree with these files; in a name, __ stands for / and _DOT_ for a dot."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = Path(folder, name.replace("__", "/").replace("_DOT_", "."))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return lint.lint(Path(folder))

    def assert_found(self, findings, *parts):
        self.assertEqual(len(findings), len(parts), findings)
        for finding, part in zip(findings, parts):
            self.assertIn(part, finding)

    def test_clean_file(self):
        self.assertEqual(self.findings(src__core__a_DOT_cpp=SPDX + "int f() { return 1; }\n"), [])

    def test_file_length(self):
        text = SPDX + "int x;\n" * (lint.MAX_LINES - 1)
        self.assertEqual(self.findings(src__a_DOT_cpp=text), [])
        self.assert_found(self.findings(src__a_DOT_cpp=text + "int x;\n"), "file has 801 lines")

    def test_columns_and_trailing_space(self):
        fits = SPDX + "// " + "x" * 97 + "\n"
        self.assertEqual(self.findings(cli__a_DOT_cpp=fits), [])
        wide = SPDX + "// " + "x" * 98 + "\nint a; \n"
        self.assert_found(self.findings(cli__a_DOT_cpp=wide), "2: line has 101 columns",
                          "3: white space")

    def test_function_length(self):
        def function(lines):
            return ("namespace a {\nvoid f(int a,\n       int b);\nvoid g() {\n" +
                    "  h();\n" * (lines - 2) + "}\n}  // namespace a\n")

        self.assertEqual(self.findings(src__a_DOT_cpp=SPDX + function(80)), [])
        self.assert_found(self.findings(src__a_DOT_cpp=SPDX + function(81)),
                          "a.cpp:5: function has 81 lines")
        table = "const int kTable[] = {\n" + "    1,\n" * 100 + "};\n"
        self.assertEqual(self.findings(src__a_DOT_cpp=SPDX + table), [])

    def test_ascii(self):
        self.assert_found(self.findings(docs__a_DOT_md="fine\na \u2192 b\n"), "a.md:2: byte is not")

    def test_spdx(self):
        self.assert_found(self.findings(src__a_DOT_hpp="#pragma once\n"), "no SPDX line")
        script = "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n"
        self.assertEqual(self.findings(scripts__a=script), [])
        self.assert_found(self.findings(scripts__a="#!/bin/sh\necho\n"), "no SPDX line")

    def test_marks(self):
        self.assertEqual(self.findings(src__a_DOT_cpp=SPDX + "// TODO(#12): later\n"), [])
        self.assert_found(self.findings(src__a_DOT_cpp=SPDX + "// TODO: later\n// FIXME\n"),
                          "2: TODO without", "3: FIXME without")

    def test_layers(self):
        def tree(includer, included):
            return {includer: SPDX + f'#include "{included}"\n',
                    "include__flashtile__x_DOT_hpp": SPDX, "src__core__x_DOT_hpp": SPDX,
                    "src__cpu__x_DOT_hpp": SPDX, "src__variant__x_DOT_hpp": SPDX}

        self.assertEqual(self.findings(**tree("src__cpu__a_DOT_cpp", "core/x.hpp")), [])
        self.assertEqual(self.findings(**tree("cli__a_DOT_cpp", "cpu/x.hpp")), [])
        self.assertEqual(self.findings(**tree("src__core__a_DOT_cpp", "flashtile/x.hpp")), [])
        self.assert_found(self.findings(**tree("src__ops__a_DOT_cpp", "cpu/x.hpp")), "higher layer")
        self.assert_found(self.findings(**tree("src__cuda__a_DOT_cpp", "cpu/x.hpp")),
                          "higher layer")
        device = "src__cuda__device__a_DOT_cuh"
        self.assertEqual(self.findings(**tree(device, "variant/x.hpp")), [])
        self.assert_found(self.findings(**tree(device, "core/x.hpp")), "only device text")
        self.assert_found(self.findings(**tree("include__flashtile__a_DOT_hpp", "core/x.hpp")),
                          "only public headers")
        self.assert_found(self.findings(**tree("src__ops__a_DOT_cpp", "core/y.hpp")),
                          "not in the tree")

    def test_freestanding_text(self):
        text = SPDX + "#include <cmath>\n"
        self.assertEqual(self.findings(src__variant__a_DOT_hpp=text), [])
        self.assert_found(self.findings(src__variant__philox_DOT_hpp=text), "no system header")

    def test_glossary(self):
        text = SPDX + "int sm_scale, my_kv_len, kv_len;\n"
        self.assert_found(self.findings(src__a_DOT_cpp=text), "sm_scale, expected softmax_scale",
                          "kv_len, expected seqlen_k")
        self.assertEqual(self.findings(bench__a_DOT_cpp=text), [])
        names = SPDX.replace("//", "#") + "sm_scale = 1\n"
        self.assert_found(self.findings(python__a_DOT_py=names), "sm_scale")
        self.assertEqual(self.findings(python__shim__a_DOT_py=names), [])

    def test_loud(self):
        for statement in ("std::cout << 1;", "printf(text);", "std::abort();", "exit (1);",
                          "assert(x);"):
            found = self.findings(src__a_DOT_cpp=SPDX + f"void f() {{ {statement} }}\n")
            self.assert_found(found, "in the library")
        quiet = SPDX + 'void f() { snprintf(a, b); g("exit()"); on_exit(1); }  // printf(\n'
        self.assertEqual(self.findings(src__a_DOT_cpp=quiet), [])
        self.assertEqual(self.findings(cli__a_DOT_cpp=SPDX + "void f() { printf(text); }\n"), [])

    def test_links(self):
        target = "# First heading\n\n## `code` & more: x_y\n"
        good = "[a](b.md) [c](b.md#first-heading) [d](b.md#code--more-x_y) [e](https://x.org)\n"
        self.assertEqual(self.findings(docs__a_DOT_md=good, docs__b_DOT_md=target), [])
        bad = "[a](c.md)\n[b](b.md#second)\n```\n[not](a-link.md)\n```\n"
        self.assert_found(self.findings(docs__a_DOT_md=bad, docs__b_DOT_md=target),
                          "a.md:1: dead link c.md", "a.md:2: dead anchor b.md#second")

    def test_environment(self):
        code = SPDX + 'auto a = getenv("FLASHTILE_A");\n'
        self.assertEqual(self.findings(src__core__env_DOT_cpp=code,
                                       docs__env_DOT_md="| `FLASHTILE_A` | x |\n"), [])
        self.assert_found(self.findings(src__core__env_DOT_cpp=code,
                                        docs__env_DOT_md="`FLASHTILE_B`\n"),
                          "FLASHTILE_A is not in docs/env.md",
                          "FLASHTILE_B is not read by")
        self.assert_found(self.findings(cli__a_DOT_cpp=code), "getenv, expected only in")

    def test_this_tree_has_no_findings(self):
        findings = lint.lint(ROOT, with_format=True)
        if findings:
            self.fail("\n".join(findings))


if __name__ == "__main__":
    unittest.main()
