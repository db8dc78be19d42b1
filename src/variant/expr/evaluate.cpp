// SPDX-License-Identifier: Apache-2.0
#include "variant/expr/evaluate.hpp"

#include <cstring>

#include "core/float16.hpp"
#include "flashtile/error.hpp"
#include "variant/expr/scalar_ops.hpp"

namespace flashtile::variant {
namespace {

template <typename T>
T read(const TensorView& tensor, int64_t offset) {
  T value;  // copied, because a view may lie at any address
  std::memcpy(&value, static_cast<const char*>(tensor.data) + offset * int64_t{sizeof(T)},
              sizeof(T));
  return value;
}

void check(const AuxSignature& signature, const TensorView& tensor) {
  const bool is_int = tensor.dtype == DType::kI32 || tensor.dtype == DType::kI64;
  if (tensor.ndim != signature.rank ||
      (signature.is_float ? !is_floating(tensor.dtype) : !is_int)) {
    throw Error(ErrorCode::kInvalidArgument,
                "aux tensor '" + signature.name + "' is " + to_string(tensor) + ", expected " +
                    std::to_string(signature.rank) + " dimensions of " +
                    (signature.is_float ? "f64, f32, f16 or bf16" : "i32 or i64"));
  }
}

}  // namespace

int64_t Variables::integer(Variable variable) const {
  switch (variable) {
    case Variable::kScore:
      return 0;
    case Variable::kBatch:
      return batch;
    case Variable::kHead:
      return head;
    case Variable::kHeadKv:
      return head_kv;
    case Variable::kQIdx:
      return q_idx;
    case Variable::kKIdx:
      return k_idx;
    case Variable::kSeqlenQ:
      return seqlen_q;
    case Variable::kSeqlenK:
      return seqlen_k;
    case Variable::kQueryOffset:
      return query_offset;
    case Variable::kLeftpad:
      return leftpad;
  }
  return 0;
}

double read_float(const TensorView& tensor, int64_t offset) {
  switch (tensor.dtype) {
    case DType::kF64:
      return read<double>(tensor, offset);
    case DType::kF32:
      return static_cast<double>(read<float>(tensor, offset));
    case DType::kF16:
      return static_cast<double>(f16_to_float(read<uint16_t>(tensor, offset)));
    case DType::kBF16:
      return static_cast<double>(bf16_to_float(read<uint16_t>(tensor, offset)));
    default:
      return static_cast<double>(read_int(tensor, offset));
  }
}

int64_t read_int(const TensorView& tensor, int64_t offset) {
  return tensor.dtype == DType::kI32 ? read<int32_t>(tensor, offset)
                                     : read<int64_t>(tensor, offset);
}

Evaluator::Evaluator(const Expr& expr, std::span<const TensorView> aux,
                     std::span<const double> params)
    : expr_(expr),
      aux_(aux.begin(), aux.end()),
      params_(params.begin(), params.end()),
      values_(expr.nodes.size()),
      done_(expr.nodes.size(), 0) {
  if (expr.empty() || aux.size() != expr.aux.size() || params.size() != expr.params.size()) {
    throw Error(ErrorCode::kInternal,
                "an expression is evaluated with " + std::to_string(aux.size()) +
                    " aux tensors and " + std::to_string(params.size()) + " parameters, it has " +
                    std::to_string(expr.aux.size()) + " and " + std::to_string(expr.params.size()));
  }
  for (size_t n = 0; n < aux.size(); ++n) check(expr.aux[n], aux[n]);
}

void Evaluator::bind(std::span<const TensorView> aux) {
  for (size_t n = 0; n < aux_.size(); ++n) {
    check(expr_.aux[n], aux[n]);
    aux_[n] = aux[n];
  }
  clear_error();
}

Evaluator::Value Evaluator::run(const Variables& at) {
  at_ = at;
  ++run_;
  return eval(expr_.root());
}

double Evaluator::number(const Variables& at) {
  const Value value = run(at);
  return expr_.nodes.back().type == Type::kFloat ? value.f : static_cast<double>(value.i);
}

int64_t Evaluator::integer(const Variables& at) {
  const Value value = run(at);
  return expr_.nodes.back().type == Type::kFloat ? float_to_int(value.f) : value.i;
}

bool Evaluator::truth(const Variables& at) {
  const Value value = run(at);
  return expr_.nodes.back().type == Type::kFloat ? value.f != 0 : value.i != 0;
}

Evaluator::Value Evaluator::eval(int32_t idx) {
  const auto place = static_cast<size_t>(idx);
  if (done_[place] != run_) {
    // Set after the value: while the arguments are worked out this node is not yet known.
    values_[place] = compute(expr_.node(idx), expr_.args(idx));
    done_[place] = run_;
  }
  return values_[place];
}

Evaluator::Value Evaluator::compute(const Node& node, std::span<const int32_t> args) {
  switch (node.op) {
    case Op::kBoolConst:
    case Op::kIntConst:
      return {.i = node.int_value};
    case Op::kFloatConst:
      return {.f = node.float_value};
    case Op::kVariable:
      if (node.variable == Variable::kScore) return {.f = at_.score};
      return {.i = at_.integer(node.variable)};
    case Op::kParam:
      return {.f = params_[static_cast<size_t>(node.name_idx)]};
    case Op::kLoad:
      return load(node, args);
    case Op::kSelect:
      return eval(args[0]).i != 0 ? eval(args[1]) : eval(args[2]);
    case Op::kAnd:
      return {.i = eval(args[0]).i != 0 && eval(args[1]).i != 0};
    case Op::kOr:
      return {.i = eval(args[0]).i != 0 || eval(args[1]).i != 0};
    case Op::kNot:
      return {.i = eval(args[0]).i == 0};
    default:
      break;
  }
  const bool from_float = expr_.node(args[0]).type == Type::kFloat;
  const Value a = eval(args[0]);
  if (node.op == Op::kToInt) return {.i = from_float ? float_to_int(a.f) : a.i};
  if (node.op == Op::kToFloat) return {.f = static_cast<double>(a.i)};
  if (node.op == Op::kToBool) return {.i = from_float ? a.f != 0 : a.i != 0};
  const Value b = args.size() > 1 ? eval(args[1]) : Value{.i = 0};
  if (is_comparison(node.op)) {
    return {.i = from_float ? compare(node.op, a.f, b.f) : compare(node.op, a.i, b.i)};
  }
  if (from_float) return {.f = float_op(node.op, a.f, b.f)};
  return {.i = int_op(node.op, a.i, b.i)};
}

Evaluator::Value Evaluator::load(const Node& node, std::span<const int32_t> args) {
  const auto name = static_cast<size_t>(node.name_idx);
  const TensorView& tensor = aux_[name];
  int64_t offset = 0;
  for (size_t dim = 0; dim < args.size(); ++dim) {
    const int64_t index = eval(args[dim]).i;
    if (index < 0 || index >= tensor.shape[dim]) {
      if (!has_error_) {
        error_ = {expr_.aux[name].name, static_cast<int>(dim), index, tensor.shape[dim]};
        has_error_ = true;
      }
      if (node.type == Type::kFloat) return {.f = 0};
      return {.i = 0};
    }
    offset += index * tensor.strides[dim];
  }
  if (node.type == Type::kFloat) return {.f = read_float(tensor, offset)};
  return {.i = read_int(tensor, offset)};
}

}  // namespace flashtile::variant
