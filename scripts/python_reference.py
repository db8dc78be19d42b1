#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what is derived of the Python package: the stubs of flashtile.ops and the API reference.

    scripts/python_reference.py [--build build/release] [--check]

python/flashtile/ops.pyi is made from the operator table, as the program `flashtile` of a build
lists it; docs/api.md from signatures and docstrings, which are read, not imported. --check writes
nothing, and fails where one of them is not what would be written.
"""

import argparse
import ast
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "flashtile"
STUBS = PACKAGE / "ops.pyi"
REFERENCE = ROOT / "docs" / "api.md"
WIDTH = 100
TYPES = {"bool": "bool", "int": "int", "uint": "int", "float": "float", "text": "str"}
SECTIONS = ("Args", "Returns", "Raises")


def columns(block):
    """Rows of a table of `flashtile info`, split where the words of its head begin."""
    head, *rows = block.splitlines()
    starts = [match.start() for match in re.finditer(r"\S+", head)]
    ends = [*starts[1:], None]
    return [[row[start:end].strip() for start, end in zip(starts, ends)] for row in rows]


def op_table(program, op):
    """(doc, [(name, direction, is required)], [(option, type)]) of an op."""
    text = subprocess.run([program, "info", op], stdout=subprocess.PIPE, text=True, check=True)
    title, *blocks = text.stdout.strip().split("\n\n")
    tensors, options = [], []
    for block in blocks:
        if block.startswith("tensor "):
            for first, *_ in columns(block):
                name, direction = first.split(maxsplit=1)
                tensors.append((name, direction.partition(",")[0], "optional" not in direction))
        elif block.startswith("option "):
            options = [(name, TYPES[kind]) for name, kind, *_ in columns(block)]
    return title.partition(": ")[2], tensors, options


def op_tables(program):
    """Tables of all ops by name."""
    listing = subprocess.run([program, "info"], stdout=subprocess.PIPE, text=True, check=True)
    names = re.findall(r"^(\w+): \1_\w+", listing.stdout, re.MULTILINE)
    return {name: op_table(program, name) for name in dict.fromkeys(names)}


def op_parameters(tensors, options):
    """Parameters of an op's function, in the order of flashtile.ops."""
    positional = [f"{name}: Array" for name, direction, is_required in tensors
                  if is_required and direction != "out" and "*" not in name]
    named = [f"{name}: Array | None = ..." for name, direction, is_required in tensors
             if not (is_required and direction != "out") and "*" not in name]
    named += [f"{name[:-2]}: Mapping[str, Array] | None = ..." for name, *_ in tensors
              if "*" in name]
    named += [f"{name[:-2]}: Mapping[str, {kind}] | None = ..." for name, kind in options
              if "*" in name]
    named += [f"{name}: {kind} | None = ..." for name, kind in options if "*" not in name]
    named += ["results: Sequence[str] = ...", "dtypes: Mapping[str, str] | None = ...",
              "implementation: str | None = ...", "max_workers: int = ..."]
    return [*positional, "*", *named]


def filled(start, parts, end):
    """A call's text in lines of at most WIDTH columns."""
    lines = [start]
    for place, part in enumerate(parts):
        part += end if place == len(parts) - 1 else ","
        if len(lines[-1]) + 1 + len(part) > WIDTH:
            lines.append("       ")
        lines[-1] += part if lines[-1].endswith("(") else " " + part
    return "\n".join(lines)


def stubs(tables):
    """python/flashtile/ops.pyi."""
    text = ('# SPDX-License-Identifier: Apache-2.0\n"""Types of flashtile.ops, written by '
            'scripts/python_reference.py."""\nfrom collections.abc import Mapping, Sequence\n'
            "from typing import Any\n\nArray = Any\n\n")
    names = filled("__all__ = [", [f'"{name}"' for name in tables], "]").replace("[ ", "[")
    text += names + "\n"
    for name, (_, tensors, options) in tables.items():
        text += "\n" + filled(f"def {name}(", op_parameters(tensors, options),
                              ") -> tuple[Array, ...]: ...")
    return text + "\n"


def public_names(tree):
    """Names in __all__ of a module."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__" and \
                isinstance(node.value, ast.List):
            return [entry.value for entry in node.value.elts]
    return []


def parsed(path):
    """A module's tree; fields have the comment behind `#:` on their line."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            node.comment = lines[node.lineno - 1].partition("#: ")[2]
    return tree


def file_of(module):
    """The file of a module "jax.linear" of the package; None: there is none."""
    path = PACKAGE / module.replace(".", "/")
    for file in (path.with_suffix(".py") if module else path, path / "__init__.py"):
        if file.is_file():
            return file
    return None


def definitions(tree):
    """Functions and classes of a module, and those that it takes from others of the package."""
    found = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef,
                                                                        ast.ClassDef))}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flashtile."):
            path = file_of(node.module.partition(".")[2])
            if path is not None:
                inner = definitions(parsed(path))
                found.update({alias.asname or alias.name: inner[alias.name]
                              for alias in node.names if alias.name in inner})
    return found


