#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times linear attention beside chunked PyTorch formulations on the CPU.

    bench/cpu_linear.py [--build build/release] [--out bench/results/cpu_linear.jsonl] [--threads 1]

Needs torch and numpy. The PyTorch side, where there is one, is the chunk form that models fall back
to without GPU kernels, with gradients by autograd. Both run in one process, in turns, on the same
random memory; a point is timed only after the two results agree. With one thread the processor time
of the process is what counts, so that a busy machine changes little; with more it is wall time.
`share` is the share of the peak of float32 multiply-adds that the count of docs/notebook.md comes
to, by the best round. One JSON line a point, the first line describes the machine and the commit.
"""

import json
import re
import subprocess

import torch

from cpu_bench import ROOT, clock_of, machine, parser_of, write_lines
from cpu_peers import DTYPES, Library, interleaved

CHUNK = 64


def chunks_of(x):
    """(1, T, H, D) -> (H, T / C, C, D) in float32."""
    return x[0].float().transpose(0, 1).unflatten(1, (-1, CHUNK))


def rows_of(x, dtype):
    return x.flatten(1, 2).transpose(0, 1)[None].to(dtype)


def torch_simple_gla(q, k, v, g):
    dtype = q.dtype
    q, k, v = (chunks_of(x) for x in (q, k, v))
    q = q * q.shape[-1] ** -0.5
    decay = chunks_of(g[..., None])[..., 0].cumsum(-1)
    seen = torch.ones(CHUNK, CHUNK, dtype=torch.bool).tril()
    pairs = (decay[..., :, None] - decay[..., None, :]).masked_fill(~seen, -torch.inf).exp()
    out = ((q @ k.transpose(-1, -2)) * pairs) @ v
    last = decay[..., -1:]
    added = (k * (last - decay).exp()[..., None]).transpose(-1, -2) @ v
    state = torch.zeros_like(added[:, 0])
    past = []
    for n in range(added.shape[1]):
        past.append(state)
        state = state * last[:, n, :, None].exp() + added[:, n]
    out = out + (q * decay.exp()[..., None]) @ torch.stack(past, 1)
    return rows_of(out, dtype)


def torch_gated_delta_rule(q, k, v, g, beta):
    dtype = q.dtype
    q, k, v = (chunks_of(x) for x in (q, k, v))
    q = q * q.shape[-1] ** -0.5
    decay, beta = (chunks_of(x[..., None])[..., 0] for x in (g, beta))
    decay = decay.cumsum(-1)
    seen = torch.ones(CHUNK, CHUNK, dtype=torch.bool).tril()
    pairs = (decay[..., :, None] - decay[..., None, :]).masked_fill(~seen, -torch.inf).exp()
    lower = (beta[..., None] * (k @ k.transpose(-1, -2)) * pairs).tril(-1) + torch.eye(CHUNK)
    right = torch.cat([v, k * decay.exp()[..., None]], -1) * beta[..., None]
    solved = torch.linalg.solve_triangular(lower, right, upper=False, unitriangular=True)
    values, keys = solved.split([v.shape[-1], k.shape[-1]], -1)
    weights = (q @ k.transpose(-1, -2)) * pairs
    last = decay[..., -1:]
    state = torch.zeros(k.shape[0], k.shape[-1], v.shape[-1])
    outs = []
    for n in range(v.shape[1]):
        new = values[:, n] - keys[:, n] @ state
        outs.append((q[:, n] * decay[:, n].exp()[..., None]) @ state + weights[:, n] @ new)
        kept = (k[:, n] * (last[:, n] - decay[:, n]).exp()[..., None]).transpose(-1, -2)
        state = state * last[:, n, :, None].exp() + kept @ new
    return rows_of(torch.stack(outs, 1), dtype)


def random_inputs(op, heads, seqlen, dim, dtype):
    make = lambda *shape: torch.randn(1, seqlen, heads, *shape)
    inputs = {name: make(dim).to(dtype) for name in ("q", "k", "v")}
    inputs["g"] = torch.nn.functional.logsigmoid(make(dim) if op == "gla" else make())
    if op == "gated_delta_rule":
        inputs["k"] = torch.nn.functional.normalize(inputs["k"].float(), dim=-1).to(dtype)
        inputs["beta"] = make().sigmoid()
    return inputs


PEERS = {"simple_gla": torch_simple_gla, "gated_delta_rule": torch_gated_delta_rule}
HAS_BACKWARD = ("simple_gla", "gla")
OPS = ("simple_gla", "gla", "gated_delta_rule")


def flop_count(op, seqlen, heads, dim):
    """{what: multiply-adds twice}, as docs/notebook.md counts them."""
    rows, chunk, square = seqlen * heads, CHUNK, dim * dim
    if op == "gated_delta_rule":
        return {"fwd": rows * (6 * square + chunk * 5 * dim)}
    forward = rows * (4 * square + chunk * 2 * dim)
    return {"fwd": forward, "fwd+bwd": forward + rows * (10 * square + chunk * 5 * dim)}


def point_functions(library, op, heads, seqlen, dim, dtype, with_peer):
    inputs = random_inputs(op, heads, seqlen, dim, dtype)
    out, dout = torch.full_like(inputs["v"], float("nan")), torch.randn_like(inputs["v"])
    forward = library.call(op + "_fwd", {**inputs, "out": out})
    forward()
    functions, pairs = {"fwd": {"flashtile": forward}}, []
    gradients = {"d" + name: torch.full_like(x, float("nan")) for name, x in inputs.items()}
    if op in HAS_BACKWARD:
        backward = library.call(op + "_bwd", {**inputs, "dout": dout, **gradients})

        def both():
            forward()
            backward()
        both()
        functions["fwd+bwd"] = {"flashtile": both}
    if not with_peer:
        return functions, None  # PyTorch's chunks need memory for all of their states
    leaves = [x.detach().requires_grad_(True) for x in inputs.values()]

    def peer_forward():
        with torch.no_grad():
            return PEERS[op](*leaves)

    def peer_both():
        return torch.autograd.grad(PEERS[op](*leaves), leaves, dout)

    pairs.append((out, peer_forward()))
    functions["fwd"]["torch"] = peer_forward
    if op in HAS_BACKWARD:
        pairs += zip(gradients.values(), peer_both())
        functions["fwd+bwd"]["torch"] = peer_both
    error = max(((a.float() - b.float()).abs().max() / b.float().abs().max()).item()
                for a, b in pairs)
    return functions, error


def measured_peak(build):
    """GFLOP/s of float32 multiply-adds on one thread, by a loop without memory."""
    text = subprocess.run([str(build / "flashtile"), "bench", "--threads", "1", "--no-plain",
                           "--seconds", "0.01", "attention_fwd:sq64:d16"], text=True,
                          capture_output=True, check=True).stdout
    return float(re.search(r"peak f32 ([0-9.]+)", text).group(1))


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--peak", type=float, help="GFLOP/s; otherwise measured, by wall time")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    build = ROOT / arguments.build
    library = Library(build / "libflashtile.so")
    clock = clock_of(arguments)
    peak = (arguments.peak or measured_peak(build)) * arguments.threads
    lines = [{**machine(arguments), "peak_f32_gflops": peak}]
    print(json.dumps(lines[0]), flush=True)
    points = [(op, dtype, 8, 4096) for op in OPS for dtype in (torch.float32, torch.bfloat16)]
    points += [("simple_gla", torch.float32, 1, seqlen) for seqlen in (4096, 32768, 262144)]
    for op, dtype, heads, seqlen in points:
        dim = 128
        with_peer = op in PEERS and seqlen <= 4096
        functions, error = point_functions(library, op, heads, seqlen, dim, dtype, with_peer)
        limit = 1e-4 if dtype == torch.float32 else 4e-2
        if error is not None and not error < limit:
            raise SystemExit(f"{op}: the results differ by {error:.2g}, allowed {limit:.2g}")
        for what, sides in functions.items():
            line = {"op": op, "pass": what, "dtype": DTYPES[dtype][0], "seqlen": seqlen,
                    "heads": heads, "head_dim": dim, "error": error}
            for name, times in interleaved(sides, clock, arguments.rounds).items():
                line[name + "_ms"] = [round(x, 3) for x in times]
            count = flop_count(op, seqlen, heads, dim)[what]
            line["share"] = round(count / line["flashtile_ms"][1] / 1e6 / peak, 3)
            lines.append(line)
            print(json.dumps(line), flush=True)
    write_lines(arguments, lines)


if __name__ == "__main__":
    main()
