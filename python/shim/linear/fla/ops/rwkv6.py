# SPDX-License-Identifier: Apache-2.0
"""RWKV-6."""

from fla._common import run, takes


def chunk_rwkv6(r, k, v, w, u, scale=None, initial_state=None, output_final_state=False,
                cu_seqlens=None, cu_seqlens_cpu=None, **kwargs):
    """(out, final state)."""
    takes("chunk_rwkv6", kwargs)
    return run("chunk_rwkv6", "rwkv6", {"r": r, "k": k, "v": v, "w": w, "u_bonus": u},
               initial_state, output_final_state, cu_seqlens, scale=scale)


def fused_recurrent_rwkv6(r, k, v, w, u, scale=None, initial_state=None, output_final_state=False,
                          reverse=False, cu_seqlens=None):
    """(out, final state)."""
    return run("fused_recurrent_rwkv6", "rwkv6", {"r": r, "k": k, "v": v, "w": w, "u_bonus": u},
               initial_state, output_final_state, cu_seqlens, reverse=reverse, scale=scale)
