// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

namespace flashtile::cli {

/// SplitMix64: the same numbers on every machine.
class RandomNumbers {
 public:
  /// A stream of its own for each (seed, name).
  RandomNumbers(uint64_t seed, std::string_view name) : state_(seed) {
    for (const char c : name) state_ = mix(state_ ^ static_cast<unsigned char>(c));
  }

  uint64_t bits() { return mix(state_ += 0x9E3779B97F4A7C15); }
  /// In [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  /// In [0, limit].
  int64_t integer(int64_t limit) {
    return static_cast<int64_t>(uniform() * (static_cast<double>(limit) + 1));
  }
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }

 private:
  static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    return x ^ x >> 31;
  }
  uint64_t state_;
};

}  // namespace flashtile::cli
