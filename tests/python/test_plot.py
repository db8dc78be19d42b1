# SPDX-License-Identifier: Apache-2.0
"""Pictures of masks, against the masks themselves."""

import numpy as np
import plain
import pytest

import flashtile

I, J = plain.positions(200, 230)
DOCUMENT = np.repeat(np.arange(5), 46).astype(np.int32)
MASKS = {
    "all": (dict(), J >= 0), "causal": (dict(causal=True), J <= I),
    "window": (dict(window=(40, 10)), (J >= I - 40) & (J <= I + 10)),
    "chunk": (dict(attention_chunk=50), I // 50 == J // 50),
    "sinks": (dict(mask="(k_idx < 4 || k_idx >= q_idx + query_offset - 20) && k_idx <= q_idx + "
                        "query_offset"), ((J < 4) | (J >= I - 20)) & (J <= I)),
    "document": (dict(mask=lambda b, h, i, j, d: d[i + 30] == d[j], aux={"d": DOCUMENT}),
                 DOCUMENT[I] == DOCUMENT[J]),
}


@pytest.mark.parametrize("name", MASKS)
def test_blocks(name):
    options, seen = MASKS[name]
    picture = flashtile.plot_mask(200, 230, block=(16, 32), **options)
    assert len(picture.blocks) == 13 and len(picture.blocks[0]) == 8
    for row, cells in enumerate(picture.blocks):
        for column, cell in enumerate(cells):
            part = np.broadcast_to(seen, (200, 230))[16 * row:16 * (row + 1),
                                                     32 * column:32 * (column + 1)]
            assert cell == (2 if part.all() else 1 if part.any() else 0), (row, column)


def test_heads_and_sequences_are_told_apart():
    used = np.array([128, 40], np.int32)
    options = dict(batch_size=2, num_heads=2, seqused_k=used, mask="head == 0 || k_idx < 64")
    rows = [flashtile.plot_mask(64, 128, batch=b, head=h, **options).blocks for b, h in
            ((0, 0), (0, 1), (1, 0))]
    assert rows == [((2, 2),), ((2, 0),), ((2,),)]


def test_text():
    picture = flashtile.plot_mask(256, causal=True, window=(100, None))
    assert str(picture).split("\n")[:4] == ["+...", "++..", "+++.", ".+++"]
    assert str(picture).endswith("56% visited")
    assert picture.visited == 9 / 16


def test_errors():
    with pytest.raises(ValueError, match="head is 1, expected less than 1"):
        flashtile.plot_mask(8, head=1)
    with pytest.raises(ValueError, match="length is 0"):
        flashtile.plot_mask(0)
    with pytest.raises(ValueError, match="no rows or columns"):
        flashtile.plot_mask(8, block=0)
    with pytest.raises(TypeError, match="no argument 'casual'"):
        flashtile.plot_mask(8, casual=True)


def test_drawing():
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    matplotlib.use("Agg")
    axes = flashtile.plot_mask(256, causal=True).draw()
    assert axes.get_title() == "62% visited"
