#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times flashtile beside what a user has on a CPU otherwise: PyTorch, JAX, ONNX Runtime, OpenVINO.

    bench/cpu_peers.py [--build build/release] [--out bench/results/cpu_peers.jsonl] [--threads 1]
                       [--parts grid,short,decode,f16] [--rounds 5]

Needs torch and numpy; the other peers take part where they are installed. All run in one process,
interleaved, on the same random numbers; a peer whose result differs from flashtile's is left out,
and says so. With one thread the processor time of the process is what counts, so that a busy
machine changes little; with more it is wall time. One JSON line a point, the first line describes
the machine and the commit. bench/plot_cpu_peers.py draws them.
"""

import ctypes
import json
import os
import statistics
import sys

import torch
import torch.nn.functional as functional

from cpu_bench import ROOT, clock_of, machine, parser_of, write_lines

DTYPES = {torch.float32: ("f32", 1), torch.float16: ("f16", 2), torch.bfloat16: ("bf16", 3)}
NAMES = {name: dtype for dtype, (name, _) in DTYPES.items()}
LIMITS = {"f32": 1e-4, "f16": 1e-2, "bf16": 4e-2}  # of results' difference, of the largest one
RUNTIME_DTYPES = {"f32": "FLOAT", "f16": "FLOAT16"}


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

    def call(self, op, tensors, causal=None, flags=()):
        """A function that runs an op; causal is set where it is given, for not every op has it, and
        flags are options to be turned on."""
        call = ctypes.c_void_p(self.lib.flashtile_call_new(op.encode()))
        for name, value in tensors.items():
            shape = (ctypes.c_int64 * value.dim())(*value.shape)
            strides = (ctypes.c_int64 * value.dim())(*value.stride())
            view = Tensor(ctypes.sizeof(Tensor), DTYPES[value.dtype][1], 1, 0, value.data_ptr(),
                          shape, strides, value.dim(), 0)
            self.check(self.lib.flashtile_call_set_tensor(call, name.encode(), ctypes.byref(view)))
        if causal is not None:
            self.check(self.lib.flashtile_call_set_bool(call, b"causal", int(causal)))
        for flag in flags:
            self.check(self.lib.flashtile_call_set_bool(call, flag.encode(), 1))

        def run(_memory=tensors):  # the call only points at it
            self.check(self.lib.flashtile_call_run(None, call))
        return run


class Point:
    """One problem: q (batch, heads, seqlen_q, head_dim), k and v with seqlen_k rows."""

    def __init__(self, dtype, head_dim, seqlen, heads, causal=False, batch=1, seqlen_q=None,
                 heads_kv=None):
        self.dtype, self.head_dim, self.seqlen, self.heads = dtype, head_dim, seqlen, heads
        self.causal, self.batch, self.seqlen_q = causal, batch, seqlen_q or seqlen
        self.heads_kv = heads_kv or heads
        generator = torch.Generator().manual_seed(0)

        def make(num_heads, rows):
            numbers = torch.randn(batch, rows, num_heads, head_dim, generator=generator)
            return numbers.to(NAMES[dtype])
        self.q = make(heads, self.seqlen_q)
        self.k, self.v = make(self.heads_kv, seqlen), make(self.heads_kv, seqlen)
        self.dout = make(heads, self.seqlen_q)

    def flop(self, op):
        forward = 4 * self.batch * self.heads * self.seqlen_q * self.seqlen * self.head_dim
        return forward * (0.5 if self.causal else 1) * (3.5 if op == "fwd+bwd" else 1)

    def line(self):
        names = ("dtype", "head_dim", "seqlen_q", "seqlen", "batch", "heads", "heads_kv", "causal")
        return {name: getattr(self, name) for name in names}


def flashtile(point, library):
    """(forward, forward and backward); both give out as (batch, seqlen, heads, head_dim)."""
    out, dq, dk, dv = (torch.full_like(x, float("nan"))
                       for x in (point.q, point.q, point.k, point.v))
    lse = torch.full((point.batch, point.heads, point.seqlen_q), float("nan"))
    inputs = {"q": point.q, "k": point.k, "v": point.v, "out": out, "lse": lse}
    run = library.call("attention_fwd", inputs, point.causal)
    gradients = {**inputs, "dout": point.dout, "dq": dq, "dk": dk, "dv": dv}
    run_backward = library.call("attention_bwd", gradients, point.causal)

    def forward():
        run()
        return out

    def both():
        run()
        run_backward()
        return dq, dk, dv
    return forward, both


def torch_sdpa(point):
    leaves = [x.transpose(1, 2).detach().requires_grad_(True)
              for x in (point.q, point.k, point.v)]

    def attend():
        return functional.scaled_dot_product_attention(
            *leaves, is_causal=point.causal, enable_gqa=point.heads != point.heads_kv)

    def forward():
        with torch.no_grad():
            return attend().transpose(1, 2)

    def both():
        gradients = torch.autograd.grad(attend(), leaves, point.dout.transpose(1, 2))
        return [x.transpose(1, 2) for x in gradients]
    return forward, both


def jax_attention(point):
    import jax  # pylint: disable=import-outside-toplevel
    import jax.numpy as jnp  # pylint: disable=import-outside-toplevel
    dtype = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}[point.dtype]
    q, k, v, dout = (jnp.asarray(x.float().numpy()).astype(dtype)
                     for x in (point.q, point.k, point.v, point.dout))

    def attend(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=point.causal)
    run = jax.jit(attend)
    run_both = jax.jit(lambda q, k, v, dout: jax.vjp(attend, q, k, v)[1](dout))

    def tensor(x):
        import numpy as np  # pylint: disable=import-outside-toplevel
        return torch.from_numpy(np.array(x.astype(jnp.float32)))

    def forward(convert=False):
        out = run(q, k, v).block_until_ready()
        return tensor(out) if convert else None

    def both(convert=False):
        gradients = jax.block_until_ready(run_both(q, k, v, dout))
        return [tensor(x) for x in gradients] if convert else None
    return forward, both


def onnx_runtime(point):
    """MultiHeadAttention; the operator takes one number of heads and no bf16."""
    if point.dtype not in RUNTIME_DTYPES or point.heads != point.heads_kv or \
            (point.causal and point.seqlen_q != point.seqlen):
        return None
    import onnxruntime  # pylint: disable=import-outside-toplevel
    from onnx import TensorProto, helper  # pylint: disable=import-outside-toplevel
    kind = getattr(TensorProto, RUNTIME_DTYPES[point.dtype])
    node = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["out"],
                            domain="com.microsoft", num_heads=point.heads,
                            unidirectional=int(point.causal))
    infos = [[helper.make_tensor_value_info(name, kind, None) for name in names]
             for names in (("q", "k", "v"), ("out",))]
    model = helper.make_model(
        helper.make_graph([node], "attention", *infos), ir_version=10,
        opset_imports=[helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Its threads would spin through the turns of the others.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options,
                                           providers=["CPUExecutionProvider"])
    feed = {name: x.flatten(2).numpy()
            for name, x in (("q", point.q), ("k", point.k), ("v", point.v))}

    def forward(convert=False):
        out = session.run(None, feed)[0]
        return torch.from_numpy(out).reshape(point.q.shape) if convert else None
    return forward, None


def openvino_sdpa(point):
    if point.dtype != "f32" or point.heads != point.heads_kv or \
            (point.causal and point.seqlen_q != point.seqlen):
        return None
    import openvino  # pylint: disable=import-outside-toplevel
    import openvino.opset13 as ops  # pylint: disable=import-outside-toplevel
    tensors = [x.transpose(1, 2).contiguous().numpy() for x in (point.q, point.k, point.v)]
    inputs = [ops.parameter(list(x.shape), openvino.Type.f32) for x in tensors]
    out = ops.scaled_dot_product_attention(*inputs, causal=point.causal).output(0)
    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": "f32", "ENABLE_CPU_PINNING": False}
    model = openvino.Model([out], inputs, "attention")
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    for i, x in enumerate(tensors):
        request.set_input_tensor(i, openvino.Tensor(x))

    def forward(convert=False):
        request.infer()
        if not convert:
            return None
        return torch.from_numpy(request.get_output_tensor(0).data.copy()).transpose(1, 2)
    return forward, None


PEERS = {"torch": torch_sdpa, "jax": jax_attention, "onnxruntime": onnx_runtime,
         "openvino": openvino_sdpa}
# Attention that holds whole score matrices is not asked for more than this many keys.
LONGEST = {"jax": 512}


def difference(expected, found):
    pairs = zip(expected, found) if isinstance(expected, (tuple, list)) else [(expected, found)]
    return max(((a.float() - b.float()).abs().max() / a.float().abs().max()).item()
               for a, b in pairs)


def convert_result(function):
    try:
        return function(convert=True)
    except TypeError:  # its results are tensors as they are
        return function()


def functions_of(point, library, ops):
    """op -> name -> function, and what was left out: name -> why."""
    own = flashtile(point, library)
    expected = [own[0]().clone(), own[1]() if "fwd+bwd" in ops else None]
    functions = {op: {"flashtile": own[op != "fwd"]} for op in ops}
    left_out = {}
    for name, make in PEERS.items():
        if point.seqlen > LONGEST.get(name, point.seqlen):
            continue
        try:
            peer = make(point)
            for i, op in enumerate(("fwd", "fwd+bwd")):
                if peer is None or peer[i] is None or op not in ops:
                    continue
                error = difference(expected[i], convert_result(peer[i]))
                if not error < LIMITS[point.dtype]:
                    raise ArithmeticError(f"results differ by {error}")
                functions[op][name] = peer[i]
        except (ImportError, RuntimeError, ArithmeticError, ValueError, TypeError) as fault:
            left_out[name] = f"{type(fault).__name__}: {str(fault)[:100]}"
    return functions, left_out


def interleaved(functions, clock, rounds):
    """Median, least and largest milliseconds of each function, taken in turns."""
    samples = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            begin = clock()
            function()
            samples[name].append(1e3 * (clock() - begin))
    return {name: (statistics.median(s), min(s), max(s)) for name, s in samples.items()}


def points_of(part):
    """(point, ops) of a part."""
    both = ("fwd", "fwd+bwd")
    if part == "grid":
        for dtype in ("f32", "bf16"):
            for head_dim in (64, 128):
                for seqlen, heads in ((512, 16), (2048, 8), (4096, 4)):
                    for causal in (False, True):
                        yield Point(dtype, head_dim, seqlen, heads, causal), both
    elif part == "short":
        for dtype in ("f32", "bf16"):
            yield Point(dtype, 64, 512, 8, True, batch=8), both
    elif part == "f16":
        for causal in (False, True):
            yield Point("f16", 64, 512, 8, causal), both
    elif part == "decode":
        for dtype in ("f32", "bf16"):
            for heads_kv in (16, 4):
                yield Point(dtype, 64, 4096, 16, batch=8, seqlen_q=1, heads_kv=heads_kv), ("fwd",)
    else:
        sys.exit(f"no part is called {part}")


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--parts", default="grid,short,decode,f16")
    arguments = parser.parse_args()
    # For those whose pools follow the cores of the process.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-arguments.threads:])
    os.environ["FLASHTILE_NUM_THREADS"] = str(arguments.threads)
    torch.set_num_threads(arguments.threads)
    library = Library(ROOT / arguments.build / "libflashtile.so")
    clock = clock_of(arguments)
    lines = [machine(arguments)]
    print(json.dumps(lines[0]), flush=True)
    for part in arguments.parts.split(","):
        for point, ops in points_of(part):
            functions, left_out = functions_of(point, library, ops)
            for op, candidates in functions.items():
                times = interleaved(candidates, clock, arguments.rounds)
                line = {"part": part, "op": op, **point.line()}
                for name, (median, low, high) in times.items():
                    line[name] = {"ms": round(median, 3), "ms_min": round(low, 3),
                                  "ms_max": round(high, 3),
                                  "gflops": round(point.flop(op) / median / 1e6, 1)}
                peers = [times[name][0] for name in times if name != "flashtile"]
                if peers:
                    line["speedup"] = round(min(peers) / times["flashtile"][0], 2)
                if left_out:
                    line["left_out"] = left_out
                lines.append(line)
                print(json.dumps(line), flush=True)
    write_lines(arguments, lines)


if __name__ == "__main__":
    main()
