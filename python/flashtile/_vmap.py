# SPDX-License-Identifier: Apache-2.0
"""How a call for a whole axis of vmap, in JAX or PyTorch, becomes one call with a larger batch.

The axis is in front of the arrays that have it, and becomes the slower part of the batch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Array = Any
# Arrays whose first axis is the batch, in a call that is not packed.
_OF_BATCH = {"q", "k", "v", "out", "dout", "seqused_k", "leftpad_k", "lse", "dlse"}
_BATCH_OR_1 = {"bias", "block_counts", "block_indices"}
_PACKED = {"cu_seqlens_q", "cu_seqlens_k", "block_table", "cache_batch_idx"}


def folds(batched: Mapping[str, bool], wanted: Iterable[str], texts: Iterable[str]) -> bool:
    """Whether one call can stand for all.

    Args:
        batched: which of the arrays of a call have the axis.
        wanted: inputs whose gradients are wanted.
        texts: of score and mask functions.
    """
    if _PACKED & batched.keys() or any(re.search(r"\bbatch\b", text) for text in texts):
        return False
    # Sinks, aux arrays and seeds: all sequences of a call share them.
    return all(name in _OF_BATCH or name in _BATCH_OR_1 or name == "alibi_slopes" or
               not is_batched and name not in wanted for name, is_batched in batched.items())


def folded(name: str, array: Array, is_batched: bool, wants_gradient: bool, size: int,
           batch_size: int, broadcast: Callable[[Array, tuple[int, ...]], Array]) -> Array:
    """An array of the one call."""
    if name in _OF_BATCH:
        if not is_batched:
            array = broadcast(array, (size, *array.shape))
        return array.reshape(size * array.shape[1], *array.shape[2:])
    apart = is_batched or wants_gradient
    if name == "alibi_slopes" and (apart or array.ndim == 2):
        array = array if is_batched else array[None]
        array = array if array.ndim == 3 else array[:, None]
    elif name in _BATCH_OR_1 and (apart or array.shape[0] > 1):
        array = array if is_batched else array[None]
    else:
        return array
    array = broadcast(array, (size, batch_size, *array.shape[2:]))
    return array.reshape(size * batch_size, *array.shape[2:])


def unfolded(array: Array, size: int, shape: tuple[int, ...] | None = None) -> Array:
    """A result of the one call with the axis in front; `shape` is what it is to have behind it,
    where that is known: a gradient of what stood for the whole batch is a sum."""
    array = array.reshape(size, array.shape[0] // size, *array.shape[1:])
    if shape is None or tuple(array.shape[1:]) == tuple(shape):
        return array
    summed = array.sum(1)
    return summed if len(shape) == summed.ndim - 1 else summed[:, None]
