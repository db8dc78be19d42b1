# SPDX-License-Identifier: Apache-2.0
"""HGRN."""

from fla._common import run


def chunk_hgrn(x, g, initial_state=None, output_final_state=False):
    """(out, final state)."""
    return run("chunk_hgrn", "hgrn", {"x": x, "g": g}, initial_state, output_final_state)


def fused_recurrent_hgrn(x, g, initial_state=None, output_final_state=False, cu_seqlens=None):
    """(out, final state)."""
    return run("fused_recurrent_hgrn", "hgrn", {"x": x, "g": g}, initial_state,
               output_final_state, cu_seqlens)
