// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/implementations.hpp"

namespace flashtile {

std::vector<AttentionImplementation> cpu_attention_implementations(bool is_backward) {
  static_cast<void>(is_backward);
  return {};
}

}  // namespace flashtile
