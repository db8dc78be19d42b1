// SPDX-License-Identifier: Apache-2.0
//
// The dropout generator: Philox4x32-7 (Salmon et al., SC 2011), counter-based, so that any tile of
// the mask can be made anywhere. One text for host, SIMD and device: no header, no branch. `U` is
// an unsigned 32-bit integer or a vector of them, with ^, and with mul_wide, or mul_hi and mul_lo,
// found by its type.
//
// key = (seed's low word, seed's high word), counter = (offset, batch * heads + head, q_idx,
// 4 (k_idx / 32) + (k_idx mod 8) / 2). Key k_idx takes word (k_idx mod 32) / 8 of the four, its low
// half when k_idx is even, else its high half: one call serves the eight columns of a row that a
// lane holds of a tensor-core accumulator.
#pragma once

#ifndef FLASHTILE_VARIANT_INLINE
/// Never a symbol of its own: files for different instruction sets include this text.
#define FLASHTILE_VARIANT_INLINE inline __attribute__((always_inline))
#endif

namespace flashtile::variant {

struct PhiloxKey {
  unsigned int low, high;
};

FLASHTILE_VARIANT_INLINE unsigned int mul_lo(unsigned int a, unsigned int b) { return a * b; }
FLASHTILE_VARIANT_INLINE unsigned int mul_hi(unsigned int a, unsigned int b) {
  return static_cast<unsigned int>((static_cast<unsigned long long>(a) * b) >> 32);
}

/// Both halves of a product; a type may have its own.
template <class U>
FLASHTILE_VARIANT_INLINE void mul_wide(const U& a, const U& b, U& high, U& low) {
  high = mul_hi(a, b);
  low = mul_lo(a, b);
}

constexpr unsigned int kPhiloxMultiplier0 = 0xD2511F53u;
constexpr unsigned int kPhiloxMultiplier1 = 0xCD9E8D57u;

/// The key of the next round.
FLASHTILE_VARIANT_INLINE void advance(PhiloxKey& key) {
  key.low += 0x9E3779B9u;
  key.high += 0xBB67AE85u;
}

/// Some rounds on a counter, in place. `Make(word)` gives a U with that word in every lane.
template <class U, class Make>
FLASHTILE_VARIANT_INLINE void philox4x32(U (&counter)[4], PhiloxKey key, int num_rounds,
                                         Make make) {
  for (int round = 0; round < num_rounds; ++round) {
    const U multiplier0 = make(kPhiloxMultiplier0);
    const U multiplier1 = make(kPhiloxMultiplier1);
    U high0, low0, high1, low1;
    mul_wide(multiplier0, counter[0], high0, low0);
    mul_wide(multiplier1, counter[2], high1, low1);
    counter[0] = high1 ^ counter[1] ^ make(key.low);
    counter[1] = low1;
    counter[2] = high0 ^ counter[3] ^ make(key.high);
    counter[3] = low0;
    advance(key);
  }
}

/// Seven rounds.
template <class U, class Make>
FLASHTILE_VARIANT_INLINE void philox4x32_7(U (&counter)[4], PhiloxKey key, Make make) {
  philox4x32(counter, key, 7, make);
}

/// The sixteen random bits of one score.
FLASHTILE_VARIANT_INLINE unsigned int dropout_bits(unsigned long long seed, unsigned int offset,
                                                   unsigned int batch_head, unsigned int q_idx,
                                                   unsigned int k_idx) {
  unsigned int counter[4] = {offset, batch_head, q_idx, 4 * (k_idx / 32) + (k_idx % 8) / 2};
  const PhiloxKey key = {static_cast<unsigned int>(seed), static_cast<unsigned int>(seed >> 32)};
  philox4x32_7(counter, key, [](unsigned int word) { return word; });
  const unsigned int word = counter[(k_idx % 32) / 8];
  return k_idx % 2 == 0 ? word & 0xFFFFu : word >> 16;
}

}  // namespace flashtile::variant
