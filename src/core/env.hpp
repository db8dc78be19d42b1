// SPDX-License-Identifier: Apache-2.0
//
// The only place where the environment is read; docs/env.md lists the variables.
#pragma once

#include <string>

namespace flashtile {

/// FLASHTILE_IMPL: an implementation to force where a Context leaves it open.
std::string env_implementation();

/// FLASHTILE_NUM_THREADS: threads of the default executor; 0 when unset or not a number.
int env_num_threads();

/// FLASHTILE_MAX_ISA: "scalar", "avx2", "avx512", "avx512_bf16" or "neon": the best instruction set
/// that may be used; empty when unset.
std::string env_max_isa();

}  // namespace flashtile
