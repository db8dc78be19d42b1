#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks of the tree that no compiler makes; tests/scripts/lint_test.py shows each rule fail.

    scripts/lint.py [--format] [ROOT]

--format also runs clang-format 14 where it is installed. Prints one line a finding; exit status 1
where there is any.
"""

import argparse
import dataclasses
import re
import shutil
import subprocess
import sys
from pathlib import Path

MAX_LINES = 800
MAX_COLUMNS = 100
MAX_FUNCTION_LINES = 80
# Files that may be longer than MAX_LINES: path -> why.
LONG_FILES = {}

CPP = {".hpp", ".cpp", ".h", ".c", ".cuh"}
CODE = CPP | {".py", ".pyi", ".sh", ".cmake"}
TEXT = CODE | {".md", ".json", ".txt", ".in", ".yml", ".toml"}
SKIPPED_FOLDERS = {".git", ".venv", ".cache", "__pycache__", "corpus"}
SKIPPED_AT_THE_TOP = {"build", "Testing"}

# The folders under src/, the CLI and the Python extension, lowest first: each may include itself
# and what is below. Those of one level do not see each other.
LAYERS = [["core"], ["variant"], ["ops"], ["cpu", "cuda"], ["capi"], ["cli", "python"]]
# Text for compilers that have no standard library (NVRTC).
FREESTANDING = ("src/variant/philox.hpp", "src/variant/position_mask.hpp",
                "src/variant/block_run.hpp", "src/cuda/device/")
DEVICE_TEXT = ("src/variant/", "src/cuda/device/")

# One word per thing (docs/glossary.md): what not to write -> what to write.
GLOSSARY = {
    "qo_len": "seqlen_q",
    "q_len": "seqlen_q",
    "kv_len": "seqlen_k",
    "k_len": "seqlen_k",
    "s_q": "seqlen_q",
    "seqlen_kv": "seqlen_k",
    "seq_len": "seqlen_q or seqlen_k",
    "nheads": "num_heads",
    "h_k": "num_heads_kv",
    "num_qo_heads": "num_heads",
    "num_kv_heads": "num_heads_kv",
    "num_heads_k": "num_heads_kv",
    "sm_scale": "softmax_scale",
    "scale_softmax": "softmax_scale",
    "logsumexp": "lse",
    "indptr": "cu_seqlens",
    "head_size": "head_dim",
    "headdim": "head_dim",
    "page_table": "block_table",
}
SPOKEN_WORDS = re.compile(r"\b(" + "|".join(GLOSSARY) + r")\b")

LOUD = re.compile(
    r"\bstd::(cout|cerr|clog)\b|(?<![\w.>])(printf|fprintf|puts|putchar|perror|abort|exit|_exit|"
    r"quick_exit|terminate|assert)\s*\(")
MARKS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)")
ENV_NAME = re.compile(r"\bFLASHTILE_[A-Z0-9_]+\b")


@dataclasses.dataclass
class File:
    path: str  # relative to the root, with /
    suffix: str
    text: str

    def lines(self):
        return enumerate(self.text.splitlines(), start=1)

    def is_in(self, *folders):
        return self.path.startswith(tuple(folder + "/" for folder in folders))


def load(root):
    """All text files of the tree, sorted by path; and findings about those that are not text."""
    files, findings = [], []
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        if SKIPPED_FOLDERS & set(relative.parts) or relative.parts[0] in SKIPPED_AT_THE_TOP:
            continue
        if not path.is_file():
            continue
        suffix = ".cmake" if path.name == "CMakeLists.txt" else path.suffix
        if suffix not in TEXT and not is_script(path):
            continue
        try:
            text = path.read_bytes().decode("ascii")
        except UnicodeDecodeError as error:
            line = error.object[:error.start].count(b"\n") + 1
            findings.append(f"{relative.as_posix()}:{line}: byte is not ASCII")
            text = path.read_bytes().decode("utf-8", errors="replace")
        files.append(File(relative.as_posix(), suffix if suffix in TEXT else ".sh", text))
    return files, findings


def is_script(path):
    if path.suffix:
        return False
    with path.open("rb") as stream:
        return stream.read(2) == b"#!"


def without_comments(text):
    """C++ text with comments and string contents blanked; lines stay where they are."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)

    def blank(match):
        found = match.group(0)
        return '""' if found.startswith('"') else re.sub(r"[^\n]", " ", found)

    return pattern.sub(blank, text)


