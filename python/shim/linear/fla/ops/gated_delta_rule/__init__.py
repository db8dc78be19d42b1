# SPDX-License-Identifier: Apache-2.0
"""The gated delta rule."""

from fla._common import decays, run, strength, takes


def _gated(name, q, k, v, g, gk, beta, options, initial_state, output_final_state, cu_seqlens,
           state_v_first):
    """A decay for each head, each key dimension, both, or none."""
    op, tensors = "gated_delta_rule", {"q": q, "k": k, "v": v, "beta": beta}
    if gk is not None:
        op, tensors["g"] = "kda", gk if g is None else gk + g.unsqueeze(-1)
    elif g is None:
        op = "delta_rule"
    else:
        tensors["g"] = g
    return run(name, op, tensors, initial_state, output_final_state, cu_seqlens, state_v_first,
               **options)


def chunk_gated_delta_rule(q, k, v, g, beta, scale=None, initial_state=None,
                           output_final_state=False, use_qk_l2norm_in_kernel=False,
                           use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False,
                           state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None,
                           chunk_indices=None, cp_context=None, **kwargs):
    """(out, final state); use_gate_in_kernel, A_log and dt_bias are among kwargs."""
    name = "chunk_gated_delta_rule"
    own = {key: kwargs.pop(key, None) for key in ("use_gate_in_kernel", "A_log", "dt_bias")}
    state_v_first = takes(name, {**kwargs, "cp_context": cp_context}, state_v_first=state_v_first)
    g = decays(g, own["A_log"], own["dt_bias"], own["use_gate_in_kernel"])
    beta = strength(beta, v, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    return _gated(name, q, k, v, g, None, beta,
                  {"scale": scale, "qk_l2norm": use_qk_l2norm_in_kernel}, initial_state,
                  output_final_state, cu_seqlens, state_v_first)


def fused_recurrent_gated_delta_rule(
        q, k, v, g=None, gk=None, gv=None, beta=None, scale=None, initial_state=None,
        output_final_state=False, use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False,
        A_log=None, dt_bias=None, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False,
        state_v_first=False, cu_seqlens=None, **kwargs):
    """(out, final state); g is a decay for each head, gk for each key dimension."""
    name = "fused_recurrent_gated_delta_rule"
    state_v_first = takes(name, {**kwargs, "gv": gv}, "gv", state_v_first=state_v_first)
    g = decays(g, A_log, dt_bias, use_gate_in_kernel)
    beta = strength(beta, v, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    return _gated(name, q, k, v, g, gk, beta,
                  {"scale": scale, "qk_l2norm": use_qk_l2norm_in_kernel}, initial_state,
                  output_final_state, cu_seqlens, state_v_first)


def naive_recurrent_gated_delta_rule(q, k, v, beta, g, scale=None, initial_state=None,
                                     output_final_state=False):
    """(out, final state) by the double-precision reference."""
    return _gated("naive_recurrent_gated_delta_rule", q, k, v, g, None, strength(beta, v),
                  {"scale": scale, "implementation": "reference"}, initial_state,
                  output_final_state, None, False)


def naive_chunk_gated_delta_rule(q, k, v, g, beta, chunk_size=64, scale=None, initial_state=None,
                                 output_final_state=False):
    """(out, final state) by the double-precision reference."""
    return _gated("naive_chunk_gated_delta_rule", q, k, v, g, None, strength(beta, v),
                  {"scale": scale, "implementation": "reference"}, initial_state,
                  output_final_state, None, False)


chunk_gdn = chunk_gated_delta_rule
fused_recurrent_gdn = fused_recurrent_gated_delta_rule
