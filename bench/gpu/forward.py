#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The forward beside PyTorch's backends, on the sweep of the FlashAttention papers: 16k tokens,
hidden size 2048, bf16; operations are 4 B H S S D, halved when causal.

    bench/gpu/forward.py --library build/gpu/libflashtile.so [--json FILE] [--quick] [--peers ...]
        [--implementations attention_fwd_sm90 attention_fwd_portable]

Prints one line for each problem; --json writes one JSON line for each (problem, implementation).
A problem is timed only after its result has been compared with the reference in float32.
"""

import argparse
import json
import math
import sys

import torch

import library
import peers
import timing

TOKENS, HIDDEN = 16384, 2048


def inputs(seqlen, dim, dtype, generator):
    shape = (TOKENS // seqlen, seqlen, HIDDEN // dim, dim)
    return [torch.randn(shape, device="cuda", dtype=dtype, generator=generator) for _ in range(3)]


def relative_error(out, q, k, v, causal):
    """Against float32 attention of one (batch, head), over at most 1024 queries at the end."""
    seqlen, dim = q.shape[1], q.shape[3]
    first = max(0, seqlen - 1024)
    queries, keys, values = (x[-1, :, -1].float() for x in (q, k, v))
    scores = queries[first:] @ keys.T / math.sqrt(dim)
    if causal:
        rows = torch.arange(first, seqlen, device="cuda")[:, None]
        scores.masked_fill_(torch.arange(seqlen, device="cuda")[None] > rows, -math.inf)
    expected = torch.softmax(scores, dim=-1) @ values
    return ((out[-1, first:, -1].float() - expected).norm() / expected.norm()).item()


def make_call(lib, q, k, v, causal, implementation):
    out = torch.full_like(q, math.nan)
    lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], device="cuda")
    call = library.Call(lib, "attention_fwd", {"q": q, "k": k, "v": v, "out": out, "lse": lse},
                        {"causal": "true"} if causal else {}, implementation)
    return call, out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true", help="two lengths")
    parser.add_argument("--dims", type=int, nargs="*", default=[64, 128, 256])
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--seqlens", type=int, nargs="*")
    parser.add_argument("--implementations", nargs="*", default=[None],
                        help="by name; the registry's choice where none is given")
    parser.add_argument("--peers", nargs="*", default=["sdpa-fa2", "sdpa-cudnn"])
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    lib = library.Library(args.library)
    generator = torch.Generator(device="cuda").manual_seed(1)
    dtype = getattr(torch, args.dtype)
    sink = open(args.json, "w") if args.json else None
    product, operations = peers.gemm()
    rate = operations / timing.interleaved({"gemm": product})["gemm"]["ms"] * 1e-9
    record = timing.device_record()
    print(f"# {record}; matrix product {rate:.0f} TFLOP/s")
    ratios = []
    seqlens = args.seqlens or ([512, 4096] if args.quick
                               else [512, 1024, 2048, 4096, 8192, 16384])
    for dim in args.dims:
        for causal in (False, True):
            for seqlen in seqlens:
                q, k, v = inputs(seqlen, dim, dtype, generator)
                # 256 MB of inputs and results: one set is several times the L2 cache.
                functions, error = {}, 0.0
                for implementation in args.implementations:
                    call, out = make_call(lib, q, k, v, causal, implementation)
                    call.run()
                    found = relative_error(out, q, k, v, causal)
                    error = error if found <= error else found  # NaN stays
                    functions[implementation or "flashtile"] = call.run
                first = next(iter(functions))
                for name in args.peers:
                    run = peers.forward(name, q, k, v, causal)
                    try:
                        run()
                        functions[name] = run
                    except RuntimeError as fault:
                        print(f"# {name} d={dim} {seqlen}: {str(fault).splitlines()[0][:80]}")
                times = timing.interleaved(functions)
                flops = 4 * TOKENS * seqlen * HIDDEN * (0.5 if causal else 1.0)
                line = f"d={dim:3d} causal={int(causal)} s={seqlen:6d} err {error:.1e}"
                for name, time in times.items():
                    tflops = flops / time["ms"] * 1e-9
                    line += f"  {name} {tflops:6.1f}"
                    if sink:
                        sink.write(json.dumps({
                            "op": "fwd", "impl": name, "d": dim, "causal": causal, "seqlen": seqlen,
                            "dtype": args.dtype, "tflops": tflops, "error": error, **time,
                            "gemm_tflops": rate, **record}) + "\n")
                if "sdpa-cudnn" in times:
                    line += f"  x cudnn {times['sdpa-cudnn']['ms'] / times[first]['ms']:.2f}"
                if "sdpa-fa2" in times:
                    ratio = times["sdpa-fa2"]["ms"] / times[first]["ms"]
                    ratios.append(ratio)
                    line += f"  x fa2 {ratio:.2f}"
                print(line, flush=True)
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"# geometric mean over fa2 {mean:.3f}, least {min(ratios):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
