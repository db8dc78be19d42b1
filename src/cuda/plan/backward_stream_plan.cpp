// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan/backward_stream_plan.hpp"

#include <algorithm>
#include <utility>

#include "cuda/plan/attention_config.hpp"

namespace flashtile::cuda {
namespace {

/// The first shape of which two CTAs fit a multiprocessor, else the first that fits at all: rows
/// that stay are read once, and a third stage hides a barrier.
device::StreamShape choose_shape(const AttentionProblem& problem) {
  device::StreamShape shape;
  shape.element_bytes = static_cast<int>(dtype_bytes(problem.dtype));
  const auto padded = [&](int64_t columns) {
    return round_up(problem.head_dim, columns) + round_up(problem.head_dim_v, columns);
  };
  // Long chunks need fewer barriers, unless they would be half empty.
  const int64_t widest = std::max(problem.head_dim, problem.head_dim_v);
  shape.chunk = widest <= 16 ? 16 : padded(64) == padded(32) ? 64 : 32;
  shape.head_dim = static_cast<int>(round_up(problem.head_dim, shape.chunk));
  shape.head_dim_v = static_cast<int>(round_up(problem.head_dim_v, shape.chunk));
  constexpr int64_t kReservedBytes = 1024;  // of each CTA, for the driver
  const GpuModel& gpu = *problem.gpu;
  const int64_t half = gpu.shared_bytes_per_sm / 2 - kReservedBytes;
  for (const int64_t limit : {std::min(half, gpu.shared_bytes_per_cta), gpu.shared_bytes_per_cta}) {
    for (const auto& [rows_stay, num_stages] :
         {std::pair(true, 3), {true, 2}, {false, 3}, {false, 2}}) {
      shape.rows_stay = rows_stay;
      shape.num_stages = num_stages;
      if (shape.shared_bytes() <= limit) return shape;
    }
  }
  return shape;
}

/// The fewest parts of at most `most` columns, of whole chunks.
int64_t part_of(int64_t columns, int64_t most, int64_t chunk) {
  const int64_t num_parts = ceil_div(columns, most);
  return round_up(ceil_div(columns, num_parts), chunk);
}

}  // namespace

StreamTiling choose_key_stream(const AttentionProblem& problem) {
  StreamTiling tiling;
  tiling.shape = choose_shape(problem);
  // Sums of 128 columns of both take half of the registers.
  tiling.part_d = part_of(tiling.shape.head_dim, 128, tiling.shape.chunk);
  tiling.part_v = part_of(tiling.shape.head_dim_v, 128, tiling.shape.chunk);
  tiling.num_parts = std::max(ceil_div(problem.head_dim, tiling.part_d),
                              ceil_div(problem.head_dim_v, tiling.part_v));
  return tiling;
}

StreamTiling choose_query_stream(const AttentionProblem& problem) {
  StreamTiling tiling;
  tiling.shape = choose_shape(problem);
  tiling.part_d = part_of(tiling.shape.head_dim, 256, tiling.shape.chunk);
  tiling.num_parts = ceil_div(problem.head_dim, tiling.part_d);
  return tiling;
}

std::string stream_text(const StreamTiling& tiling) {
  const device::StreamShape& shape = tiling.shape;
  return config_int("kHeadDim", shape.head_dim) + config_int("kHeadDimV", shape.head_dim_v) +
         config_int("kBlockM", device::kStreamBlock) + config_int("kBlockN", device::kStreamBlock) +
         config_int("kChunk", shape.chunk) + config_int("kNumStages", shape.num_stages) +
         config_bool("kRowsStay", shape.rows_stay) + config_int("kPartD", tiling.part_d) +
         config_int("kPartV", tiling.part_v);
}

}  // namespace flashtile::cuda
