# SPDX-License-Identifier: Apache-2.0
"""Gated linear attention."""

import torch

from fla._common import run, takes


def chunk_gla(q, k, v, g, scale=None, initial_state=None, output_final_state=False,
              state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None):
    """(out, final state)."""
    return run("chunk_gla", "gla", {"q": q, "k": k, "v": v, "g": g}, initial_state,
               output_final_state, cu_seqlens, state_v_first, scale=scale)


def fused_recurrent_gla(q, k, v, gk=None, gv=None, scale=None, initial_state=None,
                        output_final_state=False, reverse=False, state_v_first=False,
                        cu_seqlens=None, **kwargs):
    """(out, final state)."""
    state_v_first = takes("fused_recurrent_gla", {**kwargs, "gv": gv}, "gv",
                          state_v_first=state_v_first)
    gk = torch.zeros_like(k, dtype=torch.promote_types(k.dtype, torch.float32)) if gk is None \
        else gk
    return run("fused_recurrent_gla", "gla", {"q": q, "k": k, "v": v, "g": gk}, initial_state,
               output_final_state, cu_seqlens, state_v_first, reverse, scale=scale)
