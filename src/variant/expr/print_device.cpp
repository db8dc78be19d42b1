// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "variant/expr/functions.hpp"
#include "variant/expr/lower.hpp"
#include "variant/expr/print.hpp"
#include "variant/expr/scalar_ops.hpp"

namespace flashtile::variant {
namespace {

std::string value_name(int32_t value) { return "v" + std::to_string(value); }

std::string int_text(int64_t value) {
  if (value == std::numeric_limits<int64_t>::min()) return "Int(-9223372036854775807ll - 1ll)";
  return "Int(" + std::to_string(value) + "ll)";
}

// The nearest float32, in the fewest digits that give it back.
std::string float_text(float value) {
  if (std::isnan(value)) return "not_a_number()";
  if (std::isinf(value)) return value > 0 ? "infinity()" : "-infinity()";
  std::array<char, 40> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  std::string text(digits.data(), end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return "Float(" + text + "f)";
}

// An operator, or a function of that name if it begins with a letter.
std::string_view operation(Op op, Type type) {
  const bool is_float = type == Type::kFloat;
  switch (op) {
    case Op::kNeg:
    case Op::kSub:
      return "-";
    case Op::kAdd:
      return "+";
    case Op::kMul:
      return "*";
    case Op::kDiv:
      return is_float ? "/" : "int_div";
    case Op::kMod:
      return is_float ? "fmod" : "int_mod";
    case Op::kFloorDiv:
      return "floor_div";
    case Op::kFloorMod:
      return "floor_mod";
    case Op::kBitAnd:
      return "&";
    case Op::kBitOr:
      return "|";
    case Op::kBitXor:
      return "^";
    case Op::kShl:
      return "shift_left";
    case Op::kShr:
      return "shift_right";
    case Op::kEq:
      return "==";
    case Op::kNe:
      return "!=";
    case Op::kLt:
      return "<";
    case Op::kLe:
      return "<=";
    case Op::kGt:
      return ">";
    case Op::kGe:
      return ">=";
    case Op::kNot:
      return "logical_not";
    case Op::kAnd:
      return "logical_and";
    case Op::kOr:
      return "logical_or";
    case Op::kToInt:
      return "to_int";
    case Op::kToFloat:
      return "to_float";
    case Op::kToBool:
      return "to_bool";
    default:
      return function_name(op);
  }
}

std::string call(const std::string& name, std::span<const int32_t> args, std::string first = "") {
  std::string text = name + "(" + first;
  for (size_t n = 0; n < args.size(); ++n) {
    if (n > 0 || !first.empty()) text += ", ";
    text += value_name(args[n]);
  }
  return text + ")";
}

std::string value_text(const Lowered& lowered, const StripValue& value) {
  const StripInstruction& step = value.instruction;
  switch (step.op) {
    case Op::kBoolConst:
      return step.int_value != 0 ? "Bool(true)" : "Bool(false)";
    case Op::kIntConst:
      return int_text(step.int_value);
    case Op::kFloatConst:
      return float_text(step.float_value);
    case Op::kVariable:
      return std::string(variable_name(step.variable));
    case Op::kParam:
      return "param_" + lowered.params[static_cast<size_t>(step.aux)];
    case Op::kLoad:
      return call("aux_" + lowered.aux[static_cast<size_t>(step.aux)].name, value.args,
                  value.predicate < 0 ? "Bool(true)" : value_name(value.predicate));
    default:
      break;
  }
  const std::string name(operation(step.op, step.type));
  const bool is_function = name[0] >= 'a' && name[0] <= 'z';
  if (is_function) return call(name, value.args);
  if (value.args.size() == 1) return name + value_name(value.args[0]);
  return value_name(value.args[0]) + " " + name + " " + value_name(value.args[1]);
}

std::string statement(const Lowered& lowered, int32_t value) {
  return "const auto " + value_name(value) + " = " +
         value_text(lowered, lowered.values[static_cast<size_t>(value)]) + ";\n";
}

/// Which functions of a split text a value belongs to.
enum class Part : uint8_t {
  kCommon,  ///< all: it costs next to nothing, and is the same for all pairs
  kRow,
  kColumn,
  kPair,
};

std::vector<Part> parts_of(const Lowered& lowered) {
  std::vector<Part> parts;
  for (const StripValue& value : lowered.values) {
    Part part = Part::kCommon;
    const auto join = [&](Part other) {
      // Of a row and of a column is of the pair; elements of a tensor that all share are a row's.
      const bool differ = part != other && part != Part::kCommon && other != Part::kCommon;
      part = differ ? Part::kPair : std::max(part, other);
    };
    for (const int32_t arg : value.args) join(parts[static_cast<size_t>(arg)]);
    if (value.predicate >= 0) join(parts[static_cast<size_t>(value.predicate)]);
    if (value.instruction.op == Op::kLoad && part == Part::kCommon) part = Part::kRow;
    if (value.instruction.op == Op::kVariable) {
      const Variable variable = value.instruction.variable;
      if (variable == Variable::kKIdx) part = Part::kColumn;
      // Rows of one tile may have several heads.
      if (variable == Variable::kQIdx || variable == Variable::kHead ||
          variable == Variable::kHeadKv) {
        part = Part::kRow;
      }
    }
    parts.push_back(part);
  }
  return parts;
}

}  // namespace

SplitText print_split(const Expr& expr) {
  const Lowered lowered = lower({&expr, 1});
  const std::vector<Part> parts = parts_of(lowered);
  const auto count = static_cast<int32_t>(lowered.values.size());
  const int32_t root = lowered.roots[0];
  std::vector<bool> is_wanted(lowered.values.size(), false);
  is_wanted[static_cast<size_t>(root)] = true;
  for (size_t n = 0; n < lowered.values.size(); ++n) {
    if (parts[n] != Part::kPair) continue;
    for (const int32_t arg : lowered.values[n].args) is_wanted[static_cast<size_t>(arg)] = true;
    const int32_t predicate = lowered.values[n].predicate;
    if (predicate >= 0) is_wanted[static_cast<size_t>(predicate)] = true;
  }
  SplitText text;
  for (int32_t idx = 0; idx < count; ++idx) {
    const std::string line = "[[maybe_unused]] " + statement(lowered, idx);
    const Part part = parts[static_cast<size_t>(idx)];
    if (part == Part::kCommon) {
      for (std::string* each : {&text.row, &text.column, &text.pair}) *each += line;
    } else if (part == Part::kPair) {
      text.pair += line;
    } else {
      const bool is_column = part == Part::kColumn;
      (is_column ? text.column : text.row) += line;
      if (!is_wanted[static_cast<size_t>(idx)]) continue;
      const std::string name = value_name(idx);
      (is_column ? text.column_values : text.row_values).push_back(name);
      text.pair += "const auto " + name + " = " + (is_column ? "column." : "row.") + name + "_;\n";
    }
  }
  text.pair += "return " + value_name(root) + ";\n";
  return text;
}

std::string print_device(std::span<const Expr> roots) {
  const Lowered lowered = lower(roots);
  std::string text;
  for (size_t n = 0; n < lowered.values.size(); ++n) {
    text += statement(lowered, static_cast<int32_t>(n));
  }
  for (size_t r = 0; r < lowered.roots.size(); ++r) {
    text += "out" + std::to_string(r) + " = " + value_name(lowered.roots[r]) + ";\n";
  }
  return text;
}

}  // namespace flashtile::variant
