# SPDX-License-Identifier: Apache-2.0
"""Pictures of masks, by blocks."""

from __future__ import annotations

import array
import dataclasses
import math
from typing import Any

from flashtile._attention import mask_blocks


@dataclasses.dataclass(frozen=True)
class MaskPicture:
    """Which blocks of queries (rows) and keys (columns) attention visits; str() draws them."""

    blocks: tuple[tuple[int, ...], ...]  #: 0: skipped, 1: visited, some pairs seen, 2: all seen
    block: tuple[int, int]  #: queries and keys of one

    @property
    def visited(self) -> float:
        """The share of blocks that are visited."""
        cells = [cell for row in self.blocks for cell in row]
        return sum(cell > 0 for cell in cells) / max(len(cells), 1)

    def __str__(self) -> str:
        lines = ["".join(".+#"[cell] for cell in row) for row in self.blocks]
        lines.append(f"blocks of {self.block[0]} queries (down) and {self.block[1]} keys: . skipped"
                     f", + in part, # in full; {self.visited:.0%} visited")
        return "\n".join(lines)

    def draw(self, axes: Any = None) -> Any:
        """Draws into axes of matplotlib, or new ones, and returns them."""
        if axes is None:
            try:
                from matplotlib import pyplot
            except ImportError:
                raise ImportError("MaskPicture.draw needs matplotlib: pip install "
                                  "matplotlib") from None
            axes = pyplot.figure().add_subplot()
        axes.imshow(self.blocks, cmap="Blues", vmin=0, vmax=2, interpolation="nearest")
        axes.set_xlabel(f"blocks of {self.block[1]} keys")
        axes.set_ylabel(f"blocks of {self.block[0]} queries")
        axes.set_title(f"{self.visited:.0%} visited")
        return axes


def _memory(shape: tuple[int, ...]) -> Any:
    """An array of zeros without numpy."""
    return memoryview(array.array("f", bytes(4 * math.prod(shape)))).cast("B").cast("f", shape)


def plot_mask(seqlen_q: int, seqlen_k: int | None = None, *, block: int | tuple[int, int] = 64,
              batch_size: int = 1, num_heads: int = 1, batch: int = 0, head: int = 0,
              **options: Any) -> MaskPicture:
    """The blocks that attention visits for one head of one sequence.

    Args:
        seqlen_q, seqlen_k: lengths; seqlen_k like seqlen_q by default.
        block: queries and keys of a block. Those of kernels are chosen with the plan.
        batch_size, num_heads: of the call; options may have arrays of these sizes.
        batch, head: which one to look at.
        options: causal, window, mask, aux, params, query_offset, attention_chunk, seqused_k,
            leftpad_k, block_counts and so on, as for flashtile.attention.

    Raises:
        ValueError, TypeError: as attention does.

    >>> print(flashtile.plot_mask(256, causal=True, window=(100, None)))
    +...
    ++..
    +++.
    .+++
    blocks of 64 queries (down) and 64 keys: . skipped, + in part, # in full; 56% visited
    """
    sizes = seqlen_q, seqlen_q if seqlen_k is None else seqlen_k
    if min(sizes) < 1:
        raise ValueError("plot_mask: a length is 0, expected at least 1")
    q, k, out = (_memory((batch_size, size, num_heads, 1)) for size in (*sizes, seqlen_q))
    arrays = {"q": q, "k": k, "v": k, "out": out}
    shape = (block, block) if isinstance(block, int) else (block[0], block[1])
    return MaskPicture(tuple(map(tuple, mask_blocks(arrays, shape, batch, head, **options))), shape)
