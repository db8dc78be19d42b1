// SPDX-License-Identifier: Apache-2.0
#include "core/kept_list.hpp"

#include <array>
#include <bit>
#include <new>

namespace flashtile {
namespace {

constexpr size_t kSmallestClass = 6;               // 64 bytes
constexpr size_t kLargestClass = 20;               // 1 MiB
constexpr size_t kMaxKeptBytes = size_t{4} << 20;  // of a thread

size_t block_class(size_t bytes) {
  const auto log2 = static_cast<size_t>(std::bit_width(bytes <= 1 ? 0 : bytes - 1));
  return log2 < kSmallestClass ? kSmallestClass : log2;
}

/// A block that nobody uses begins with the address of the next one.
struct FreeBlock {
  FreeBlock* next;
};

struct FreeBlocks {
  ~FreeBlocks();

  std::array<FreeBlock*, kLargestClass + 1> first{};
  size_t bytes = 0;
};

/// Lists may outlive the blocks at the end of a thread.
thread_local bool is_over = false;

FreeBlocks::~FreeBlocks() {
  is_over = true;
  for (FreeBlock* block : first) {
    while (block != nullptr) {
      FreeBlock* next = block->next;
      ::operator delete(block);
      block = next;
    }
  }
}

FreeBlocks& blocks_of_this_thread() {
  thread_local FreeBlocks blocks;
  return blocks;
}

}  // namespace

void* KeptMemory::take(size_t bytes) {
  const size_t log2 = block_class(bytes);
  if (is_over || log2 > kLargestClass) return ::operator new(bytes);
  FreeBlocks& blocks = blocks_of_this_thread();
  FreeBlock*& first = blocks.first[log2];
  if (first == nullptr) return ::operator new (size_t{1} << log2);
  FreeBlock* block = first;
  first = block->next;
  blocks.bytes -= size_t{1} << log2;
  return block;
}

void KeptMemory::leave(void* memory, size_t bytes) noexcept {
  const size_t log2 = block_class(bytes);
  if (is_over || log2 > kLargestClass) {
    ::operator delete(memory);
    return;
  }
  FreeBlocks& blocks = blocks_of_this_thread();
  if (blocks.bytes + (size_t{1} << log2) > kMaxKeptBytes) {
    ::operator delete(memory);
    return;
  }
  FreeBlock*& first = blocks.first[log2];
  first = new (memory) FreeBlock{first};
  blocks.bytes += size_t{1} << log2;
}

}  // namespace flashtile
