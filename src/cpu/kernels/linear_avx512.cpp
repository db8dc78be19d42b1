// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/linear_impl.hpp"
