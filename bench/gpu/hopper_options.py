#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What options cost in attention_fwd_sm90: each one beside the same kernel without it; with --peers
beside PyTorch where that has it: compiled FlexAttention, cuDNN, flash; with --portable beside
attention_fwd_portable. 16k tokens, hidden size 2048, bf16.

    bench/gpu/hopper_options.py --library build/gpu/libflashtile.so [--json FILE] [--quick]
        [--dims 64 128 256] [--options alibi softcap ...] [--peers] [--portable] [--commit ID]

Prints one line for each problem; --json writes a first line with device, driver and commit, then
one for each (problem, implementation). `of_plain` compares the pairs of queries and keys that masks
leave, each second: 1 means that the option costs nothing. A problem is timed only after its result
has been compared with float32.

Kernels, and PyTorch's, are compiled by processes side by side first, which run each problem once:
caches on disk then have them (FLASHTILE_CACHE_DIR). All options take about a minute without peers.
"""

import argparse
import functools
import json
import math
import os
import random
import subprocess
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import library
import timing

TOKENS, HIDDEN = 16384, 2048
WINDOW, DOCUMENTS, CHUNK, SOFTCAP, DROPOUT = 512, 16, 2048, 30.0, 0.1
SM90, PORTABLE = "attention_fwd_sm90", "attention_fwd_portable"
OPTIONS = ["plain", "full", "window", "document", "chunk", "alibi", "relative bias", "bias",
           "softcap", "sink", "max_logit", "dropout", "pages of 256", "pages of 16", "gqa 8:1",
           "packed"]


def causal_pairs(lengths):
    return sum(n * (n + 1) // 2 for n in lengths)


class Problem:
    """Tensors and options of one call, the pairs that its masks leave, and what float32 and
    FlexAttention do for it. Causal but for `full`."""

    def __init__(self, name, dim, seqlen, generator):
        self.name, self.seqlen = name, seqlen
        batch, heads = TOKENS // seqlen, HIDDEN // dim
        heads_kv = heads // 8 if name == "gqa 8:1" else heads

        def normal(*shape, dtype=torch.bfloat16):
            return torch.randn(shape, device="cuda", dtype=dtype, generator=generator)
        self.q = normal(batch, seqlen, heads, dim)
        self.k, self.v = (normal(batch, seqlen, heads_kv, dim) for _ in range(2))
        self.options = {} if name == "full" else {"causal": "true"}
        self.tensors = {"q": self.q, "k": self.k, "v": self.v}
        self.pairs = batch * heads * (seqlen**2 if name == "full" else causal_pairs([seqlen]))
        self.score = self.hidden = None  # of (score, row, col) and (row, col), for the last head
        self.head_score = None  # the same for FlexAttention, with the head
        if hasattr(self, "add_" + name.split()[0]):
            getattr(self, "add_" + name.split()[0])(normal, batch, heads)
        self.out = torch.full_like(self.tensors["q"], math.nan)
        self.tensors["out"] = self.out

    def add_window(self, _normal, batch, heads):
        self.options["window_left"] = WINDOW
        self.hidden = lambda row, col: col < row - WINDOW
        self.pairs = batch * heads * (causal_pairs([self.seqlen]) -
                                      causal_pairs([max(0, self.seqlen - WINDOW - 1)]))

    def add_document(self, _normal, batch, heads):
        """Documents of many lengths; an id for each position."""
        draw = random.Random(3)
        ends = sorted(draw.sample(range(1, self.seqlen), DOCUMENTS - 1)) + [self.seqlen]
        self.lengths = [end - begin for begin, end in zip([0] + ends, ends)]
        ids = torch.arange(DOCUMENTS, device="cuda", dtype=torch.int32)
        ids = ids.repeat_interleave(torch.tensor(self.lengths, device="cuda"))
        self.tensors["aux.document"] = ids
        self.options = {"mask": "document[q_idx] == document[k_idx] && k_idx <= q_idx"}
        self.hidden = lambda row, col: ids[row] != ids[col]
        self.pairs = batch * heads * causal_pairs(self.lengths)

    def add_chunk(self, _normal, batch, heads):
        self.options["attention_chunk"] = CHUNK
        self.hidden = lambda row, col: row // CHUNK != col // CHUNK
        self.pairs = batch * heads * causal_pairs([CHUNK] * (self.seqlen // CHUNK))

    def add_alibi(self, _normal, _batch, heads):
        slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device="cuda") / heads)
        self.tensors["alibi_slopes"] = slopes.float()
        self.head_score = lambda score, head, row, col: score - slopes[head] * (row - col)

    def add_relative(self, normal, _batch, heads):
        table = normal(heads, 2 * self.seqlen, dtype=torch.float32)
        self.tensors["aux.table"] = table
        self.options["score"] = "score + table[head, q_idx - k_idx + seqlen_k - 1]"
        last = self.seqlen - 1
        self.head_score = lambda score, head, row, col: score + table[head, row - col + last]

    def add_bias(self, normal, _batch, _heads):
        bias = normal(1, 1, self.seqlen, self.seqlen)
        self.tensors["bias"] = bias
        self.head_score = lambda score, head, row, col: score + bias[0, 0, row, col]

    def add_softcap(self, *_):
        self.options["softcap"] = SOFTCAP
        self.head_score = lambda score, head, row, col: SOFTCAP * torch.tanh(score / SOFTCAP)

    def add_sink(self, normal, _batch, heads):
        self.sink = self.tensors["sink"] = normal(heads, dtype=torch.float32)

    def add_max_logit(self, normal, _batch, heads):
        self.tensors["max_logit"] = normal(heads, dtype=torch.float32)

    def add_dropout(self, *_):
        self.options |= {"dropout_p": DROPOUT, "dropout_seed": 5}

    def add_pages(self, *_):
        """The same keys in pages that lie in any order."""
        page = int(self.name.split()[-1])
        count = TOKENS // page
        table = torch.randperm(count, device="cuda", dtype=torch.int32)
        for name in ("k", "v"):
            pages = torch.empty(count, page, *self.k.shape[2:], device="cuda",
                                dtype=torch.bfloat16)
            pages[table.long()] = self.tensors[name].reshape(pages.shape)
            self.tensors[name] = pages
        self.tensors["block_table"] = table.view(-1, self.seqlen // page)

    def add_packed(self, _normal, _batch, heads):
        """Lengths log-uniform from 64 to 8192 that make the same number of tokens."""
        draw, lengths = random.Random(4), []
        while sum(lengths) < TOKENS:
            lengths.append(min(int(64 * 128 ** draw.random()), TOKENS - sum(lengths)))
        ends = torch.tensor([0] + lengths, device="cuda").cumsum(0).to(torch.int32)
        self.lengths = lengths
        for name in ("q", "k", "v"):
            self.tensors[name] = self.tensors[name].view(-1, *self.tensors[name].shape[2:])
        self.tensors |= {"cu_seqlens_q": ends, "cu_seqlens_k": ends}
        self.options |= {"max_seqlen_q": max(lengths), "max_seqlen_k": max(lengths)}
        self.pairs = heads * causal_pairs(lengths)

    def error(self):
        """Of the last head, over at most 1024 queries at the end; None: nothing to compare with."""
        if self.name == "dropout":
            return None
        out, q, k, v = self.out, self.q[-1, :, -1], self.k[-1, :, -1], self.v[-1, :, -1]
        out = out.view(-1, self.seqlen, *out.shape[-2:])[-1, :, -1]
        if self.name == "packed":
            out, q, k, v = (x[-self.lengths[-1]:] for x in (out, q, k, v))
        first = max(0, q.shape[0] - 1024)
        row = torch.arange(first, q.shape[0], device="cuda")[:, None]
        col = torch.arange(k.shape[0], device="cuda")[None]
        scores = q[first:].float() @ k.float().T / math.sqrt(q.shape[1])
        if self.head_score is not None:
            scores = self.head_score(scores, self.q.shape[2] - 1, row, col)
        if self.name != "full":
            scores = scores.masked_fill(col > row, -math.inf)
        if self.hidden is not None:
            scores = scores.masked_fill(self.hidden(row, col), -math.inf)
        if self.name == "sink":
            scores = torch.cat([scores, self.sink[-1].expand(len(row), 1)], 1)
        expected = torch.softmax(scores, 1)[:, :len(k)] @ v.float()
        return ((out[first:].float() - expected).norm() / expected.norm()).item()

    def call(self, lib, implementation):
        return library.Call(lib, "attention_fwd", self.tensors, self.options, implementation)

    def flex(self):
        """Compiled FlexAttention; None where it does not have the option."""
        if self.name in ("sink", "max_logit", "dropout", "packed") or "page" in self.name:
            return None
        hidden, head_score, is_full = self.hidden, self.head_score, self.name == "full"

        def sees(_b, _h, row, col):
            seen = col <= row
            return seen if hidden is None else seen & ~hidden(row, col)
        mask = None if is_full else create_block_mask(sees, None, None, self.seqlen, self.seqlen)
        score = None
        if head_score is not None:
            def score(value, _b, head, row, col):
                return head_score(value, head, row, col)
        compiled = torch.compile(flex_attention, dynamic=False)
        q, k, v = (x.transpose(1, 2) for x in (self.q, self.k, self.v))
        return functools.partial(compiled, q, k, v, score_mod=score, block_mask=mask,
                                 enable_gqa=self.name == "gqa 8:1")

    def sdpa(self, backend):
        """A backend of scaled_dot_product_attention; None where it does not have the option."""
        if self.name not in ("plain", "full", "dropout", "gqa 8:1"):
            return None
        q, k, v = (x.transpose(1, 2) for x in (self.q, self.k, self.v))

        def run():
            with sdpa_kernel(backend), torch.no_grad():
                return scaled_dot_product_attention(
                    q, k, v, is_causal=self.name != "full", enable_gqa=self.name == "gqa 8:1",
                    dropout_p=DROPOUT if self.name == "dropout" else 0.0)
        return run


def working(functions):
    """Those that run."""
    kept = {}
    for name, run in functions.items():
        try:
            if run is not None:
                run()
                torch.cuda.synchronize()
                kept[name] = run
        except Exception as fault:  # of PyTorch's backends, whatever it is
            print(f"# {name}: {str(fault).splitlines()[0][:100]}", flush=True)
    return kept


def calls_of(lib, problem, args):
    """Our calls of it by name; the one of the kernel first."""
    implementations = [SM90, PORTABLE] if args.portable else [SM90]
    return {name: problem.call(lib, name) for name in implementations}


def peers_of(problem, args):
    if not args.peers:
        return {}
    return working({"flex": problem.flex(), "cudnn": problem.sdpa(SDPBackend.CUDNN_ATTENTION),
                    "fa2": problem.sdpa(SDPBackend.FLASH_ATTENTION)})


def make_problem(name, dim, seqlen):
    return Problem(name, dim, seqlen, torch.Generator(device="cuda").manual_seed(1))


def measure(lib, report, place, args):
    name, dim, seqlen = place
    problem = make_problem(name, dim, seqlen)
    # The kernel without the option beside it, in the same rounds.
    plain = make_problem("full" if name == "full" else "plain", dim, seqlen)
    calls = calls_of(lib, problem, args)
    errors = {}
    for implementation, call in calls.items():
        problem.out.fill_(math.nan)
        call.run()
        errors[implementation] = problem.error()
    functions = {key: call.run for key, call in calls.items()}
    functions["without"] = plain.call(lib, SM90).run
    times = timing.interleaved(functions | peers_of(problem, args), 5, 20.0)
    ms = times[SM90]["ms"]
    share = problem.pairs / ms / (plain.pairs / times["without"]["ms"])
    tflops = 4 * dim * problem.pairs / ms * 1e-9
    ratios = {key: time["ms"] / ms for key, time in times.items() if key not in (SM90, "without")}
    error = "none   " if errors[SM90] is None else f"{errors[SM90]:.1e}"
    print(f"d={dim:3d} s={seqlen:5d} {name:14s} err {error} {ms:.3f} ms {tflops:4.0f} TF, of plain "
          f"{share:.2f}" + "".join(f"  x {key.removeprefix('attention_fwd_')} {ratio:.2f}"
                                   for key, ratio in ratios.items()), flush=True)
    for key, time in times.items() if report else ():
        report.write(json.dumps({
            "op": "fwd option sm90", "option": name, "d": dim, "seqlen": seqlen,
            "dtype": "bfloat16", "impl": key, "of_plain": share, "tflops": tflops,
            "error": errors.get(key), **time}) + "\n")
    if report:
        report.flush()


def run_once(lib, place, args):
    """Compiles what it needs."""
    problem = make_problem(*place)
    for call in calls_of(lib, problem, args).values():
        call.run()
    peers_of(problem, args)
    torch.cuda.synchronize()


def compile_ahead(num_places):
    """By processes that run each some of the problems."""
    count = min(12, os.cpu_count() or 1, num_places)
    arguments = [sys.executable, *sys.argv, "--compile-part"]
    parts = [subprocess.Popen([*arguments, f"{i}/{count}"], stdout=subprocess.DEVNULL)
             for i in range(count)]
    for part in parts:
        part.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true", help="head_dim 128 only")
    parser.add_argument("--dims", type=int, nargs="*", default=[64, 128, 256])
    parser.add_argument("--seqlens", type=int, nargs="*", default=[16384])
    parser.add_argument("--options", nargs="*", default=OPTIONS)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--portable", action="store_true")
    parser.add_argument("--commit", help="that the library was built from, for the report")
    parser.add_argument("--compile-part", help="I/N: run every Nth problem once, time nothing")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    lib = library.Library(args.library)
    dims = [128] if args.quick else args.dims
    places = [(name, dim, seqlen) for name in args.options for dim in dims
              for seqlen in args.seqlens]
    step = functools.partial(run_once, lib, args=args)
    report = None
    if args.compile_part:
        first, count = map(int, args.compile_part.split("/"))
        places = places[first::count]
    else:
        compile_ahead(len(places))
        record = {"what": "options of attention_fwd_sm90", "tokens": TOKENS, "hidden": HIDDEN,
                  "commit": args.commit, **timing.device_record()}
        print(f"# {record}", flush=True)
        if args.json:
            report = open(args.json, "w")
            report.write(json.dumps(record) + "\n")
        step = functools.partial(measure, lib, report, args=args)
    for place in places:
        try:
            step(place)
        except RuntimeError as fault:  # the others are worth their time
            print(f"# {place}: {str(fault).splitlines()[0][:160]}", flush=True)
        torch.compiler.reset()
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
