// SPDX-License-Identifier: Apache-2.0
//
// The only place where the environment is read; docs/env.md lists the variables.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace flashtile {

// A value that is not understood is an Error(kInvalidArgument) with the variable's name, the value
// and what was expected; an empty one counts as not set.

/// FLASHTILE_IMPL: an implementation to force where a Context leaves it open.
std::string env_implementation();

/// Throws Error where `asked`, the value of FLASHTILE_IMPL, names no implementation of any op.
void check_env_implementation(std::string_view asked);

/// FLASHTILE_NUM_THREADS: threads of the default executor; 0 when unset.
int env_num_threads();

/// FLASHTILE_MAX_ISA: the best instruction set that may be used, one of `known`; empty when unset.
std::string env_max_isa(std::span<const std::string_view> known);

/// FLASHTILE_NVRTC: the file of NVRTC's library, or the folder that it is in; empty when unset.
std::string env_nvrtc();

/// FLASHTILE_CACHE_DIR, or "flashtile" below XDG_CACHE_HOME or ~/.cache: where compiled kernels are
/// kept; empty where none of the three is set.
std::string env_cache_dir();

/// FLASHTILE_CACHE_MB: how much of them, in MiB; 0 keeps none. 256 when unset.
int64_t env_cache_mb();

/// FLASHTILE_PACK: files of compiled kernels, separated by colons; empty when unset.
std::vector<std::string> env_kernel_packs();

/// Where others have put CUDA: CUDA_HOME and CUDA_PATH, those that are set.
std::vector<std::string> env_cuda_homes();

/// Where Python may be: VIRTUAL_ENV, CONDA_PREFIX, the parents of the folders of PATH, ~/.local.
std::vector<std::string> env_python_prefixes();

}  // namespace flashtile
