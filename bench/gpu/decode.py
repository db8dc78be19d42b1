#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decode (few queries of each sequence over cached keys) beside PyTorch's backends, and beside what
the card reads: a kernel that only sums bytes, timed in the same rounds on as much memory. Latent
attention (head_dim 576, values are the first 512 columns of keys) also beside two matrix products
and a softmax, for PyTorch's backends do not take it; its keys are counted once. Caches of i8 and
e4m3 have no backend there either.

    bench/gpu/decode.py --library build/gpu/libflashtile.so [--json FILE] [--quick] [--only TEXT]

One line for each problem; --json writes one JSON line for each (problem, implementation). Times are
those of a CUDA graph of calls, so that they are the device's; `launch` is the time of a call from
the host, one after the other. A problem is timed only after its result has been compared with
float32.
"""

import argparse
import dataclasses
import json
import math
import sys

import torch
from torch.nn.attention import sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import library
import peers
import timing

L2_BYTES = 256 << 20  # several times what any GPU keeps
CACHES = {"bf16": torch.bfloat16, "i8": torch.int8, "e4m3": torch.float8_e4m3fn}
SCALE = 1 / 32  # of numbers that are stored in 8 bits


@dataclasses.dataclass
class Shape:
    batch: int
    heads: int
    heads_kv: int
    keys: int
    page_size: int = 0  # 0: not paged
    seqlen_q: int = 1
    dim: int = 128
    dim_v: int = 128  # less than dim: values are the first columns of keys
    cache: str = "bf16"  # dtype of k and v

    def __str__(self):
        kind = "latent" if self.is_latent() else "plain" if self.cache == "bf16" else self.cache
        return (f"{kind} b={self.batch:3d} sq={self.seqlen_q} hq={self.heads:3d} "
                f"hkv={self.heads_kv:2d} keys={self.keys:6d} page={self.page_size:3d}")

    def is_latent(self):
        return self.dim_v < self.dim


def latent(batch, heads, keys, page_size=0, seqlen_q=1):
    return Shape(batch, heads, 1, keys, page_size, seqlen_q, 576, 512)


PLAIN = [Shape(*shape) for shape in (
    (1, 32, 8, 1024, 0), (1, 8, 8, 4096, 0), (16, 32, 8, 1024, 0), (1, 32, 8, 16384, 0),
    (1, 64, 64, 8192, 0), (4, 32, 8, 16384, 0), (16, 16, 4, 8192, 0), (16, 16, 4, 8192, 16),
    (1, 64, 8, 131072, 0), (1, 64, 8, 131072, 16), (8, 32, 8, 16384, 0), (8, 8, 1, 131072, 0),
    (32, 32, 8, 8192, 0), (32, 32, 8, 8192, 16), (32, 32, 8, 8192, 64), (32, 32, 8, 8192, 256),
    (8, 32, 32, 16384, 0), (8, 64, 8, 65536, 0), (128, 32, 8, 4096, 0), (128, 32, 8, 4096, 16),
    (128, 8, 8, 4096, 0), (128, 64, 8, 8192, 0), (128, 64, 64, 1024, 0), (128, 32, 32, 1024, 16),
)]
LATENT = [
    latent(1, 16, 1024), latent(4, 128, 4096), latent(1, 16, 131072), latent(1, 128, 131072),
    latent(32, 16, 8192), latent(32, 64, 8192), latent(32, 128, 8192), latent(64, 16, 16384),
    latent(128, 16, 8192), latent(128, 64, 8192), latent(128, 128, 8192), latent(16, 32, 65536),
    latent(128, 16, 8192, seqlen_q=4), latent(128, 64, 8192, seqlen_q=2), latent(128, 64, 1024),
    latent(128, 16, 8192, 64), latent(128, 64, 8192, 64), latent(128, 64, 8192, 16),
]
CODES = [dataclasses.replace(PLAIN[i], cache=cache)
         for i in (2, 5, 6, 8, 12, 13, 15, 17, 18, 19) for cache in ("i8", "e4m3")]
PROBLEMS = PLAIN + CODES + LATENT
QUICK = ([PLAIN[i] for i in (2, 5, 8, 12, 13, 18)] + CODES[8:12] +
         [LATENT[i] for i in (2, 8, 9, 10, 17)])

READ_SOURCE = r"""
extern "C" __global__ void __launch_bounds__(512, 2) read_all(const uint4* data, int count,
                                                              unsigned* sink) {
  const long long step = (long long)gridDim.x * blockDim.x;
  unsigned sum = 0;
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i + 7 * step < count; i += 8 * step) {
    uint4 v[8];
#pragma unroll
    for (int n = 0; n < 8; ++n) v[n] = __ldcs(data + i + n * step);
#pragma unroll
    for (int n = 0; n < 8; ++n) sum += v[n].x + v[n].y + v[n].z + v[n].w;
  }
  for (; i < count; i += step) {
    const uint4 v = data[i];
    sum += v.x + v.y + v.z + v.w;
  }
  if (sum == 0x12345678u) *sink = sum;
}
"""


def reader():
    """A function of a tensor that reads all of it."""
    sink = torch.zeros(1, dtype=torch.int32, device="cuda")
    try:
        kernel = torch.cuda._compile_kernel(READ_SOURCE, "read_all")
    except Exception as fault:  # an older PyTorch: its own sum is nearly as good
        print(f"# reads are timed by torch.sum: {str(fault).splitlines()[0][:80]}")
        return lambda data: data.view(torch.float32).sum()
    ctas = 2 * torch.cuda.get_device_properties(0).multi_processor_count

    def run(data):
        kernel(grid=(ctas, 1, 1), block=(512, 1, 1),
               args=[data, data.numel() * data.element_size() // 16, sink])
    return run


class Problem:
    """Tensors of one problem, in as many copies as keep the L2 cache out of the timing."""

    def __init__(self, shape, lib, generator):
        self.shape = shape
        num_tensors = 1 if shape.is_latent() else 2
        dtype = CACHES[shape.cache]
        self.cache_bytes = (shape.batch * shape.heads_kv * shape.keys * shape.dim * num_tensors *
                            dtype.itemsize)
        self.num_copies = max(1, min(64, math.ceil(L2_BYTES / self.cache_bytes)))
        lines = (shape.batch, shape.keys)
        if shape.page_size:
            lines = (shape.batch * shape.keys // shape.page_size, shape.page_size)
        # One allocation with all copies of k and v, which the reader reads as a whole.
        self.memory = torch.empty((self.num_copies, num_tensors, *lines, shape.heads_kv, shape.dim),
                                  device="cuda", dtype=dtype)
        self.scale = 1.0 if shape.cache == "bf16" else SCALE
        for part in self.memory.flatten(0, 2).split(1 << 12):
            values = torch.randn(part.shape, device="cuda", generator=generator) / self.scale
            part.copy_(values.clamp(-127, 127).round() if shape.cache == "i8" else values)
        self.q = torch.randn((shape.batch, shape.seqlen_q, shape.heads, shape.dim), device="cuda",
                             dtype=torch.bfloat16, generator=generator)
        self.out = torch.full_like(self.q[..., :shape.dim_v], math.nan).contiguous()
        tensors = {"q": self.q, "out": self.out}
        options = {"causal": "true"} if shape.seqlen_q > 1 else {}
        self.table = None
        if shape.page_size:
            pages = torch.randperm(lines[0], device="cuda", generator=generator)
            self.table = pages.to(torch.int32).view(shape.batch, -1).contiguous()
            tensors["block_table"] = self.table
        if shape.cache != "bf16":
            tensors["k_scale"] = tensors["v_scale"] = torch.full((shape.heads_kv,), SCALE,
                                                                 device="cuda")
        self.calls = []
        for copy in range(self.num_copies):
            k, v = self.cache(copy)
            self.calls.append(library.Call(lib, "attention_fwd", {**tensors, "k": k, "v": v},
                                           options))

    def cache(self, copy):
        k, v = self.memory[copy, 0], self.memory[copy, -1]
        return k, v[..., :self.shape.dim_v]

    def dense(self, copy=0):
        """k and v of a copy as (batch, keys, heads, dim)."""
        k, v = self.cache(copy)
        if self.table is not None:
            index = self.table.long()
            # Numbers of 8 bits cannot be indexed as what they are.
            bits = torch.uint8 if k.dtype.itemsize == 1 else k.dtype
            k, v = (x.view(bits)[index].view(x.dtype).flatten(1, 2) for x in (k, v))
        return k, v

    def error(self):
        """Against float32, of the last query of the last sequence and head."""
        self.calls[0].run()
        k, v = (x[-1, :, -1].float() * self.scale for x in self.dense())
        scores = self.q[-1, -1, -1].float() @ k.T / math.sqrt(self.shape.dim)
        expected = torch.softmax(scores, -1) @ v
        return ((self.out[-1, -1, -1].float() - expected).norm() / expected.norm()).item()

    def peers(self):
        """Names of what can be timed beside it."""
        if self.shape.page_size or self.shape.cache != "bf16":
            return ()
        return ("matmul",) if self.shape.is_latent() else ("sdpa-fa2", "sdpa-cudnn")

    def peer(self, name):
        """A function for each copy."""
        q = self.q.transpose(1, 2)
        caches = [tuple(x.transpose(1, 2) for x in self.cache(i)) for i in range(self.num_copies)]

        def sdpa(k, v):
            def run():
                with sdpa_kernel(peers.BACKENDS[name]), torch.no_grad():
                    return scaled_dot_product_attention(
                        q, k, v, enable_gqa=self.shape.heads != self.shape.heads_kv)
            return run

        def matmul(k, v):
            rows = q.flatten(1, 2) / math.sqrt(self.shape.dim)

            def run():
                return torch.softmax(rows @ k[:, 0].transpose(1, 2), -1) @ v[:, 0]
            return run
        functions = [(matmul if name == "matmul" else sdpa)(k, v) for k, v in caches]
        functions[0]()
        return functions


def graph_of(functions, calls=()):
    """A graph that runs each function once. `calls` go to the stream that is captured."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for function in functions[:2]:
            function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    streams = [call.context.stream for call in calls]
    with torch.cuda.graph(graph):
        for call in calls:
            call.context.stream = torch.cuda.current_stream().cuda_stream
        for function in functions:
            function()
    for call, stream in zip(calls, streams):
        call.context.stream = stream
    return graph.replay


