// SPDX-License-Identifier: Apache-2.0
//
// A GPU of plain threads of control, on which device text runs as host code: the kernels' own
// logic (masks, layouts, barriers, copies) is executed and tested on machines without a GPU. The
// headers under device/ take the place of the library's src/cuda/device/ptx/ and call this.
//
// Every thread of a CTA is a fiber. A fiber runs until it waits for its warp or its CTA; who runs
// next is drawn from a seed, so that a missing barrier shows. Asynchronous copies happen either at
// once or as late as they may, drawn as well. Shared memory begins as NaN and ends at a guard page.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator {

struct Thread {
  int thread_idx;
  int num_threads;
  long long cta_idx;
  long long num_ctas;
};

/// Ends the program.
[[noreturn]] void stop(const char* text);

/// The fiber that runs.
const Thread& current();

/// Dynamic shared memory of its CTA; shared addresses are offsets into it.
char* shared_memory();
/// Stops the program where [address, address + bytes) is not inside.
void check_shared(uint32_t address, int bytes, int alignment);

/// Waits for all threads of the CTA that have not ended.
void sync_cta();
bool sync_cta_any(bool value);
void sync_warp();
/// Waits for as many threads that give the same id; these are neighbours or strided warps.
void sync_group(int id, int num_threads);

/// Each lane gives `bytes` (at most 128) bytes and then sees what all 32 gave, lane by lane.
const char* exchange(const void* data, int bytes);

void copy_async(uint32_t target, const void* source, int bytes, int valid_bytes);
void copy_async_commit();
void copy_async_wait(int pending);

/// Runs `entry(arguments)` in every thread of the grid.
void run_grid(void (*entry)(void** arguments), void** arguments, long long num_ctas,
              int num_threads, size_t shared_bytes);

}  // namespace emulator
