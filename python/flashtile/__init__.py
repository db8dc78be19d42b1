# SPDX-License-Identifier: Apache-2.0
"""Exact attention and its gradients, tile by tile, for numpy, PyTorch, JAX and CuPy arrays.

    out = flashtile.attention(q, k, v, causal=True)

flashtile.linear has linear attention; flashtile.torch and flashtile.jax have the functions with
gradients; flashtile.ops every op of the library."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from flashtile._attention import attention, attention_backward, merge
from flashtile._core import __version__, add_kernel_pack
from flashtile._explain import Explanation, explain, info, supports, warmup
from flashtile._plot import MaskPicture, plot_mask
from flashtile.expressions import Expression, TraceError, trace

if TYPE_CHECKING:
    from flashtile import linear, ops

__all__ = ["Explanation", "Expression", "MaskPicture", "TraceError", "__version__",
           "add_kernel_pack", "attention", "attention_backward", "explain", "info", "linear",
           "merge", "ops", "plot_mask", "supports", "trace", "warmup"]


def __getattr__(name: str) -> Any:
    if name in ("linear", "ops"):  # made of the operator table when somebody asks
        return importlib.import_module(f"flashtile.{name}")
    raise AttributeError(f"flashtile has no '{name}'")
