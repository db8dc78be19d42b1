# SPDX-License-Identifier: Apache-2.0
"""apply_rotary under the name of flash_attn's Triton module."""

from flash_attn.layers.rotary import apply_rotary_emb


def apply_rotary(x, cos, sin, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None,
                 interleaved=False, inplace=False, conjugate=False):
    """apply_rotary_emb; conjugate turns back."""
    return apply_rotary_emb(x, cos, -sin if conjugate else sin, interleaved, inplace,
                            seqlen_offsets, cu_seqlens, max_seqlen)
