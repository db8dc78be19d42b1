// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "flashtile/context.hpp"
#include "flashtile/export.hpp"

namespace flashtile {

/// Compiles (or finds) and loads the GPU kernels that a problem needs, so that the first real call
/// does neither; calls that are captured into a CUDA graph need that. The text is that of explain;
/// the context names the device. Tensors that lie in memory otherwise than the text's (strides,
/// alignment) may need other kernels. Does nothing for a problem that runs on the CPU. Throws
/// Error.
FLASHTILE_API void warmup(const std::string& problem_text, const Context& context = {});

/// Adds a file of compiled kernels (written by `flashtile compile`) to those that kernels are
/// looked for in: FLASHTILE_PACK's, and flashtile.pack beside the library. Throws Error for a file
/// that is none.
FLASHTILE_API void add_kernel_pack(const std::string& path);

}  // namespace flashtile
