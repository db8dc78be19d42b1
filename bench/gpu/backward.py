#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The backward beside PyTorch's backends, alone and with the forward, on the sweep of the
FlashAttention papers: 16k tokens, hidden size 2048, bf16; operations are 10 B H S S D for the
backward and 4 B H S S D for the forward, halved when causal.

    bench/gpu/backward.py --library build/gpu/libflashtile.so [--json FILE] [--quick] [--peers ...]

Prints one line for each problem; --json writes one JSON line for each (problem, implementation). A
problem is timed only after its gradients have been compared with the reference in float32.
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
LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]


def inputs(seqlen, dim, dtype, generator):
    shape = (TOKENS // seqlen, seqlen, HIDDEN // dim, dim)
    return [torch.randn(shape, device="cuda", dtype=dtype, generator=generator) for _ in range(4)]


def relative_errors(gradients, q, k, v, dout, causal):
    """Of dq, dk, dv against float32 attention of the last (batch, head)."""
    leaves = [x[-1, :, -1].float().requires_grad_() for x in (q, k, v)]
    scores = leaves[0] @ leaves[1].T / math.sqrt(q.shape[3])
    if causal:
        seqlen = q.shape[1]
        hidden = torch.ones(seqlen, seqlen, device="cuda", dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    out = torch.softmax(scores, dim=-1) @ leaves[2]
    expected = torch.autograd.grad(out, leaves, dout[-1, :, -1].float())
    return [((found[-1, :, -1].float() - want).norm() / want.norm()).item()
            for found, want in zip(gradients, expected)]


def make_calls(lib, q, k, v, dout, causal):
    """The forward's and the backward's call, and the gradients' tensors."""
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], device="cuda")
    gradients = [torch.full_like(x, math.nan) for x in (q, k, v)]
    options = {"causal": "true"} if causal else {}
    shared = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
    forward = library.Call(lib, "attention_fwd", shared, options)
    backward = library.Call(lib, "attention_bwd",
                            dict(shared, dout=dout, dq=gradients[0], dk=gradients[1],
                                 dv=gradients[2]), options)
    return forward, backward, gradients


def forward_backward(name, q, k, v, dout, causal):
    """A peer's forward and backward together, as training runs them."""
    leaves = [x.detach().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    seed = dout.transpose(1, 2)

    def run():
        with peers.sdpa_kernel(peers.BACKENDS[name]):
            out = peers.scaled_dot_product_attention(*leaves, is_causal=causal)
        return torch.autograd.grad(out, leaves, seed)
    return run


def add_peers(functions, names, q, k, v, dout, causal, with_forward):
    for name in names:
        try:
            functions[name] = peers.backward(name, q, k, v, dout, causal)
            functions[name]()
            if with_forward:
                functions[name + " fwd+bwd"] = forward_backward(name, q, k, v, dout, causal)
                functions[name + " fwd+bwd"]()
        except RuntimeError as fault:
            functions.pop(name, None)
            print(f"# {name} d={q.shape[3]} {q.shape[1]}: {str(fault).splitlines()[0][:80]}")


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true", help="two lengths")
    parser.add_argument("--dims", type=int, nargs="*", default=[64, 128, 256])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", nargs="*", default=["sdpa-fa2"])
    parser.add_argument("--no-forward", action="store_true", help="the backward alone")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    lib = library.Library(args.library)
    generator = torch.Generator(device="cuda").manual_seed(1)
    sink = open(args.json, "w") if args.json else None
    product, operations = peers.gemm()
    rate = operations / timing.interleaved({"gemm": product})["gemm"]["ms"] * 1e-9
    record = timing.device_record()
    print(f"# {record}; matrix product {rate:.0f} TFLOP/s")
    ratios = {"": [], " fwd+bwd": []}
    status = 0
    for dim in args.dims:
        for causal in (False, True):
            for seqlen in ([512, 4096] if args.quick else LENGTHS):
                q, k, v, dout = inputs(seqlen, dim, torch.bfloat16, generator)
                forward, backward, gradients = make_calls(lib, q, k, v, dout, causal)
                forward.run()
                backward.run()
                errors = relative_errors(gradients, q, k, v, dout, causal)
                if not max(errors) < 1e-2:
                    print(f"FAIL d={dim} causal={int(causal)} s={seqlen}: errors {errors}")
                    status = 1
                functions = {"flashtile": backward.run}
                if not args.no_forward:
                    functions["flashtile fwd+bwd"] = lambda: (forward.run(), backward.run())
                add_peers(functions, args.peers, q, k, v, dout, causal, not args.no_forward)
                times = timing.interleaved(functions, rounds=args.rounds, round_ms=20.0)
                flops = 10 * TOKENS * seqlen * HIDDEN * (0.5 if causal else 1.0)
                line = (f"d={dim:3d} causal={int(causal)} s={seqlen:6d} "
                        f"err {' '.join(f'{e:.1e}' for e in errors)}")
                for name, time in times.items():
                    done = flops * (1.4 if name.endswith("fwd+bwd") else 1.0)
                    tflops = done / time["ms"] * 1e-9
                    line += f"  {name} {tflops:6.1f}"
                    if sink:
                        sink.write(json.dumps({
                            "op": "fwd+bwd" if name.endswith("fwd+bwd") else "bwd",
                            "impl": name.split()[0], "d": dim, "causal": causal,
                            "seqlen": seqlen, "dtype": "bfloat16", "tflops": tflops,
                            "errors": errors, **time, "gemm_tflops": rate, **record}) + "\n")
                for suffix, values in ratios.items():
                    if "sdpa-fa2" + suffix in times and "flashtile" + suffix in times:
                        values.append(times["sdpa-fa2" + suffix]["ms"] /
                                      times["flashtile" + suffix]["ms"])
                        line += f"  x fa2{suffix} {values[-1]:.2f}"
                print(line, flush=True)
                del forward, backward, gradients, functions
    for suffix, values in ratios.items():
        if values:
            print(f"#{suffix or ' bwd'}: geometric mean over fa2 {geometric_mean(values):.3f}, "
                  f"least {min(values):.3f}")
    return status


if __name__ == "__main__":
    sys.exit(main())
