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
    header, blobs, end = {}, [], 0

    def add(name, dtype, shape, data):
        nonlocal end
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
        blobs.append(data)

    for name, rows in bits.items():
        flat = [x for row in rows for x in row]
        add(name, "BF16", [1, len(rows), 1, head_dim], struct.pack(f"<{len(flat)}H", *flat))
    for name, rows in expected.items():
        is_lse = name == "lse"
        flat = rows if is_lse else [x for row in rows for x in row]
        shape = [1, 1, len(rows)] if is_lse else [1, len(rows), 1, head_dim]
        add("expect." + name, "F64", shape, struct.pack(f"<{len(flat)}d", *flat))
    bounds = json.dumps({name: PLAIN_ERROR for name in expected})
    header["__metadata__"] = {
        "case_version": "1", "name": path.stem, "op": "attention", "note": "hidden rows",
        "dtype": "bf16", "plain_err": bounds, "floor": bounds,
        "options": json.dumps({"causal": True, "query_offset": query_offset}
                              | ({"mask": mask} if mask else {}))}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
