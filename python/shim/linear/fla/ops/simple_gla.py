# SPDX-License-Identifier: Apache-2.0
"""Gated linear attention with one decay for a head."""

from fla._common import run, takes


def chunk_simple_gla(q, k, v, g=None, g_gamma=None, scale=None, initial_state=None,
                     output_final_state=False, state_v_first=False, cu_seqlens=None,
                     cu_seqlens_cpu=None, **kwargs):
    """(out, final state)."""
    state_v_first = takes("chunk_simple_gla", kwargs, state_v_first=state_v_first)
    return run("chunk_simple_gla", "simple_gla",
               {"q": q, "k": k, "v": v, "g": g, "g_gamma": g_gamma}, initial_state,
               output_final_state, cu_seqlens, state_v_first, scale=scale)


def fused_chunk_simple_gla(q, k, v, g=None, g_gamma=None, scale=None, initial_state=None,
                           output_final_state=False, cu_seqlens=None):
    """(out, final state)."""
    return run("fused_chunk_simple_gla", "simple_gla",
               {"q": q, "k": k, "v": v, "g": g, "g_gamma": g_gamma}, initial_state,
               output_final_state, cu_seqlens, scale=scale)


def fused_recurrent_simple_gla(q, k, v, g=None, g_gamma=None, scale=None, initial_state=None,
                               output_final_state=False, reverse=False, state_v_first=False,
                               cu_seqlens=None, **kwargs):
    """(out, final state)."""
    state_v_first = takes("fused_recurrent_simple_gla", kwargs, state_v_first=state_v_first)
    return run("fused_recurrent_simple_gla", "simple_gla",
               {"q": q, "k": k, "v": v, "g": g, "g_gamma": g_gamma}, initial_state,
               output_final_state, cu_seqlens, state_v_first, reverse, scale=scale)


def parallel_simple_gla(q, k, v, g=None, scale=None, output_attentions=False, cu_seqlens=None,
                        cu_seqlens_cpu=None):
    """(out, None)."""
    takes("parallel_simple_gla", {"output_attentions": output_attentions}, "output_attentions")
    return run("parallel_simple_gla", "simple_gla", {"q": q, "k": k, "v": v, "g": g},
               cu_seqlens=cu_seqlens, scale=scale)
