# SPDX-License-Identifier: Apache-2.0
"""What the benches of the CPU share: their arguments, their clock, their lines."""

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def parser_of(doc):
    """The arguments that each of these benches has."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--out", default="")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    return parser


def clock_of(arguments):
    return time.process_time if arguments.threads == 1 else time.perf_counter


def write_lines(arguments, lines):
    if arguments.out:
        Path(arguments.out).write_text("".join(json.dumps(line) + "\n" for line in lines),
                                       encoding="ascii")


def machine(arguments):
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo", encoding="ascii")
                  if line.startswith("model name")), platform.processor())
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], text=True,
                            capture_output=True, check=False).stdout.strip()
    versions = {}
    for package in ("torch", "jax", "onnxruntime", "openvino"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    return {"cpu": model, "threads": arguments.threads, "versions": versions, "commit": commit,
            "date": time.strftime("%Y-%m-%d"), "load": round(os.getloadavg()[0], 1),
            "clock": "process time" if arguments.threads == 1 else "wall"}
