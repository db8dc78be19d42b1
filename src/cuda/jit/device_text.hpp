// SPDX-License-Identifier: Apache-2.0
//
// The headers that kernels are compiled from, carried in the library as text. The definitions are
// generated from the tree by cmake/embed.cmake.
#pragma once

#include <span>
#include <string_view>

namespace flashtile::cuda {

/// One header. Both texts end with a 0.
struct DeviceHeader {
  std::string_view name;  ///< as #include says it: "cuda/device/ptx/mma.cuh"
  std::string_view text;
};

/// All of them, sorted by name.
std::span<const DeviceHeader> device_headers();

/// SHA-256 over all names and texts, as 64 hexadecimal digits.
std::string_view device_headers_digest();

}  // namespace flashtile::cuda
