// SPDX-License-Identifier: Apache-2.0
//
// How the backward kernels run that read their operands in chunks of columns.
#pragma once

#include "cuda/device/params/stream_shape.hpp"
#include "ops/attention/problem.hpp"

namespace flashtile::cuda {

/// The shape of a kernel and the parts of the columns of its results.
struct StreamTiling {
  device::StreamShape shape;
  int64_t part_d = 0;  ///< columns of dq or dk of a CTA; 0: none
  int64_t part_v = 0;  ///< columns of dv
  int64_t num_parts = 1;
};

/// For dk and dv.
StreamTiling choose_key_stream(const AttentionProblem& problem);
/// For dq.
StreamTiling choose_query_stream(const AttentionProblem& problem);

/// Members of Config that say the shape.
std::string stream_text(const StreamTiling& tiling);

}  // namespace flashtile::cuda
