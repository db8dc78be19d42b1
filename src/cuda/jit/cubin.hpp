// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "cuda/jit/compiled_kernel.hpp"

namespace flashtile::cuda {

/// Registers, stack and static shared memory of a kernel, read from its machine code (an ELF file
/// with NVIDIA's notes). Spills are not in there: they stay 0. Throws Error(kIo) for bytes that are
/// no such file or lack the kernel.
ResourceUsage read_cubin_usage(std::string_view cubin, std::string_view entry);

}  // namespace flashtile::cuda
