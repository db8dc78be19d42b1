# SPDX-License-Identifier: Apache-2.0
"""RWKV-7."""

from fla._common import run


def _rwkv7(name, r, w, k, v, a, b, scale, initial_state, output_final_state, cu_seqlens,
           reverse=False):
    scale = r.shape[-1] ** -0.5 if scale is None else scale
    return run(name, "rwkv7", {"r": r, "w": w, "k": k, "v": v, "a": a, "b": b}, initial_state,
               output_final_state, cu_seqlens, reverse=reverse, scale=scale)


def chunk_rwkv7(r, w, k, v, a, b, scale=1.0, initial_state=None, output_final_state=False,
                cu_seqlens=None, cu_seqlens_cpu=None, safe_gate=False, chunk_size=None,
                disable_recompute=False, cp_context=None, lower_bound=None):
    """(out, final state)."""
    if cp_context is not None:
        raise NotImplementedError("chunk_rwkv7: flashtile has no cp_context")
    return _rwkv7("chunk_rwkv7", r, w, k, v, a, b, scale, initial_state, output_final_state,
                  cu_seqlens)


def fused_recurrent_rwkv7(r, w, k, v, a, b, scale=None, initial_state=None,
                          output_final_state=True, cu_seqlens=None):
    """(out, final state); scale is 1/sqrt(head_dim) by default."""
    return _rwkv7("fused_recurrent_rwkv7", r, w, k, v, a, b, scale, initial_state,
                  output_final_state, cu_seqlens)


def fused_mul_recurrent_rwkv7(r, w, k, v, kk, a, scale=1.0, initial_state=None,
                              output_final_state=False, reverse=False, cu_seqlens=None):
    """(out, final state); -kk reads the old state, and kk * a is where that is written."""
    return _rwkv7("fused_mul_recurrent_rwkv7", r, w, k, v, -kk, kk * a, scale, initial_state,
                  output_final_state, cu_seqlens, reverse)
