// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace flashtile::testing {

/// `count` elements that end where an unreadable page begins: touching one more faults.
template <typename T>
class Guarded {
 public:
  explicit Guarded(int64_t count) : count_(static_cast<size_t>(count)) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t data_bytes = (count_ * sizeof(T) + page - 1) / page * page;
    map_bytes_ = data_bytes + page;
    void* map =
        mmap(nullptr, map_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) throw std::bad_alloc();
    map_ = static_cast<char*>(map);
    if (mprotect(map_ + data_bytes, page, PROT_NONE) != 0) throw std::bad_alloc();
    data_ = reinterpret_cast<T*>(map_ + data_bytes) - count_;
  }
  ~Guarded() { munmap(map_, map_bytes_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  T* data() { return data_; }
  T* begin() { return data_; }
  T* end() { return data_ + count_; }
  T& operator[](int64_t i) { return data_[i]; }

 private:
  size_t count_;
  size_t map_bytes_ = 0;
  char* map_ = nullptr;
  T* data_ = nullptr;
};

}  // namespace flashtile::testing
