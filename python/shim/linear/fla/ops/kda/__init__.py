# SPDX-License-Identifier: Apache-2.0
"""Kimi delta attention."""

from fla._common import decays, run, strength, takes


def _kda(name, q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm,
         use_beta_sigmoid, allow_neg_eigval, state_v_first, cu_seqlens):
    beta = strength(beta, v, use_beta_sigmoid, allow_neg_eigval)
    return run(name, "kda", {"q": q, "k": k, "v": v, "g": g, "beta": beta}, initial_state,
               output_final_state, cu_seqlens, state_v_first, scale=scale,
               qk_l2norm=use_qk_l2norm)


def chunk_kda(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False,
              use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False,
              use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, safe_gate=False,
              lower_bound=None, disable_recompute=False, return_intermediate_states=False,
              state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None, cp_context=None,
              use_graph=False, max_num_seqs=None, **kwargs):
    """(out, final state); A_log and dt_bias, for use_gate_in_kernel, are among kwargs."""
    own = {key: kwargs.pop(key, None) for key in ("A_log", "dt_bias")}
    state_v_first = takes("chunk_kda", {
        **kwargs, "cp_context": cp_context,
        "return_intermediate_states": return_intermediate_states},
        "return_intermediate_states", state_v_first=state_v_first)
    g = decays(g, own["A_log"], own["dt_bias"], use_gate_in_kernel, lower_bound)
    return _kda("chunk_kda", q, k, v, g, beta, scale, initial_state, output_final_state,
                use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval,
                state_v_first, cu_seqlens)


def fused_recurrent_kda(q, k, v, g, beta, A_log=None, dt_bias=None, scale=None, initial_state=None,
                        output_final_state=False, use_qk_l2norm_in_kernel=False,
                        use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False,
                        allow_neg_eigval=False, lower_bound=None, state_v_first=False,
                        cu_seqlens=None, **kwargs):
    """(out, final state)."""
    state_v_first = takes("fused_recurrent_kda", kwargs, state_v_first=state_v_first)
    g = decays(g, A_log, dt_bias, use_gate_in_kernel, lower_bound)
    return _kda("fused_recurrent_kda", q, k, v, g, beta, scale, initial_state, output_final_state,
                use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval,
                state_v_first, cu_seqlens)
