#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles and runs the fenced blocks of a Markdown file against a build of the library.

    scripts/readme_snippets.py [--build build/release] [README.md ...]

cpp, c  a whole program where it has main(); otherwise its #include lines go to the top and the rest
        into main(). It has to compile without warnings and to exit with 0.
sh      run by bash -eu in a scratch folder that looks like the repository: same files at the top,
        build/release is the given build. It has to exit with 0.
Others are not run here (those in Python are by tests/python/test_docs.py), and neither is a block
right after a line `<!-- not run: why -->`.
"""

import argparse
import dataclasses
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
LANGUAGES = ("cpp", "c", "sh")


@dataclasses.dataclass
class Snippet:
    path: str
    line: int  # of the opening fence
    language: str
    text: str


def extract(path, text, languages=LANGUAGES):
    """The blocks of a Markdown text that are to be run."""
    snippets = []
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        fence = re.match(r"\s*```(\w*)", lines[number])
        if not fence:
            number += 1
            continue
        before = next((line for line in reversed(lines[:number]) if line.strip()), "")
        begin = number + 1
        end = next((i for i in range(begin, len(lines)) if lines[i].strip() == "```"), len(lines))
        if fence.group(1) in languages and not before.startswith("<!-- not run:"):
            body = "\n".join(lines[begin:end]) + "\n"
            snippets.append(Snippet(path, number + 1, fence.group(1), body))
        number = end + 1
    return snippets


def program_of(snippet):
    """Source text with main()."""
    if re.search(r"\bint main\(", snippet.text):
        return snippet.text
    lines = snippet.text.splitlines()
    top = [line for line in lines if line.startswith("#include")]
    body = ["  " + line for line in lines if not line.startswith("#include")]
    signature = "int main(void) {" if snippet.language == "c" else "int main() {"
    return "\n".join(top + ["", signature] + body + ["  return 0;", "}", ""])


def cache_of(build):
    """The variables of a build folder's CMakeCache.txt."""
    pattern = re.compile(r"^([\w-]+):\w+=(.*)$", re.MULTILINE)
    return dict(pattern.findall((build / "CMakeCache.txt").read_text(encoding="utf-8")))


def run(command, **arguments):
    """The output of a command that fails, None of one that succeeds."""
    try:
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, timeout=300, check=False, **arguments)
    except subprocess.TimeoutExpired:
        return f"{command[0]} took over 300 s"
    if result.returncode == 0:
        return None
    return f"{command[0]} ended with {result.returncode}\n{result.stdout}"


def run_program(snippet, build, folder):
    cache = cache_of(build)
    is_c = snippet.language == "c"
    source = folder / f"snippet.{snippet.language}"
    source.write_text(program_of(snippet), encoding="utf-8")
    compiler = cache["CMAKE_C_COMPILER" if is_c else "CMAKE_CXX_COMPILER"]
    sanitize = cache.get("FLASHTILE_SANITIZE")
    command = [compiler, "-std=c11" if is_c else "-std=c++20", *WARNINGS,
               *([f"-fsanitize={sanitize}"] if sanitize else []),
               f"-I{ROOT}/include", str(source), "-o", str(folder / "snippet"),
               f"-L{build}", "-lflashtile", f"-Wl,-rpath,{build}", "-lm"]
    return run(command) or run([str(folder / "snippet")], cwd=folder)


def run_shell(snippet, build, folder):
    for entry in ROOT.iterdir():
        if entry.name not in ("build", ".git"):
            (folder / entry.name).symlink_to(entry)
    (folder / "build").mkdir()
    (folder / "build" / "release").symlink_to(build)
    environment = {**os.environ, "PATH": f"{build}:{os.environ['PATH']}"}
    return run(["bash", "-eu", "-o", "pipefail", "-c", snippet.text], cwd=folder, env=environment)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("files", nargs="*", type=Path, default=[ROOT / "README.md"])
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    passed = failed = 0
    for path in arguments.files:
        for snippet in extract(path.name, path.read_text(encoding="utf-8")):
            with tempfile.TemporaryDirectory() as folder:
                runner = run_shell if snippet.language == "sh" else run_program
                problem = runner(snippet, build, Path(folder))
            passed += problem is None
            failed += problem is not None
            state = "ok" if problem is None else "FAILED: " + problem
            print(f"{snippet.path}:{snippet.line} {snippet.language} {state}")
    print(f"snippets: {passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
