# SPDX-License-Identifier: Apache-2.0
"""Linear attention."""

import functools

from fla._common import run, several


def _with_norm(name, q, k, v, scale, initial_state, output_final_state, reverse, cu_seqlens):
    """A state and the sum of keys, (sequences, 1, heads, key_dim) there."""
    state, norm = (None, None) if initial_state is None else initial_state
    out, finals = several(
        name, "linear_attention",
        {"q": q, "k": k, "v": v, "initial_state": state,
         "initial_norm": None if norm is None else norm.squeeze(1)},
        output_final_state, cu_seqlens, reverse, scale=scale, normalize=True)
    return out, (finals[0], finals[1].unsqueeze(1)) if output_final_state else None


def _linear_attn(name, q, k, v, scale, initial_state, output_final_state, normalize, cu_seqlens,
                 reverse=False):
    if normalize:
        return _with_norm(name, q, k, v, scale, initial_state, output_final_state, reverse,
                          cu_seqlens)
    return run(name, "linear_attention", {"q": q, "k": k, "v": v}, initial_state,
               output_final_state, cu_seqlens, reverse=reverse, scale=scale)


def chunk_linear_attn(q, k, v, scale=None, initial_state=None, output_final_state=False,
                      normalize=True, cu_seqlens=None):
    """(out, final state); with normalize a state is a pair, of S and the sum of keys."""
    return _linear_attn("chunk_linear_attn", q, k, v, scale, initial_state, output_final_state,
                        normalize, cu_seqlens)


@functools.wraps(chunk_linear_attn)
def fused_chunk_linear_attn(q, k, v, scale=None, initial_state=None, output_final_state=False,
                            normalize=True, cu_seqlens=None):
    return _linear_attn("fused_chunk_linear_attn", q, k, v, scale, initial_state,
                        output_final_state, normalize, cu_seqlens)


def fused_recurrent_linear_attn(q, k, v, scale=None, initial_state=None, output_final_state=False,
                                reverse=False, normalize=False, cu_seqlens=None):
    """(out, final state); with normalize a state is a pair, of S and the sum of keys."""
    return _linear_attn("fused_recurrent_linear_attn", q, k, v, scale, initial_state,
                        output_final_state, normalize, cu_seqlens, reverse)
