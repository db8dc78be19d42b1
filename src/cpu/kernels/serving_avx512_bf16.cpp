// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/serving_bf16_impl.hpp"
