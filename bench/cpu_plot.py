# SPDX-License-Identifier: Apache-2.0
"""What the plots of CPU benches share: their arguments, their lines, their titles."""

import argparse
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def read_results(doc, name):
    """The arguments, what the first line of the results says of the machine, and the others."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--results", default=f"bench/results/{name}.jsonl")
    parser.add_argument("--out", default=f"docs/{name}.png")
    arguments = parser.parse_args()
    text = (ROOT / arguments.results).read_text(encoding="ascii")
    about, *lines = [json.loads(line) for line in text.splitlines()]
    return arguments, about, lines


def save(figure, arguments, about, what, behind=""):
    threads = "one core" if about["threads"] == 1 else f"{about['threads']} cores"
    figure.suptitle(f"{what} on {threads} of an {about['cpu']}{behind}", fontsize=11)
    figure.savefig(ROOT / arguments.out, dpi=100)
