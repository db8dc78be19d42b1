#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Microseconds of one call from Python that computes next to nothing, beside PyTorch's own.

    bench/overhead.py [--device cuda]

On a GPU calls are only put in the stream's queue. The best of several rounds counts.
"""

import argparse
import time

import numpy as np

import flashtile


def microseconds(call, calls=1000, rounds=9):
    for _ in range(100):
        call()
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, time.perf_counter() - start)
    return best / calls * 1e6


def show(name, call):
    print(f"{name:44} {microseconds(call):7.2f} us")


def low_level(x, out):
    op = flashtile._core.Op("attention_fwd", ["q", "k", "v", "out"], [])
    return lambda: op.run((x, x, x, out), (), None, (), None, None, 0)


def numpy_calls():
    x = np.zeros((1, 1, 1, 8), np.float32)
    out = np.empty_like(x)
    show("numpy: attention", lambda: flashtile.attention(x, x, x))
    show("numpy: attention into out", lambda: flashtile.attention(x, x, x, out=out))
    show("numpy: low-level form", low_level(x, out))


def torch_calls(device):
    try:
        import torch
        import flashtile.torch
    except ImportError:
        print("no PyTorch")
        return
    x = torch.zeros(1, 1, 1, 8, device=device,
                    dtype=torch.float32 if device == "cpu" else torch.bfloat16)
    out = torch.empty_like(x)
    heads_first = x.transpose(1, 2)
    show("PyTorch: attention", lambda: flashtile.attention(x, x, x))
    show("PyTorch: attention into out", lambda: flashtile.attention(x, x, x, out=out))
    show("PyTorch: low-level form", low_level(x, out))
    show("PyTorch: flashtile.torch (torch.library)", lambda: flashtile.torch.attention(x, x, x))
    show("PyTorch: its scaled_dot_product_attention",
         lambda: torch.nn.functional.scaled_dot_product_attention(*[heads_first] * 3))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    device = parser.parse_args().device
    if device == "cpu":
        numpy_calls()
    torch_calls(device)


if __name__ == "__main__":
    main()
