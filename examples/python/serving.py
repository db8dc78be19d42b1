#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server's step: prompts and single tokens in one call, a prompt that requests share, and caches
of 8 bits. Seconds on two cores.

Keys and values lie in pages. Each step has rows of several requests, packed: one row of those that
generate, many of one whose prompt has just come. The call stores their keys and values first.
"""

import numpy as np

import flashtile

HEADS, HEADS_KV, DIM, PAGE, REQUESTS = 8, 2, 64, 16, 3
STEPS = ((50, 0, 0), (1, 33, 0), (1, 1, 70), (1, 1, 1), (1, 1, 1))  # new rows of each request
SHARED = 100  # keys of a prompt that all requests begin with


def by_definition(q, k, v):
    """Attention of the last rows of a sequence, in double."""
    k, v = (x.astype(np.float64).repeat(HEADS // HEADS_KV, 1) for x in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(DIM)
    places = np.arange(len(k) - len(q), len(k))
    scores = np.where(np.arange(len(k)) <= places[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hij,jhd->ihd", weights / weights.sum(-1, keepdims=True), v)


def mixed_steps(generator):
    """Prefill and decode of several requests, at different places, in one call a step."""
    rows = np.array(STEPS)
    pages = -(-rows.sum(0).max() // PAGE)
    table = generator.permutation(REQUESTS * pages).astype(np.int32).reshape(REQUESTS, pages)
    cache_k, cache_v = np.zeros((2, REQUESTS * pages, PAGE, HEADS_KV, DIM), np.float32)
    used = np.zeros(REQUESTS, np.int32)
    seen = [(np.zeros((0, HEADS_KV, DIM)),) * 2 for _ in range(REQUESTS)]  # for the comparison
    worst = 0.0
    for new in rows:
        starts = np.cumsum([0, *new]).astype(np.int32)
        q = generator.standard_normal((starts[-1], HEADS, DIM), dtype=np.float32)
        k, v = generator.standard_normal((2, starts[-1], HEADS_KV, DIM), dtype=np.float32)
        out = flashtile.attention(
            q, cache_k, cache_v, k_new=k, v_new=v, cu_seqlens_q=starts, cu_seqlens_new=starts,
            seqused_k=used, block_table=table, causal=True)
        used += new.astype(np.int32)
        for b in range(REQUESTS):
            part = slice(starts[b], starts[b + 1])
            seen[b] = tuple(np.concatenate(each) for each in zip(seen[b], (k[part], v[part])))
            if new[b] > 0:
                worst = max(worst, abs(out[part] - by_definition(q[part], *seen[b])).max())
    print(f"steps of {[tuple(map(int, new)) for new in rows]} rows: largest error {worst:.1e}")
    return worst


def shared_prompt(generator):
    """One prompt, its keys stored once and read once for all requests, merged with their own."""
    prompt_k, prompt_v = generator.standard_normal((2, 1, SHARED, HEADS_KV, DIM), dtype=np.float32)
    own = np.array([20, 0, 7], np.int32)  # keys of each request; the second has none yet
    own_k, own_v = generator.standard_normal((2, REQUESTS, 32, HEADS_KV, DIM), dtype=np.float32)
    q = generator.standard_normal((REQUESTS, 1, HEADS, DIM), dtype=np.float32)
    # To the prompt the requests are rows of one sequence, whatever their places.
    prompt_out, prompt_lse = flashtile.attention(
        q.swapaxes(0, 1), prompt_k, prompt_v, return_lse=True)
    own_out, own_lse = flashtile.attention(q, own_k, own_v, seqused_k=own, return_lse=True)
    out, _ = flashtile.merge(np.stack((prompt_out.swapaxes(0, 1), own_out)),
                             np.stack((prompt_lse.transpose(2, 1, 0), own_lse)))
    worst = max(abs(out[b] - by_definition(
        q[b], np.concatenate((prompt_k[0], own_k[b, :n])),
        np.concatenate((prompt_v[0], own_v[b, :n])))).max() for b, n in enumerate(own))
    sizes = f"{SHARED} keys and {own.tolist()} of each request"
    print(f"a prompt of {sizes}: largest error {worst:.1e}")
    return worst


def small_cache(generator):
    """Keys and values of int8, with a scale for each head; e4m3 works the same way."""
    k, v = generator.standard_normal((2, 2, 200, HEADS_KV, DIM), dtype=np.float32)
    q = generator.standard_normal((2, 1, HEADS, DIM), dtype=np.float32)
    scales = [abs(x).max((0, 1, 3)) / np.float32(127) for x in (k, v)]
    small = [np.rint(x / scale[:, None]).astype(np.int8) for x, scale in zip((k, v), scales)]
    out = flashtile.attention(q, *small, k_scale=scales[0], v_scale=scales[1])
    read = [x * scale[:, None] for x, scale in zip(small, scales)]
    exact, worst = (max(abs(out[b] - by_definition(q[b], keys[b], values[b])).max()
                        for b in range(2)) for keys, values in (read, (k, v)))
    print(f"a cache of int8: largest error {exact:.1e}, {worst:.1e} with that of rounding to int8")
    return exact


def main():
    generator = np.random.default_rng(0)
    return max(step(generator) for step in (mixed_steps, shared_prompt, small_cache))


if __name__ == "__main__":
    main()
