// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan/user_expressions.hpp"

#include <algorithm>
#include <optional>

#include "variant/expr/access.hpp"
#include "variant/expr/affine.hpp"
#include "variant/expr/linear.hpp"
#include "variant/expr/print.hpp"
#include "variant/expr/score_line.hpp"
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

/// True when every index of every load changes with q_idx and k_idx by constant steps only: what
/// holds at the corners of a block of pairs then holds in all of it.
bool reads_linearly(const Expr& expr) {
  constexpr variant::VariableSet kMoving =
      variant::kQueryBit | variant::kKeyBit | variant::variable_bit(variant::Variable::kScore);
  if (expr.empty() || expr.aux.empty()) return false;
  const std::vector<variant::VariableSet> uses = variant::variables_of_nodes(expr);
  for (int32_t idx = 0; idx <= expr.root(); ++idx) {
    if (expr.node(idx).op != variant::Op::kLoad) continue;
    for (const int32_t index : expr.args(idx)) {
      for (const auto& term : variant::linear_form(expr, index).terms) {
        if ((uses[static_cast<size_t>(term.node)] & kMoving) != 0) return false;
      }
    }
  }
  return true;
}

/// True for a sum of the score and something that does not depend on it.
bool adds_to_score(const Expr& expr) {
  if (expr.empty()) return true;
  const variant::Op op = expr.node(expr.root()).op;
  if (op != variant::Op::kAdd && op != variant::Op::kSub) return false;
  const auto is_score = [&](int32_t idx) {
    return expr.node(idx).op == variant::Op::kVariable &&
           expr.node(idx).variable == variant::Variable::kScore;
  };
  const auto is_free = [&](int32_t idx) {
    return !variant::depends_on(expr, idx, variant::Variable::kScore);
  };
  const auto args = expr.args(expr.root());
  return (is_score(args[0]) && is_free(args[1])) ||
         (op == variant::Op::kAdd && is_score(args[1]) && is_free(args[0]));
}

/// Statements that say whether all elements that an expression may read for a pair are there.
std::string inside_statements(const Expr& expr) {
  std::string text = "Bool is_inside = true;\n";
  for (int32_t idx = 0; idx <= expr.root(); ++idx) {
    if (expr.node(idx).op != variant::Op::kLoad) continue;
    const auto name = static_cast<size_t>(expr.node(idx).name_idx);
    std::string indices;
    text += "{\n";
    for (const int32_t index : expr.args(idx)) {
      const std::string variable = "index" + std::to_string(index);
      text += "const Int " + variable + " = [&]() -> Int {\n" +
              print(variant::subexpression(expr, index), variant::PrintStyle::kDevice) + "}();\n";
      indices += (indices.empty() ? "" : ", ") + variable;
    }
    text += "is_inside = is_inside & inside_" + expr.aux[name].name + "(" + indices + ");\n}\n";
  }
  return text + "return is_inside;\n";
}

/// A function that gives some of the values that its statements make.
std::string values_function(const AttentionProblem& problem, const std::string& name,
                            const std::string& statements, const std::vector<std::string>& values) {
  std::string members;
  std::string list;
  for (const std::string& value : values) {
    members += "typename Plain<decltype(" + value + ")>::Type " + value + "_; ";
    list += (list.empty() ? "" : ", ") + value;
  }
  return expression_function(
      problem, "auto " + name + "(const Params& user, const Pair& pair)",
      statements + "struct Values { " + members + "};\nreturn Values{" + list + "};\n",
      /*knows_inside=*/true);
}

/// The mask in parts: what it takes from a query, from a key, and what it makes of both.
std::string split_mask_functions(const AttentionProblem& problem, const Expr& mask) {
  const variant::SplitText text = variant::print_split(mask);
  return values_function(problem, "mask_row", text.row, text.row_values) +
         values_function(problem, "mask_column", text.column, text.column_values) +
         expression_function(problem,
                             "Bool mask_pair(const Params& user, const Pair& pair, "
                             "const auto& row, const auto& column)",
                             text.pair, /*knows_inside=*/true);
}

