// SPDX-License-Identifier: Apache-2.0
//
// The meaning of every mask and score option as one expression each. The reference evaluates them
// as they stand; kernels use hand-written paths for parts of them, tested against this meaning.
#pragma once

#include <string>
#include <vector>

#include "core/kept_list.hpp"
#include "ops/attention/args.hpp"
#include "ops/attention/problem.hpp"
#include "ops/attention/sequences.hpp"
#include "variant/expr/evaluate.hpp"
#include "variant/expr/expr.hpp"

namespace flashtile {

/// Names of the built-in tensors among the aux tensors of an expression. No user name has a dot.
inline constexpr std::string_view kAuxBias = ".bias";
inline constexpr std::string_view kAuxSlopes = ".slopes";

struct AttentionVariant {
  variant::Expr score;  ///< softcap, user score, bias, ALiBi; plain `score` when there is none
  variant::Expr mask;  ///< causal, windows, chunk, user mask, bias of -inf; true when there is none
};

/// What causal, windows and chunks mean, a mask for each that a problem has.
std::vector<variant::Expr> built_in_masks(const AttentionProblem& problem);

AttentionVariant attention_variant(const AttentionProblem& problem, const AttentionArgs& args);

/// The tensor that an expression reads by this name.
const TensorView& aux_tensor(std::string_view name, const AttentionArgs& args);

/// The tensors that an expression of a problem reads, in the order of Expr::aux.
std::vector<TensorView> bound_aux(const variant::Expr& expr, const AttentionArgs& args);
void find_aux(const variant::Expr& expr, const AttentionArgs& args, KeptList<TensorView>* tensors);

/// The scalars that it reads, in the order of Expr::params.
std::vector<double> bound_params(const variant::Expr& expr, const AttentionArgs& args);

/// Where the gradient of an aux tensor goes; undefined when nobody asks.
TensorView aux_gradient(const std::string& name, const AttentionArgs& args);

/// The integer variables of one (sequence, head).
variant::Variables attention_variables(const AttentionProblem& problem, const Sequence& sequence,
                                       int64_t head);

}  // namespace flashtile
