#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times flashtile beside PyTorch's scaled_dot_product_attention on the CPU.

    bench/cpu_torch.py [--build build/release] [--out bench/results/cpu_torch.jsonl] [--threads 1]

Needs torch and numpy. Both run in one process, interleaved, on the same random memory; a point is
timed only after the two results agree. With one thread the processor time of the process is what
counts, so that a busy machine changes little; with more it is wall time. One JSON line a point, the
first line describes the machine and the commit.
"""

import argparse
import ctypes
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as functional

ROOT = Path(__file__).resolve().parent.parent
DTYPES = {torch.float32: ("f32", 1), torch.float16: ("f16", 2), torch.bfloat16: ("bf16", 3)}


class Tensor(ctypes.Structure):
    """flashtile_tensor of flashtile.h."""
    _fields_ = [("struct_size", ctypes.c_uint32), ("dtype", ctypes.c_int32),
                ("device_type", ctypes.c_int32), ("device_index", ctypes.c_int32),
                ("data", ctypes.c_void_p), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("ndim", ctypes.c_int32),
                ("reserved", ctypes.c_int32)]


class Library:
    """The by-name calls of the C ABI."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(str(path))
        self.lib.flashtile_last_error.restype = ctypes.c_char_p
        self.lib.flashtile_call_new.restype = ctypes.c_void_p

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.lib.flashtile_last_error().decode())

    def call(self, op, tensors, causal):
        call = ctypes.c_void_p(self.lib.flashtile_call_new(op.encode()))
        for name, value in tensors.items():
            shape = (ctypes.c_int64 * value.dim())(*value.shape)
            strides = (ctypes.c_int64 * value.dim())(*value.stride())
            view = Tensor(ctypes.sizeof(Tensor), DTYPES[value.dtype][1], 1, 0, value.data_ptr(),
                          shape, strides, value.dim(), 0)
            self.check(self.lib.flashtile_call_set_tensor(call, name.encode(), ctypes.byref(view)))
        self.check(self.lib.flashtile_call_set_bool(call, b"causal", int(causal)))

        def run(_memory=tensors):  # the call only points at it
            self.check(self.lib.flashtile_call_run(None, call))
        return run


def point_functions(library, heads, seqlen, head_dim, dtype, causal):
    """(name -> function) for forward and forward + backward, and the tensors to compare."""
    make = lambda: torch.randn(1, seqlen, heads, head_dim).to(dtype)
    q, k, v, dout = make(), make(), make(), make()
    out, dq, dk, dv = (torch.full_like(q, float("nan")) for _ in range(4))
    lse = torch.full((1, heads, seqlen), float("nan"))
    inputs = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
    forward = library.call("attention_fwd", inputs, causal)
    backward = library.call("attention_bwd",
                            {**inputs, "dout": dout, "dq": dq, "dk": dk, "dv": dv}, causal)
    leaves = [x.transpose(1, 2).detach().requires_grad_(True) for x in (q, k, v)]

    def torch_forward():
        with torch.no_grad():
            return functional.scaled_dot_product_attention(*leaves, is_causal=causal)

    def torch_both():
        result = functional.scaled_dot_product_attention(*leaves, is_causal=causal)
        return torch.autograd.grad(result, leaves, dout.transpose(1, 2))

    def both():
        forward()
        backward()

    both()
    gradients = torch_both()
    pairs = [(out, torch_forward())] + list(zip((dq, dk, dv), gradients))
    error = max(((a.transpose(1, 2).float() - b.float()).abs().max() / b.float().abs().max()).item()
                for a, b in pairs)
    return {"fwd": {"flashtile": forward, "torch": torch_forward},
            "fwd+bwd": {"flashtile": both, "torch": torch_both}}, error


def interleaved(functions, clock, rounds):
    """Median, least and largest milliseconds of each function, taken in turns."""
    samples = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            begin = clock()
            function()
            samples[name].append(1e3 * (clock() - begin))
    return {name: (statistics.median(s), min(s), max(s)) for name, s in samples.items()}


def machine(arguments):
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo", encoding="ascii")
                  if line.startswith("model name")), platform.processor())
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], text=True,
                            capture_output=True, check=False).stdout.strip()
    return {"cpu": model, "threads": arguments.threads, "torch": torch.__version__,
            "commit": commit, "date": time.strftime("%Y-%m-%d"),
            "clock": "process time" if arguments.threads == 1 else "wall"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--out", default="")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    library = Library(ROOT / arguments.build / "libflashtile.so")
    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    lines = [machine(arguments)]
    print(json.dumps(lines[0]), flush=True)
    for dtype in (torch.float32, torch.bfloat16):
        for head_dim in (64, 128):
            for seqlen, heads in ((512, 16), (1024, 16), (2048, 8), (4096, 4)):
                for causal in (False, True):
                    functions, error = point_functions(library, heads, seqlen, head_dim, dtype,
                                                       causal)
                    limit = 1e-4 if dtype == torch.float32 else 4e-2
                    if not error < limit:
                        sys.exit(f"results differ by {error}: nothing is timed")
                    flop = 4 * heads * seqlen**2 * head_dim * (0.5 if causal else 1)
                    for op, candidates in functions.items():
                        times = interleaved(candidates, clock, arguments.rounds)
                        scale = flop * (1 if op == "fwd" else 3.5) / 1e6
                        line = {"dtype": DTYPES[dtype][0], "head_dim": head_dim, "seqlen": seqlen,
                                "heads": heads, "causal": causal, "op": op, "max_rel_diff": error}
                        for name, (median, low, high) in times.items():
                            line[name] = {"ms": round(median, 3), "ms_min": round(low, 3),
                                          "ms_max": round(high, 3),
                                          "gflops": round(scale / median, 1)}
                        line["speedup"] = round(times["torch"][0] / times["flashtile"][0], 2)
                        lines.append(line)
                        print(json.dumps(line), flush=True)
    if arguments.out:
        Path(arguments.out).write_text("".join(json.dumps(line) + "\n" for line in lines),
                                       encoding="ascii")


if __name__ == "__main__":
    main()
