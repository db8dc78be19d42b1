#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times linear attention on the CPU, beside chunked PyTorch formulations where there are any.

    bench/cpu_linear.py [--build build/release] [--out bench/results/cpu_linear.jsonl] [--threads 1]
                        [--parts grid,lengths,step,scan,layers] [--rounds 5]

Needs torch and numpy. Parts:

    grid     4096 rows of 8 heads. The PyTorch side is the chunk form that models fall back to
             without GPU kernels, with gradients by autograd; both run in one process, in turns, on
             the same random memory, and a point is timed only after the two results agree
    lengths  one head from 256 to 262144 rows, beside causal softmax attention up to 32768: time and
             the most memory that a call adds
    step     decoding, 64 sequences of 16 heads: `copy_share` is the share of the rate at which
             PyTorch copies as much memory as the states are; by wall time
    scan     4096 rows of 1024 channels
    layers   2048 rows of what layers have around recurrences, beside PyTorch's functions; slstm

With one thread the processor time of the process is what counts, so that a busy machine changes
little; with more it is wall time. `share` is the share of the peak of float32 multiply-adds that
the count of docs/notebook.md comes to, by the best round. One JSON line a point, the first line
describes the machine and the commit. bench/plot_cpu_linear.py draws them.
"""

import ctypes
import json
import os
import re
import subprocess
import time

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
    if op == "attention":
        return inputs
    if op == "gsa":
        inputs["s"] = make(dim).sigmoid().to(dtype)
    if op == "rwkv7":
        read = torch.nn.functional.normalize(make(dim), dim=-1)
        return {"r": inputs["q"], "w": -0.6 * make(dim).sigmoid(), "k": inputs["k"],
                "v": inputs["v"], "a": -read.to(dtype), "b": (read * make(dim).sigmoid()).to(dtype)}
    has_vector_gate = op in ("gla", "kda", "gsa")
    inputs["g"] = torch.nn.functional.logsigmoid(make(dim) if has_vector_gate else make())
    if op in ("gated_delta_rule", "kda"):
        inputs["k"] = torch.nn.functional.normalize(inputs["k"].float(), dim=-1).to(dtype)
        inputs["beta"] = make().sigmoid()
    return inputs


PEERS = {"simple_gla": torch_simple_gla, "gated_delta_rule": torch_gated_delta_rule}
OPS = ("simple_gla", "gla", "gated_delta_rule", "kda", "rwkv7", "gsa")
DELTA_OPS = ("gated_delta_rule", "kda", "rwkv7")


def flop_count(op, seqlen, heads, dim):
    """{what: multiply-adds twice}, as docs/notebook.md counts them."""
    rows, chunk, square = seqlen * heads, CHUNK, dim * dim
    if op in DELTA_OPS:
        forward, backward = 6 * square + chunk * 5 * dim, 16 * square + chunk * 12 * dim
    else:
        forward, backward = 4 * square + chunk * 2 * dim, 10 * square + chunk * 5 * dim
    times = 2 if op == "gsa" else 1  # two recurrences, as many slots as dimensions
    return {"fwd": times * rows * forward, "fwd+bwd": times * rows * (forward + backward)}


def point_functions(library, op, heads, seqlen, dim, dtype, with_peer=False):
    """{pass: {side: function}} and the difference of the sides' results, if there are two."""
    inputs = random_inputs(op, heads, seqlen, dim, dtype)
    out, dout = torch.full_like(inputs["v"], float("nan")), torch.randn_like(inputs["v"])
    results, causal = {"out": out}, None
    if op == "attention":
        results["lse"], causal = torch.full((1, heads, seqlen), float("nan")), True
    forward = library.call(op + "_fwd", {**inputs, **results}, causal)
    gradients = {"d" + name: torch.full_like(x, float("nan")) for name, x in inputs.items()}
    kept = results if op == "attention" else {}
    backward = library.call(op + "_bwd", {**inputs, **kept, "dout": dout, **gradients}, causal)

    def both():
        forward()
        backward()
    functions = {"fwd": {"flashtile": forward}, "fwd+bwd": {"flashtile": both}}
    if not with_peer:
        return functions, None
    both()
    leaves = [x.detach().requires_grad_(True) for x in inputs.values()]

    def peer_forward():
        with torch.no_grad():
            return PEERS[op](*leaves)

    def peer_both():
        return torch.autograd.grad(PEERS[op](*leaves), leaves, dout)

    pairs = [(out, peer_forward()), *zip(gradients.values(), peer_both())]
    functions["fwd"]["torch"] = peer_forward
    functions["fwd+bwd"]["torch"] = peer_both
    error = max(((a.float() - b.float()).abs().max() / b.float().abs().max()).item()
                for a, b in pairs)
    return functions, error


