# SPDX-License-Identifier: Apache-2.0
"""The multiprocessors' own clocks: how many cycles pass while something runs on the GPU, so that
what its products need can be given as a share of them."""

import ctypes

import torch

# Multiply-adds of 16-bit floats count as two; of one multiprocessor of compute capability 9.0.
OPERATIONS_A_CYCLE = 4096

# Each CTA writes its multiprocessor's cycle counter and the time in nanoseconds. Driver and card
# agree on PTX, so that nothing has to be compiled for it.
PROBE = b"""
.version 8.0
.target sm_90
.address_size 64
.visible .entry probe(.param .u64 out) {
  .reg .b32 %place;
  .reg .b64 %address, %offset, %cycles, %time;
  ld.param.u64 %address, [out];
  cvta.to.global.u64 %address, %address;
  mov.u32 %place, %smid;
  mul.wide.u32 %offset, %place, 16;
  add.u64 %address, %address, %offset;
  mov.u64 %cycles, %clock64;
  mov.u64 %time, %globaltimer;
  st.global.v2.u64 [%address], {%cycles, %time};
  ret;
}
\0"""


class CycleCounter:
    """Reads the counters of all multiprocessors in the order of the current stream."""

    def __init__(self):
        torch.cuda.init()
        torch.empty(1, device="cuda")  # makes the context
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.num_sms = torch.cuda.get_device_properties(0).multi_processor_count
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self.driver.cuModuleLoadData(ctypes.byref(module), PROBE))
        self._check(self.driver.cuModuleGetFunction(ctypes.byref(self.function), module, b"probe"))

    @staticmethod
    def _check(status):
        if status != 0:
            raise RuntimeError(f"the CUDA driver says {status}")

    def read(self):
        """A tensor (multiprocessor, [cycles, nanoseconds]) that is filled when the stream gets
        there."""
        out = torch.zeros(1024, 2, dtype=torch.int64, device="cuda")
        address = ctypes.c_void_p(out.data_ptr())
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(address), ctypes.c_void_p))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        # More than can be resident at once: each multiprocessor gets one.
        self._check(self.driver.cuLaunchKernel(self.function, 64 * self.num_sms, 1, 1, 32, 1, 1, 0,
                                               stream, arguments, None))
        return out


def between(first, last):
    """Cycles that passed on a multiprocessor between two readings, and its clock in MHz."""
    seen = (first[:, 1] > 0) & (last[:, 1] > first[:, 1])
    cycles, time = (last - first)[seen].double().mean(dim=0).tolist()
    return cycles, cycles / time * 1e3


def share(operations, num_sms, cycles):
    """Of the cycles, those that products of 16-bit floats need at the least."""
    return operations / (OPERATIONS_A_CYCLE * num_sms * cycles)
