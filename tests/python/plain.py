# SPDX-License-Identifier: Apache-2.0
"""Attention in numpy's float64, written from its definition, and files of golden cases."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "attention"
_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
           "I32": np.int32, "I64": np.int64, "U8": np.uint8}


def attention(q, k, v, *, seen=None, change=None, scale=None, sink=None):
    """(out, lse) of (batch, seqlen, heads, dim); `seen` and `change` act on scores (b, h, i, j)."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = np.repeat(k, group, axis=2), np.repeat(v, group, axis=2)
    scores = np.einsum("bihd,bjhd->bhij", q, k)
    scores *= 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    if change is not None:
        scores = change(scores)
    if seen is not None:
        scores = np.where(seen, scores, -np.inf)
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    if sink is not None:
        sink = np.asarray(sink, np.float64)[None, :, None, None]
        top = np.maximum(top, sink)
    top = np.where(np.isfinite(top), top, 0)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(sink - top)
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]
    out = np.einsum("bhij,bjhd->bihd", weights / np.where(total == 0, 1, total), v)
    return out, lse


def positions(seqlen_q, seqlen_k):
    """Positions of queries, aligned bottom-right, and of keys, as a column and a row."""
    return np.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q, np.arange(seqlen_k)[None, :]


def random(seed, *shapes, dtype=np.float32):
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(shape).astype(dtype) for shape in shapes]


def load_safetensors(path):
    """(tensors, metadata) of a file; arrays can be written."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        array = np.frombuffer(bytearray(data[8 + size + begin:8 + size + end]),
                              _DTYPES[entry["dtype"]])
        tensors[name] = array.reshape(entry["shape"])
    return tensors, metadata
