# SPDX-License-Identifier: Apache-2.0
"""Exact attention and its gradients, tile by tile, for numpy, PyTorch, JAX and CuPy arrays.

    out = flashtile.attention(q, k, v, causal=True)

flashtile.torch has the functions with gradients; flashtile.ops every op of the library."""

from flashtile._attention import attention, attention_backward, merge
from flashtile._core import __version__, add_kernel_pack
from flashtile._explain import Explanation, explain, info, supports, warmup
from flashtile._plot import MaskPicture, plot_mask
from flashtile.expressions import Expression, TraceError, trace

__all__ = ["Explanation", "Expression", "MaskPicture", "TraceError", "__version__",
           "add_kernel_pack", "attention", "attention_backward", "explain", "info", "merge",
           "plot_mask", "supports", "trace", "warmup"]
