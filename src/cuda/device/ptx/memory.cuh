// SPDX-License-Identifier: Apache-2.0
//
// Shared memory, asynchronous copies into it, matrices out of it, atomics. Shared addresses are 32
// bits wide and count bytes. Loads from shared memory say nothing to the compiler about memory, so
// that it may move global loads across them; being volatile, they stay between barriers and stores.
#pragma once

#include "cuda/device/ptx/define.cuh"

namespace flashtile::device {

extern __shared__ __align__(1024) char dynamic_shared_memory[];

/// The dynamic shared memory of the CTA; aligned to 1024 bytes.
FLASHTILE_DEVICE char* shared_memory() { return dynamic_shared_memory; }

FLASHTILE_DEVICE uint32 shared_address(const void* pointer) {
  return static_cast<uint32>(__cvta_generic_to_shared(pointer));
}

/// Copies `bytes` (4, 8 or 16, all aligned to that) from global memory, past the registers; what
/// lies behind the first `valid_bytes` is written as zero and not read.
template <int bytes>
FLASHTILE_DEVICE void copy_async(uint32 target, const void* source, int valid_bytes) {
  static_assert(bytes == 4 || bytes == 8 || bytes == 16, "cp.async copies 4, 8 or 16 bytes");
  if constexpr (bytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target),
                 "l"(source), "r"(valid_bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(source),
                 "n"(bytes), "r"(valid_bytes)
                 : "memory");
  }
}

/// The same for all of the 16 bytes.
FLASHTILE_DEVICE void copy_async_whole(uint32 target, const void* source) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(target), "l"(source)
               : "memory");
}

FLASHTILE_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most `pending` of this thread's newest groups are under way.
template <int pending>
FLASHTILE_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
FLASHTILE_DEVICE void load_matrices(uint32 (&r)[4], uint32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

/// The same, each matrix transposed.
FLASHTILE_DEVICE void load_matrices_transposed(uint32 (&r)[4], uint32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

/// Four 8x8 matrices of 16-bit elements as an accumulator's lanes hold them: element (row l / 4,
/// columns 2 (l % 4), + 1) of each. Lane l gives the address of row l % 8 of matrix l / 8, and
/// `own(i)` where its own elements of matrix i go, for GPUs that have no instruction for it.
template <class OwnAddress>
FLASHTILE_DEVICE void store_matrices(uint32 address, const uint32 (&r)[4], const OwnAddress& own) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
#else
  FLASHTILE_UNROLL
  for (int i = 0; i < 4; ++i) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(own(i)), "r"(r[i]) : "memory");
  }
#endif
}

struct alignas(16) Vector4 {
  uint32 x, y, z, w;
};

struct alignas(8) FloatPair {
  float x, y;
};
struct alignas(8) WordPair {
  uint32 x, y;
};

FLASHTILE_DEVICE FloatPair load_shared_pair(uint32 address) {
  FloatPair value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(address));
  return value;
}

FLASHTILE_DEVICE float load_shared(uint32 address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address));
  return value;
}

FLASHTILE_DEVICE void load_shared(float (&value)[4], uint32 address) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3])
               : "r"(address));
}

FLASHTILE_DEVICE Vector4 load_shared_vector(uint32 address) {
  Vector4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address));
  return value;
}

FLASHTILE_DEVICE void store_shared(uint32 address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

FLASHTILE_DEVICE void store_shared(uint32 address, const FloatPair& value) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(value.x), "f"(value.y)
               : "memory");
}

FLASHTILE_DEVICE void store_shared(uint32 address, const float (&value)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(value[0]),
               "f"(value[1]), "f"(value[2]), "f"(value[3])
               : "memory");
}

