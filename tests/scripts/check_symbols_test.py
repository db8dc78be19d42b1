# SPDX-License-Identifier: Apache-2.0
"""scripts/check_symbols.py finds shared symbols in objects of one instruction set."""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "check_symbols.py"
sys.path.insert(0, str(ROOT / "scripts"))

import check_symbols  # noqa: E402

SHARED = """#include <vector>
namespace flashtile::cpu::avx2 {
int count(const std::vector<int>& x) { std::vector<int> y(x); y.push_back(1); return y[0]; }
}
"""
LOCAL = """namespace flashtile::cpu::avx2 {
template <typename T> __attribute__((noinline)) T twice(T x) { return x + x; }
int count(int x) { return twice(x); }
}
"""


def run(*objects):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, objects)], capture_output=True, text=True
    )


class CheckSymbolsTest(unittest.TestCase):
    def test_names(self):
        self.assertEqual(check_symbols.isa_of("a/tiles_avx512_bf16.cpp.o"), "avx512_bf16")
        self.assertEqual(check_symbols.isa_of("a/tiles_avx512.cpp.o"), "avx512")
        self.assertIsNone(check_symbols.isa_of("src_avx2/registry.cpp.o"))

    def test_listing(self):
        listing = (
            "0000000000000000 W void flashtile::cpu::avx512::gemm_tile<6>(long)\n"
            "0000000000000000 W void std::sort<flashtile::cpu::avx512::Vf*>(int)\n"
            "0000000000000000 W flashtile::cpu::avx512_bf16::gemm(long)\n"
            "0000000000000000 T flashtile::cpu::other()\n"
            "0000000000000000 V DW.ref.__gxx_personality_v0\n"
            "0000000000000000 u flashtile::table\n"
            "                 U memcpy\n"
        )
        self.assertEqual(
            check_symbols.shared_symbols(listing, "avx512"),
            ["flashtile::cpu::avx512_bf16::gemm(long)", "flashtile::table"],
        )

    def test_compiled_files(self):
        compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            self.skipTest("no compiler in PATH")
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("shared_avx2", SHARED), ("local_avx2", LOCAL), ("plain", SHARED)):
                source = Path(folder, name + ".cpp")
                source.write_text(text, encoding="utf-8")
                subprocess.run(
                    [compiler, "-std=c++20", "-O0", "-c", str(source), "-o", str(source) + ".o"],
                    check=True,
                )
            shared, local, plain = (
                Path(folder, name + ".cpp.o") for name in ("shared_avx2", "local_avx2", "plain")
            )
            self.assertEqual(run(local).returncode, 0)
            found = run(local, shared, plain)
            self.assertEqual(found.returncode, 1)
            self.assertIn("shared symbol outside flashtile::cpu::avx2: std::vector", found.stdout)
            self.assertNotIn("plain", found.stdout)
            self.assertEqual(run(plain).returncode, 2)
            self.assertEqual(run(Path(folder, "missing_avx2.cpp.o")).returncode, 2)


if __name__ == "__main__":
    unittest.main()
