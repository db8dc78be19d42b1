// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace flashtile::cuda {

/// What a kernel takes of a multiprocessor, and whether it had enough.
struct ResourceUsage {
  int32_t num_registers = 0;  ///< of a thread
  int32_t stack_bytes = 0;    ///< of a thread
  int32_t spill_store_bytes = 0;
  int32_t spill_load_bytes = 0;
  int32_t static_shared_bytes = 0;

  bool operator==(const ResourceUsage&) const = default;
};

/// Machine code of one kernel for one architecture.
struct CompiledKernel {
  std::string entry;
  std::string arch;
  std::string cubin;
  int32_t compiler_version = 0;  ///< NVRTC's, 13000 for 13.0; a record, no part of the key
  ResourceUsage usage;
  /// What the compiler had to say besides: serialised wgmma, ignored setmaxnreg, ... One a line.
  std::string notes;
};

/// "168 registers, 0 bytes stack, spills 0 stored 0 loaded, 16 bytes static shared memory".
std::string to_string(const ResourceUsage& usage);

}  // namespace flashtile::cuda