def added_memory(function):
    """The most bytes that a call has in memory beside what was there before (Linux)."""
    def status(name):
        with open("/proc/self/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024
    # What malloc has kept would hide what a call takes.
    libc, threshold = ctypes.CDLL(None), -3
    libc.mallopt(threshold, 1 << 16)
    libc.malloc_trim(0)
    with open("/proc/self/clear_refs", "w", encoding="ascii") as reset:
        reset.write("5")
    before = status("VmRSS")
    function()
    added = status("VmHWM") - before
    libc.mallopt(threshold, 1 << 25)
    return max(added, 0)


def grid_lines(library, arguments, peak):
    heads, seqlen, dim = 8, 4096, 128
    for op in OPS:
        for dtype in (torch.float32, torch.bfloat16):
            functions, error = point_functions(library, op, heads, seqlen, dim, dtype,
                                               with_peer=op in PEERS)
            limit = 1e-4 if dtype == torch.float32 else 4e-2
            if error is not None and not error < limit:
                raise SystemExit(f"{op}: the results differ by {error:.2g}, allowed {limit:.2g}")
            for what, sides in functions.items():
                line = {"op": op, "pass": what, "dtype": DTYPES[dtype][0], "seqlen": seqlen,
                        "heads": heads, "head_dim": dim, "error": error}
                for name, times in interleaved(sides, clock_of(arguments),
                                               arguments.rounds).items():
                    line[name + "_ms"] = [round(x, 3) for x in times]
                count = flop_count(op, seqlen, heads, dim)[what]
                line["share"] = round(count / line["flashtile_ms"][1] / 1e6 / peak, 3)
                yield line


def length_lines(library, arguments, _):
    for op, longest in (("attention", 32768), ("simple_gla", 262144), ("gated_delta_rule", 262144)):
        for seqlen in (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144):
            if seqlen > longest:
                continue
            functions, _ = point_functions(library, op, 1, seqlen, 128, torch.float32)
            rounds = arguments.rounds if seqlen <= 8192 else 1
            for what, sides in functions.items():
                sides["flashtile"]()
                memory = added_memory(sides["flashtile"])
                times = interleaved(sides, clock_of(arguments), rounds)["flashtile"]
                yield {"op": op, "pass": what, "dtype": "f32", "seqlen": seqlen, "heads": 1,
                       "head_dim": 128, "flashtile_ms": [round(x, 3) for x in times],
                       "added_mb": round(memory / 1e6, 1)}


def step_lines(library, arguments, _):
    batch, heads, dim = 64, 16, 128
    states = torch.randn(batch, heads, dim, dim)
    copied = torch.empty_like(states)
    for op in ("retention", "simple_gla", "gla", "gated_delta_rule", "kda", "rwkv7"):
        inputs = random_inputs("simple_gla" if op == "retention" else op, heads, batch, dim,
                               torch.float32)
        if op == "retention":
            del inputs["g"]
        rows = {name: x[0] for name, x in inputs.items()}
        out = torch.full_like(rows["v"], float("nan"))
        states.zero_()
        step = library.call(op + "_step", {**rows, "state": states, "out": out})
        sides = {"flashtile": step, "copy": lambda: copied.copy_(states)}
        for run in sides.values():
            run()
        times = interleaved(sides, time.perf_counter, 4 * arguments.rounds)
        line = {"op": op, "pass": "step", "dtype": "f32", "batch": batch, "heads": heads,
                "head_dim": dim, "state_mb": round(states.numel() * 4 / 1e6, 1)}
        for name, numbers in times.items():
            line[name + "_ms"] = [round(x, 3) for x in numbers]
        line["copy_share"] = round(times["copy"][0] / times["flashtile"][0], 3)
        yield line


def scan_lines(library, arguments, _):
    seqlen, channels, states = 4096, 1024, 16
    make = lambda *shape: torch.randn(1, seqlen, *shape)
    log_decay = lambda x: torch.nn.functional.logsigmoid(x)
    problems = {
        "hgrn": {"x": make(channels), "g": log_decay(make(channels))},
        "rwkv4": {"k": make(channels), "v": make(channels), "w": -torch.rand(channels),
                  "u_bonus": torch.randn(channels)},
        "mamba1": {"u": make(channels), "dt": torch.rand(1, seqlen, channels),
                   "B": make(1, states), "C": make(1, states), "z": make(channels),
                   "A": -torch.rand(channels, states), "D": torch.randn(channels)},
    }
    for op, inputs in problems.items():
        out, dout = torch.full((1, seqlen, channels), float("nan")), make(channels)
        gradients = {"d" + name: torch.full_like(x, float("nan")) for name, x in inputs.items()}
        passes = {"fwd": library.call(op + "_fwd", {**inputs, "out": out}),
                  "bwd": library.call(op + "_bwd", {**inputs, "dout": dout, **gradients})}
        for what, run in passes.items():
            run()
            times = interleaved({"flashtile": run}, clock_of(arguments), arguments.rounds)
            yield {"op": op, "pass": what, "dtype": "f32", "seqlen": seqlen, "channels": channels,
                   "flashtile_ms": [round(x, 3) for x in times["flashtile"]],
                   "ns_an_element": round(times["flashtile"][1] * 1e6 / seqlen / channels, 2)}


def layer_problems():
    """{op: (inputs, options that are on, PyTorch's functions or None)}."""
    functional, seqlen, heads, dim = torch.nn.functional, 2048, 8, 128
    make = lambda *shape: torch.randn(1, seqlen, *shape)
    channels, width = 2048, 4

    def conv(x, weight):
        padded = functional.pad(x.transpose(1, 2), (width - 1, 0))
        out = functional.conv1d(padded, weight[:, None], groups=channels)
        return functional.silu(out).transpose(1, 2)

    def norm(x, z, weight):
        factor = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
        return x * factor * weight * functional.silu(z)

    def gate(x, bias, A_log):
        return -A_log.exp()[:, None] * functional.softplus(x + bias)
    gates = {"x": make(heads, 1), "bias": torch.randn(heads, 1), "A_log": torch.randn(heads)}
    cells = {name: make(4, 64) for name in "ifzo"}
    return {
        "short_conv": ({"x": make(channels), "weight": torch.randn(channels, width)}, ("silu",),
                       conv),
        "gated_norm": ({"x": make(heads, dim), "z": make(heads, dim), "weight": torch.randn(dim)},
                       (), norm),
        "log_decay_gate": (gates, (), gate),
        "feature_map": ({"x": make(heads, dim)}, (), lambda x: functional.elu(x) + 1),
        "slstm": ({**cells, "weight": torch.randn(4, 4, 64, 64) / 16}, (), None),
    }


def layer_lines(library, arguments, _):
    for op, (inputs, flags, peer) in layer_problems().items():
        first = next(iter(inputs.values()))
        out, dout = torch.full_like(first, float("nan")), torch.randn_like(first)
        gradients = {"d" + name: torch.full_like(x, float("nan")) for name, x in inputs.items()}
        forward = library.call(op + "_fwd", {**inputs, "out": out}, flags=flags)
        backward = library.call(op + "_bwd", {**inputs, "dout": dout, **gradients}, flags=flags)
        forward()
        backward()
        passes = {"fwd": {"flashtile": forward}, "bwd": {"flashtile": backward}}
        error = None
        if peer is not None:
            leaves = [x.detach().requires_grad_(True) for x in inputs.values()]
            result = peer(*leaves)
            slopes = lambda: torch.autograd.grad(result, leaves, dout, retain_graph=True)
            passes["fwd"]["torch"], passes["bwd"]["torch"] = lambda: peer(*inputs.values()), slopes
            pairs = [(out, result.detach()), *zip(gradients.values(), slopes())]
            error = max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)
            if not error < 1e-4:
                raise SystemExit(f"{op}: the results differ by {error:.2g}, allowed 1e-4")
        for what, sides in passes.items():
            line = {"op": op, "pass": what, "dtype": "f32", "seqlen": 2048, "error": error}
            for name, times in interleaved(sides, clock_of(arguments), arguments.rounds).items():
                line[name + "_ms"] = [round(x, 3) for x in times]
            yield line


PARTS = {"grid": grid_lines, "lengths": length_lines, "step": step_lines, "scan": scan_lines,
         "layers": layer_lines}


def measured_peak(build):
    """GFLOP/s of float32 multiply-adds on one thread, by a loop without memory."""
    text = subprocess.run([str(build / "flashtile"), "bench", "--threads", "1", "--no-plain",
                           "--seconds", "0.01", "attention_fwd:sq64:d16"], text=True,
                          capture_output=True, check=True).stdout
    return float(re.search(r"peak f32 ([0-9.]+)", text).group(1))


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--peak", type=float, help="GFLOP/s; otherwise measured, by wall time")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    os.environ["FLASHTILE_NUM_THREADS"] = str(arguments.threads)
    build = ROOT / arguments.build
    library = Library(build / "libflashtile.so")
    peak = (arguments.peak or measured_peak(build)) * arguments.threads
    lines = [{**machine(arguments), "peak_f32_gflops": peak}]
    print(json.dumps(lines[0]), flush=True)
    for part in arguments.parts.split(","):
        for line in PARTS[part](library, arguments, peak):
            lines.append({"part": part, **line})
            print(json.dumps(lines[-1]), flush=True)
    write_lines(arguments, lines)


if __name__ == "__main__":
    main()