def signature(name, function):
    """The signature of a function in lines; self is left out."""
    arguments = function.args
    if arguments.args and arguments.args[0].arg in ("self", "cls"):
        del arguments.args[0]
    text = ast.unparse(arguments)
    parts, depth, part = [], 0, ""
    for letter in text:
        depth += letter in "([{"
        depth -= letter in ")]}"
        if letter == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += letter
    parts = [entry for entry in [*parts, part.strip()] if entry]
    end = f") -> {ast.unparse(function.returns)}" if function.returns else ")"
    return filled(f"{name}(", parts, end) if parts else f"{name}({end}"


def entries(lines):
    """The list of a section: what is indented least begins an entry."""
    text = textwrap.dedent("\n".join(lines)).strip("\n")
    found = []
    for line in text.splitlines():
        if line.startswith(" ") and found:
            found[-1] += " " + line.strip()
        elif line.strip():
            found.append(line.strip())
    return found


def prose(docstring):
    """A docstring as Markdown: sections become lists, examples blocks."""
    out, section = [], []

    def close():
        if section:
            title, *lines = section
            rows = entries(lines)
            out.append(f"{title}:\n" + "\n".join(
                "- " + re.sub(r"^([\w*, ]+?): ", r"`\1`: ", row) for row in rows)
                if title != "Returns" else f"{title}: " + " ".join(rows))
            section.clear()

    for paragraph in inspect.cleandoc(docstring).split("\n\n"):
        title = paragraph.partition(":")[0]
        if title in SECTIONS and paragraph.startswith(title + ":\n"):
            close()
            section[:] = [title, *paragraph.splitlines()[1:]]
        elif section and paragraph.startswith("    "):
            section.extend(paragraph.splitlines())
        else:
            close()
            is_code = paragraph.startswith((">>> ", "    "))
            out.append(f"```pycon\n{textwrap.dedent(paragraph)}\n```" if is_code else paragraph)
    close()
    return "\n\n".join(out)


def member_text(member):
    """A field or a method of a class as Markdown; nothing for what is not described."""
    if isinstance(member, ast.AnnAssign):
        comment = member.comment and f": {member.comment}"
        return f"\n`{member.target.id}: {ast.unparse(member.annotation)}`{comment}\n"
    docstring = isinstance(member, ast.FunctionDef) and ast.get_docstring(member)
    if not docstring or member.name.startswith("_"):
        return ""
    head = f"{member.name}: {ast.unparse(member.returns)}" \
        if any(getattr(one, "id", "") == "property" for one in member.decorator_list) \
        else " ".join(signature(member.name, member).split())
    return f"\n`{head}`\n\n{prose(docstring)}\n"


def described(name, node):
    """A function, or a class with its public members, as Markdown."""
    text = f"### {name}\n\n"
    if isinstance(node, ast.FunctionDef):
        text += f"```python\n{signature(name.rpartition('.')[2], node)}\n```\n\n"
    docstring = ast.get_docstring(node)
    text += prose(docstring) + "\n" if docstring else ""
    if isinstance(node, ast.ClassDef):
        text += "".join(map(member_text, node.body))
    return text + "\n"


def modules():
    """Names of the modules that say what is public, the package itself first, without ops."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        is_public = not any(part.startswith("_") for part in parts) and parts != ("ops",)
        if is_public and "\n__all__ = " in path.read_text(encoding="utf-8"):
            found.append(".".join(parts))
    return sorted(found)


def listed(functions):
    """Functions of stubs, a line for each."""
    text = ""
    for node in functions:
        names = [one.arg for one in node.args.args]
        names += ["*", *[one.arg for one in node.args.kwonlyargs]] if node.args.kwonlyargs else []
        first = (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ")
        text += f"- `{node.name}({', '.join(names)})`: {first}\n"
    return text + "\n"


def reference(tables):
    """docs/api.md."""
    text = ("# Python API\n\nWritten by `scripts/python_reference.py` from the docstrings; "
            "[Python](python.md) introduces it.\n\n")
    for module in modules():
        path = file_of(module)
        tree = parsed(path)
        full = f"flashtile.{module}" if module else "flashtile"
        text += f"## {full}\n\n{prose(ast.get_docstring(tree))}\n\n"
        stubs_path = path.with_suffix(".pyi")
        if stubs_path.exists():
            text += listed(node for node in parsed(stubs_path).body
                           if isinstance(node, ast.FunctionDef))
            continue
        found = definitions(tree)
        for name in public_names(tree):
            if name in found:
                text += described(f"{full}.{name}", found[name])
    tree = parsed(PACKAGE / "ops.py")
    text += f"## flashtile.ops\n\n{prose(ast.get_docstring(tree))}\n\n"
    text += ("`help(flashtile.ops.NAME)` or `flashtile info NAME` lists tensors with shapes and "
             "dtypes, and options.\n\n")
    for name, (doc, tensors, options) in tables.items():
        given = [part.partition(":")[0] for part in op_parameters(tensors, options)[:-4]]
        text += f"- `{name}({', '.join(given)})`: {doc}.\n"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    tables = op_tables(arguments.build / "flashtile")
    stale = []
    for path, text in ((STUBS, stubs(tables)), (REFERENCE, reference(tables))):
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(str(path.relative_to(ROOT)))
            if not arguments.check:
                path.write_text(text, encoding="utf-8")
    if arguments.check and stale:
        print(f"not current: {', '.join(stale)}; run scripts/python_reference.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
