// SPDX-License-Identifier: Apache-2.0
#include "plain/product_text.hpp"
