// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/launch.hpp"

#include <array>

#include "cuda/runtime/current.hpp"
#include "flashtile/error.hpp"

namespace flashtile::cuda {
namespace {

std::string shape_text(const LaunchShape& shape) {
  const Extent& grid = shape.grid;
  std::string text = "grid " + std::to_string(grid.x) + "x" + std::to_string(grid.y) + "x" +
                     std::to_string(grid.z) + ", " + std::to_string(shape.num_threads) +
                     " threads, " + std::to_string(shape.shared_bytes) + " bytes shared";
  if (shape.cluster_size > 1) text += ", clusters of " + std::to_string(shape.cluster_size);
  return text;
}

driver::Result launch_extended(const CurrentContext& current, const Function& function,
                               const LaunchShape& shape, driver::StreamHandle stream,
                               void** arguments) {
  driver::LaunchAttribute attributes[2] = {};
  unsigned int count = 0;
  if (shape.cluster_size > 1) {
    attributes[count].id = driver::kClusterDimension;
    attributes[count++].value.cluster = {shape.cluster_size, 1, 1};
  }
  // Older drivers cannot capture such a launch into a graph; in order it is right as well.
  constexpr int kCapturesOverlap = 12030;
  if (shape.overlaps_previous && current.driver().version() >= kCapturesOverlap) {
    attributes[count].id = driver::kProgrammaticSerialization;
    attributes[count++].value.programmatic_serialization = 1;
  }
  const driver::LaunchConfig config = {
      shape.grid.x, shape.grid.y, shape.grid.z, shape.num_threads, 1, 1, shape.shared_bytes,
      stream,       attributes,   count};
  return current.api().cuLaunchKernelEx(&config, function.handle, arguments, nullptr);
}

}  // namespace

LaunchShape launch_shape(const KernelChoice& kernel) {
  constexpr std::array<int64_t, 3> kMaxGrid = {2147483647, 65535, 65535};
  for (size_t i = 0; i < kMaxGrid.size(); ++i) {
    if (kernel.grid[i] < 0 || kernel.grid[i] > kMaxGrid[i]) {
      throw Error(ErrorCode::kUnsupported, kernel.source.stem + ": grid[" + std::to_string(i) +
                                               "] is " + std::to_string(kernel.grid[i]) +
                                               ", a GPU takes at most " +
                                               std::to_string(kMaxGrid[i]));
    }
  }
  LaunchShape shape;
  shape.grid = {static_cast<uint32_t>(kernel.grid[0]), static_cast<uint32_t>(kernel.grid[1]),
                static_cast<uint32_t>(kernel.grid[2])};
  shape.num_threads = static_cast<uint32_t>(kernel.num_threads);
  shape.shared_bytes = static_cast<uint32_t>(kernel.shared_bytes);
  shape.cluster_size = static_cast<uint32_t>(kernel.cluster_size);
  shape.overlaps_previous = kernel.overlaps_previous;
  return shape;
}

void launch(const Function& function, const LaunchShape& shape, const Context& context,
            void** arguments) {
  const Extent& grid = shape.grid;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  const CurrentContext current(context);
  const driver::StreamHandle stream = stream_of(context);
  const bool is_extended = shape.cluster_size > 1 || shape.overlaps_previous;
  if (shape.cluster_size > 1 && current.api().cuLaunchKernelEx == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                function.stem + ": the CUDA driver cannot launch clusters, expected 11.8 or later");
  }
  // A driver without overlapping launches runs them one after the other, which is right as well.
  const driver::Result result =
      is_extended && current.api().cuLaunchKernelEx != nullptr
          ? launch_extended(current, function, shape, stream, arguments)
          : current.api().cuLaunchKernel(function.handle, grid.x, grid.y, grid.z, shape.num_threads,
                                         1, 1, shape.shared_bytes, stream, arguments, nullptr);
  if (result != driver::kSuccess) {
    current.driver().check(result, function.stem + ": launch of " + shape_text(shape));
  }
}

int max_ctas_per_sm(const Function& function, const LaunchShape& shape, const Context& context) {
  const CurrentContext current(context);
  int count = 0;
  current.driver().check(
      current.api().cuOccupancyMaxActiveBlocksPerMultiprocessor(
          &count, function.handle, static_cast<int>(shape.num_threads), shape.shared_bytes),
      function.stem + ": occupancy");
  return count;
}

void fill_bytes(void* data, uint8_t value, size_t bytes, const Context& context) {
  if (bytes == 0) return;
  const CurrentContext current(context);
  current.driver().check(current.api().cuMemsetD8Async(reinterpret_cast<driver::Address>(data),
                                                       value, bytes, stream_of(context)),
                         "filling device memory");
}

}  // namespace flashtile::cuda
