#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention of a pretrained model's layer, and of the same text over and over, beside plain code.

    scripts/demo.py [BUILD]

On the CPU, and on a GPU where there is one. A text that is repeated n times has the same attention
output at each of its tokens: every key is there n times. So the model's own output is the expected
one for the long sequence too.
"""

import json
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAYER = ROOT / "examples" / "minilm_layer.safetensors"
COPIES = 69  # of 240 tokens: 16560


def repeat_tokens(source, copies, target):
    """Writes the tensors of a .safetensors file, (1, seqlen, ...) each, repeated along seqlen."""
    content = source.read_bytes()
    begin = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:begin])
    header.pop("__metadata__", None)
    pieces, end = [], 0
    for entry in header.values():
        first, last = entry["data_offsets"]
        pieces.append(content[begin + first:begin + last])
        entry["shape"][1] *= copies
        entry["data_offsets"] = [end, end + (last - first) * copies]
        end = entry["data_offsets"][1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with target.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for piece in pieces:
            for _ in range(copies):
                stream.write(piece)


def attend(program, path, *flags):
    """What `flashtile attend --check` prints, taken apart."""
    result = subprocess.run([program, "attend", path, "--check", *flags], stdout=subprocess.PIPE,
                            text=True, check=False)
    if result.returncode != 0:
        print(result.stdout)
        raise SystemExit(f"demo: attend ended with {result.returncode}")
    name, place, time = re.search(r"^  (\w+), (\d+ threads?|cuda:\d+), (.+)$", result.stdout,
                                  re.M).groups()
    return {
        "implementation": name + (" on a GPU" if place.startswith("cuda") else ""),
        "time": time,
        "memory": re.search(r"peak memory (\S+ \S+)", result.stdout, re.M).group(1),
        "model": re.search(r"^out +(\S+).*the input file's own$", result.stdout, re.M).group(1),
        "double": re.search(r"^out +(\S+).*double precision", result.stdout, re.M).group(1),
    }


def has_gpu(program):
    """True where the program sees a GPU and has what it takes to compile for it."""
    info = subprocess.run([program, "info"], stdout=subprocess.PIPE, text=True, check=False).stdout
    return re.search(r"^cuda:0 .*^nvrtc +\d", info, re.M | re.S) is not None


def in_base_units(text):
    """A number with its unit, in seconds or bytes."""
    number, unit = text.split()
    factors = {"us": 1e-6, "ms": 1e-3, "s": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
    return float(number) * factors[unit]


def print_table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def main():
    build = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "release")
    program = build / "flashtile"
    print("Attention of layer 3 of all-MiniLM-L6-v2 on the opening of Alice in Wonderland\n"
          "(12 heads of 32, float32), and of the same text 69 times over. Errors are the largest\n"
          "of any element, against the model's own output and against double precision.\n",
          flush=True)
    on_gpu = has_gpu(program)
    rows = [("tokens", "implementation", "error to model", "error to double", "time",
             "peak memory")]
    with tempfile.TemporaryDirectory() as folder:
        long_path = Path(folder, "long.safetensors")
        repeat_tokens(LAYER, COPIES, long_path)
        for path, tokens, repeat in ((LAYER, "240", "20"), (long_path, str(240 * COPIES), "1")):
            runs = [attend(program, path, "--repeat", repeat),
                    attend(program, path, "--repeat", repeat, "--impl", "plain")]
            shown = runs
            if on_gpu:
                shown = [attend(program, path, "--repeat", "20", "--device", "cuda"), *runs]
            rows += [(tokens, run["implementation"], run["model"], run["double"], run["time"],
                      run["memory"]) for run in shown]
    print_table(rows)
    times, memory = ([in_base_units(run[key]) for run in runs] for key in ("time", "memory"))
    print(f"\n{240 * COPIES} tokens: {times[1] / times[0]:.1f} times as fast as the plain "
          f"implementation, in 1/{memory[1] / memory[0]:.0f} of its memory")


if __name__ == "__main__":
    main()
