// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/scalar_decay_impl.hpp"
