#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks for shared symbols in object files that are compiled for one instruction set.

    scripts/check_symbols.py [--nm NM] OBJECT...

Of an inline function that several objects hold, the linker keeps any one copy. If that is the copy
of an AVX-512 file, the library dies on every older processor. So an object named *_<isa>.cpp.o may
define weak symbols only inside `flashtile::cpu::<isa>` (or instantiated for a type from there).
Other objects are passed over. Exit status 1 where a symbol breaks the rule, 2 where the check
cannot be made.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ISAS = ["avx512_amx", "avx512_bf16", "avx512", "avx2", "scalar", "neon"]
ISA_OBJECT = re.compile(r"_(" + "|".join(ISAS) + r")(\.cpp)?\.(o|obj)$")
# nm's letters for a definition that the linker may merge: weak, weak object, unique.
SHARED_KINDS = "WVu"
# Data without code: references to the exception handler's address, bookkeeping of a sanitizer.
HARMLESS = re.compile(r"^(DW\.ref\.|__odr_asan|\.?__sancov|__start_|__stop_)")


def isa_of(path):
    """The instruction set that an object file's name ends in, or None."""
    match = ISA_OBJECT.search(Path(path).name)
    return match.group(1) if match else None


def shared_symbols(nm_output, isa):
    """The demangled names of an `nm -C` listing that other objects could define as well."""
    inside = re.compile(rf"\bflashtile::cpu::{isa}::")
    found = []
    for line in nm_output.splitlines():
        match = re.match(r"[0-9a-fA-F]+ (\w) (.*)", line)
        if not match or match.group(1) not in SHARED_KINDS:
            continue
        name = match.group(2)
        if not inside.search(name) and not HARMLESS.match(name):
            found.append(name)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nm", default="nm", help="the nm of the objects' architecture")
    parser.add_argument("objects", nargs="+", metavar="OBJECT")
    args = parser.parse_args()

    isa_objects = [(path, isa) for path in args.objects if (isa := isa_of(path))]
    if not isa_objects:
        print("check_symbols: none of the files is named *_<isa>.cpp.o", file=sys.stderr)
        return 2
    broken = False
    for path, isa in isa_objects:
        listing = subprocess.run(
            [args.nm, "-C", "--defined-only", path], capture_output=True, text=True
        )
        if listing.returncode != 0:
            print(f"check_symbols: {listing.stderr.strip()}", file=sys.stderr)
            return 2
        for name in shared_symbols(listing.stdout, isa):
            print(f"{path}: shared symbol outside flashtile::cpu::{isa}: {name}")
            broken = True
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
