#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A window of 512 keys and the first 4 over 32768 tokens: blocks that nobody sees are not visited.

The time grows with what is seen, not with the square of the length, and memory with the length. A
picture shows which blocks a smaller problem of the same kind visits. A few seconds on two cores.
"""

import time

import numpy as np

import flashtile

WINDOW, SINKS = 512, 4
MASK = (f"(k_idx < {SINKS} || k_idx >= q_idx - {WINDOW - 1}) && k_idx <= q_idx")


def main():
    generator = np.random.default_rng(0)
    seconds = {}
    for length in (4096, 8192, 16384, 32768):
        q, k, v = (generator.standard_normal((1, length, 2, 64), dtype=np.float32)
                   for _ in range(3))
        start = time.perf_counter()
        out = flashtile.attention(q, k, v, mask=MASK)
        seconds[length] = time.perf_counter() - start
        print(f"{length:6} tokens: {seconds[length] * 1e3:7.1f} ms")
    print(f"eight times the length took {seconds[32768] / seconds[4096]:.1f} times as long "
          "(64 times with every pair)")
    # The last query, by the definition.
    seen = np.r_[:SINKS, 32768 - WINDOW:32768]
    scores = k[0, seen, 1] @ q[0, -1, 1] / 8
    weights = np.exp(scores - scores.max())
    right = weights @ v[0, seen, 1] / weights.sum()
    print(f"largest error of the last row: {abs(out[0, -1, 1] - right).max():.1e}")
    print(flashtile.plot_mask(2048, block=64, mask=MASK.replace(str(WINDOW - 1), "255")))
    return abs(out[0, -1, 1] - right).max()


if __name__ == "__main__":
    main()