FLASHTILE_DEVICE void store_shared(uint32 address, uint32 value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

FLASHTILE_DEVICE void store_shared(uint32 address, const Vector4& value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

/// A global element that nobody writes during the kernel.
template <class T>
FLASHTILE_DEVICE T load_global(const T* address) {
  return __ldg(address);
}

/// The same where `is_there`, else 0 and nothing is read. No branch: loads stay side by side.
#define FLASHTILE_LOAD_GLOBAL_IF(T, bits, constraint)                                       \
  FLASHTILE_DEVICE T load_global_if(bool is_there, const T* address) {                      \
    T value;                                                                                \
    asm("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.b" bits " %0, 0; @p ld.global.nc.b" bits \
        " %0, [%1]; }"                                                                      \
        : "=" constraint(value)                                                             \
        : "l"(address), "r"(static_cast<uint32>(is_there)));                                \
    return value;                                                                           \
  }
FLASHTILE_LOAD_GLOBAL_IF(uint16, "16", "h")
FLASHTILE_LOAD_GLOBAL_IF(uint32, "32", "r")
FLASHTILE_LOAD_GLOBAL_IF(int64, "64", "l")
#undef FLASHTILE_LOAD_GLOBAL_IF

/// Stores where `is_there`. No branch: a row of these is one text.
FLASHTILE_DEVICE void store_global_if(bool is_there, float* address, float value) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.f32 [%0], %1; }" ::"l"(address),
               "f"(value), "r"(static_cast<uint32>(is_there))
               : "memory");
}
FLASHTILE_DEVICE void store_global_if(bool is_there, FloatPair* address, const FloatPair& value) {
  asm volatile(
      "{ .reg .pred p; setp.ne.u32 p, %3, 0; @p st.global.v2.f32 [%0], {%1, %2}; }" ::"l"(address),
      "f"(value.x), "f"(value.y), "r"(static_cast<uint32>(is_there))
      : "memory");
}

/// A global element, or four neighbours, that the grid before has written, possibly while this one
/// ran already: loads that stay behind wait_for_previous_grid() and other volatile ones.
FLASHTILE_DEVICE float load_written(const float* address) {
  float value;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(address));
  return value;
}
FLASHTILE_DEVICE unsigned long long load_written(const unsigned long long* address) {
  unsigned long long value;
  asm volatile("ld.global.u64 %0, [%1];" : "=l"(value) : "l"(address));
  return value;
}
FLASHTILE_DEVICE void load_written(float (&value)[4], const float* address) {
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3])
               : "l"(address));
}

/// What atomics have summed, from where they did.
FLASHTILE_DEVICE float load_summed(const float* address) {
  float value;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(address));
  return value;
}
FLASHTILE_DEVICE void load_summed(float (&value)[4], const float* address) {
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3])
               : "l"(address));
}

FLASHTILE_DEVICE Vector4 load_vector(const void* address) {
  const uint4 value = __ldg(static_cast<const uint4*>(address));
  return {value.x, value.y, value.z, value.w};
}
FLASHTILE_DEVICE void store_vector(void* address, const Vector4& value) {
  *static_cast<Vector4*>(address) = value;
}

FLASHTILE_DEVICE void atomic_max(int* address, int value) { atomicMax(address, value); }
FLASHTILE_DEVICE void atomic_min(uint32* address, uint32 value) { atomicMin(address, value); }
FLASHTILE_DEVICE void atomic_or(uint32* address, uint32 value) { atomicOr(address, value); }
FLASHTILE_DEVICE void atomic_add(float* address, float value) { atomicAdd(address, value); }
FLASHTILE_DEVICE void atomic_add(double* address, double value) { atomicAdd(address, value); }
FLASHTILE_DEVICE void atomic_add(int64* address, int64 value) {
  atomicAdd(reinterpret_cast<uint64*>(address), static_cast<uint64>(value));
}

/// True where one instruction adds four neighbours.
#if __CUDA_ARCH__ >= 900
constexpr bool kHasVectorAtomics = true;
#else
constexpr bool kHasVectorAtomics = false;
#endif
/// Adds to four neighbours, each by itself; aligned to 16 bytes. Where kHasVectorAtomics.
FLASHTILE_DEVICE void atomic_add_vector(float* address, const float (&value)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address),
               "f"(value[0]), "f"(value[1]), "f"(value[2]), "f"(value[3])
               : "memory");
#endif
}

}  // namespace flashtile::device
