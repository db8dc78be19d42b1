// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace flashtile::device {

/// A tensor and a box of it as the copy engine takes them; the driver makes the bytes.
struct alignas(128) TensorMapParam {
  unsigned long long bytes[16] = {};
};

}  // namespace flashtile::device
