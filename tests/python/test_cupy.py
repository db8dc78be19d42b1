# SPDX-License-Identifier: Apache-2.0
"""flashtile.attention on CuPy's arrays, against numpy's float64."""

import numpy as np
import plain
import pytest

import flashtile

cupy = pytest.importorskip("cupy")


def has_device():
    try:
        return cupy.cuda.runtime.getDeviceCount() > 0
    except cupy.cuda.runtime.CUDARuntimeError:
        return False


pytestmark = pytest.mark.skipif(not has_device(), reason="there is no GPU")


def qkv(dtype):
    arrays = plain.random(1, (2, 100, 4, 64), (2, 130, 2, 64), (2, 130, 2, 64), dtype=dtype)
    return arrays, [cupy.asarray(x) for x in arrays]


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 5e-6), (np.float16, 3e-3)])
def test_results_stay_on_the_device(dtype, tolerance):
    host, device = qkv(dtype)
    out, lse = flashtile.attention(*device, causal=True, return_lse=True)
    i, j = plain.positions(100, 130)
    expected, expected_lse = plain.attention(*host, seen=j <= i)
    assert isinstance(out, cupy.ndarray) and out.dtype == dtype and out.device == device[0].device
    assert isinstance(lse, cupy.ndarray) and lse.dtype == np.float32
    assert abs(cupy.asnumpy(out).astype(np.float64) - expected).max() < tolerance
    assert abs(cupy.asnumpy(lse) - expected_lse).max() < 1e-3


def test_gradients():
    host, device = qkv(np.float32)
    dout = plain.random(2, (2, 100, 4, 64))[0]
    results = flashtile.attention(*host, return_lse=True)
    expected = flashtile.attention_backward(dout, *host, *results)
    results = flashtile.attention(*device, return_lse=True)
    found = flashtile.attention_backward(cupy.asarray(dout), *device, *results)
    for name in ("q", "k", "v"):
        assert isinstance(found[name], cupy.ndarray)
        assert abs(cupy.asnumpy(found[name]) - expected[name]).max() < 2e-5


def test_calls_follow_the_current_stream():
    """Work that the call waits for takes longer than its launch, on a stream that nothing else
    waits for."""
    host, device = qkv(np.float16)
    expected, _ = plain.attention(*host)
    flashtile.attention(*device)  # compiled
    late = cupy.zeros_like(device[0])
    square = cupy.ones((4096, 4096), np.float32)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for _ in range(20):
            square = square @ square * np.float32(1 / 4096)
        late[...] = device[0]
        out = flashtile.attention(late, *device[1:])
        out = out + 0
        stream.synchronize()
    assert abs(cupy.asnumpy(out).astype(np.float64) - expected).max() < 3e-3


def test_memory_of_the_caller():
    host, device = qkv(np.float16)
    memory = cupy.full((2, 100, 4, 64), np.nan, np.float16)
    assert flashtile.attention(*device, out=memory) is memory
    expected, _ = plain.attention(*host)
    assert abs(cupy.asnumpy(memory).astype(np.float64) - expected).max() < 3e-3


def test_arrays_of_two_places_are_refused():
    host, device = qkv(np.float16)
    with pytest.raises(ValueError, match="device of k is cpu:0, of q cuda:0"):
        flashtile.attention(device[0], host[1], device[2])
