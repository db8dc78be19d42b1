# SPDX-License-Identifier: Apache-2.0
"""flashtile's C library called on PyTorch tensors, for benches: one Call is one op's arguments."""

import ctypes
import re

import torch

DTYPES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3, torch.float64: 4,
          torch.int32: 5, torch.int64: 6, torch.uint8: 7, torch.bool: 8, torch.int8: 9,
          torch.float8_e4m3fn: 10}
DEVICE_TYPES = {"cpu": 1, "cuda": 2}


class Tensor(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("dtype", ctypes.c_int32),
                ("device_type", ctypes.c_int32), ("device_index", ctypes.c_int32),
                ("data", ctypes.c_void_p), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("ndim", ctypes.c_int32),
                ("reserved", ctypes.c_int32)]


class Context(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("device_type", ctypes.c_int32),
                ("device_index", ctypes.c_int32), ("max_workers", ctypes.c_int32),
                ("stream", ctypes.c_void_p), ("workspace", ctypes.c_void_p),
                ("workspace_bytes", ctypes.c_uint64), ("implementation", ctypes.c_char_p),
                ("executor_state", ctypes.c_void_p), ("executor_num_workers", ctypes.c_void_p),
                ("executor_run", ctypes.c_void_p)]


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.flashtile_call_new.restype = ctypes.c_void_p
        self.lib.flashtile_last_error.restype = ctypes.c_char_p

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.lib.flashtile_last_error().decode())


class Call:
    """`tensors` maps names of the operator table to PyTorch tensors, `options` to texts."""

    def __init__(self, library, op, tensors, options=None, implementation=None):
        self.library = library
        self.handle = ctypes.c_void_p(library.lib.flashtile_call_new(op.encode()))
        self.kept = [tensors]
        for name, tensor in tensors.items():
            self._set_tensor(name, tensor)
        for name, text in (options or {}).items():
            library.check(library.lib.flashtile_call_set_text(self.handle, name.encode(),
                                                              str(text).encode()))
        self.context = Context(struct_size=ctypes.sizeof(Context), device_type=2,
                               device_index=torch.cuda.current_device())
        self.context.stream = torch.cuda.current_stream().cuda_stream
        if implementation is not None:
            self.context.implementation = implementation.encode()
        needed = re.search(r"workspace (\d+)", self.explain())
        if needed and int(needed.group(1)) > 0:
            self.workspace = torch.empty(int(needed.group(1)) + 256, dtype=torch.uint8,
                                         device="cuda")
            self.context.workspace = self.workspace.data_ptr()
            self.context.workspace_bytes = self.workspace.numel()

    def _set_tensor(self, name, tensor):
        shape = (ctypes.c_int64 * tensor.ndim)(*tensor.shape)
        strides = (ctypes.c_int64 * tensor.ndim)(*tensor.stride())
        view = Tensor(struct_size=ctypes.sizeof(Tensor), dtype=DTYPES[tensor.dtype],
                      device_type=DEVICE_TYPES[tensor.device.type],
                      device_index=tensor.device.index or 0, data=tensor.data_ptr(), shape=shape,
                      strides=strides, ndim=tensor.ndim)
        self.kept += [shape, strides]
        self.library.check(self.library.lib.flashtile_call_set_tensor(
            self.handle, name.encode(), ctypes.byref(view)))

    def explain(self):
        size = ctypes.c_size_t(0)
        explain = self.library.lib.flashtile_call_explain
        self.library.check(explain(ctypes.byref(self.context), self.handle, None,
                                   ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self.library.check(explain(ctypes.byref(self.context), self.handle, buffer,
                                   ctypes.byref(size)))
        return buffer.value.decode()

    def run(self):
        self.library.check(self.library.lib.flashtile_call_run(ctypes.byref(self.context),
                                                               self.handle))