def measure(shape, lib, generator, read, rounds):
    problem = Problem(shape, lib, generator)
    error = problem.error()
    # At least some calls in a graph, so that its own launch does not count.
    turns = max(1, 16 // problem.num_copies) if problem.cache_bytes < L2_BYTES else 1
    runs = [call.run for call in problem.calls] * turns
    graphs = {"flashtile": graph_of(runs, problem.calls)}
    count = len(runs)
    graphs["read"] = graph_of([lambda i=i: read(problem.memory[i])
                               for i in range(problem.num_copies)] * turns)
    eager = {"flashtile": timing.Rotation([call.run for call in problem.calls])}
    for name in problem.peers():
        try:
            functions = problem.peer(name)
            graphs[name] = graph_of(functions * turns)
            eager[name] = timing.Rotation(functions)
        except RuntimeError as fault:
            print(f"# {name} {shape}: {str(fault).splitlines()[0][:80]}")
    times = timing.interleaved(graphs, rounds, round_ms=10.0)
    launches = {}
    if problem.cache_bytes < L2_BYTES:
        launches = timing.interleaved(eager, 3, round_ms=5.0)
    results = {}
    for name, time in times.items():
        results[name] = {key: value / count if key.startswith("ms") else value
                         for key, value in time.items()}
        results[name]["gb_s"] = problem.cache_bytes / results[name]["ms"] * 1e-6
        if name in launches:
            results[name]["launch_ms"] = launches[name]["ms"]
    return problem, error, results


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true", help="a few problems")
    parser.add_argument("--only", default="", help="problems whose line begins like this")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    lib = library.Library(args.library)
    generator = torch.Generator(device="cuda").manual_seed(1)
    read = reader()
    record = timing.device_record()
    print(f"# {record}")
    sink = open(args.json, "w") if args.json else None
    for shape in QUICK if args.quick else PROBLEMS:
        if not str(shape).startswith(args.only):
            continue
        problem, error, results = measure(shape, lib, generator, read, args.rounds)
        share = results["flashtile"]["gb_s"] / results["read"]["gb_s"]
        line = f"{shape} {problem.cache_bytes / 1e6:6.0f} MB err {error:.1e} of read {share:.3f} "
        for name, result in results.items():
            line += f" {name} {result['gb_s']:5.0f} GB/s {result['ms'] * 1e3:.1f} us"
            if "launch_ms" in result:
                line += f" (launch {result['launch_ms'] * 1e3:.1f})"
            if sink:
                sink.write(json.dumps({
                    "op": "decode", "impl": name, **dataclasses.asdict(shape),
                    "cache_bytes": problem.cache_bytes, "error": error, "of_read": share,
                    **result, **record}) + "\n")
        print(line, flush=True)
        del problem
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
