#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Microseconds of one call from Python that computes next to nothing, beside PyTorch's own.

    bench/overhead.py [--device cuda] [--processor-time]

On a GPU calls are only put in the stream's queue. The best of several rounds counts. Processor time
is what to look at where others use the cores, too.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

import flashtile


clock = time.perf_counter


def microseconds(call, calls=1000, rounds=9):
    for _ in range(100):
        call()
    best = float("inf")
    for _ in range(rounds):
        start = clock()
        for _ in range(calls):
            call()
        best = min(best, clock() - start)
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
    state = np.zeros((1, 1, 8, 8), np.float32)
    show("numpy: linear.gla", lambda: flashtile.linear.gla(x, x, x, x))
    show("numpy: linear.gla_step", lambda: flashtile.linear.gla_step(x[0], x[0], x[0], x[0], state))


def torch_calls(device):
    try:
        import torch
        import flashtile.torch.linear
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
    if device == "cpu":
        linear, state, wanted = flashtile.torch.linear, torch.zeros(1, 1, 8, 8), x.clone()
        wanted.requires_grad_()
        show("PyTorch: torch.linear.gla", lambda: linear.gla(x, x, x, x))
        show("PyTorch: torch.linear.gla, gradient recorded", lambda: linear.gla(wanted, x, x, x))
        show("PyTorch: torch.linear.gla_step",
             lambda: linear.gla_step(x[0], x[0], x[0], x[0], state))


def flash_attn_calls(device):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python" / "shim"))
    try:
        import torch
        import flash_attn
    except ImportError:
        return
    x = torch.zeros(1, 1, 1, 8, device=device, dtype=torch.bfloat16)
    used = torch.ones(1, dtype=torch.int32, device=device)
    name = "flash_attn" if "flashtile" in flash_attn.__version__ else "another flash_attn"
    show(f"{name}: flash_attn_func", lambda: flash_attn.flash_attn_func(x, x, x))
    show(f"{name}: flash_attn_with_kvcache",
         lambda: flash_attn.flash_attn_with_kvcache(x, x, x, cache_seqlens=used))


def jax_calls():
    try:
        import jax
        import flashtile.jax
    except ImportError:
        print("no JAX")
        return
    x = jax.numpy.zeros((1, 1, 1, 8))
    ours = jax.jit(flashtile.jax.attention)
    theirs = jax.jit(jax.nn.dot_product_attention)
    show("JAX: flashtile.jax inside jit", lambda: ours(x, x, x).block_until_ready())
    show("JAX: its dot_product_attention inside jit",
         lambda: theirs(x, x, x).block_until_ready())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--processor-time", action="store_true")
    arguments = parser.parse_args()
    device = arguments.device
    if arguments.processor_time:
        global clock
        clock = time.process_time
    if device == "cpu":
        numpy_calls()
    torch_calls(device)
    flash_attn_calls(device)
    if device == "cpu":
        jax_calls()


if __name__ == "__main__":
    main()
