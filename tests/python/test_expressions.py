# SPDX-License-Identifier: Apache-2.0
"""Python functions as expressions: the library's result is that of the function on numbers."""

import math

import numpy as np
import plain
import pytest

import flashtile
from flashtile import expressions as ex

Q, K, V = plain.random(11, (2, 12, 2, 8), (2, 14, 2, 8), (2, 14, 2, 8))
TABLE = plain.random(12, (2, 14))[0]
DOCUMENT = np.repeat(np.arange(5), 3)[:14].astype(np.int32)

# Each as a function of symbols, and as the same one of numbers.
SCORES = {
    "arithmetic": (lambda s, b, h, i, j: s * 2 - (i - j) / 8 + h, None),
    "python's division": (lambda s, b, h, i, j: s + (i - j) // 3 + (i - 2 * j) % 5 - (-s) % 0.75,
                          None),
    "reflected": (lambda s, b, h, i, j: 1 - s + 2.0 ** (-abs(i - j)) + 3 % (j + 1) + 7 // (i + 1),
                  None),
    "functions": (lambda s, b, h, i, j: ex.tanh(s) + ex.sigmoid(s) * ex.exp(-ex.sqrt(i + 1)),
                  lambda s, b, h, i, j: np.tanh(s) + np.exp(-np.sqrt(i + 1)) / (1 + np.exp(-s))),
    "numpy's functions": (lambda s, b, h, i, j: np.where(i > j, np.minimum(s, 0.25), np.cos(s)),
                          None),
    "floor": (lambda s, b, h, i, j: s + math.floor(s * 2), lambda s, b, h, i, j:
              s + np.floor(s * 2)),
    "bits": (lambda s, b, h, i, j: s + ((i ^ j) & 3) + (i >> 1) - (j << 1) * 0.125 + ~i * 0.25,
             None),
    "conditions": (lambda s, b, h, i, j: s + ((i < j) | (i == 7)) - ~(i >= 3) * 2.0,
                   lambda s, b, h, i, j: s + ((i < j) | (i == 7)) - (i < 3) * 2.0),
}


@pytest.mark.parametrize("name", SCORES)
def test_scores(name):
    function, on_numbers = SCORES[name]
    out = flashtile.attention(Q, K, V, score=function)
    b, h, i, j = np.ogrid[:2, :2, :12, :14]
    expected, _ = plain.attention(Q, K, V,
                                  change=lambda s: (on_numbers or function)(s, b, h, i, j))
    assert abs(out - expected).max() < 1e-5


def test_masks_and_arrays():
    out = flashtile.attention(
        Q, K, V, aux={"table": TABLE, "document": DOCUMENT}, params={"width": 4},
        score=lambda score, head, k_idx, table: score + table[head, k_idx],
        mask=lambda b, h, i, j, document, width: (document[i] == document[j]) | (j < width))
    b, h, i, j = np.ogrid[:2, :2, :12, :14]
    expected, _ = plain.attention(Q, K, V, change=lambda s: s + TABLE[h, j],
                                  seen=(DOCUMENT[i] == DOCUMENT[j]) | (j < 4))
    assert abs(out - expected).max() < 3e-6


def test_minus_infinity_is_a_mask():
    out = flashtile.attention(Q, K, V, score=lambda s, b, h, i, j: ex.where(j <= i, s, -math.inf))
    expected = flashtile.attention(Q, K, V, mask="k_idx <= q_idx")
    assert abs(out - expected).max() < 1e-6


def test_text():
    text, captured = flashtile.trace(lambda b, h, i, j: (i - j < 5) & (j <= i), "mask")
    assert text == "(((q_idx - k_idx) < 5) && (k_idx <= q_idx))" and captured == {}


@pytest.mark.parametrize("function, text", [
    (lambda s, b, h, i, j: s if i < j else 0.0, "truth value.*'\\(q_idx < k_idx\\)'"),
    (lambda s, b, h, i, j: s * (0 <= i < 5), "truth value"),
    (lambda s, b, h, i, j: s * (i > 1 and j > 1), "truth value"),
    (lambda s, b, h, i, j: math.exp(s), "functions of flashtile.expressions"),
    (lambda s, b, h, i, j: s + TABLE[0][j], "aux="),
    (lambda s, b, h, i, j: s + [1.0, 2.0][h], "aux="),
    (lambda s, b, h, i, j: s + TABLE, "ndarray|aux="),
    (lambda s, b, h, i, j: "text", "found a str"),
    (lambda s, b, h, i, j: np.arctan(s), "numpy.arctan has no counterpart"),
    (lambda s, b, h, i: s, "has the parameters"),
    (lambda s, b, h, i, j, slope: s, "has the parameters"),
    (lambda s, b, h, i, j: s & 1, "of floats"),
    (lambda s, b, h, i, j: s + math.nan, "nan"),
])
def test_errors(function, text):
    with pytest.raises(flashtile.TraceError, match=text):
        flashtile.attention(Q, K, V, score=function)


def test_index_errors():
    aux = {"table": TABLE}
    with pytest.raises(flashtile.TraceError, match="2 dimensions, found 1"):
        flashtile.trace(lambda s, b, h, i, j, table: s + table[h], aux=aux)
    with pytest.raises(flashtile.TraceError, match="is a float"):
        flashtile.trace(lambda s, b, h, i, j, table: s + table[h, s], aux=aux)


def test_what_masks_of_libraries_ask_of_an_index():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    padding = torch.tensor([[True, False]])

    def both(b, h, i, j):
        result = i.new_ones((), dtype=torch.bool)
        for part in (j <= i, padding[b, j]):
            result = result & part.to(result.device)
        return result

    text, captured = flashtile.trace(both, "mask")
    name, = captured
    assert text == f"((k_idx <= q_idx) && ({name}[batch, k_idx] != 0))"
    text, _ = flashtile.trace(lambda b, h, i, j: b.new_zeros((), dtype=torch.bool) | (j < 3),
                              "mask")
    assert text == "(k_idx < 3)"
    with pytest.raises(flashtile.TraceError, match="new_ones"):
        flashtile.trace(lambda b, h, i, j: i.new_ones((2,), dtype=torch.bool), "mask")
    with pytest.raises(flashtile.TraceError, match="to_float"):
        flashtile.trace(lambda b, h, i, j: i.to(torch.float32) < 1, "mask")
    with pytest.raises(flashtile.TraceError, match="clamp"):
        flashtile.trace(lambda b, h, i, j: i.clamp(0, 3) < 1, "mask")
