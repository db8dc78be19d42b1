// SPDX-License-Identifier: Apache-2.0
//
// Golden files (tests/golden/README.md) as calls of the operator tables.
#pragma once

#include <string>
#include <vector>

#include "check_case.hpp"

namespace flashtile::cli {

/// Paths of the .safetensors files of a folder, in order. Throws Error(kIo) where there are none.
std::vector<std::string> golden_paths(const std::string& folder);

/// Reads one file. What the operator tables do not have makes it unsupported; a file that is no
/// golden case throws Error(kIo).
CheckCase read_golden_case(const std::string& path);

}  // namespace flashtile::cli
