// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/linear_bf16_impl.hpp"
