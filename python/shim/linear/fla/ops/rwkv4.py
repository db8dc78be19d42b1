# SPDX-License-Identifier: Apache-2.0
"""RWKV-4."""

from fla._common import several


def fused_recurrent_rwkv4(w, u, k, v, state):
    """(out, state behind the last row); the decay is -exp(w), a state (batch, 3, 1, channels)."""
    out, finals = several(
        "fused_recurrent_rwkv4", "rwkv4",
        {"k": k, "v": v, "w": -w.float().exp(), "u_bonus": u, "initial_state": state.squeeze(2)},
        True, None)
    return out, finals[0].unsqueeze(2).to(state.dtype)
