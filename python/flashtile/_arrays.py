# SPDX-License-Identifier: Apache-2.0
"""What the extension asks of array libraries that have no C functions for it.

numpy's arrays come and go as buffers, those of a recent PyTorch through DLPack's exchange
functions; other libraries are known by the name of their module, and imported only where an array
of theirs is given."""

from __future__ import annotations

import functools
import importlib
from typing import Any

_NUMPY_NAMES = {"f32": "float32", "f16": "float16", "f64": "float64", "i32": "int32",
                "i64": "int64", "u8": "uint8", "bool": "bool"}
_ALIGNMENT = 64  # where JAX takes memory over without a copy


def library_of(array: Any) -> str:
    """"numpy", "torch", "jax", "cupy": the package that an array's type comes from."""
    root = type(array).__module__.partition(".")[0]
    return "jax" if root == "jaxlib" else root


@functools.lru_cache(maxsize=None)
def _numpy() -> Any:
    try:
        return importlib.import_module("numpy")
    except ImportError:
        raise RuntimeError("flashtile: results have no library to be arrays of: install numpy, or "
                           "give arrays for all of them (out=...)") from None


@functools.lru_cache(maxsize=None)
def numpy_dtype(dtype: str) -> Any:
    """The numpy dtype of a dtype name of ours; bf16 needs ml_dtypes."""
    if dtype in _NUMPY_NAMES:
        return _numpy().dtype(_NUMPY_NAMES[dtype])
    try:
        ml_dtypes = importlib.import_module("ml_dtypes")
    except ImportError:
        raise RuntimeError(f"flashtile: numpy has no {dtype}: install ml_dtypes") from None
    return _numpy().dtype(ml_dtypes.bfloat16)


def new_array(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Memory for a result: an array of the library of `like`, or what finished_array makes one."""
    library = library_of(like)
    if library == "torch":
        torch = importlib.import_module("torch")
        name = "bfloat16" if dtype == "bf16" else _NUMPY_NAMES[dtype]
        return torch.empty(shape, dtype=getattr(torch, name), device=like.device)
    if library == "cupy":
        cupy = importlib.import_module("cupy")
        with like.device:
            return cupy.empty(shape, numpy_dtype(dtype))
    numpy = _numpy()
    wanted = numpy_dtype(dtype)
    if library != "jax":
        return numpy.empty(shape, wanted)
    count = wanted.itemsize
    for size in shape:
        count *= size
    memory = numpy.empty(count + _ALIGNMENT, numpy.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start:start + count].view(wanted).reshape(shape)


def finished_array(like: Any, array: Any) -> Any:
    """A result in the library of `like`."""
    if library_of(like) != "jax" or library_of(array) == "jax":
        return array
    return importlib.import_module("jax.numpy").asarray(array)


def current_stream(like: Any) -> int:
    """The CUDA stream that the library of `like` works on."""
    if library_of(like) == "cupy":
        return int(importlib.import_module("cupy").cuda.get_current_stream().ptr)
    if library_of(like) == "torch":
        return int(importlib.import_module("torch").cuda.current_stream(like.device).cuda_stream)
    if library_of(like) == "jax":
        raise NotImplementedError("flashtile: JAX has no stream for a call from outside: "
                                  "flashtile.jax.attention takes its arrays on a GPU")
    return 0
