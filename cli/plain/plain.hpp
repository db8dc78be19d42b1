// SPDX-License-Identifier: Apache-2.0
//
// Plain implementations: what one writes without a library. They say how much rounding a problem
// costs in its precision, which is the measure of `check`, and what speed costs nothing, which is
// the line below `bench`. They share no code with the kernels.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/op_spec.hpp"

namespace flashtile::cli {

/// What a plain run is for.
enum class PlainMode : uint8_t {
  kPlain,   ///< the problem itself
  kJitter,  ///< logits moved by 2^-22 of their size: how far do results follow
  kNoise,   ///< gradients of what rounding may leave of differences that cancel
};

struct PlainConfig {
  PlainMode mode = PlainMode::kPlain;
  /// Work on query rows 0, row_step, 2 row_step, ... of each sequence and its last one; the others
  /// count as if their incoming gradients were 0.
  int64_t row_step = 1;
};

/// The rows of a sequence that a config works on.
bool is_plain_row(const PlainConfig& config, int64_t q_idx, int64_t seqlen_q);

/// The plain implementation of one op. Products take operands in the dtype of the call, everything
/// between them is float32; in f64 everything is double.
struct PlainOp {
  std::string_view op;
  void (*run)(const OpCall& call, const PlainConfig& config, const Context& context) = nullptr;
  /// Memory for its temporaries, which are quadratic.
  double (*temporary_bytes)(const OpCall& call, const Context& context) = nullptr;
};

/// Null where an op has none.
const PlainOp* find_plain(std::string_view op);

}  // namespace flashtile::cli
