#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention on a CPU as shares of what the machine does at best, beside the share that is wanted.

    bench/cpu_targets.py [--build build/release] [--out bench/results/cpu_targets.jsonl]
                         [--threads 2] [--seconds 0.5] [--parts peak,share,options,f16,decode]
                         [--peers bench/results/cpu_peers.jsonl]

Each point is a run of `flashtile bench --roofline`: the peaks of this moment, a check of the
results, then the time. One JSON line a point with its share, the wanted one and whether it is
reached; the first line describes the machine and the commit. Takes some four minutes.

    peak     what `flashtile bench` says the machine can do, beside a large product of PyTorch's
    share    f32 and bf16, of the peak of multiply-adds or of dot products
    options  rate for equal visited work, of that of dense attention with the same head_dim; visited
             is each key that some query of a block of 96 sees
    f16      rate, of that of f32
    decode   of the read bandwidth
    peers    with --peers: speed beside the best peer in results of bench/cpu_peers.py
"""

import argparse
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

from cpu_bench import ROOT, machine, write_lines

BLOCK = 96  # queries of a block of the kernels
SHARES = {  # dtype -> pass -> mask -> wanted share at head_dim 64 and 128
    "f32": {"fwd": {"full": (0.86, 0.92), "causal": (0.80, 0.86)},
            "fwd+bwd": {"full": (0.80, 0.86), "causal": (0.75, 0.80)}},
    "bf16": {"fwd": {"full": (0.72, 0.80), "causal": (0.66, 0.75)},
             "fwd+bwd": {"full": (0.62, 0.72), "causal": (0.58, 0.68)}},
}
MIXED = (96, 1300, 40, 700, 2048, 512, 300, 1100)  # lengths of packed sequences
DECODE = {  # name -> problem; its wanted share of the read bandwidth is 0.85
    "contiguous": "hq16:sq1:sk4096:d64:bf16",
    "pages of 16": "hq16:sq1:sk4096:d64:bf16:page_size=16:block_table",
    "pages of 256": "hq16:sq1:sk4096:d64:bf16:page_size=256:block_table",
    "head_dim 128": "hq16:sq1:sk4096:d128:bf16",
    "GQA 4:1": "hq16:hkv4:sq1:sk4096:d64:bf16",
    "GQA 4:1, pages of 16": "hq16:hkv4:sq1:sk4096:d64:bf16:page_size=16:block_table",
    "f32": "hq16:sq1:sk4096:d64",
    "i8": "hq16:sq1:sk4096:d64:bf16:k.i8:v.i8",
    "e4m3": "hq16:sq1:sk4096:d64:bf16:k.e4m3:v.e4m3",
    "batch_invariant": "hq16:sq1:sk4096:d64:bf16:batch_invariant",
}


class Bench:
    """Runs of the program."""

    def __init__(self, arguments):
        self.program = ROOT / arguments.build / "flashtile"
        self.options = ["--json", "--roofline", "--no-plain", "--threads", str(arguments.threads),
                        "--seconds", str(arguments.seconds)]

    def run(self, problem, op="fwd"):
        kind = "attention_bwd" if op == "fwd+bwd" else "attention_fwd"
        command = [self.program, "bench", f"{kind}:{problem}", "--pass", op, *self.options]
        result = subprocess.run(command, text=True, capture_output=True, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"{problem}: {result.stdout}{result.stderr}")
        return json.loads(result.stdout)


def point(part, name, op, result, share, wanted, at_least=True):
    """A line of the results."""
    return {"part": part, "name": name, "op": op, "problem": result["problem"],
            "ms": round(result["ms"], 3), "ms_min": round(result["ms_min"], 3),
            "max_err": result["max_err"], "share": round(share, 3), "wanted": wanted,
            "reached": share >= wanted if at_least else share <= wanted}


def peak_points(bench):
    """The peaks twice, and the rate of one large product where there is PyTorch."""
    result = bench.run("hq1:sq64:d64:bf16")
    float_result = bench.run("hq1:sq64:d64")
    line = {"part": "peak", "f32_gflops": round(float_result["peak_gflops"], 1),
            "bf16_gflops": round(result["peak_gflops"], 1),
            "read_gbytes_per_s": round(result["read_gbytes_per_s"], 1)}
    try:
        import torch  # pylint: disable=import-outside-toplevel
    except ImportError:
        yield line
        return
    torch.set_num_threads(float_result["threads"])
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        a = torch.randn(2048, 2048).to(dtype)
        times = []
        for _ in range(7):
            begin = time.perf_counter()
            torch.matmul(a, a)
            times.append(time.perf_counter() - begin)
        line[f"{name}_product_gflops"] = round(2 * 2048**3 / statistics.median(times) / 1e9, 1)
    yield line


def share_points(bench):
    for dtype, passes in SHARES.items():
        for op, masks in passes.items():
            for mask, wanted in masks.items():
                for head_dim, share in zip((64, 128), wanted):
                    for seqlen, heads in ((2048, 8), (4096, 4)):
                        problem = f"hq{heads}:sq{seqlen}:d{head_dim}:{dtype}" + \
                            (":causal" if mask == "causal" else "")
                        result = bench.run(problem, op)
                        name = f"{dtype} {mask} d{head_dim} {seqlen}"
                        yield point("share", name, op, result,
                                    result["gflops"] / result["peak_gflops"], share)


def visited(lengths, window=None, causal=False):
    """Pairs of a query and a key that its block visits."""
    pairs = 0
    for length in lengths:
        for begin in range(0, length, BLOCK):
            end = min(begin + BLOCK, length)
            first = max(0, begin - window) if window is not None else 0
            pairs += (end - begin) * ((end if causal else length) - first)
    return pairs


def option_points(bench):
    """Rates of pairs beside those of dense attention, which has the same heads and head_dim."""
    total, ends = 0, [0]
    for length in MIXED:
        total += length
        ends.append(total)
    ends = "{" + ",".join(str(end) for end in ends) + "}"
    relative = ":score='score + t[head, q_idx - k_idx + 2047]':aux.t[hq,4095]"
    shape = "sq2048:d64"
    cases = {
        "GQA 4:1": (f"hq8:hkv2:{shape}", visited([2048])),
        "window 256": (f"hq8:{shape}:causal:window_left=256", visited([2048], 256, True)),
        "ALiBi": (f"hq8:{shape}:alibi_slopes:dalibi_slopes=none", visited([2048])),
        "relative bias": (f"hq8:{shape}{relative}", visited([2048])),
        "mixed lengths": (f"hq8:d64:cu_seqlens_q={ends}:cu_seqlens_k={ends}", visited(MIXED)),
    }
    for dtype in ("f32", "bf16"):
        for op in ("fwd", "fwd+bwd"):
            dense = bench.run(f"hq8:{shape}:{dtype}", op)
            for name, (problem, pairs) in cases.items():
                if op == "fwd":
                    problem = problem.replace(":dalibi_slopes=none", "")
                result = bench.run(f"{problem}:{dtype}", op)
                rate = pairs / result["ms"] / (visited([2048]) / dense["ms"])
                yield point("options", f"{dtype} {name}", op, result, rate, 0.9)


def half_points(bench):
    for causal in ("", ":causal"):
        for op in ("fwd", "fwd+bwd"):
            problem = f"hq8:sq2048:d64{causal}"
            single = bench.run(problem, op)
            half = bench.run(f"{problem}:f16", op)
            yield point("f16", "f16" + causal.replace(":", " "), op, half,
                        single["ms"] / half["ms"], 0.85)


def decode_points(bench):
    for name, problem in DECODE.items():
        result = bench.run(f"b8:{problem}")
        yield point("decode", name, "fwd", result,
                    result["gbytes_per_s"] / result["read_gbytes_per_s"], 0.85)


PARTS = {"peak": peak_points, "share": share_points, "options": option_points, "f16": half_points,
         "decode": decode_points}


def peer_points(path):
    """What results of bench/cpu_peers.py say beside what is wanted of them."""
    for text in Path(path).read_text(encoding="ascii").splitlines()[1:]:
        line = json.loads(text)
        if "speedup" not in line:
            continue
        is_short = line["seqlen"] == 512 and line["causal"] and line["dtype"] != "f16"
        wanted = 2.0 if line["part"] == "decode" else 1.8 if is_short else 1.0
        names = ("dtype", "head_dim", "seqlen", "batch", "heads", "heads_kv", "causal")
        yield {"part": "peers", "of": line["part"], "op": line["op"],
               **{name: line[name] for name in names}, "share": line["speedup"], "wanted": wanted,
               "reached": line["speedup"] >= wanted}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--out", default="")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--peers", default="")
    arguments = parser.parse_args()
    bench = Bench(arguments)
    lines = [{**machine(arguments), "clock": "wall", "versions": {}}]
    print(json.dumps(lines[0]), flush=True)

    def add(points):
        for line in points:
            lines.append(line)
            print(json.dumps(line), flush=True)
    for part in arguments.parts.split(","):
        add(PARTS[part](bench))
    if arguments.peers:
        add(peer_points(arguments.peers))
    judged = [line for line in lines if "reached" in line]
    missed = [line for line in judged if not line["reached"]]
    print(f"{len(judged) - len(missed)} of {len(judged)} reached")
    write_lines(arguments, lines)


if __name__ == "__main__":
    main()
