// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashtile::test {

/// Which of the two guard pages the memory touches.
enum class Placement : uint8_t {
  kEndsAtGuard,    ///< the byte behind the last one faults
  kStartsAtGuard,  ///< the byte before the first one faults
};

/// Memory between two pages that fault when they are touched, filled with the byte 0xFF, which is
/// NaN in every float format and -1 in every integer format. Pages that nobody writes cost nothing.
class GuardedMemory {
 public:
  enum class Fill : uint8_t { kOnes, kLazyZero };

  explicit GuardedMemory(size_t bytes, Placement placement = Placement::kEndsAtGuard,
                         Fill fill = Fill::kOnes);
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  /// Makes whole pages inside [begin, end) fault when they are touched.
  void forbid(size_t begin, size_t end) const;

 private:
  size_t bytes_;
  size_t map_bytes_ = 0;
  char* map_ = nullptr;
  char* data_ = nullptr;
};

}  // namespace flashtile::test
