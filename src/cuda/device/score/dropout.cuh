// SPDX-License-Identifier: Apache-2.0
//
// Dropout of weights in an accumulator: one call of the generator serves the eight columns that a
// lane holds of 32 keys of a row.
#pragma once

#include "cuda/device/params/attention_params.hpp"
#include "cuda/device/ptx/math.cuh"
#include "cuda/device/ptx/memory.cuh"
#include "variant/philox.hpp"

namespace flashtile::device {

/// The dropout of a call, its seed read where it is a tensor: behind wait_for_previous_grid(). What
/// kernels take from parameters stays there otherwise.
template <class Config>
FLASHTILE_DEVICE decltype(auto) dropout_of(const DropoutParam& dropout) {
  if constexpr (Config::kHasSeedTensor) {
    DropoutParam read = dropout;
    read.seed = load_written(reinterpret_cast<const unsigned long long*>(dropout.seed));
    return read;
  } else {
    return (dropout);
  }
}

/// A word of the generator's counter.
struct PhiloxWord {
  uint32 bits;
};
FLASHTILE_DEVICE PhiloxWord operator^(PhiloxWord a, PhiloxWord b) { return {a.bits ^ b.bits}; }
/// One instruction for both halves: the compiler makes two of a product's halves.
FLASHTILE_DEVICE void mul_wide(PhiloxWord a, PhiloxWord b, PhiloxWord& high, PhiloxWord& low) {
  multiply_wide(a.bits, b.bits, high.bits, low.bits);
}

FLASHTILE_DEVICE variant::PhiloxKey philox_key(const DropoutParam& dropout) {
  return {static_cast<uint32>(dropout.seed), static_cast<uint32>(dropout.seed >> 32)};
}

/// The words for columns 8n + 2t and 8n + 2t + 1 (low and high half), n < 4, of keys first_key +
/// ...
FLASHTILE_DEVICE void dropout_words(uint32 (&words)[4], const DropoutParam& dropout,
                                    uint32 batch_head, uint32 q_idx, uint32 first_key, uint32 t) {
  PhiloxWord counter[4] = {{dropout.offset}, {batch_head}, {q_idx}, {4 * (first_key / 32) + t}};
  variant::philox4x32_7(counter, philox_key(dropout), [](uint32 word) { return PhiloxWord{word}; });
  FLASHTILE_UNROLL
  for (int i = 0; i < 4; ++i) words[i] = counter[i].bits;
}

/// What the first three rounds make of a row alone: one of their six products is of row and keys.
struct DropoutRow {
  uint32 of_third = 0;       ///< with a word of keys: what the third round multiplies
  uint32 of_fourth[3] = {};  ///< what the fourth round gets: the first one with a word of keys

  DropoutRow() = default;
  FLASHTILE_DEVICE DropoutRow(const DropoutParam& dropout, uint32 batch_head, uint32 q_idx) {
    using variant::kPhiloxMultiplier0;
    using variant::kPhiloxMultiplier1;
    variant::PhiloxKey key = philox_key(dropout);
    uint32 high, low;
    multiply_wide(kPhiloxMultiplier1, q_idx, high, low);
    const uint32 first = high ^ batch_head ^ key.low;
    variant::advance(key);
    of_third = low ^ key.low;
    multiply_wide(kPhiloxMultiplier0, first, high, low);
    const uint32 third = high ^ (kPhiloxMultiplier0 * dropout.offset) ^ key.high;
    variant::advance(key);
    of_fourth[2] = low ^ key.high;
    multiply_wide(kPhiloxMultiplier1, third, high, low);
    of_fourth[0] = high ^ key.low;
    of_fourth[1] = low;
  }
};

/// What they make of 32 keys alone, for columns 8n + 2t and 8n + 2t + 1, n < 4.
struct DropoutColumns {
  uint32 of_third, of_fourth;

  FLASHTILE_DEVICE DropoutColumns(const DropoutParam& dropout, uint32 first_key, uint32 t) {
    const uint32 high = multiply_high(variant::kPhiloxMultiplier0, dropout.offset);
    multiply_wide(variant::kPhiloxMultiplier1,
                  high ^ (4 * (first_key / 32) + t) ^ philox_key(dropout).high, of_third,
                  of_fourth);
  }

  /// dropout_words.
  FLASHTILE_DEVICE void words(uint32 (&words)[4], const DropoutParam& dropout,
                              const DropoutRow& row) const {
    uint32 high, low;
    multiply_wide(variant::kPhiloxMultiplier0, of_third ^ row.of_third, high, low);
    PhiloxWord counter[4] = {
        {row.of_fourth[0] ^ of_fourth}, {row.of_fourth[1]}, {high ^ row.of_fourth[2]}, {low}};
    variant::PhiloxKey key = philox_key(dropout);
    FLASHTILE_UNROLL
    for (int round = 0; round < 3; ++round) variant::advance(key);
    variant::philox4x32(counter, key, 4, [](uint32 word) { return PhiloxWord{word}; });
    FLASHTILE_UNROLL
    for (int i = 0; i < 4; ++i) words[i] = counter[i].bits;
  }
};

/// All bits of the halves of a word that are kept, none of those that are dropped. kKeepsHalf: the
/// threshold is at most 0x8000, so that the highest bit of what is not below it stays free for the
/// answer. Otherwise a subtraction compares the lower bits, and the highest ones are looked at
/// beside it.
template <bool kKeepsHalf>
FLASHTILE_DEVICE uint32 kept_halves(uint32 word, uint32 threshold) {
  constexpr uint32 kBoth = 0x10001u;
  constexpr uint32 kHighest = 0x8000u * kBoth;
  const uint32 least = threshold * kBoth;
  if constexpr (kKeepsHalf) {
    return spread_signs(smaller_halves(word, least) + (kHighest - least));
  } else {
    const uint32 not_below = (word | kHighest) - (least & ~kHighest);
    return spread_signs((word & ~least) | (~(word ^ least) & not_below));
  }
}

/// Sets dropped weights of a row to 0; `row` is its elements of kN / 8 column tiles.
template <int kN, class Element>
FLASHTILE_DEVICE void drop(const DropoutParam& dropout, uint32 batch_head, uint32 q_idx,
                           uint32 first_key, uint32 t, const Element& element) {
  static_assert(kN % 32 == 0, "a call of the generator serves 32 keys");
  FLASHTILE_UNROLL
  for (int group = 0; group < kN / 32; ++group) {
    uint32 words[4];
    dropout_words(words, dropout, batch_head, q_idx, first_key + static_cast<uint32>(group * 32),
                  t);
    FLASHTILE_UNROLL
    for (int n = 0; n < 4; ++n) {
      if ((words[n] & 0xffffu) < dropout.threshold) element(group * 4 + n, 0) = 0.0f;
      if ((words[n] >> 16) < dropout.threshold) element(group * 4 + n, 1) = 0.0f;
    }
  }
}

}  // namespace flashtile::device
