# SPDX-License-Identifier: Apache-2.0
"""flashtile.attention on JAX's arrays."""

import numpy as np
import plain
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")

import flashtile  # noqa: E402


@pytest.mark.parametrize("dtype, tolerance", [("float32", 3e-6), ("bfloat16", 2.5e-2)])
def test_arrays_on_the_cpu(dtype, tolerance):
    with jax.default_device(jax.devices("cpu")[0]):
        q, k, v = (jax.numpy.asarray(x).astype(dtype)
                   for x in plain.random(1, (2, 33, 4, 16), (2, 40, 2, 16), (2, 40, 2, 16)))
        out, lse = flashtile.attention(q, k, v, causal=True, return_lse=True)
        assert isinstance(out, jax.Array) and out.dtype == dtype and lse.dtype == "float32"
        position, key = plain.positions(33, 40)
        expected, _ = plain.attention(*(np.asarray(x, np.float64) for x in (q, k, v)),
                                      seen=key <= position)
        assert abs(np.asarray(out, np.float64) - expected).max() < tolerance
        gradients = flashtile.attention_backward(out, q, k, v, out, lse, causal=True)
        assert all(isinstance(x, jax.Array) for x in gradients.values())


def test_arrays_that_cannot_be_written():
    q = jax.numpy.zeros((1, 2, 1, 8))
    with pytest.raises(ValueError, match="out is read-only|cannot be written"):
        flashtile.attention(q, q, q, out=q)


def test_inside_jit():
    q = jax.numpy.zeros((1, 2, 1, 8))
    with pytest.raises(TypeError, match="q is traced by JAX"):
        jax.jit(lambda x: flashtile.attention(x, x, x))(q)
