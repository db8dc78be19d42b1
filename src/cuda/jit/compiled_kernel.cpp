// SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/compiled_kernel.hpp"

namespace flashtile::cuda {

std::string to_string(const ResourceUsage& usage) {
  return std::to_string(usage.num_registers) + " registers, " + std::to_string(usage.stack_bytes) +
         " bytes stack, spills " + std::to_string(usage.spill_store_bytes) + " stored " +
         std::to_string(usage.spill_load_bytes) + " loaded, " +
         std::to_string(usage.static_shared_bytes) + " bytes static shared memory";
}

}  // namespace flashtile::cuda
