#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What options cost: the forward with ALiBi, a window, a document mask, a relative bias and softcap
beside the plain one, per visited block of keys; float32; a head_dim above 256. 16k tokens, hidden
size 2048. PyTorch's flash backend runs beside it where it has the option.

    bench/gpu/options.py --library build/gpu/libflashtile.so [--json FILE] [--quick]

Prints one line for each problem; --json writes one JSON line for each (problem, implementation).
A problem is timed only after its result has been compared with float32 (float64 for float32).
"""

import argparse
import json
import math
import re
import sys

import torch

import library
import peers
import timing

TOKENS, HIDDEN, SEQLEN, DOCUMENT, WINDOW, SOFTCAP = 16384, 2048, 4096, 1024, 1024, 30.0


def inputs(seqlen, dim, dtype, generator, heads=None, batch=None):
    shape = (batch or TOKENS // seqlen, seqlen, heads or HIDDEN // dim, dim)
    return [torch.randn(shape, device="cuda", dtype=dtype, generator=generator) for _ in range(3)]


def flash(q, k, v, causal=True, window=None, slopes=None):
    """FlashAttention-2 as PyTorch ships it, with options that its public function leaves out."""
    def run():
        return torch.ops.aten._flash_attention_forward(
            q, k, v, None, None, q.shape[1], k.shape[1], 0.0, causal, False,
            window_size_left=window, window_size_right=0 if window is not None else None,
            alibi_slopes=slopes)
    return run


class Option:
    """One option: what flashtile is given, what the reference does, which keys are visited."""

    def __init__(self, name, q, generator):
        self.name, heads, seqlen = name, q.shape[2], q.shape[1]
        self.tensors, self.options, self.peer = {}, {"causal": "true"}, None
        place = torch.arange(seqlen, device="cuda")
        if name == "alibi":
            slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device="cuda") / heads)
            self.slopes = self.tensors["alibi_slopes"] = slopes.float()
        elif name == "window":
            self.options["window_left"] = WINDOW
        elif name == "document":
            # Values come in runs, so that blocks between documents are never visited.
            self.tensors["aux.document"] = (place // DOCUMENT).to(torch.int32)
            self.options = {"mask": "document[q_idx + query_offset] == document[k_idx] && "
                                    "k_idx <= q_idx + query_offset"}
        elif name == "relative bias":
            self.table = torch.randn((heads, 2 * seqlen - 1), device="cuda", generator=generator)
            self.tensors["aux.table"] = self.table
            self.options["score"] = "score + table[head, q_idx - k_idx + seqlen_k - 1]"
        elif name == "softcap":
            self.options["softcap"] = SOFTCAP

    def first_key(self, row):
        if self.name == "window":
            return max(0, row - WINDOW)
        return row // DOCUMENT * DOCUMENT if self.name == "document" else 0

    def area(self, seqlen, block_m, block_n):
        """Pairs in the blocks that are visited."""
        blocks = 0
        for row in range(0, seqlen, block_m):
            last = min(row + block_m, seqlen)
            blocks += -(-last // block_n) - self.first_key(row) // block_n
        return blocks * block_m * block_n

    def scores(self, scores, rows, cols):
        """Logits of the last head."""
        if self.name == "softcap":
            scores = SOFTCAP * torch.tanh(scores / SOFTCAP)
        if self.name == "alibi":
            scores = scores - self.slopes[-1] * (rows - cols).abs()
        if self.name == "relative bias":
            scores = scores + self.table[-1, rows - cols + scores.shape[1] - 1]
        hidden = cols > rows
        if self.name == "window":
            hidden = hidden | (cols < rows - WINDOW)
        if self.name == "document":
            hidden = hidden | (rows // DOCUMENT != cols // DOCUMENT)
        return scores.masked_fill(hidden, -math.inf)

    def flash(self, q, k, v):
        if self.name == "plain":
            return flash(q, k, v)
        if self.name == "alibi":
            return flash(q, k, v, slopes=self.slopes)
        if self.name == "window":
            return flash(q, k, v, window=WINDOW)
        if self.name == "document":  # documents as sequences
            return flash(*(x.view(-1, DOCUMENT, *x.shape[2:]) for x in (q, k, v)))
        return None


def relative_error(out, q, k, v, change, dtype=torch.float32):
    """Of the last (batch, head), over at most 1024 queries at the end."""
    first = max(0, q.shape[1] - 1024)
    queries, keys, values = (x[-1, :, -1].to(dtype) for x in (q, k, v))
    scores = queries[first:] @ keys.T / math.sqrt(q.shape[3])
    rows = torch.arange(first, q.shape[1], device="cuda")[:, None]
    scores = change(scores, rows, torch.arange(k.shape[1], device="cuda")[None])
    expected = torch.softmax(scores, dim=-1) @ values
    return ((out[-1, first:, -1].to(dtype) - expected).norm() / expected.norm()).item()


def make_call(lib, q, k, v, tensors, options):
    out = torch.full_like(q, math.nan)
    # The same kernel with and without an option, whatever the registry would choose.
    return library.Call(lib, "attention_fwd", {"q": q, "k": k, "v": v, "out": out, **tensors},
                        options, "attention_fwd_portable"), out


def blocks_of(call):
    return [int(n) for n in re.search(r"block_m (\d+), block_n (\d+)", call.explain()).groups()]


def runs_at_all(run, name):
    try:
        run()
        return True
    except (RuntimeError, TypeError) as fault:
        print(f"# {name}: {str(fault).splitlines()[0][:90]}")
        return False


class Report:
    def __init__(self, path):
        self.sink = open(path, "w") if path else None
        self.record = timing.device_record()
        print(f"# {self.record}")

    def write(self, line, point, times):
        print(line, flush=True)
        for name, time in times.items() if self.sink else ():
            self.sink.write(json.dumps({**point, "impl": name, **time, **self.record}) + "\n")
            self.sink.flush()


def measure_options(lib, report, dims, generator):
    for dim in dims:
        q, k, v = inputs(SEQLEN, dim, torch.bfloat16, generator)
        rates = {}
        for name in ("plain", "alibi", "window", "document", "relative bias", "softcap"):
            option = Option(name, q, generator)
            call, out = make_call(lib, q, k, v, option.tensors, option.options)
            call.run()
            error = relative_error(out, q, k, v, option.scores)
            functions = {"flashtile": call.run}
            peer = option.flash(q, k, v)
            if peer is not None and runs_at_all(peer, f"flash {name}"):
                functions["sdpa-fa2"] = peer
            if name == "document":  # the same blocks without a mask, so that tiles are as short
                parts = [x.view(-1, DOCUMENT, *x.shape[2:]) for x in (q, k, v)]
                sequences, _ = make_call(lib, *parts, {}, {"causal": "true"})
                functions["flashtile sequences"] = sequences.run
            times = timing.interleaved(functions, 5, 20.0)
            area = option.area(SEQLEN, *blocks_of(call))
            rates[name] = area / times["flashtile"]["ms"]
            share = rates[name] / rates["plain"]
            line = (f"d={dim:3d} {name:13s} err {error:.1e} {times['flashtile']['ms']:.3f} ms, "
                    f"per visited block {share:.2f} of plain")
            if "flashtile sequences" in times:
                equal = times["flashtile sequences"]["ms"] / times["flashtile"]["ms"]
                line += f", {equal:.2f} of plain on as many sequences"
            if "sdpa-fa2" in times:
                line += f"  x fa2 {times['sdpa-fa2']['ms'] / times['flashtile']['ms']:.2f}"
            report.write(line, {"op": "fwd option", "option": name, "d": dim, "seqlen": SEQLEN,
                                "causal": True, "dtype": "bfloat16", "error": error,
                                "of_plain_per_block": share}, times)


def measure_float32(lib, report, dims, generator):
    """Beside PyTorch's memory-efficient backend, TF32 off; and one row of 64k keys."""
    points = [(dim, causal, SEQLEN, None, None) for dim in dims for causal in (False, True)]
    points.append((64, False, 65536, 2, 1))
    for dim, causal, seqlen, heads, batch in points:
        q, k, v = inputs(seqlen, dim, torch.float32, generator, heads, batch)
        if batch:  # so that the result is not the mean of the values
            q = q * 8
        call, out = make_call(lib, q, k, v, {}, {"causal": "true"} if causal else {})
        call.run()

        def hide(scores, rows, cols):
            return scores.masked_fill(cols > rows, -math.inf) if causal else scores
        error = relative_error(out, q, k, v, hide, torch.float64)
        functions = {"flashtile": call.run}
        peer = peers.forward("sdpa-efficient", q, k, v, causal)
        if runs_at_all(peer, "sdpa-efficient"):
            functions["sdpa-efficient"] = peer
            peer_error = relative_error(peer().transpose(1, 2), q, k, v, hide, torch.float64)
        times = timing.interleaved(functions, 3, 20.0)
        flops = 4 * q.shape[0] * q.shape[2] * seqlen**2 * dim * (0.5 if causal else 1.0)
        tflops = flops / times["flashtile"]["ms"] * 1e-9
        line = f"f32 d={dim:3d} causal={int(causal)} s={seqlen:6d} err {error:.1e} {tflops:.1f} TF"
        point = {"op": "fwd float32", "d": dim, "causal": causal, "seqlen": seqlen,
                 "dtype": "float32", "error": error}
        if "sdpa-efficient" in times:
            ratio = times["sdpa-efficient"]["ms"] / times["flashtile"]["ms"]
            line += f"  x efficient {ratio:.2f} (its error {peer_error:.1e})"
            point["error_of_peer"] = peer_error
        report.write(line, point, times)
        del q, k, v, out, call, functions, peer
        torch.cuda.empty_cache()


