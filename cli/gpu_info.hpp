// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "terminal.hpp"

namespace flashtile::cli {

/// GPUs that the driver shows; 0 without a driver.
int num_gpus();

/// "cpu, cuda:0, cuda:1".
std::string device_names();

/// Driver, devices, compiler, cache and packs, a row each; where one is not there, why.
void add_gpu_rows(Table& table);

}  // namespace flashtile::cli
