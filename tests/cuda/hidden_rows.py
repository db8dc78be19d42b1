# SPDX-License-Identifier: Apache-2.0
"""A golden case (tests/golden/README.md) in bf16 whose hidden queries and keys hold NaN and
infinity: what masks hide must not reach any gradient, not even by a weight of 0."""

import json
import math
import random
import struct

PLAIN_ERROR = 0.01  # bf16 operands and results of size 1
NAN, INFINITY = 0x7FC0, 0x7F80


def bf16_bits(value):
    """Of a number that bf16 holds exactly."""
    return struct.unpack("<I", struct.pack("<f", value))[0] >> 16


def gradients(q, k, v, dout, scale, seen):
    """out, lse, dq, dk, dv of one head; lists of rows."""
    def dot(a, b):
        return sum(x * y for x, y in zip(a, b))

    def zeros(like):
        return [[0.0] * len(row) for row in like]

    out, lse, dq, dk, dv = zeros(dout), [], zeros(q), zeros(k), zeros(v)
    for i, query in enumerate(q):
        keys = [j for j in range(len(k)) if seen(i, j)]
        scores = [dot(query, k[j]) * scale for j in keys]
        lse.append(math.log(sum(map(math.exp, scores))) if keys else -math.inf)
        weights = [math.exp(score - lse[i]) for score in scores]
        dweights = [dot(dout[i], v[j]) for j in keys]
        delta = dot(weights, dweights)
        for j, weight, dweight in zip(keys, weights, dweights):
            dscore = weight * (dweight - delta) * scale
            for d in range(len(query)):
                dq[i][d] += dscore * k[j][d]
                dk[j][d] += dscore * query[d]
            for d in range(len(v[j])):
                out[i][d] += weight * v[j][d]
                dv[j][d] += weight * dout[i][d]
    return {"out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv}


def write_safetensors(path, tensors, metadata):
    """`tensors`: dtype, shape and bytes of each name."""
    header, end = {"__metadata__": metadata}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    blobs = [data for _, _, data in tensors.values()]
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def write_case(path, seqlen_q, seqlen_k, head_dim, query_offset, mask="", hidden=lambda j: False):
    """A causal case; the queries and keys that see nothing, or are not seen, are not finite.
    `mask`: an expression that leaves the keys for which `hidden` is false."""
    draw = random.Random(5)
    lengths = {"q": seqlen_q, "k": seqlen_k, "v": seqlen_k, "dout": seqlen_q}
    values = {name: [[draw.randint(-12, 12) / 8 for _ in range(head_dim)] for _ in range(length)]
              for name, length in lengths.items()}
    expected = gradients(*values.values(), head_dim ** -0.5,
                         lambda i, j: j <= i + query_offset and not hidden(j))
    bits = {name: [[bf16_bits(x) for x in row] for row in rows] for name, rows in values.items()}
    for i in range(min(seqlen_q, -query_offset)):
        bits["q"][i] = [NAN] * head_dim
        bits["dout"][i] = [INFINITY] * head_dim
    behind = seqlen_q + query_offset
    for j in [j for j in range(seqlen_k) if j >= behind or hidden(j)]:
        bits["k"][j] = [NAN] * head_dim
        bits["v"][j] = [INFINITY] * head_dim
    tensors = {}
    for name, rows in bits.items():
        flat = [x for row in rows for x in row]
        tensors[name] = "BF16", [1, len(rows), 1, head_dim], struct.pack(f"<{len(flat)}H", *flat)
    for name, rows in expected.items():
        is_lse = name == "lse"
        flat = rows if is_lse else [x for row in rows for x in row]
        shape = [1, 1, len(rows)] if is_lse else [1, len(rows), 1, head_dim]
        tensors["expect." + name] = "F64", shape, struct.pack(f"<{len(flat)}d", *flat)
    bounds = json.dumps({name: PLAIN_ERROR for name in expected})
    write_safetensors(path, tensors, {
        "case_version": "1", "name": path.stem, "op": "attention", "note": "hidden rows",
        "dtype": "bf16", "plain_err": bounds, "floor": bounds,
        "options": json.dumps({"causal": True, "query_offset": query_offset}
                              | ({"mask": mask} if mask else {}))})


def write_pages(path, dtype, v_scales, hidden=lambda j: False):
    """Keys of 8 bits in pages of 16, each with a scale of its own for values; no query prefers any.
    Hidden ones are NaN in e4m3."""
    draw = random.Random(7)
    pages = len(v_scales)

    def codes():
        finite = [x for x in range(256) if dtype == "I8" or x % 128 != 0x7F]
        rows = ([0x7F] * 16 if hidden(j) else draw.choices(finite, k=16)
                for j in range(16 * pages))
        return dtype, [pages, 16, 1, 16], b"".join(map(bytes, rows))

    queries = [draw.randint(-8, 8) / 1024 for _ in range(3 * 16)]
    write_safetensors(path, {
        "q": ("F16", [1, 3, 1, 16], struct.pack("<48e", *queries)), "k": codes(), "v": codes(),
        "block_table": ("I32", [1, pages], struct.pack(f"<{pages}i", *range(pages))),
        "v_scale": ("F32", [pages, 1], struct.pack(f"<{pages}f", *v_scales))}, {})
