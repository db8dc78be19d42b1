// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace flashtile {

/// Memory that lists of a thread's calls have left, in blocks of powers of two: for the lists of
/// its next calls, wherever and in which order these are made. What is larger than a MiB, or more
/// than all that is kept, is given back.
class KeptMemory {
 public:
  static void* take(size_t bytes);
  static void leave(void* memory, size_t bytes) noexcept;
};

template <class T>
struct KeptAllocator {
  using value_type = T;

  KeptAllocator() = default;
  template <class Other>
  KeptAllocator(const KeptAllocator<Other>&) {}  // NOLINT: allocators convert

  T* allocate(size_t count) {
    static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
    return static_cast<T*>(KeptMemory::take(count * sizeof(T)));
  }
  void deallocate(T* memory, size_t count) noexcept {
    KeptMemory::leave(memory, count * sizeof(T));
  }
  bool operator==(const KeptAllocator&) const { return true; }
};

/// A vector in such memory.
template <class T>
using KeptList = std::vector<T, KeptAllocator<T>>;

}  // namespace flashtile
