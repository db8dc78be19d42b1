#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small GPT learns a text by heart on a CPU, character by character, and goes on from a prompt.

Attention is flashtile.torch.attention in the layers; nothing else is special. About half a minute
on two cores.
"""

import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import flashtile.torch

TEXT = (Path(__file__).resolve().parents[1] / "alice.txt").read_text(encoding="ascii")
LENGTH, WIDTH, HEADS, LAYERS, STEPS = 96, 128, 4, 2, 500


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                                 nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).unbind(2)
        x = x + self.out(flashtile.torch.attention(q, k, v, causal=True).flatten(2))
        return x + self.mlp(self.norms[1](x))


class Gpt(nn.Module):
    def __init__(self, num_tokens):
        super().__init__()
        self.tokens = nn.Embedding(num_tokens, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, num_tokens))

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places.weight[:tokens.shape[1]]
        return self.head(self.blocks(x))


def main():
    torch.manual_seed(0)
    letters = sorted(set(TEXT))
    data = torch.tensor([letters.index(letter) for letter in TEXT])
    model = Gpt(len(letters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    start = time.perf_counter()
    for step in range(STEPS):
        places = torch.randint(len(data) - LENGTH - 1, (8, 1)) + torch.arange(LENGTH + 1)
        batch = data[places]
        loss = functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 or step == STEPS - 1:
            print(f"step {step:3}: loss {loss.item():.3f} after "
                  f"{time.perf_counter() - start:.0f} s")
    prompt = TEXT[:40]
    tokens = data[:40][None]
    with torch.no_grad():
        while tokens.shape[1] < LENGTH:
            tokens = torch.cat((tokens, model(tokens)[:, -1:].argmax(-1)), 1)
    went_on = "".join(letters[token] for token in tokens[0, 40:])
    print(f"{prompt!r} goes on: {went_on!r}")
    return loss.item()


if __name__ == "__main__":
    main()
