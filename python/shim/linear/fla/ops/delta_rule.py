# SPDX-License-Identifier: Apache-2.0
"""The delta rule."""

from fla._common import run, strength, takes


def chunk_delta_rule(q, k, v, beta, scale=None, initial_state=None, output_final_state=False,
                     use_qk_l2norm_in_kernel=False, cu_seqlens=None, cu_seqlens_cpu=None,
                     **kwargs):
    """(out, final state)."""
    takes("chunk_delta_rule", kwargs)
    return run("chunk_delta_rule", "delta_rule",
               {"q": q, "k": k, "v": v, "beta": strength(beta, v)}, initial_state,
               output_final_state, cu_seqlens, scale=scale, qk_l2norm=use_qk_l2norm_in_kernel)


def fused_recurrent_delta_rule(q, k, v, beta=None, scale=None, initial_state=None,
                               output_final_state=False, use_qk_l2norm_in_kernel=False,
                               cu_seqlens=None):
    """(out, final state)."""
    return run("fused_recurrent_delta_rule", "delta_rule",
               {"q": q, "k": k, "v": v, "beta": strength(beta, v)}, initial_state,
               output_final_state, cu_seqlens, scale=scale, qk_l2norm=use_qk_l2norm_in_kernel)
