# SPDX-License-Identifier: Apache-2.0
"""What the docs say about the tree and the operator table is so."""

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import lint  # noqa: E402

PROGRAM = Path(os.environ.get("FLASHTILE_BUILD_DIR", ROOT / "build" / "release"), "flashtile")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = "src|include|cli|cmake|scripts|tests|docs|examples|bench"


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def section(text, heading):
    """What stands below a heading, up to the next one of its level or above."""
    level = len(heading) - len(heading.lstrip("#"))
    parts = re.split(rf"^{re.escape(heading)}.*\n", text, maxsplit=1, flags=re.MULTILINE)
    assert len(parts) == 2, heading
    return re.split(rf"^#{{1,{level}}} ", parts[1], maxsplit=1, flags=re.MULTILINE)[0]


def table_cells(text, column):
    """One column of the tables of a text, without their head."""
    rows = [line.strip().strip("|").split("|") for line in text.splitlines()
            if line.startswith("|")]
    ruled = {i for i, row in enumerate(rows) if set("".join(row)) <= set("-: ")}
    return [row[column].strip() for i, row in enumerate(rows)
            if len(row) > column and i not in ruled and i + 1 not in ruled]


def code_words(text):
    return re.findall(r"`([^`]+)`", text)


def instruction_sets():
    return re.findall(r"^flashtile_isa\((\w+)", read("cmake/isa.cmake"), re.MULTILINE)


def table_names(op):
    """Tensors and options of an op, as `flashtile info` lists them."""
    listing = subprocess.run([PROGRAM, "info", op], stdout=subprocess.PIPE, text=True, check=True)
    blocks = listing.stdout.split("\n\n")
    return {line.split()[0] for block in blocks if block.startswith(("tensor ", "option "))
            for line in block.splitlines()[1:] if line.strip()}


def explains(problem):
    """The exit status of `flashtile explain`."""
    return subprocess.run([PROGRAM, "explain", problem], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, check=False).returncode


