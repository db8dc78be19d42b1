// SPDX-License-Identifier: Apache-2.0
//
// From a kernel's source to something that can be launched. Looked for in this order: loaded
// already, kernel packs, memory, the disk cache; what is nowhere is compiled by NVRTC.
#pragma once

#include "core/kernel_choice.hpp"
#include "cuda/runtime/launch.hpp"

namespace flashtile::cuda {

/// The kernel, loaded into the CUDA context that launches for `context` use (its device, its
/// stream; see runtime/current.hpp) and allowed all the shared memory that the device has. Lasts as
/// long as that CUDA context. Cheap from the second call on; safe from any thread. Throws Error
/// that says what to do where the kernel can be neither found nor compiled.
const Function& get_kernel(const KernelSource& source, const Context& context);

/// Why no kernel can run on the device: no driver, no such device, an architecture older than
/// sm_80, neither NVRTC nor a pack. Empty when there is nothing to say. For `refuse` functions.
std::string cannot_run(const GpuModel& gpu);

}  // namespace flashtile::cuda
