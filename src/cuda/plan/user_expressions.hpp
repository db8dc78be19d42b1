// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "ops/attention/problem.hpp"

namespace flashtile::cuda {

/// A user mask in parts: bounds of k_idx - q_idx, and what is left.
struct MaskParts {
  std::vector<variant::Expr> lower, upper;  ///< int, without q_idx and k_idx
  variant::Expr rest;                       ///< empty: nothing
};
MaskParts split_mask(const variant::Expr& mask);

/// True for a score function that adds what depends on k_idx - q_idx, but on neither alone.
bool adds_by_distance(const variant::Expr& score);

/// What a problem's expressions read, in the order in which kernels get it.
struct ExpressionInputs {
  std::vector<variant::AuxSignature> aux;
  std::vector<std::string> params;
};
ExpressionInputs expression_inputs(const AttentionProblem& problem);

/// True when an expression reads a variable.
bool reads_variable(const variant::Expr& expr, variant::Variable variable);

/// Device text that defines `flashtile::device::expression::UserExpressions`: the user's score and
/// mask as functions (src/cuda/device/score/). `further` are other members, such as derivatives.
std::string user_expressions_text(const AttentionProblem& problem, const std::string& further = {});

/// One static member function `TYPE NAME(user, pair, score)` with the expressions' statements.
/// `knows_inside`: a template, whose argument kIsInside says that all elements read are there.
std::string expression_function(const AttentionProblem& problem, const std::string& declaration,
                                const std::string& statements, bool knows_inside = false);

}  // namespace flashtile::cuda
