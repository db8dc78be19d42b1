// SPDX-License-Identifier: Apache-2.0
#include "support/guarded_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>

namespace flashtile::test {
namespace {

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

void make_unreadable(char* begin, size_t bytes) {
  if (mprotect(begin, bytes, PROT_NONE) != 0) throw std::bad_alloc();
}

}  // namespace

GuardedMemory::GuardedMemory(size_t bytes, Placement placement, Fill fill) : bytes_(bytes) {
  const size_t page = page_bytes();
  const size_t data_bytes = (bytes + page - 1) / page * page;
  map_bytes_ = data_bytes + 2 * page;
  void* map = mmap(nullptr, map_bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) throw std::bad_alloc();
  map_ = static_cast<char*>(map);
  make_unreadable(map_, page);
  make_unreadable(map_ + page + data_bytes, page);
  data_ = map_ + page;
  if (placement == Placement::kEndsAtGuard) data_ += data_bytes - bytes;
  if (fill == Fill::kOnes) std::memset(map_ + page, 0xFF, data_bytes);
}

GuardedMemory::~GuardedMemory() { munmap(map_, map_bytes_); }

void GuardedMemory::forbid(size_t begin, size_t end) const {
  const size_t page = page_bytes();
  const auto offset = static_cast<size_t>(data_ - map_);
  const size_t first = (offset + begin + page - 1) / page * page;
  const size_t last = (offset + end) / page * page;
  if (first < last) make_unreadable(map_ + first, last - first);
}

}  // namespace flashtile::test