def check_length(file):
    if file.suffix not in CODE:
        return
    count = file.text.count("\n")
    if count > MAX_LINES and file.path not in LONG_FILES:
        yield f"{file.path}:{count}: file has {count} lines, expected at most {MAX_LINES}"
    for number, line in file.lines():
        if len(line) > MAX_COLUMNS:
            yield f"{file.path}:{number}: line has {len(line)} columns, " \
                  f"expected at most {MAX_COLUMNS}"
        if line != line.rstrip():
            yield f"{file.path}:{number}: white space at the end of the line"


def check_function_length(file):
    """Namespaces are not indented: what a brace alone in the first column ends is a function."""
    if file.suffix not in CPP or not file.is_in("src", "include", "cli", "python"):
        return
    start = None
    for number, line in enumerate(without_comments(file.text).splitlines(), start=1):
        if line.startswith("}"):
            length = number - start + 1 if start else 0
            if line.rstrip() == "}" and length > MAX_FUNCTION_LINES:
                yield f"{file.path}:{start}: function has {length} lines, " \
                      f"expected at most {MAX_FUNCTION_LINES}"
            start = None
        elif start is None and line.rstrip().endswith("{"):
            start = None if line.startswith(("namespace", "extern")) else number


def check_spdx(file):
    if file.suffix not in CODE:
        return
    lines = file.text.splitlines()
    first = lines[1] if lines and lines[0].startswith("#!") and len(lines) > 1 else \
        (lines or [""])[0]
    if not re.fullmatch(r"(//|#|/\*) SPDX-License-Identifier: Apache-2\.0( \*/)?", first):
        yield f"{file.path}:1: no SPDX line"


def check_marks(file):
    if file.suffix not in CODE or file.path in ("scripts/lint.py", "tests/scripts/lint_test.py"):
        return
    for number, line in file.lines():
        if match := MARKS.search(line):
            yield f"{file.path}:{number}: {match.group(1)} without an issue's number, " \
                  f"expected {match.group(1)}(#N)"


def folder_of(path):
    """The folder that the order of includes knows: in src/, cli, python; else None."""
    parts = path.split("/")
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    return parts[0] if parts[0] in ("cli", "python") else None


def may_include(path, target):
    own, other = folder_of(path), folder_of(target)
    levels = {folder: level for level, folders in enumerate(LAYERS) for folder in folders}
    if own not in levels or other not in levels or own == other:
        return True
    return levels[other] < levels[own]


def check_includes(file, paths):
    if file.suffix not in CPP:
        return
    for number, line in file.lines():
        match = INCLUDE.match(line)
        if not match:
            continue
        where = f"{file.path}:{number}: includes {match.group(2)}"
        if match.group(1) == "<":
            if match.group(2).startswith("flashtile/"):
                yield where + " with <>, expected quotes"
            if file.path.startswith(FREESTANDING):
                yield where + ", expected no system header: device compilers read this text"
            continue
        target = find_include(file.path, match.group(2), paths)
        if target is None:
            yield where + ", which is not in the tree"
        elif file.is_in("include") and not target.startswith("include/"):
            yield where + ", expected only public headers"
        elif not may_include(file.path, target):
            order = " <- ".join("/".join(folders) for folders in LAYERS)
            yield where + ", which is in a higher layer: " + order
        elif file.path.startswith(FREESTANDING) and not target.startswith(DEVICE_TEXT):
            yield where + ", expected only device text: " + ", ".join(DEVICE_TEXT)


def find_include(from_path, name, paths):
    own_folder = from_path.rsplit("/", 1)[0] + "/"
    folders = ["include/", "src/", "cli/", "tests/", "tests/cuda/emulator/", "python/src/",
               own_folder]
    for folder in folders:
        if folder + name in paths:
            return folder + name
    return None