def measure_wide(lib, report, generator):
    """head_dim 512 beside 256: operations a second."""
    for causal in (False, True):
        calls, flops = {}, 4 * TOKENS * SEQLEN * HIDDEN * (0.5 if causal else 1.0)
        error = 0.0
        for dim in (256, 512):
            q, k, v = inputs(SEQLEN, dim, torch.bfloat16, generator)
            call, out = make_call(lib, q, k, v, {}, {"causal": "true"} if causal else {})
            call.run()
            error = max(error, relative_error(
                out, q, k, v, lambda s, rows, cols:
                s.masked_fill(cols > rows, -math.inf) if causal else s))
            calls[f"flashtile d{dim}"] = call
        times = timing.interleaved({name: call.run for name, call in calls.items()}, 5, 20.0)
        share = times["flashtile d256"]["ms"] / times["flashtile d512"]["ms"]
        rate = flops / times["flashtile d512"]["ms"] * 1e-9
        report.write(f"d=512 causal={int(causal)} err {error:.1e} {rate:.0f} TFLOP/s, "
                     f"{share:.2f} of head_dim 256", {
                         "op": "fwd wide", "causal": causal, "seqlen": SEQLEN, "dtype": "bfloat16",
                         "error": error, "of_256": share}, times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true", help="one head_dim")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    lib = library.Library(args.library)
    generator = torch.Generator(device="cuda").manual_seed(1)
    report = Report(args.json)
    measure_options(lib, report, [128] if args.quick else [64, 128, 256], generator)
    measure_float32(lib, report, [64] if args.quick else [64, 128], generator)
    measure_wide(lib, report, generator)
    return 0


if __name__ == "__main__":
    sys.exit(main())
