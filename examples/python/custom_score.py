#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A score function of one's own, with parameters that are learned through it.

A teacher attends with a bias by distance, one table for each head, which bends down over distance.
A student finds the table from the teacher's outputs alone: the gradient of the table is derived
from the function. About ten seconds on two cores.
"""

import torch

import flashtile.torch

LENGTH, HEADS = 256, 2


def attend(q, k, v, table):
    return flashtile.torch.attention(
        q, k, v, causal=True,
        score=lambda score, batch, head, q_idx, k_idx: score + table[head, q_idx - k_idx])


def main():
    torch.manual_seed(0)
    distance = torch.arange(LENGTH, dtype=torch.float32)
    right = torch.stack((-0.05 * distance, -distance.sqrt() / 4))
    table = torch.zeros(HEADS, LENGTH, requires_grad=True)
    optimizer = torch.optim.Adam([table], lr=0.1)
    for step in range(150):
        q, k, v = (torch.randn(2, LENGTH, HEADS, 32) for _ in range(3))
        loss = (attend(q, k, v, table) - attend(q, k, v, right)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 0 or step == 149:
            print(f"step {step:3}: loss {loss.item():.2e}")
    # A number added to all of a head's table changes nothing.
    found = table.detach() - table.detach()[:, :1]
    print("distance      0      2      8     32")
    for head in range(HEADS):
        for name, values in (("teacher", right[head]), ("student", found[head])):
            print(name, *[f"{values[place].item():6.2f}" for place in (0, 2, 8, 32)])
    return (found - right)[:, :33].abs().max().item()


if __name__ == "__main__":
    main()
