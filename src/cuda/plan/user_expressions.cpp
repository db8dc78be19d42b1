// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan/user_expressions.hpp"

#include <algorithm>

#include "variant/expr/access.hpp"
#include "variant/expr/affine.hpp"
#include "variant/expr/print.hpp"
#include "variant/expr/substitute.hpp"

namespace flashtile::cuda {
namespace {

using variant::Expr;

void add_inputs(const Expr& expr, ExpressionInputs& inputs) {
  for (const variant::AuxSignature& aux : expr.aux) {
    if (std::find(inputs.aux.begin(), inputs.aux.end(), aux) == inputs.aux.end()) {
      inputs.aux.push_back(aux);
    }
  }
  for (const std::string& param : expr.params) {
    if (std::find(inputs.params.begin(), inputs.params.end(), param) == inputs.params.end()) {
      inputs.params.push_back(param);
    }
  }
}

/// A statement that gives the largest (or smallest) of some int expressions.
std::string bound_statements(const std::vector<Expr>& bounds, const char* combine) {
  std::string text;
  std::string result;
  for (size_t n = 0; n < bounds.size(); ++n) {
    const std::string name = "bound" + std::to_string(n);
    text += "const Int " + name + " = [&]() -> Int {\n" +
            print(bounds[n], variant::PrintStyle::kDevice) + "}();\n";
    result = result.empty() ? name : std::string(combine) + "(" + result + ", " + name + ")";
  }
  return text + "return " + result + ";\n";
}

}  // namespace

MaskParts split_mask(const Expr& mask) {
  MaskParts parts;
  if (mask.empty()) return parts;
  std::vector<Expr> others;
  for (const Expr& conjunct : variant::conjuncts(mask)) {
    if (const auto band = variant::match_band(conjunct)) {
      if (!band->lo.empty()) parts.lower.push_back(band->lo);
      if (!band->hi.empty()) parts.upper.push_back(band->hi);
    } else {
      others.push_back(conjunct);
    }
  }
  if (!others.empty()) parts.rest = variant::conjunction(others);
  return parts;
}

ExpressionInputs expression_inputs(const AttentionProblem& problem) {
  ExpressionInputs inputs;
  add_inputs(problem.user_score, inputs);
  add_inputs(problem.user_mask, inputs);
  return inputs;
}

bool reads_variable(const Expr& expr, variant::Variable variable) {
  return !expr.empty() && variant::depends_on(expr, expr.root(), variable);
}

std::string expression_function(const AttentionProblem& problem, const std::string& declaration,
                                const std::string& statements) {
  std::string text = "  FLASHTILE_DEVICE static " + declaration + " {\n";
  for (const char* variable : {"batch", "head", "head_kv", "q_idx", "k_idx", "seqlen_q", "seqlen_k",
                               "query_offset", "leftpad"}) {
    text += std::string("[[maybe_unused]] const Int ") + variable + " = pair." + variable + ";\n";
  }
  const ExpressionInputs inputs = expression_inputs(problem);
  for (size_t n = 0; n < inputs.params.size(); ++n) {
    text += "[[maybe_unused]] const Float param_" + inputs.params[n] + " = user.scalars[" +
            std::to_string(n) + "];\n";
  }
  for (size_t n = 0; n < inputs.aux.size(); ++n) {
    text += "[[maybe_unused]] const auto aux_" + inputs.aux[n].name +
            " = [&](Bool active, auto... index) { return " +
            (inputs.aux[n].is_float ? "load_float_aux" : "load_int_aux") + "(user.aux[" +
            std::to_string(n) + "], active, index...); };\n";
  }
  return text + statements + "  }\n";
}

std::string user_expressions_text(const AttentionProblem& problem, const std::string& further) {
  const MaskParts mask = split_mask(problem.user_mask);
  const ExpressionInputs inputs = expression_inputs(problem);
  const auto flag = [](const char* name, bool value) {
    return std::string("  static constexpr bool ") + name + " = " + (value ? "true" : "false") +
           ";\n";
  };
  std::string text =
      "namespace flashtile::device::expression {\nstruct UserExpressions {\n"
      "  using Params = ExpressionParams<" +
      std::to_string(inputs.aux.size()) + ", " + std::to_string(inputs.params.size()) + ">;\n";
  text += flag("kHasScore", !problem.user_score.empty());
  text += flag("kHasMask", !mask.rest.empty());
  text += flag("kHasLower", !mask.lower.empty());
  text += flag("kHasUpper", !mask.upper.empty());
  const std::string arguments = "(const Params& user, const Pair& pair";
  if (!problem.user_score.empty()) {
    text += expression_function(problem, "Float score" + arguments + ", Float score)",
                                print(problem.user_score, variant::PrintStyle::kDevice));
  }
  if (!mask.rest.empty()) {
    text += expression_function(problem, "Bool mask" + arguments + ")",
                                print(mask.rest, variant::PrintStyle::kDevice));
  }
  if (!mask.lower.empty()) {
    text += expression_function(problem, "Int lower" + arguments + ")",
                                bound_statements(mask.lower, "max"));
  }
  if (!mask.upper.empty()) {
    text += expression_function(problem, "Int upper" + arguments + ")",
                                bound_statements(mask.upper, "min"));
  }
  return text + further + "};\n}  // namespace flashtile::device::expression\n";
}

}  // namespace flashtile::cuda
