#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The forward beside PyTorch's backends, on the sweep of the FlashAttention papers: 16k tokens,
hidden size 2048, bf16; operations are 2 B H S S (D + DV), halved when causal.

    bench/gpu/forward.py --library build/gpu/libflashtile.so [--json FILE] [--quick] [--peers ...]
        [--implementations attention_fwd_sm90 attention_fwd_portable] [--points FILE --commit ID]
        [--sustained] [--redo] [--dims 64 192/128 ...]

Prints one line for each problem; --json writes one JSON line for each (problem, implementation),
--points one for each problem, with the largest error beside that of a plain implementation in the
same precision, behind one for the machine. --sustained times head_dim 128 at 16k beside a matrix
product of 8192, each for more than a second, and --redo what tiles cost that have to be worked out
again; both go into the line for the machine. With --dims and nothing behind it they are all.
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


def inputs(seqlen, dim, dtype, generator, dim_v=None):
    rows = (TOKENS // seqlen, seqlen, HIDDEN // (dim_v or dim))
    return [torch.randn(*rows, size, device="cuda", dtype=dtype, generator=generator)
            for size in (dim, dim, dim_v or dim)]


def plain_attention(q, k, v, causal, dtype):
    """In a precision, of one (batch, head), for at most 1024 queries at the end."""
    seqlen, dim = q.shape[1], q.shape[3]
    first = max(0, seqlen - 1024)
    queries, keys, values = (x[-1, :, -1].to(dtype) for x in (q, k, v))
    scores = queries[first:] @ keys.T / math.sqrt(dim)
    if causal:
        rows = torch.arange(first, seqlen, device="cuda")[:, None]
        scores.masked_fill_(torch.arange(seqlen, device="cuda")[None] > rows, -math.inf)
    return (torch.softmax(scores, dim=-1) @ values).float()


def errors(out, q, k, v, causal):
    """Against float32: that of all rows relative to what they are, the largest, and the largest of
    a plain implementation in the inputs' precision."""
    expected = plain_attention(q, k, v, causal, torch.float32)
    difference = out[-1, -len(expected):, -1].float() - expected
    plain = plain_attention(q, k, v, causal, q.dtype) - expected
    return ((difference.norm() / expected.norm()).item(), difference.abs().max().item(),
            plain.abs().max().item())


def write_points(path, points, record, rate, commit):
    with open(path, "w") as file:
        clocks = sorted(point.pop("run_mhz") for point in points)
        if clocks:
            record["run_mhz"] = [clocks[0], clocks[-1]]
        file.write(json.dumps({"tokens": TOKENS, "hidden": HIDDEN, **record, "commit": commit,
                               "cublas_tflops": rate}) + "\n")
        for point in points:
            file.write(json.dumps(point) + "\n")


def make_call(lib, q, k, v, causal, implementation):
    out = torch.full_like(v, math.nan)
    lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], device="cuda")
    call = library.Call(lib, "attention_fwd", {"q": q, "k": k, "v": v, "out": out, "lse": lse},
                        {"causal": "true"} if causal else {}, implementation)
    return call, out


def sustained(lib, generator):
    """The figure that power limits: bf16, head_dim 128, 16k, full, and the matrix product."""
    q, k, v = inputs(16384, 128, torch.bfloat16, generator)
    call, _ = make_call(lib, q, k, v, False, None)
    product, operations = peers.gemm()
    results = timing.sustained({"attention": call.run, "product": product},
                               {"attention": 4 * TOKENS * 16384 * HIDDEN, "product": operations})
    attention, product = results["attention"], results["product"]
    ratio = attention["tflops"] / product["tflops"]
    print(f"# sustained for {min(attention['seconds'], product['seconds']):.2f} s: attention "
          f"{attention['tflops']:.0f} TFLOP/s, products {attention['share']:.3f} of the cycles, "
          f"{attention['mhz']:.0f} MHz; product {product['tflops']:.0f}, {product['share']:.3f}, "
          f"{product['mhz']:.0f}; ratio {ratio:.3f}", flush=True)
    return {name: {key: round(value, 4) for key, value in result.items()}
            for name, result in results.items()}


