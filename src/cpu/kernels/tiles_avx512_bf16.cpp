// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/gemm_impl.hpp"
#include "cpu/kernels/pack_impl.hpp"
