// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

namespace flashtile {

/// No exponential of these has a positive argument.
inline double sigmoid(double x) {
  const double e = std::exp(-std::fabs(x));
  return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}
/// log(1 + exp(x)).
inline double softplus(double x) { return std::fmax(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }
inline double log_sigmoid(double x) { return -softplus(-x); }
inline double silu(double x) { return x * sigmoid(x); }
inline double silu_slope(double x) {
  const double s = sigmoid(x);
  return s * (1 + x * (1 - s));
}

}  // namespace flashtile
