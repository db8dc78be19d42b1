# SPDX-License-Identifier: Apache-2.0
"""What the build promises: flags of an instruction set, one compilation a file, clear messages."""

import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FLASHTILE_BUILD_DIR", ROOT / "build" / "release"))
UNITED = re.compile(r'#include "(.+\.cpp)"')
ISA_FILE = re.compile(r"_(scalar|avx2|avx512|avx512_bf16|avx512_amx|neon)\.cpp$")


def sources_of(path):
    """The file, or those that a united file (cmake/unity.cmake) stands for."""
    if "Unity" not in path.parts:
        return [path]
    return [Path(name).resolve() for name in UNITED.findall(path.read_text(encoding="utf-8"))]


def version():
    header = (ROOT / "include" / "flashtile" / "version.hpp").read_text(encoding="utf-8")
    return re.search(r'VERSION_STRING "(.+)"', header).group(1)


class CompileCommandsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        text = (BUILD / "compile_commands.json").read_text(encoding="utf-8")
        cls.commands = [(Path(entry["file"]).resolve(), entry["command"])
                        for entry in json.loads(text)]
        cls.compiled = [(source, command) for path, command in cls.commands
                        for source in sources_of(path)]

    def test_only_files_of_an_instruction_set_have_its_flags(self):
        seen = set()
        for path, command in self.compiled:
            # -mtune and -march of the compiler's own defaults never appear on a command line.
            flags = re.findall(r" (-m[a-z0-9-]+)", command)
            match = ISA_FILE.search(path.name)
            if match is None:
                self.assertEqual(flags, [], path)
                continue
            seen.add(match.group(1))
            self.assertIn(f"-DFLASHTILE_ISA={match.group(1)} ", command + " ")
            self.assertEqual("-mavx2" in flags, match.group(1).startswith("avx"), path)
            self.assertEqual("-mavx512f" in flags, match.group(1).startswith("avx512"), path)
            has_bf16 = match.group(1) in ("avx512_bf16", "avx512_amx")
            self.assertEqual("-mavx512bf16" in flags, has_bf16, path)
            self.assertEqual("-mamx-bf16" in flags, match.group(1) == "avx512_amx", path)
        self.assertIn("scalar", seen)

    def test_arithmetic_is_the_same_everywhere(self):
        for path, command in self.compiled:
            if ROOT / "src" in path.parents:
                self.assertIn("-ffp-contract=off", command, path)
            for flag in ("-ffast-math", "-Ofast", "-march=", "-funsafe-math"):
                self.assertNotIn(flag, command, path)

    def test_each_source_of_the_library_is_compiled_once(self):
        compiled = [path for path, _ in self.compiled if ROOT / "src" in path.parents]
        self.assertEqual(len(compiled), len(set(compiled)))
        sources = set((ROOT / "src").rglob("*.cpp"))
        skipped = {path for path in sources - set(compiled) if not ISA_FILE.search(path.name)}
        self.assertEqual(skipped, set())


class ConfigureTest(unittest.TestCase):
    def configure(self, *options):
        with tempfile.TemporaryDirectory() as folder:
            result = subprocess.run(["cmake", "-S", ROOT, "-B", folder, *options], text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return result.returncode, re.sub(r"\s+", " ", result.stdout)

    def test_missing_packages_leave_parts_out_and_say_so(self):
        code, text = self.configure("-DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON",
                                    "-DCMAKE_DISABLE_FIND_PACKAGE_OpenMP=ON")
        self.assertEqual(code, 0, text)
        self.assertIn("flashtile: no CLI, because CMake does not find CLI11 (Debian: libcli11-dev)",
                      text)
        self.assertIn("flashtile: no tests", text)
        self.assertIn("flashtile: no OpenMP", text)

    def test_missing_packages_that_were_asked_for_are_errors(self):
        code, text = self.configure("-DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON",
                                    "-DFLASHTILE_BUILD_CLI=ON")
        self.assertNotEqual(code, 0)
        self.assertIn("FLASHTILE_BUILD_CLI is ON, but CMake does not find nlohmann-json", text)
        code, text = self.configure("-DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON",
                                    "-DFLASHTILE_BUILD_TESTS=ON")
        self.assertNotEqual(code, 0)
        self.assertIn("FLASHTILE_BUILD_TESTS is ON, but CMake does not find GoogleTest", text)


class VersionTest(unittest.TestCase):
    def test_changelog_begins_with_the_version(self):
        text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
        self.assertEqual(re.search(r"^## \[(.+?)\]", text, re.MULTILINE).group(1), version())

    def test_header_agrees_with_itself(self):
        header = (ROOT / "include" / "flashtile" / "version.hpp").read_text(encoding="utf-8")
        parts = re.findall(r"VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header)
        self.assertEqual(".".join(parts), version())


if __name__ == "__main__":
    unittest.main()
