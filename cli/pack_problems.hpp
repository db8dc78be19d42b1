// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "core/op_spec.hpp"

namespace flashtile::cli {

/// Problems of an op whose kernels a pack holds where nothing else is asked for: what models call.
/// Sizes stand for all sizes.
std::vector<std::string> pack_problems(const OpSpec& spec);

}  // namespace flashtile::cli
