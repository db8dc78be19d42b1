// SPDX-License-Identifier: Apache-2.0
//
// Where gradients of aux tensors are summed, and where they go.
#pragma once

#include "cuda/device/params/attention_params.hpp"

namespace flashtile::device {

constexpr int kMaxAuxGradients = 16;

struct AuxGradientParam {
  /// One double for each element, in row-major order; the bits of an int64 where sums are in fixed
  /// point. Null: this gradient is not wanted.
  double* sums = nullptr;
  int* largest = nullptr;  ///< bits of the largest magnitude that is summed
};

struct AuxGradientParams {
  AuxGradientParam aux[kMaxAuxGradients];
  int num_aux = 0;
  /// Sums in fixed point have room for 2^log2_count numbers of the largest magnitude.
  int log2_count = 0;
};

/// The gradients themselves, laid out like the tensors.
struct AuxTargetParams {
  AuxParam gradients[kMaxAuxGradients];
};

}  // namespace flashtile::device