def redo(lib, generator, seqlen=4096):
    """What a tile costs that has to be worked out again, of what it costs else: in a share of the
    heads the first keys, which are visited last, are so large that sums overflow."""
    costs = {}
    for dim in (64, 128, 256):
        functions = {}
        heads = HIDDEN // dim
        for failing in (0, heads // 8, heads):
            q, k, v = inputs(seqlen, dim, torch.bfloat16, generator)
            q[:, :, :failing] *= 8
            k[:, :3, :failing] *= 60
            call, out = make_call(lib, q, k, v, False, "attention_fwd_sm90")
            call.run()
            if not out.isfinite().all():
                raise RuntimeError("a tile that overflows was not worked out again")
            functions[failing / heads] = call.run
        times = timing.interleaved(functions)
        plain = times[0.0]["ms"]
        costs[dim] = {f"{part:.3f}": round((times[part]["ms"] - plain) / (part * plain), 3)
                      for part in functions if part > 0}
        print(f"# d={dim} {seqlen}: a tile that is worked out again costs, by the share of such "
              f"tiles, {costs[dim]} of a tile's time more", flush=True)
    return costs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true", help="two lengths")
    parser.add_argument("--dims", nargs="*", default=["64", "128", "256"],
                        help="head_dim, or head_dim/head_dim_v")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--seqlens", type=int, nargs="*")
    parser.add_argument("--implementations", nargs="*", default=[None],
                        help="by name; the registry's choice where none is given")
    parser.add_argument("--peers", nargs="*", default=["sdpa-fa2", "sdpa-cudnn"])
    parser.add_argument("--points")
    parser.add_argument("--sustained", action="store_true")
    parser.add_argument("--redo", action="store_true")
    parser.add_argument("--commit", help="of what is timed, for --points")
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
    ratios, points = [], []
    seqlens = args.seqlens or ([512, 4096] if args.quick
                               else [512, 1024, 2048, 4096, 8192, 16384])
    for dims in args.dims:
        dim, dim_v = (int(dims.split("/")[i]) for i in (0, -1))
        heads = HIDDEN // dim_v
        for causal in (False, True):
            for seqlen in seqlens:
                q, k, v = inputs(seqlen, dim, dtype, generator, dim_v)
                # 256 MB of inputs and results: one set is several times the L2 cache.
                functions, error, largest, plain = {}, 0.0, 0.0, 0.0
                for implementation in args.implementations:
                    call, out = make_call(lib, q, k, v, causal, implementation)
                    call.run()
                    found, found_largest, plain = errors(out, q, k, v, causal)
                    if not found <= error:  # NaN stays
                        error, largest = found, found_largest
                    functions[implementation or "flashtile"] = call.run
                first = next(iter(functions))
                for name in args.peers:
                    run = peers.forward(name, q, k, v, causal)
                    try:
                        run()
                        functions[name] = run
                    except RuntimeError as fault:
                        print(f"# {name} d={dims} {seqlen}: {str(fault).splitlines()[0][:80]}")
                times = timing.interleaved(functions)
                flops = 2 * TOKENS * seqlen * heads * (dim + dim_v) * (0.5 if causal else 1.0)
                rates = {name: round(flops / time["ms"] * 1e-9, 1) for name, time in times.items()}
                points.append({"head_dim": dim, "head_dim_v": dim_v, "causal": causal,
                               "seqlen": seqlen, "tflops": rates[first],
                               "cudnn_tflops": rates.get("sdpa-cudnn"),
                               "fa2_tflops": rates.get("sdpa-fa2"), "max_err": largest,
                               "plain_err": plain, "run_mhz": times[first].get("run_mhz", 0)})
                line = f"d={dims:>3s} causal={int(causal)} s={seqlen:6d} err {error:.1e}"
                for name, time in times.items():
                    tflops = flops / time["ms"] * 1e-9
                    line += f"  {name} {tflops:6.1f}"
                    if sink:
                        sink.write(json.dumps({
                            "op": "fwd", "impl": name, "d": dim, "dv": dim_v, "causal": causal,
                            "seqlen": seqlen, "dtype": args.dtype, "tflops": tflops,
                            "error": error, **time, "gemm_tflops": rate, **record}) + "\n")
                if "sdpa-cudnn" in times:
                    line += f"  x cudnn {times['sdpa-cudnn']['ms'] / times[first]['ms']:.2f}"
                if "sdpa-fa2" in times:
                    ratio = times["sdpa-fa2"]["ms"] / times[first]["ms"]
                    ratios.append(ratio)
                    line += f"  x fa2 {ratio:.2f}"
                print(line, flush=True)
    if args.sustained:
        record["sustained"] = sustained(lib, generator)
    if args.redo:
        record["redo"] = redo(lib, generator)
    if args.points:
        write_points(args.points, points, record, rate, args.commit)
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"# geometric mean over fa2 {mean:.3f}, least {min(ratios):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