/// The mask over a block of pairs (score/ranges.cuh): the same statements, other types.
std::string mask_range_function(const AttentionProblem& problem, const Expr& mask) {
  std::string text =
      "  FLASHTILE_DEVICE static Truth mask_range(const Params& user, const PairRange& pair) {\n"
      "using Bool = Truth;\nusing Int = IntRange;\nusing Float = FloatRange;\n";
  for (const char* variable : {"batch", "head", "head_kv", "q_idx", "k_idx", "seqlen_q", "seqlen_k",
                               "query_offset", "leftpad"}) {
    text += std::string("[[maybe_unused]] const Int ") + variable + " = pair." + variable + ";\n";
  }
  const ExpressionInputs inputs = expression_inputs(problem);
  for (const std::string& param : inputs.params) {
    text += "[[maybe_unused]] const Float param_" + param + ";\n";
  }
  for (size_t n = 0; n < inputs.aux.size(); ++n) {
    const std::string load = inputs.aux[n].is_float
                                 ? "FloatRange()"
                                 : "load_int_range(user.aux[" + std::to_string(n) + "], index...)";
    text += "[[maybe_unused]] const auto aux_" + inputs.aux[n].name +
            " = [&](Bool, [[maybe_unused]] auto... index) { return " + load + "; };\n";
  }
  return text + print(mask, variant::PrintStyle::kDevice) + "  }\n";
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

bool adds_by_distance(const Expr& score) {
  const std::optional<variant::ScoreLine> line = variant::score_line(score);
  return adds_to_score(score) && line && line->shift == 1;
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
                                const std::string& statements, bool knows_inside) {
  std::string text = knows_inside ? "  template <bool kIsInside>\n" : "";
  text += "  FLASHTILE_DEVICE static " + declaration + " {\n";
  if (!knows_inside) text += "constexpr bool kIsInside = false;\n";
  text += "using Int = typename IndexOf<kIsInside>::Type;\n";
  for (const char* variable :
       {"batch", "head", "head_kv", "seqlen_q", "seqlen_k", "query_offset", "leftpad"}) {
    text += std::string("[[maybe_unused]] const Int ") + variable + " = pair." + variable + ";\n";
  }
  for (const std::string variable : {"q", "k"}) {
    text += "[[maybe_unused]] const Int " + variable + "_idx = Int(pair." + variable +
            "_idx) + step_of<kIsInside>(pair." + variable + "_step);\n";
  }
  const ExpressionInputs inputs = expression_inputs(problem);
  for (size_t n = 0; n < inputs.params.size(); ++n) {
    text += "[[maybe_unused]] const Float param_" + inputs.params[n] + " = user.scalars[" +
            std::to_string(n) + "];\n";
  }
  for (size_t n = 0; n < inputs.aux.size(); ++n) {
    text += "[[maybe_unused]] const auto aux_" + inputs.aux[n].name +
            " = [&](Bool active, auto... index) { return " +
            (inputs.aux[n].is_float ? "load_float_aux" : "load_int_aux") + "<kIsInside>(user.aux[" +
            std::to_string(n) + "], active, index...); };\n";
    text += "[[maybe_unused]] const auto inside_" + inputs.aux[n].name +
            " = [&](auto... index) { return is_in_aux(user.aux[" + std::to_string(n) +
            "], index...); };\n";
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
      std::string(mask.rest.empty() ? "" : "#include \"cuda/device/score/ranges.cuh\"\n") +
      "namespace flashtile::device::expression {\nstruct UserExpressions {\n"
      "  using Params = ExpressionParams<" +
      std::to_string(inputs.aux.size()) + ", " + std::to_string(inputs.params.size()) + ">;\n";
  text += flag("kHasScore", !problem.user_score.empty());
  text += flag("kHasMask", !mask.rest.empty());
  text += flag("kHasLower", !mask.lower.empty());
  text += flag("kHasUpper", !mask.upper.empty());
  const bool is_linear = reads_linearly(problem.user_score);
  const bool is_mask_linear = reads_linearly(mask.rest);
  text += flag("kIsScoreLinear", is_linear);
  text += flag("kIsMaskLinear", is_mask_linear);
  text += flag("kAddsToScore", adds_to_score(problem.user_score));
  const std::string arguments = "(const Params& user, const Pair& pair";
  if (!problem.user_score.empty()) {
    text += expression_function(problem, "Float score" + arguments + ", Float score)",
                                print(problem.user_score, variant::PrintStyle::kDevice),
                                /*knows_inside=*/true);
  }
  if (is_linear) {
    text += expression_function(problem, "Bool score_is_inside" + arguments + ")",
                                inside_statements(problem.user_score));
  }
  if (!mask.rest.empty()) {
    text += expression_function(problem, "Bool mask" + arguments + ")",
                                print(mask.rest, variant::PrintStyle::kDevice));
    text += split_mask_functions(problem, mask.rest) + mask_range_function(problem, mask.rest);
  }
  if (is_mask_linear) {
    text += expression_function(problem, "Bool mask_is_inside" + arguments + ")",
                                inside_statements(mask.rest));
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
