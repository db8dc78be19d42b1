// SPDX-License-Identifier: Apache-2.0
#pragma once

// AVX-512 with the bfloat16 dot product and tile registers. See simd.hpp for the contract.

#include "cpu/simd/amx_tiles.hpp"
#include "cpu/simd/simd_avx512_bf16.hpp"
