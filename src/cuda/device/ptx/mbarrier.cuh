// SPDX-License-Identifier: Apache-2.0
//
// Barriers in shared memory (sm_90). A barrier counts arrivals and, where told, bytes of copies;
// when all of a phase are there, the next phase begins. A waiter names the phase that must have
// ended by its parity: the first phase has parity 0, and on a fresh barrier a wait for parity 1
// returns at once. Arriving releases what the thread has done before, waiting acquires it.
#pragma once

#include "cuda/device/ptx/define.cuh"

namespace flashtile::device {

constexpr int kBarrierBytes = 8;

/// By one thread, before the CTA's first barrier; then fence_barrier_init().
FLASHTILE_DEVICE void init_barrier(uint32 barrier, int num_arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(num_arrivals)
               : "memory");
}
/// Makes initialised barriers known to the copy engine.
FLASHTILE_DEVICE void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

FLASHTILE_DEVICE void arrive(uint32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// The same without a branch, by threads that say so.
FLASHTILE_DEVICE void arrive_if(uint32 barrier, bool does_arrive) {
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %1, 0;\n\t"
      "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n\t}" ::"r"(barrier),
      "r"(static_cast<int>(does_arrive))
      : "memory");
}
/// Arrives, and lets the phase wait for that many bytes of copies besides.
FLASHTILE_DEVICE void arrive_expecting(uint32 barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

/// Arrives when all asynchronous copies that the thread has started (copy_async) have ended. Who
/// waits and reads by products or the copy engine has to fence_shared_for_async().
FLASHTILE_DEVICE void arrive_behind_copies(uint32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

FLASHTILE_DEVICE void wait(uint32 barrier, uint32 parity) {
  asm volatile(
      "{\n\t.reg .pred p;\n\tWAIT%=:\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n\t"
      "@!p bra WAIT%=;\n\t}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

}  // namespace flashtile::device
