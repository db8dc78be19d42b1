// SPDX-License-Identifier: Apache-2.0
#include "cpu/peak_kernel.hpp"
