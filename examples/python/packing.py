#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sequences of many lengths, padded and packed: the same numbers, and no work for padding.

Seconds on two cores.
"""

import time

import numpy as np

import flashtile

LENGTHS = np.array([1500, 30, 200, 70, 800, 10, 400, 120])


def timed(call):
    call()
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def main():
    generator = np.random.default_rng(0)
    starts = np.cumsum([0, *LENGTHS]).astype(np.int32)
    packed = [generator.standard_normal((starts[-1], 8, 64), dtype=np.float32) for _ in range(3)]
    padded = [np.zeros((len(LENGTHS), LENGTHS.max(), 8, 64), np.float32) for _ in range(3)]
    for rows, places in zip(packed, padded):
        for b, length in enumerate(LENGTHS):
            places[b, :length] = rows[starts[b]:starts[b] + length]

    out, packed_seconds = timed(lambda: flashtile.attention(
        *packed, causal=True, cu_seqlens_q=starts, cu_seqlens_k=starts))
    whole, padded_seconds = timed(lambda: flashtile.attention(*padded, causal=True))
    worst = max(abs(out[starts[b]:starts[b] + n] - whole[b, :n]).max()
                for b, n in enumerate(LENGTHS))
    print(f"padded to {whole.shape[0]} x {whole.shape[1]} rows: {padded_seconds * 1e3:.0f} ms")
    print(f"packed to {out.shape[0]} rows:      {packed_seconds * 1e3:.0f} ms")
    print(f"largest difference: {worst:.1e}")
    return worst


if __name__ == "__main__":
    main()
