// SPDX-License-Identifier: Apache-2.0
//
// Plain implementations: what one writes without a library. They say how much rounding a problem
// costs in its precision, which is the measure of `check`, and what speed costs nothing, which is
// the line below `bench`. They share no code with the kernels.
#pragma once

#include <cstdint>
#include <optional>
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
  /// Work on about this many query rows of each sequence, evenly spread with the first and the
  /// last, as if incoming gradients of all others were 0. 0: on all.
  int64_t num_rows = 0;
  uint64_t noise_draw = 0;  ///< kNoise: which signs, below 256
};

/// The rows of a sequence that a config works on.
bool is_plain_row(const PlainConfig& config, int64_t q_idx, int64_t seqlen_q);

/// The plain implementation of one op. Products take operands in the dtype of the call, everything
/// between them is float32; in f64 everything is double.
struct PlainOp {
  std::string_view op;
  void (*run)(const OpCall& call, const PlainConfig& config, const Context& context) = nullptr;
  /// Sets the incoming gradients of all rows to 0 that the config does not work on, so that a
  /// gradient of a few rows can be compared whole. Nothing to do for a forward op.
  void (*mask_gradients)(const OpCall& call, const PlainConfig& config) = nullptr;
  /// Memory for its temporaries, which are quadratic.
  double (*temporary_bytes)(const OpCall& call, const Context& context) = nullptr;
};

/// Floating-point operations that an op's definition asks for: products of the (query, key) pairs
/// that masks leave, and nothing for softmax. Expression masks are counted on a sample of rows.
/// Nothing for an op that has no such count.
std::optional<double> count_operations(const OpCall& call);

/// Null where an op has none.
const PlainOp* find_plain(std::string_view op);

}  // namespace flashtile::cli
