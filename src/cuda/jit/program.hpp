// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "core/kernel_choice.hpp"
#include "cuda/jit/sha256.hpp"

namespace flashtile::cuda {

/// What NVRTC is given: one program text, which may include the embedded device headers.
struct Program {
  std::string entry;  ///< the kernel's name, an extern "C" function of the text
  std::string text;
  std::string arch;                ///< "sm_90a"
  std::vector<std::string> flags;  ///< besides those that all kernels have
};

/// The generated text of a kernel: its configuration, and behind it its device header.
Program program_of(const KernelSource& source);

/// What a compiled kernel is filed under: text, device headers, architecture and flags. The
/// compiler is not part of it, so that a pack serves machines with another one or none.
Digest key_of(const Program& program);

}  // namespace flashtile::cuda
