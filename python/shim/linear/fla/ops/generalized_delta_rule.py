# SPDX-License-Identifier: Apache-2.0
"""Delta rules whose correction is any term of rank one, with a decay (dplr) or without (iplr)."""

from fla._common import run, takes


def chunk_dplr_delta_rule(q, k, v, a, b, gk, scale=None, initial_state=None,
                          output_final_state=False, cu_seqlens=None, cu_seqlens_cpu=None,
                          safe_gate=False, chunk_size=None, disable_recompute=False,
                          cp_context=None, lower_bound=None, **kwargs):
    """(out, final state)."""
    takes("chunk_dplr_delta_rule", {**kwargs, "cp_context": cp_context})
    return run("chunk_dplr_delta_rule", "dplr_delta_rule",
               {"q": q, "k": k, "v": v, "a": a, "b": b, "g": gk}, initial_state,
               output_final_state, cu_seqlens, scale=scale)


def fused_recurrent_dplr_delta_rule(q, k, v, a, b, gk, scale=None, initial_state=None,
                                    output_final_state=False, reverse=False, cu_seqlens=None):
    """(out, final state)."""
    return run("fused_recurrent_dplr_delta_rule", "dplr_delta_rule",
               {"q": q, "k": k, "v": v, "a": a, "b": b, "g": gk}, initial_state,
               output_final_state, cu_seqlens, reverse=reverse, scale=scale)


def chunk_iplr_delta_rule(q, k, v, a, b, scale=None, initial_state=None, output_final_state=False,
                          cu_seqlens=None, cu_seqlens_cpu=None, **kwargs):
    """(out, final state)."""
    takes("chunk_iplr_delta_rule", kwargs)
    return run("chunk_iplr_delta_rule", "iplr_delta_rule",
               {"q": q, "k": k, "v": v, "a": a, "b": b}, initial_state, output_final_state,
               cu_seqlens, scale=scale)


def fused_recurrent_iplr_delta_rule(q, k, v, a, b, scale=None, initial_state=None,
                                    output_final_state=False, cu_seqlens=None):
    """(out, final state)."""
    return run("fused_recurrent_iplr_delta_rule", "iplr_delta_rule",
               {"q": q, "k": k, "v": v, "a": a, "b": b}, initial_state, output_final_state,
               cu_seqlens, scale=scale)
