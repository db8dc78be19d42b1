# SPDX-License-Identifier: Apache-2.0
"""The installed package serves find_package, pkg-config and the command line."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("FLASHTILE_BUILD_DIR", ROOT / "build" / "release"))


def run(*command, **arguments):
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, check=False, **arguments)
    if result.returncode != 0:
        raise AssertionError(f"{command} ended with {result.returncode}\n{result.stdout}")
    return result.stdout


def cache_value(name):
    for line in (BUILD / "CMakeCache.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith(name + ":"):
            return line.split("=", 1)[1]
    return ""


SANITIZE = cache_value("FLASHTILE_SANITIZE")
FLAGS = [f"-fsanitize={SANITIZE}"] if SANITIZE else []


class PackageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.scratch = Path(cls.folder.name)
        # Installed in one place and moved to another: the package has no fixed paths.
        run("cmake", "--install", BUILD, "--prefix", cls.scratch / "first")
        cls.prefix = cls.scratch / "prefix"
        shutil.move(cls.scratch / "first", cls.prefix)
        cls.library = next(path.parent for path in cls.prefix.rglob("libflashtile.*"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_all_public_headers_are_there_and_no_others(self):
        def names(folder):
            return sorted(path.name for path in (folder / "include" / "flashtile").iterdir())

        self.assertEqual(names(self.prefix), names(ROOT))

    def test_exports_nothing_but_its_own_interface(self):
        libraries = list(self.library.glob("libflashtile.so"))
        if not libraries:
            self.skipTest("static library")
        lines = run("nm", "-DC", "--defined-only", libraries[0]).splitlines()
        names = [line.split(maxsplit=2)[2] for line in lines]
        self.assertIn("flashtile_attention_fwd", names)
        own = ("flashtile_", "flashtile::", "typeinfo for flashtile::",
               "typeinfo name for flashtile::", "vtable for flashtile::")
        self.assertEqual([name for name in names if not name.startswith(own)], [])
        internal = ("flashtile::cpu", "flashtile::variant", "flashtile::detail")
        self.assertEqual([name for name in names if name.startswith(internal)], [])

    def test_find_package(self):
        build = self.scratch / "find_package"
        run("cmake", "-S", HERE / "consumer", "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}",
            f"-DCMAKE_CXX_COMPILER={cache_value('CMAKE_CXX_COMPILER')}",
            f"-DCMAKE_C_COMPILER={cache_value('CMAKE_C_COMPILER')}",
            f"-DCMAKE_CXX_FLAGS={' '.join(FLAGS)}", f"-DCMAKE_C_FLAGS={' '.join(FLAGS)}")
        run("cmake", "--build", build)
        self.assertEqual(run(build / "consumer"), "2.5\n")
        self.assertEqual(run(build / "consumer_c"), "2.5\n")

    def test_pkg_config(self):
        environment = {**os.environ, "PKG_CONFIG_PATH": str(self.library / "pkgconfig")}
        flags = run("pkg-config", "--cflags", "--libs", "flashtile", env=environment).split()
        program = self.scratch / "pkg_config"
        run(cache_value("CMAKE_CXX_COMPILER"), "-std=c++20", *FLAGS,
            HERE / "consumer" / "main.cpp", "-o", program, *flags, f"-Wl,-rpath,{self.library}")
        self.assertEqual(run(program), "2.5\n")
        self.assertEqual(run("pkg-config", "--modversion", "flashtile", env=environment).strip(),
                         cache_value("CMAKE_PROJECT_VERSION"))

    def test_command_line(self):
        text = run(self.prefix / "bin" / "flashtile", "--version")
        self.assertIn(cache_value("CMAKE_PROJECT_VERSION"), text)

    def test_as_part_of_another_project(self):
        """add_subdirectory gives the library alone: no CLI, no tests, no install rules."""
        build = self.scratch / "subproject"
        run("cmake", "-S", HERE / "parent", "-B", build, f"-DFLASHTILE={ROOT}")
        targets = run("cmake", "--build", build, "--target", "help")
        self.assertIn("flashtile", targets)
        self.assertNotIn("flashtile_cli", targets)
        self.assertNotIn("unit_tests", targets)
        self.assertFalse((build / "flashtile" / "cmake" / "flashtile-config.cmake").exists())


if __name__ == "__main__":
    unittest.main()
