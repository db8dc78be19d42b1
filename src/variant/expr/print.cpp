// SPDX-License-Identifier: Apache-2.0
#include "variant/expr/print.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "flashtile/error.hpp"
#include "variant/expr/functions.hpp"
#include "variant/expr/scalar_ops.hpp"

namespace flashtile::variant {
namespace {

// How close an operator binds, as in parse.cpp.
enum Precedence {
  kTernary,
  kLogicalOr,
  kLogicalAnd,
  kOr,
  kXor,
  kAnd,
  kEquality,
  kRelation,
  kShift,
  kSum,
  kProduct,
  kUnary,
  kPrimary,
};

struct Infix {
  const char* text = nullptr;  // null for what is no binary operator
  int precedence = 0;
};

Infix infix(Op op) {
  switch (op) {
    case Op::kOr:
      return {" || ", kLogicalOr};
    case Op::kAnd:
      return {" && ", kLogicalAnd};
    case Op::kBitOr:
      return {" | ", kOr};
    case Op::kBitXor:
      return {" ^ ", kXor};
    case Op::kBitAnd:
      return {" & ", kAnd};
    case Op::kEq:
      return {" == ", kEquality};
    case Op::kNe:
      return {" != ", kEquality};
    case Op::kLt:
      return {" < ", kRelation};
    case Op::kLe:
      return {" <= ", kRelation};
    case Op::kGt:
      return {" > ", kRelation};
    case Op::kGe:
      return {" >= ", kRelation};
    case Op::kShl:
      return {" << ", kShift};
    case Op::kShr:
      return {" >> ", kShift};
    case Op::kAdd:
      return {" + ", kSum};
    case Op::kSub:
      return {" - ", kSum};
    case Op::kMul:
      return {" * ", kProduct};
    case Op::kDiv:
      return {" / ", kProduct};
    case Op::kMod:
      return {" % ", kProduct};
    default:
      return {};
  }
}

class TextPrinter {
 public:
  explicit TextPrinter(const Expr& expr) : expr_(expr) {}

  std::string run() {
    const Node& root = expr_.nodes.back();
    if (root.op == Op::kBoolConst) return root.int_value != 0 ? "1" : "0";
    if (root.op == Op::kToFloat) {  // a score is made a float by itself
      node(expr_.args(expr_.root())[0], kTernary);
    } else {
      node(expr_.root(), kTernary);
    }
    return std::move(text_);
  }

 private:
  // A node, in parentheses if it binds looser than `lowest`.
  void node(int32_t idx, int lowest) {
    if (text_.size() > kLargestText) {
      throw Error(ErrorCode::kUnsupported, "print: the text of the expression is too large");
    }
    const Node& current = expr_.node(idx);
    const auto args = expr_.args(idx);
    const Infix operation = infix(current.op);
    if (operation.text != nullptr) {
      parenthesised(operation.precedence < lowest, [&] { binary(current, args, operation); });
      return;
    }
    switch (current.op) {
      case Op::kBoolConst:
        text_ += current.int_value != 0 ? "(1 == 1)" : "(1 == 0)";
        return;
      case Op::kIntConst:
      case Op::kFloatConst:
        constant(current, lowest);
        return;
      case Op::kVariable:
        text_ += variable_name(current.variable);
        return;
      case Op::kParam:
        text_ += "param." + expr_.params[static_cast<size_t>(current.name_idx)];
        return;
      case Op::kLoad:
        text_ += expr_.aux[static_cast<size_t>(current.name_idx)].name;
        if (!args.empty()) list(args, "[", "]");
        return;
      case Op::kNeg:
      case Op::kNot:
        parenthesised(kUnary < lowest, [&] {
          text_ += current.op == Op::kNeg ? "-" : "!";
          node(args[0], kUnary);
        });
        return;
      case Op::kToBool:
        parenthesised(kEquality < lowest, [&] {
          node(args[0], kEquality);
          text_ += " != 0";
        });
        return;
      case Op::kSelect:
        parenthesised(kTernary < lowest, [&] { select(args); });
        return;
      default:
        text_ += function_name(current.op);
        list(args, "(", ")", is_float_function(current.op));
        return;
    }
  }

  template <typename F>
  void parenthesised(bool needed, F print_inside) {
    if (needed) text_ += "(";
    print_inside();
    if (needed) text_ += ")";
  }

  void binary(const Node& current, std::span<const int32_t> args, Infix operation) {
    const Node& right = expr_.node(args[1]);
    const bool subtracts = current.op == Op::kAdd && right.op == Op::kIntConst &&
                           right.int_value < 0 &&
                           right.int_value != std::numeric_limits<int64_t>::min();
    operand(args[0], args[1], operation.precedence);
    if (subtracts) {
      text_ += " - " + std::to_string(-right.int_value);
      return;
    }
    text_ += operation.text;
    operand(args[1], args[0], operation.precedence + 1);
  }

  void select(std::span<const int32_t> args) {
    node(args[0], kLogicalOr);
    text_ += " ? ";
    operand(args[1], args[2], kTernary);
    text_ += " : ";
    operand(args[2], args[1], kTernary);
  }

  // Beside a float an integer becomes one by itself.
  void operand(int32_t idx, int32_t other, int lowest) {
    const bool is_implied =
        expr_.node(idx).op == Op::kToFloat && expr_.node(other).op != Op::kToFloat;
    node(is_implied ? expr_.args(idx)[0] : idx, lowest);
  }

  void list(std::span<const int32_t> args, const char* open, const char* close,
            bool is_float = false) {
    text_ += open;
    for (size_t n = 0; n < args.size(); ++n) {
      if (n > 0) text_ += ", ";
      const bool is_implied = is_float && expr_.node(args[n]).op == Op::kToFloat;
      node(is_implied ? expr_.args(args[n])[0] : args[n], kTernary);
    }
    text_ += close;
  }

  void constant(const Node& current, int lowest) {
    if (current.type == Type::kInt) {
      const int64_t value = current.int_value;
      if (value == std::numeric_limits<int64_t>::min()) {
        text_ += "(" + std::to_string(value + 1) + " - 1)";
        return;
      }
      parenthesised(value < 0 && kUnary < lowest, [&] { text_ += std::to_string(value); });
      return;
    }
    const double value = current.float_value;
    if (std::isnan(value)) {
      text_ += "(0.0 / 0.0)";
    } else if (std::isinf(value)) {
      text_ += value > 0 ? "(1.0 / 0.0)" : "(-1.0 / 0.0)";
    } else {
      parenthesised(std::signbit(value) && kUnary < lowest, [&] { number(value); });
    }
  }

  void number(double value) {
    std::array<char, 40> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    const std::string_view written(digits.data(), static_cast<size_t>(end - digits.data()));
    text_ += written;
    if (written.find_first_of(".e") == std::string_view::npos) text_ += ".0";
  }

  static constexpr size_t kLargestText = 1 << 20;

  const Expr& expr_;
  std::string text_;
};

}  // namespace

std::string print(const Expr& expr, PrintStyle style) {
  if (style == PrintStyle::kText) return TextPrinter(expr).run();
  std::string text = print_device({&expr, 1});
  // One root: what would be its output is returned.
  const size_t last = text.rfind("out0 = ");
  return text.replace(last, 7, "return ");
}

}  // namespace flashtile::variant
