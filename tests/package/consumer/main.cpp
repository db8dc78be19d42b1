// SPDX-License-Identifier: Apache-2.0
//
// With q = 0 all weights are equal, so that the result is the mean of v: 2.5.
#include <cstdio>

#include "flashtile/attention.hpp"

int main() {
  const float q[1] = {0};
  const float k[4] = {1, 2, 3, 4};
  const float v[4] = {1, 2, 3, 4};
  float out[1] = {};
  const auto view = [](const float* data, int64_t seqlen) {
    return flashtile::TensorView(data, flashtile::DType::kF32, {1, seqlen, 1, 1});
  };
  flashtile::attention_fwd(view(q, 1), view(k, 4), view(v, 4), view(out, 1), {});
  std::printf("%g\n", static_cast<double>(out[0]));
}
