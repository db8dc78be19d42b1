# SPDX-License-Identifier: Apache-2.0
"""Gated slot attention."""

from fla._common import several, takes


def _gsa(name, q, k, v, s, g, scale, initial_state, output_final_state, cu_seqlens, reverse=False):
    if g is None:
        raise ValueError(f"{name}: g is not given")
    state_k, state_v = (None, None) if initial_state is None else initial_state
    out, finals = several(
        name, "gsa", {"q": q, "k": k, "v": v, "s": s, "g": g, "initial_state_k": state_k,
                      "initial_state_v": state_v},
        output_final_state, cu_seqlens, reverse, scale=scale)
    return out, finals if output_final_state else None


def chunk_gsa(q, k, v, s, g=None, scale=None, initial_state=None, output_final_state=False,
              checkpoint_level=2, cu_seqlens=None, cu_seqlens_cpu=None, **kwargs):
    """(out, (final state of keys, of values))."""
    takes("chunk_gsa", kwargs)
    return _gsa("chunk_gsa", q, k, v, s, g, scale, initial_state, output_final_state, cu_seqlens)


def fused_recurrent_gsa(q, k, v, s, g=None, scale=None, initial_state=None,
                        output_final_state=False, reverse=False, cu_seqlens=None):
    """(out, (final state of keys, of values))."""
    return _gsa("fused_recurrent_gsa", q, k, v, s, g, scale, initial_state, output_final_state,
                cu_seqlens, reverse)
