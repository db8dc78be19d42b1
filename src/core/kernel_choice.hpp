// SPDX-License-Identifier: Apache-2.0
//
// GPU kernels as plans name them: enough to compile them anywhere, with a GPU or without.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "flashtile/context.hpp"

namespace flashtile {

/// One kernel in one configuration for one architecture; what it is compiled from. The program
/// text is `config` and behind it the device header "cuda/device/kernels/<stem>.cuh", which defines
/// `extern "C" __global__ void <stem>(...)`.
struct KernelSource {
  std::string stem;                ///< "attention_fwd_portable"
  std::string config;              ///< generated C++: `struct Config { ... };` and what it needs
  std::string arch;                ///< "sm_90a"
  std::vector<std::string> flags;  ///< further compiler flags; mostly none

  bool operator==(const KernelSource&) const = default;
};

/// A kernel of a plan, with the shape of its launch.
struct KernelChoice {
  KernelSource source;
  std::array<int64_t, 3> grid{1, 1, 1};
  int64_t num_threads = 0;   ///< of a CTA
  int64_t shared_bytes = 0;  ///< dynamic shared memory of a CTA
  int64_t cluster_size = 1;  ///< CTAs of a cluster, along x
  /// May start before the kernel in front of it has ended (LaunchShape::overlaps_previous).
  bool overlaps_previous = false;
};

/// "attention_fwd_portable sm_89, grid 64x8x2, 128 threads, 65536 bytes shared".
std::string to_string(const KernelChoice& kernel);

/// Compiles (or finds) the kernels and loads them into the context that calls with `context` use,
/// so that a later launch does neither. Defined by the CUDA backend. Throws Error.
void load_kernels(std::span<const KernelChoice> kernels, const Context& context);

}  // namespace flashtile