class DocsTest(unittest.TestCase):
    def test_paths_exist(self):
        """<isa>, <op>, NAME and the like stand for something that exists."""
        stands_for = {"isa": "avx2", "op": "attention", "folder": "unit", "name": "files_npy",
                      "family": "scan"}
        count = 0
        for page in PAGES:
            for found in re.findall(rf"(?<![\w./-])(?:{FOLDERS})/[\w./<>*-]*", page.read_text()):
                path = re.sub(r"<(\w+)>", lambda match: stands_for[match.group(1)],
                              found.rstrip(".,").replace("NAME", "*"))
                count += 1
                self.assertTrue(any(ROOT.glob(path.rstrip("/"))), f"{page.name}: {found}")
        self.assertGreater(count, 100)

    def test_glossary_is_what_the_lint_enforces(self):
        listed = {}
        for line in section(read("docs/glossary.md"), "## Sizes and tensors").splitlines():
            cells = line.strip().strip("|").split("|")
            if len(cells) == 3:
                for word in code_words(cells[2]):
                    listed[word] = cells[0]
        self.assertEqual(set(listed), set(lint.GLOSSARY))
        for word, instead in lint.GLOSSARY.items():
            for good in instead.split(" or "):
                self.assertIn(good, listed[word], word)

    def test_readme_is_short(self):
        self.assertLess(len(read("README.md").splitlines()), 250)

    def test_readme_lists_every_option(self):
        names = table_names("attention_fwd") | table_names("attention_bwd")
        arguments = {"q", "k", "v", "dout", "dq", "dk", "dv"}  # every call has them
        table = section(read("README.md"), "## Options").split("| preset |")[0]
        listed = set(code_words(" ".join(table_cells(table, 0) + table_cells(table, 3))))
        self.assertEqual(listed, names - arguments)

    def test_what_the_readme_calls_refused_is_refused(self):
        table = section(read("README.md"), "## Options")
        refused = [line for line in table.splitlines() if re.search(r"\| refused \|$", line)]
        append = "k_new:v_new:sn2:seqused_k={20,20}"
        company = {"k_new": append, "rotary_cos": append + ":rotary_cos:rotary_sin:rp4:d16",
                   "k_scale": "k.i8:v.i8:k_scale"}
        self.assertGreater(len(refused), 1)
        for line in refused:
            option = code_words(line)[0]
            rest = "b2:sk40:" + company.get(option, option)
            self.assertEqual(explains("attention_fwd:" + rest), 0, option)
            self.assertNotEqual(explains("attention_bwd:" + rest), 0, option)
        self.assertNotEqual(explains("attention_fwd:d1025"), 0)
        self.assertEqual(explains("attention_fwd:d1024"), 0)

    def test_readme_lists_every_implementation(self):
        table = section(read("README.md"), "## Implementations")
        names = code_words(" ".join(table_cells(table, 0)))
        expected = [f"attention_{way}_{isa}" for isa in [*instruction_sets(), "reference"]
                    for way in ("fwd", "bwd")]
        expected += re.findall(r'"(attention_\w+)"', read("src/cuda/registry.cpp"))
        self.assertEqual(sorted(names), sorted(expected))

    def test_readme_lists_every_preset(self):
        header = read("include/flashtile/presets.hpp")
        names = re.findall(r"^inline constexpr std::string_view (\w+)", header, re.MULTILINE)
        names += re.findall(r"^inline std::string (\w+)\(", header, re.MULTILINE)
        table = section(read("README.md"), "## Options").split("| preset |")[1]
        listed = [re.sub(r"\(.*", "", word) for line in table.splitlines()
                  for word in code_words(line.split("|")[1] if line.startswith("|") else "")]
        self.assertEqual(sorted(listed), sorted(names))

    def test_architecture_lists_the_instruction_sets(self):
        listed = table_cells(section(read("docs/architecture.md"), "## CPU backend"), 0)
        self.assertEqual([word for cell in listed for word in code_words(cell)],
                         instruction_sets())

    def test_an_instruction_set_has_just_the_places_of_its_recipe(self):
        """All that names NEON, which no other instruction set's text has to name."""
        recipe = section(read("docs/adding.md"), "## An instruction set")
        listed = {found.replace("<isa>", "neon")
                  for found in re.findall(r"^\d+\. `([^`]+)`", recipe, re.MULTILINE)}
        actual = set()
        for folder in ("src", "cmake", "scripts"):
            for path in (ROOT / folder).rglob("*"):
                if path.suffix not in (".cpp", ".hpp", ".cmake", ".py"):
                    continue
                if "neon" in path.stem or re.search(r"\bneon\b|kNeon", path.read_text()):
                    actual.add(path.relative_to(ROOT).as_posix())
        self.assertEqual(listed, actual)
        counts = re.findall(r"^(?:New files|A line each) .*\b(\d+)\b.*:$", recipe, re.MULTILINE)
        self.assertEqual(sum(int(count) for count in counts), len(listed))

    def test_an_op_of_linear_attention_has_just_the_places_of_its_recipe(self):
        """All that names an op that is an entry of a family and nothing else."""
        recipe = section(read("docs/adding.md"), "## An op of linear attention")
        count = int(re.search(r"(\d+) files", recipe).group(1))
        listed = re.findall(r"^\d+\. `([^`]+)`", recipe, re.MULTILINE)[:count]
        actual = {path.relative_to(ROOT).as_posix()
                  for folder in ("src", "include", "docs") for path in (ROOT / folder).rglob("*")
                  if path.suffix in (".cpp", ".hpp", ".md") and path.name != "api.md"  # written
                  and re.search(r"\biplr_delta_rule(_fwd|_bwd|_step)?\b", path.read_text())}
        self.assertEqual({path.replace("<family>", "delta") for path in listed}, actual)

    def test_a_recurrence_has_just_the_places_of_its_recipe(self):
        """The toy op, which is all in one file, needs nothing that is not in the recipe."""
        recipe = section(read("docs/adding.md"), "## An op of linear attention")
        listed = dict(re.findall(r"^(\d)\. [^`]*`([^`]+)`", recipe, re.MULTILINE))
        actual = {path.relative_to(ROOT).as_posix()
                  for path in (ROOT / "src").rglob("*.?pp")
                  if re.search(r"\bhgrn_reference\b|HgrnHead", path.read_text())}
        family = "src/ops/scan/ops.cpp"
        self.assertEqual(listed["1"].replace("<family>", "scan"), family)
        self.assertEqual({family, listed["5"], listed["6"]}, actual)
        for folder in ("src", "include", "cli"):
            for path in (ROOT / folder).rglob("*.?pp"):
                self.assertNotIn("leaky_sum", path.read_text(), path)

    def test_pages_list_every_op_of_linear_attention(self):
        listing = subprocess.run([PROGRAM, "info"], stdout=subprocess.PIPE, text=True, check=True)
        ops = set(re.findall(r"^(\w+)_step:", listing.stdout, re.MULTILINE))
        self.assertGreater(len(ops), 20)
        first_cells = table_cells(read("docs/linear.md"), 0)
        self.assertEqual({word for cell in first_cells for word in code_words(cell)}, ops)
        families = table_cells(section(read("docs/architecture.md"), "## Linear attention"), 2)
        self.assertEqual({word for cell in families for word in cell.split(", ")}, ops)

    def test_recipes_keep_their_budgets(self):
        adding = read("docs/adding.md")
        for heading, count in (("### With a name, for everybody: 3 files", 3),
                               ("### As an option of its own: 9 files and tests", 9),
                               ("## An op", 6), ("## An op of linear attention", 6)):
            steps = re.findall(r"^(\d+)\. ", section(adding, heading), re.MULTILINE)
            self.assertEqual(steps, [str(n) for n in range(1, count + 1)], heading)


if __name__ == "__main__":
    unittest.main()
