// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/gemm_amx_impl.hpp"
#include "cpu/kernels/pack_bf16_impl.hpp"
