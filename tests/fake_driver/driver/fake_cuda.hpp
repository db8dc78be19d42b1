// SPDX-License-Identifier: Apache-2.0
//
// A CUDA driver without a GPU: it keeps books of what it is asked for. The test program finds it as
// libcuda.so.1, before any real one. Two devices: cuda:0 is an sm_90, cuda:1 an sm_86.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/runtime/driver_api.hpp"

namespace flashtile::cuda::driver {

struct ContextTag {
  int device = 0;
  unsigned long long id = 0;
};
struct StreamTag {
  ContextHandle context = nullptr;
};

}  // namespace flashtile::cuda::driver

namespace flashtile::fake {

namespace driver = cuda::driver;

struct Launch {
  std::string function;
  driver::LaunchConfig config{};  ///< attributes are in the members below
  unsigned int cluster_x = 0;
  bool overlaps_previous = false;
  driver::ContextHandle context = nullptr;           ///< that was current
  driver::ContextHandle function_context = nullptr;  ///< that the function is loaded in
  uint64_t first_argument = 0;                       ///< the first eight bytes of it
};

struct ModuleLoad {
  driver::ContextHandle context = nullptr;
  int capture_mode = 0;  ///< of the thread
};

struct TensorMapCall {
  int type = 0;
  std::vector<uint64_t> shape, strides;
  std::vector<uint32_t> box;
  int swizzle = 0, promotion = 0;
};

struct State {
  std::mutex mutex;
  std::vector<Launch> launches;
  std::vector<ModuleLoad> loads;
  std::vector<TensorMapCall> tensor_maps;
  std::map<std::string, driver::Result> failures;  ///< by function: what it answers
  std::map<std::string, int> max_shared_bytes;     ///< by kernel, as allowed
  int num_primary_retains = 0;
  int num_allocations = 0;  ///< that are not freed
  int num_stream_waits = 0;
};

/// Images that begin with this are not for the device.
inline constexpr const char* kBadImage = "BADIMAGE";

}  // namespace flashtile::fake

extern "C" {
flashtile::fake::State* fake_cuda_state();
/// A context that is not the primary one; at the same address as the one that was destroyed last.
flashtile::cuda::driver::ContextHandle fake_cuda_create_context(int device);
void fake_cuda_destroy_context(flashtile::cuda::driver::ContextHandle context);
/// How many contexts the thread's stack holds, and the top of it.
int fake_cuda_stack_depth();
}
