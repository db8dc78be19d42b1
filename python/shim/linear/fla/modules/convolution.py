# SPDX-License-Identifier: Apache-2.0
"""Short causal convolutions."""

from flashtile.torch.layers import ShortConvolution
from flashtile.torch.layers.modules import short_conv

from fla._common import takes

__all__ = ["ShortConvolution", "causal_conv1d"]


def causal_conv1d(x, weight=None, bias=None, residual=None, initial_state=None,
                  output_final_state=False, activation=None, backend="triton", cu_seqlens=None,
                  cu_seqlens_cpu=None, chunk_indices=None, cp_context=None, **kwargs):
    """(out, cache): x (batch, seqlen, channels), weight (channels, width), cache (sequences,
    channels, width)."""
    takes("causal_conv1d", {**kwargs, "cp_context": cp_context})
    if weight is None:
        raise ValueError("causal_conv1d: weight is not given")
    out, cache = short_conv(x, weight, bias, activation=activation, cache=initial_state,
                            cu_seqlens=cu_seqlens, return_cache=bool(output_final_state))
    return out if residual is None else out + residual, cache
