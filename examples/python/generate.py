#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Token by token from a cache in pages that two sequences share: the call stores the new key and
value, turns them by their positions, and attends, in one pass. Seconds on two cores."""

import time

import numpy as np

import flashtile

HEADS, HEADS_KV, DIM, PAGE = 8, 2, 64, 16
PROMPTS, STEPS = np.array([37, 90], np.int32), 64


def tables():
    angles = np.outer(np.arange(512), 10000.0 ** -(np.arange(0, DIM, 2) / DIM))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def turned(x, cos, sin):
    """Rows x (seqlen, heads, DIM) at positions 0, 1, ..."""
    a, b = x[..., :DIM // 2], x[..., DIM // 2:]
    cos, sin = cos[:len(x), None], sin[:len(x), None]
    return np.concatenate((a * cos - b * sin, a * sin + b * cos), -1)


def main():
    generator = np.random.default_rng(0)
    cos, sin = tables()
    total = PROMPTS.max() + STEPS
    pages = -(-total // PAGE)
    table = generator.permutation(2 * pages).astype(np.int32).reshape(2, pages)
    cache_k, cache_v = np.zeros((2, 2 * pages, PAGE, HEADS_KV, DIM), np.float32)
    q = generator.standard_normal((2, total, HEADS, DIM), dtype=np.float32)
    k, v = generator.standard_normal((2, 2, total, HEADS_KV, DIM), dtype=np.float32)
    used = np.zeros(2, np.int32)
    last = [None, None]

    def step(rows):
        """One call for `rows` new tokens of both sequences, which may be at different places."""
        places = used[:, None] + np.arange(rows)
        new = [np.take_along_axis(x, places[..., None, None], 1) for x in (q, k, v)]
        out = flashtile.attention(
            new[0], cache_k, cache_v, k_new=new[1], v_new=new[2], seqused_k=used,
            block_table=table, rotary_cos=cos, rotary_sin=sin, causal=True)
        return out

    for b, prompt in enumerate(PROMPTS):  # the prompts, one by one: they differ in length
        rows = slice(b, b + 1)
        flashtile.attention(
            q[rows, :prompt], cache_k, cache_v, k_new=k[rows, :prompt], v_new=v[rows, :prompt],
            seqused_k=used[rows], block_table=table[rows], rotary_cos=cos, rotary_sin=sin,
            causal=True)
        used[b] = prompt
    start = time.perf_counter()
    for _ in range(STEPS):
        last = step(1)
        used += 1
    seconds = time.perf_counter() - start
    print(f"{STEPS} steps of two sequences: {seconds / STEPS * 1e6:.0f} us each")

    worst = 0.0
    for b, length in enumerate(used):  # the last token, by the definition
        keys = turned(k[b, :length], cos, sin).repeat(HEADS // HEADS_KV, 1)
        values = v[b, :length].repeat(HEADS // HEADS_KV, 1)
        query = turned(q[b, :length], cos, sin)[-1]
        scores = np.einsum("hd,jhd->hj", query, keys) / np.sqrt(DIM)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        right = np.einsum("hj,jhd->hd", weights / weights.sum(-1, keepdims=True), values)
        worst = max(worst, abs(last[b, 0] - right).max())
    print(f"largest error of the last token: {worst:.1e}")
    return worst


if __name__ == "__main__":
    main()
