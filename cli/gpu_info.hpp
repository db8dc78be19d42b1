// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "terminal.hpp"

namespace flashtile::cli {

/// "cpu, cuda:0, cuda:1".
std::string device_names();

/// Driver, devices, compiler, cache and packs, a row each; where one is not there, why.
void add_gpu_rows(Table& table);

}  // namespace flashtile::cli
