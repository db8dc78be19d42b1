# SPDX-License-Identifier: Apache-2.0
"""Lightning attention."""

from fla._common import run, takes


def chunk_lightning_attn(q, k, v, layer_idx, num_layers, scale=None, initial_state=None,
                         output_final_state=False, cu_seqlens=None, **kwargs):
    """(out, final state)."""
    takes("chunk_lightning_attn", kwargs)
    return run("chunk_lightning_attn", "lightning", {"q": q, "k": k, "v": v}, initial_state,
               output_final_state, cu_seqlens, scale=scale, layer=layer_idx, layers=num_layers)


def fused_recurrent_lightning_attn(q, k, v, layer_idx, num_layers, scale=None, initial_state=None,
                                   output_final_state=False, reverse=False, cu_seqlens=None):
    """(out, final state)."""
    return run("fused_recurrent_lightning_attn", "lightning", {"q": q, "k": k, "v": v},
               initial_state, output_final_state, cu_seqlens, reverse=reverse, scale=scale,
               layer=layer_idx, layers=num_layers)
