# SPDX-License-Identifier: Apache-2.0
"""Retention."""

from fla._common import run, takes


def chunk_retention(q, k, v, scale=None, initial_state=None, output_final_state=False,
                    cu_seqlens=None, **kwargs):
    """(out, final state)."""
    takes("chunk_retention", kwargs)
    return run("chunk_retention", "retention", {"q": q, "k": k, "v": v}, initial_state,
               output_final_state, cu_seqlens, scale=scale)


def fused_chunk_retention(q, k, v, scale=None, initial_state=None, output_final_state=False,
                          cu_seqlens=None):
    """(out, final state)."""
    return run("fused_chunk_retention", "retention", {"q": q, "k": k, "v": v}, initial_state,
               output_final_state, cu_seqlens, scale=scale)


def fused_recurrent_retention(q, k, v, scale=None, initial_state=None, output_final_state=False,
                              reverse=False, state_v_first=False, cu_seqlens=None, **kwargs):
    """(out, final state)."""
    state_v_first = takes("fused_recurrent_retention", kwargs, state_v_first=state_v_first)
    return run("fused_recurrent_retention", "retention", {"q": q, "k": k, "v": v}, initial_state,
               output_final_state, cu_seqlens, state_v_first, reverse, scale=scale)


def parallel_retention(q, k, v, scale=None, output_attentions=False, cu_seqlens=None):
    """(out, None)."""
    takes("parallel_retention", {"output_attentions": output_attentions}, "output_attentions")
    return run("parallel_retention", "retention", {"q": q, "k": k, "v": v}, cu_seqlens=cu_seqlens,
               scale=scale)
