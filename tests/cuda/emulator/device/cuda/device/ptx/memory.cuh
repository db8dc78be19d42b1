// SPDX-License-Identifier: Apache-2.0
//
// src/cuda/device/ptx/memory.cuh for the emulated GPU.
#pragma once

#include <cstring>

#include "cuda/device/ptx/thread.cuh"

namespace flashtile::device {

inline char* shared_memory() { return emulator::shared_memory(); }
inline uint32 shared_address(const void* pointer) {
  return static_cast<uint32>(static_cast<const char*>(pointer) - emulator::shared_memory());
}

template <int bytes>
void copy_async(uint32 target, const void* source, int valid_bytes) {
  static_assert(bytes == 4 || bytes == 8 || bytes == 16, "cp.async copies 4, 8 or 16 bytes");
  emulator::copy_async(target, source, bytes, valid_bytes);
}
inline void copy_async_whole(uint32 target, const void* source) {
  emulator::copy_async(target, source, 16, 16);
}
inline void copy_async_commit() { emulator::copy_async_commit(); }
template <int pending>
void copy_async_wait() {
  emulator::copy_async_wait(pending);
}

template <class T>
T shared_value(uint32 address) {
  emulator::check_shared(address, sizeof(T), sizeof(T));
  T value;
  std::memcpy(&value, emulator::shared_memory() + address, sizeof value);
  return value;
}
template <class T>
void set_shared_value(uint32 address, const T& value) {
  emulator::check_shared(address, sizeof(T), sizeof(T));
  std::memcpy(emulator::shared_memory() + address, &value, sizeof value);
}

/// Element `col` of row `row` of matrix `matrix`.
inline uint16 matrix_element(const char* slots, int matrix, int row, int col) {
  const uint32 address = value_of_lane<uint32>(slots, matrix * 8 + row);
  emulator::check_shared(address, 16, 16);
  return shared_value<uint16>(address + static_cast<uint32>(col * 2));
}

inline void load_matrices(uint32 (&r)[4], uint32 address) {
  const char* slots = emulator::exchange(&address, sizeof address);
  const int row = lane_idx() / 4;
  const int col = lane_idx() % 4 * 2;
  for (int m = 0; m < 4; ++m) {
    r[m] = matrix_element(slots, m, row, col) |
           static_cast<uint32>(matrix_element(slots, m, row, col + 1)) << 16;
  }
}

inline void load_matrices_transposed(uint32 (&r)[4], uint32 address) {
  const char* slots = emulator::exchange(&address, sizeof address);
  const int col = lane_idx() / 4;
  const int row = lane_idx() % 4 * 2;
  for (int m = 0; m < 4; ++m) {
    r[m] = matrix_element(slots, m, row, col) |
           static_cast<uint32>(matrix_element(slots, m, row + 1, col)) << 16;
  }
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
inline FloatPair load_shared_pair(uint32 address) { return shared_value<FloatPair>(address); }

inline float load_shared(uint32 address) { return shared_value<float>(address); }
inline void load_shared(float (&value)[4], uint32 address) {
  emulator::check_shared(address, 16, 16);
  for (uint32 i = 0; i < 4; ++i) value[i] = shared_value<float>(address + 4 * i);
}
inline Vector4 load_shared_vector(uint32 address) { return shared_value<Vector4>(address); }
inline void store_shared(uint32 address, float value) { set_shared_value(address, value); }
inline void store_shared(uint32 address, uint32 value) { set_shared_value(address, value); }
inline void store_shared(uint32 address, const FloatPair& value) {
  set_shared_value(address, value);
}
inline void store_shared(uint32 address, const float (&value)[4]) {
  emulator::check_shared(address, 16, 16);
  for (uint32 i = 0; i < 4; ++i) set_shared_value(address + 4 * i, value[i]);
}
inline void store_shared(uint32 address, const Vector4& value) { set_shared_value(address, value); }

/// As the instruction does it: by the rows' addresses. `own` must agree with them.
template <class OwnAddress>
void store_matrices(uint32 address, const uint32 (&r)[4], const OwnAddress& own) {
  const char* slots = emulator::exchange(&address, sizeof address);
  for (int i = 0; i < 4; ++i) {
    const uint32 row = value_of_lane<uint32>(slots, i * 8 + lane_idx() / 4);
    emulator::check_shared(row, 16, 16);
    const uint32 target = row + static_cast<uint32>(lane_idx() % 4 * 4);
    if (own(i) != target) emulator::stop("a matrix has two addresses");
    set_shared_value(target, r[i]);
  }
}

template <class T>
T load_global(const T* address) {
  return *address;
}

template <class T>
T load_global_if(bool is_there, const T* address) {
  return is_there ? *address : T{};
}
template <class T>
void store_global_if(bool is_there, T* address, const T& value) {
  if (is_there) *address = value;
}

inline float load_written(const float* address) { return *address; }
inline unsigned long long load_written(const unsigned long long* address) { return *address; }
inline void load_written(float (&value)[4], const float* address) {
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0) emulator::stop("a vector is not aligned");
  for (int i = 0; i < 4; ++i) value[i] = address[i];
}

inline float load_summed(const float* address) { return *address; }
inline void load_summed(float (&value)[4], const float* address) { load_written(value, address); }
inline Vector4 load_vector(const void* address) { return *static_cast<const Vector4*>(address); }
inline void store_vector(void* address, const Vector4& value) {
  *static_cast<Vector4*>(address) = value;
}

inline void atomic_max(int* address, int value) { *address = *address < value ? value : *address; }
inline void atomic_min(uint32* address, uint32 value) {
  *address = *address > value ? value : *address;
}
inline void atomic_or(uint32* address, uint32 value) { *address |= value; }
inline void atomic_add(float* address, float value) { *address += value; }
inline void atomic_add(double* address, double value) { *address += value; }
inline void atomic_add(int64* address, int64 value) { *address += value; }

constexpr bool kHasVectorAtomics = true;
inline void atomic_add_vector(float* address, const float (&value)[4]) {
  for (int i = 0; i < 4; ++i) address[i] += value[i];
}

}  // namespace flashtile::device
