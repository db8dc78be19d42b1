# SPDX-License-Identifier: Apache-2.0
"""Recurrences of linear attention as loops over rows, in double and by PyTorch."""

import torch


def loop(q, k, v, g=None, a=None, b=None, state=None, scale=None, bonus=None):
    """(out, state) of S = Diag(e^g) S + b (S' a)' + k v', row by row in double; with a bonus the
    row is read before it is stored."""
    q, k, v = (x.double() for x in (q, k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    state = torch.zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3], dtype=torch.double) \
        if state is None else state.double()
    rows = []
    for t in range(q.shape[1]):
        write = k[:, t, :, :, None] * v[:, t, :, None]
        seen = None if bonus is None else state + bonus.double()[None, :, :, None] * write
        low = 0 if a is None else b.double()[:, t, :, :, None] * torch.einsum(
            "bhkv,bhk->bhv", state, a.double()[:, t])[:, :, None]
        if g is not None:
            state = state * g.double()[:, t].exp()[..., None]
        state = state + low + write
        rows.append(torch.einsum("bhkv,bhk->bhv", state if seen is None else seen,
                                 scale * q[:, t]))
    return torch.stack(rows, 1), state


def delta(q, k, v, beta, g=None, state=None):
    """(out, state) of the delta rules: S = R + k (beta (v - R' k))'."""
    g = torch.zeros(*k.shape, dtype=torch.double) if g is None else g.double()
    g = g if g.dim() == 4 else g[..., None].expand(k.shape)
    beta = beta.double()[..., None]
    return loop(q, k, v.double() * beta, g, -beta * k * g.exp(), k, state)


def normalised(x):
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def same(found, expected, bound=1e-5):
    torch.testing.assert_close(found.double(), expected.double(), rtol=bound, atol=bound)