def check_glossary(file):
    if file.suffix not in CPP | {".py", ".pyi"} or \
            not file.is_in("src", "include", "cli", "python") or \
            file.is_in("python/shim", "python/flashtile/torch/layers"):  # others' names
        return
    for number, line in file.lines():
        for match in SPOKEN_WORDS.finditer(line):
            word = match.group(1)
            yield f"{file.path}:{number}: {word}, expected {GLOSSARY[word]}"


def check_loud(file):
    """The library never prints, aborts or exits."""
    if file.suffix not in CPP or not file.is_in("src", "include"):
        return
    for number, line in enumerate(without_comments(file.text).splitlines(), start=1):
        if match := LOUD.search(line):
            yield f"{file.path}:{number}: {match.group(0).rstrip('( ')} in the library"


def check_links(file, root):
    if file.suffix != ".md":
        return
    in_code = False
    for number, line in file.lines():
        in_code ^= line.lstrip().startswith("```")
        if in_code:
            continue
        for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            goal = (root / file.path).parent / path if path else root / file.path
            if not goal.exists():
                yield f"{file.path}:{number}: dead link {target}"
            elif anchor and goal.suffix == ".md" and anchor not in anchors_of(goal):
                yield f"{file.path}:{number}: dead anchor {target}"


def anchors_of(path):
    headings = re.findall(r"^#+ +(.+?) *$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_environment(files):
    """One file reads the environment, and docs/env.md lists what it reads."""
    read, listed = {}, {}
    for file in files:
        if file.path == "docs/env.md":
            for number, line in file.lines():
                for name in ENV_NAME.findall(line):
                    listed.setdefault(name, number)
        if file.suffix not in CPP or not file.is_in("src", "include", "cli"):
            continue
        for number, line in file.lines():
            if file.path == "src/core/env.cpp":
                for name in re.findall(r'"(FLASHTILE_[A-Z0-9_]+)"', line):
                    read.setdefault(name, number)
            elif re.search(r"\bgetenv\b", line):
                yield f"{file.path}:{number}: getenv, expected only in src/core/env.cpp"
    for name in sorted(read.keys() - listed.keys()):
        yield f"src/core/env.cpp:{read[name]}: {name} is not in docs/env.md"
    for name in sorted(listed.keys() - read.keys()):
        yield f"docs/env.md:{listed[name]}: {name} is not read by src/core/env.cpp"


def check_format(files, root):
    tool = next((name for name in ("clang-format-14", "clang-format") if is_version_14(name)), None)
    if tool is None:
        print("lint: no clang-format 14, so the format is not checked")
        return
    paths = [file.path for file in files if file.suffix in CPP]
    run = subprocess.run([tool, "--style=file", "--dry-run", *paths], cwd=root, text=True,
                         stderr=subprocess.PIPE, check=False)
    wrong = {}
    for path, line in re.findall(r"^(.+?):(\d+):\d+: (?:warning|error): ", run.stderr, re.M):
        wrong.setdefault(path, line)
    for path, line in wrong.items():
        yield f"{path}:{line}: not as clang-format writes it (from here)"


def is_version_14(name):
    """Versions differ in what they write, so one is chosen."""
    if shutil.which(name) is None:
        return False
    run = subprocess.run([name, "--version"], stdout=subprocess.PIPE, text=True, check=False)
    return " 14." in run.stdout


def lint(root, with_format=False):
    """All findings about the tree at `root`."""
    files, findings = load(root)
    paths = {file.path for file in files}
    for file in files:
        for check in (check_length, check_function_length, check_spdx, check_marks,
                      check_glossary, check_loud):
            findings += check(file)
        findings += check_includes(file, paths)
        findings += check_links(file, root)
    findings += check_environment(files)
    if with_format:
        findings += check_format(files, root)
    return findings


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--format", action="store_true", help="also run clang-format 14")
    parser.add_argument("root", nargs="?", default=Path(__file__).resolve().parent.parent,
                        type=Path)
    arguments = parser.parse_args()
    findings = lint(arguments.root, arguments.format)
    for finding in findings:
        print(finding)
    print(f"lint: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
