// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace flashtile::cuda {

/// 32 bytes that stand for a text: a cache key, a checksum.
using Digest = std::array<uint8_t, 32>;

/// SHA-256 (FIPS 180-4), fed piece by piece.
class Sha256 {
 public:
  void add(std::string_view bytes);
  /// The digest of all that was added; nothing may be added afterwards.
  Digest finish();

 private:
  void add_block(const uint8_t* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                                    0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
  std::array<uint8_t, 64> pending_{};
  size_t num_pending_ = 0;
  uint64_t num_bytes_ = 0;
};

Digest sha256(std::string_view bytes);

/// 64 hexadecimal digits.
std::string to_hex(const Digest& digest);

}  // namespace flashtile::cuda
