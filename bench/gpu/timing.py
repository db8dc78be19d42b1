# SPDX-License-Identifier: Apache-2.0
"""Timing of functions on a GPU, side by side: rounds in which each is timed once, in an order that
is drawn anew, so that clocks and temperature are the same for all."""

import random
import statistics

import torch

import cycles


class Rotation:
    """Copies of a problem that are used in turns, so that none finds its inputs in the L2 cache."""

    def __init__(self, functions):
        self.functions = functions
        self.next = 0

    def __call__(self):
        self.functions[self.next]()
        self.next = (self.next + 1) % len(self.functions)


def clock_mhz():
    """The clock of the multiprocessors at this moment; None where nothing says it."""
    try:
        import pynvml
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
    except Exception:  # the times stand without it
        return None


def milliseconds(run, repeats, clocks=None):
    """`clocks` gets the clock while the last of them run."""
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        run()
    end.record()
    if clocks is not None:
        clocks.append(clock_mhz())
    end.synchronize()
    return start.elapsed_time(end) / repeats


def interleaved(functions, rounds=7, round_ms=30.0):
    """Median and spread of each function's time, and the clock that it ran at, which is lower
    beside functions that take more power: {name: {"ms", "ms_min", "ms_max", "run_mhz"}}."""
    repeats = {}
    for name, run in functions.items():
        run()
        once = milliseconds(run, 2)
        repeats[name] = max(1, min(2000, int(round_ms / max(once, 1e-4))))
    samples = {name: [] for name in functions}
    clocks = {name: [] for name in functions}
    names = list(functions)
    for _ in range(rounds):
        random.shuffle(names)
        for name in names:
            samples[name].append(milliseconds(functions[name], repeats[name], clocks[name]))
    results = {}
    for name, times in samples.items():
        results[name] = {"ms": statistics.median(times), "ms_min": min(times), "ms_max": max(times)}
        if all(clocks[name]):
            results[name]["run_mhz"] = statistics.median(clocks[name])
    return results


def sustained(functions, operations, seconds=1.0, rounds=3):
    """Each function for at least so long without a pause, in turns, an even number of times first
    and last: {name: {"tflops", "share", "mhz", "seconds"}}, medians over the rounds. `share` is
    that of all cycles of the multiprocessors which products of 16-bit floats need at the least."""
    counter = cycles.CycleCounter()
    samples = {name: [] for name in functions}
    for round_idx in range(rounds):
        names = list(functions)
        for name in names if round_idx % 2 == 0 else reversed(names):
            run = functions[name]
            run()
            once = milliseconds(run, 3)
            repeats = int(seconds * 1e3 / once * 1.15) + 1
            first = counter.read()
            ms = milliseconds(run, repeats)
            last = counter.read()
            passed, mhz = cycles.between(first, last)
            samples[name].append({
                "tflops": operations[name] / ms * 1e-9, "mhz": mhz, "seconds": ms * repeats / 1e3,
                "share": cycles.share(operations[name] * repeats, counter.num_sms, passed)})
    return {name: {key: statistics.median(sample[key] for sample in of_name)
                   for key in of_name[0]} for name, of_name in samples.items()}


def device_record():
    """What a result must say about the machine that made it."""
    record = {"device": torch.cuda.get_device_name(), "torch": torch.__version__,
              "cudnn": torch.backends.cudnn.version()}
    try:
        import pynvml
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        record["driver"] = pynvml.nvmlSystemGetDriverVersion()
        record["sm_mhz"] = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
        record["watts"] = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
    except Exception as error:  # the figures stand without it
        record["nvml"] = str(error)
    return record
