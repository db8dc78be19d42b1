// SPDX-License-Identifier: Apache-2.0
#include "plain/dropout.hpp"

#include <array>

namespace flashtile::cli {
namespace {

std::array<uint32_t, 4> philox_7(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr uint64_t kFirst = 0xD2511F53, kSecond = 0xCD9E8D57;
  for (int round = 0; round < 7; ++round) {
    const uint64_t a = kFirst * counter[0];
    const uint64_t b = kSecond * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

}  // namespace

void DropoutRow::keep(int64_t q_idx, std::span<uint8_t> keep) const {
  const std::array<uint32_t, 2> key{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (uint32_t j = 0; j < keep.size(); ++j) {
    const auto words =
        philox_7({offset, plane, static_cast<uint32_t>(q_idx), 4 * (j / 32) + (j % 8) / 2}, key);
    const uint32_t word = words[(j % 32) / 8];
    keep[j] = ((j % 2 == 0 ? word : word >> 16) & 0xffff) >= threshold;
  }
}

}  // namespace flashtile::cli
