// SPDX-License-Identifier: Apache-2.0
//
// A GPU of plain threads of control, on which device text runs as host code: the kernels' own
// logic (masks, layouts, barriers, copies) is executed and tested on machines without a GPU. The
// headers under device/ take the place of the library's src/cuda/device/ptx/ and call this.
//
// Every thread of a CTA is a fiber, and the CTAs of a cluster take turns. A fiber runs until it
// waits for its warp, its CTA or its cluster; who runs next is drawn from a seed, so that a missing
// barrier shows. Asynchronous copies happen either at once or as late as they may, drawn as well.
// Shared memory begins as NaN and ends at a guard page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

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

/// Waits for all threads of the cluster that have not ended.
void sync_cluster();
/// `bytes` bytes of a CTA's shared memory; both in the address, see below.
char* cluster_memory(uint32_t cluster_address, int bytes);
/// An address within CTA `rank` of the cluster: not one that an own address could be.
inline uint32_t cluster_address(uint32_t address, int rank) {
  return address + (static_cast<uint32_t>(rank + 1) << 24);
}

/// Counts as a thread that gives this id, without waiting.
void arrive_at_group(int id, int num_threads);

// Barriers in shared memory, by their address, as in ptx/mbarrier.cuh.
void init_barrier(uint32_t barrier, int num_arrivals);
void arrive(uint32_t barrier, int expected_bytes);
void wait_barrier(uint32_t barrier, uint32_t parity);

/// What a tensor map of the emulated driver holds.
struct TensorMap {
  char* data;
  int element_bytes;
  int num_dims;
  int row_bytes;  ///< of a box in shared memory
  long long shape[5];
  long long stride_bytes[5];
  int box[5];
};
/// Copies a box to or from rows of 64 or 128 bytes, whose 16-byte pieces are swizzled. Happens at
/// once or later; a barrier gets the bytes of a load.
void load_box(uint32_t target, const void* map, uint32_t barrier, const int (&place)[4]);
void store_box(const void* map, uint32_t source, const int (&place)[4]);
void commit_stores();
void wait_for_stores();

/// Puts work behind the thread's products; it is done at the commit, or as late as it may.
void start_product(std::function<void()> work);
void commit_products();
void wait_for_products(int pending);

/// Each lane gives `bytes` (at most 128) bytes and then sees what all 32 gave, lane by lane.
const char* exchange(const void* data, int bytes);

void copy_async(uint32_t target, const void* source, int bytes, int valid_bytes);
void copy_async_commit();
void copy_async_wait(int pending);

/// Runs `entry(arguments)` in every thread of the grid, one cluster after the other.
void run_grid(void (*entry)(void** arguments), void** arguments, long long num_ctas,
              int num_threads, size_t shared_bytes, int cluster_size);

}  // namespace emulator
