// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include "core/fail.hpp"

namespace flashtile {

/// A number of bytes, rows or tasks, at least 0. Sums and products beyond 64 bits do not wrap: they
/// are too many, and stay that.
class Count {
 public:
  constexpr Count(int64_t value) : value_(value) {}  // NOLINT: a number is one

  constexpr bool is_too_many() const { return value_ == kTooMany; }

  /// Throws Error(kOutOfMemory) where it is too many; `what` says what was counted.
  int64_t value(std::string_view op, std::string_view what) const {
    if (!is_too_many()) return value_;
    throw Error(ErrorCode::kOutOfMemory,
                std::string(op) + ": " + std::string(what) + " are more than 64 bits count");
  }

  friend constexpr Count operator+(Count a, Count b) {
    int64_t sum = 0;
    return __builtin_add_overflow(a.value_, b.value_, &sum) ? kTooMany : sum;
  }
  friend constexpr Count operator*(Count a, Count b) {
    int64_t product = 0;
    if (a.value_ == 0 || b.value_ == 0) return 0;
    return __builtin_mul_overflow(a.value_, b.value_, &product) ? kTooMany : product;
  }

 private:
  static constexpr int64_t kTooMany = std::numeric_limits<int64_t>::max();
  int64_t value_;
};

}  // namespace flashtile
