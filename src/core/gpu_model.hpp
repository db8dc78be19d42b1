// SPDX-License-Identifier: Apache-2.0
//
// What plans know of a GPU. The values come from the CUDA backend, which defines the functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flashtile/tensor.hpp"

namespace flashtile {

/// A GPU as a plan sees it: one of this machine, or the usual one of a named architecture.
struct GpuModel {
  std::string arch;  ///< the compiler's target, "sm_90a"; empty where `fault` says why
  int32_t compute_capability = 0;  ///< 90 for sm_90a
  int32_t num_sms = 0;
  int64_t shared_bytes_per_cta = 0;  ///< at most, after opting in
  int64_t shared_bytes_per_sm = 0;
  int64_t l2_bytes = 0;
  bool is_present = false;  ///< a device of this machine; otherwise named for `explain` or a pack
  std::string name;         ///< "NVIDIA H200"
  std::string fault;        ///< why nothing can run there: no driver, no such device
};

/// The model of a device of this machine. Never throws: what is wrong stands in `fault`. The
/// reference stays valid.
const GpuModel& gpu_model(const Device& device);

/// The usual device of an architecture: "sm_80", "sm_90a" ("sm_90" means that too). Null for a
/// name that is none. The reference stays valid.
const GpuModel* named_gpu_model(std::string_view arch);

/// The architectures that named_gpu_model knows, oldest first.
std::vector<std::string> known_gpu_archs();

}  // namespace flashtile
