// SPDX-License-Identifier: Apache-2.0
//
// From the raw gates of an op to what the recurrence of the scalar-decay family runs on:
//
//   S_t = exp(log_decay_t) S_{t-1} + weight_t k_t v_t',  n_t likewise with k_t alone
//
// and back, from gradients of these numbers to those of the raw gates. The reference and the chunk
// kernels share it: nothing else in the family depends on which op runs.
#pragma once

#include "core/kept_list.hpp"
#include "ops/linear/parameter_sums.hpp"
#include "ops/linear/sequences.hpp"

namespace flashtile {

/// Of one head of one sequence, in double. exp of every log_decay is at most 1 where the op's gates
/// are what they should be; -inf resets.
struct ScalarGates {
  KeptList<double> log_decay;
  KeptList<double> weight;  ///< of k v'; all 1 for ops without an input gate
  /// Least divisor of LinearNormalizer::kAtLeastFloor, exp(-m); empty for other ops.
  KeptList<double> floor;
  double last_max = 0;  ///< m behind the last row
};

/// True where `weight` is not 1 everywhere.
bool has_input_weight(const LinearOp& op);

ScalarGates scalar_gates(const LinearProblem& problem, const LinearArgs& args,
                         const LinearSequence& sequence, int64_t head);

/// Writes the gradients of raw gates that run over time, and this head's part of those of
/// parameters.
/// `dlog_decay` holds that of log_decay with exp(log_decay) in it, so that it is 0 at a reset;
/// `dweight` may be empty where the op has no input weight.
void store_gate_gradients(const LinearProblem& problem, const LinearArgs& args,
                          const LinearSequence& sequence, int64_t head, const ScalarGates& gates,
                          std::span<const double> dlog_decay, std::span<const double> dweight,
                          ParameterSums& sums);

}  // namespace flashtile
