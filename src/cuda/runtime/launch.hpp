// SPDX-License-Identifier: Apache-2.0
//
// Launches. None waits for the device, and none allocates: all may be captured into a graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/gpu_model.hpp"
#include "core/kernel_choice.hpp"
#include "cuda/runtime/driver_api.hpp"
#include "flashtile/context.hpp"

namespace flashtile::cuda {

/// What a compiled kernel needs of a multiprocessor.
struct FunctionAttributes {
  int num_registers = 0;    ///< of a thread
  int64_t local_bytes = 0;  ///< of a thread: spilled registers, arrays that did not fit
  int64_t static_shared_bytes = 0;
  int max_threads = 0;  ///< of a CTA
};

/// A kernel that is loaded into a CUDA context.
struct Function {
  driver::FunctionHandle handle = nullptr;
  std::string stem;  ///< for texts
  FunctionAttributes attributes;
};

struct Extent {
  uint32_t x = 1, y = 1, z = 1;
};

struct LaunchShape {
  Extent grid;
  uint32_t num_threads = 0;
  uint32_t shared_bytes = 0;  ///< dynamic
  uint32_t cluster_size = 1;  ///< CTAs of a cluster, along x
  /// May start before the kernel in front of it in the stream has ended; it waits for that kernel's
  /// results itself (griddepcontrol.wait). sm_90 and newer.
  bool overlaps_previous = false;
};

/// The launch that a plan asks for. Throws Error where the grid is larger than a launch can be.
LaunchShape launch_shape(const KernelChoice& kernel);

/// Puts a kernel on the context's stream. `arguments` points to one pointer for each parameter.
/// A grid without CTAs launches nothing. Throws Error that names the kernel and the shape.
void launch(const Function& function, const LaunchShape& shape, const Context& context,
            void** arguments);

/// The same for kernels with one parameter, `const __grid_constant__ Params`.
template <class Params>
void launch(const Function& function, const LaunchShape& shape, const Context& context,
            const Params& params) {
  void* arguments[] = {const_cast<Params*>(&params)};
  launch(function, shape, context, static_cast<void**>(arguments));
}

/// CTAs of this shape that one multiprocessor holds at a time.
int max_ctas_per_sm(const Function& function, const LaunchShape& shape, const Context& context);

/// Sets `bytes` bytes of device memory to `value`, in the order of the stream.
void fill_bytes(void* data, uint8_t value, size_t bytes, const Context& context);

}  // namespace flashtile::cuda
