// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/attention_bf16_impl.hpp"
