// SPDX-License-Identifier: Apache-2.0
#include "core/kernel_choice.hpp"

#include <sstream>

namespace flashtile {

std::string to_string(const KernelChoice& kernel) {
  std::ostringstream text;
  text << kernel.source.stem << ' ' << kernel.source.arch << ", grid " << kernel.grid[0] << 'x'
       << kernel.grid[1] << 'x' << kernel.grid[2] << ", " << kernel.num_threads << " threads, "
       << kernel.shared_bytes << " bytes shared";
  if (kernel.cluster_size > 1) text << ", clusters of " << kernel.cluster_size;
  return text.str();
}

}  // namespace flashtile
