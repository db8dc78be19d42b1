// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "variant/expr/expr.hpp"

namespace flashtile::variant {

/// Builds expressions from the leaves up. Equal subtrees become one node, constants are folded, and
/// what is exact in every case is simplified: x + 0, select(c, a, a), !!x; but not 0.0 * x, which
/// is NaN for an infinite x. Arguments are brought to the types that an operation takes.
///
/// Throws Error(kInvalidArgument) for types that have no conversion (a float where an integer is
/// needed) and for aux tensors of one name with different signatures.
class ExprBuilder {
 public:
  using Id = int32_t;

  Id bool_const(bool value);
  Id int_const(int64_t value);
  Id float_const(double value);
  Id variable(Variable variable);
  Id param(std::string_view name);
  /// Element `index` of an aux tensor; a float or an int, as the signature says.
  Id load(const AuxSignature& aux, std::span<const Id> index);

  /// kNeg, kAbs, kNot, kExp .. kFloor and the conversions.
  Id unary(Op op, Id a);
  /// Everything of two arguments.
  Id binary(Op op, Id a, Id b);
  Id select(Id condition, Id yes, Id no);

  Id neg(Id a) { return unary(Op::kNeg, a); }
  Id add(Id a, Id b) { return binary(Op::kAdd, a, b); }
  Id sub(Id a, Id b) { return binary(Op::kSub, a, b); }
  Id mul(Id a, Id b) { return binary(Op::kMul, a, b); }
  Id div(Id a, Id b) { return binary(Op::kDiv, a, b); }
  Id logical_not(Id a) { return unary(Op::kNot, a); }
  Id logical_and(Id a, Id b) { return binary(Op::kAnd, a, b); }
  Id logical_or(Id a, Id b) { return binary(Op::kOr, a, b); }
  Id to_int(Id a);
  Id to_float(Id a);
  Id to_bool(Id a);
  Id convert(Id a, Type type);

  Type type(Id id) const { return pool_.node(id).type; }
  const Node& node(Id id) const { return pool_.node(id); }
  std::span<const Id> args(Id id) const { return pool_.args(id); }
  const AuxSignature& aux(int32_t name_idx) const {
    return pool_.aux[static_cast<size_t>(name_idx)];
  }
  const std::string& param_name(int32_t name_idx) const {
    return pool_.params[static_cast<size_t>(name_idx)];
  }
  /// Nodes so far: ids are 0 .. size() - 1, arguments before their users.
  Id size() const { return static_cast<Id>(pool_.nodes.size()); }
  bool is_int_const(Id id, int64_t value) const;
  /// True for a float constant that equals `value`; -0.0 equals 0.0.
  bool is_float_const(Id id, double value) const;

  /// Adds all of `expr`; returns its root. With `score` >= 0 that node stands for kScore.
  Id import(const Expr& expr, Id score = -1);
  /// The same, and the ids of every node of `expr`.
  std::vector<Id> import_nodes(const Expr& expr, Id score = -1);

  /// The expression with this root: what it reaches and nothing else, in an order that depends on
  /// the expression only.
  Expr build(Id root) const;

 private:
  Id make(Node node, std::span<const Id> args);
  Id make1(Op op, Type type, Id a);
  Id make2(Op op, Type type, Id a, Id b);
  Id rebuild(const Expr& expr, const Node& node, std::span<const Id> args);
  int32_t aux_idx(const AuxSignature& signature);

  bool is_const(Id id) const;
  bool bool_value(Id id) const { return node(id).int_value != 0; }
  Id number(Id a);  // bool -> int
  Id integer(Id a, Op op);
  Id fold1(Op op, Id a);
  Id fold2(Op op, Id a, Id b);
  Id compare(Op op, Id a, Id b);
  Id compare_bool_as_int(Op op, Id a, Id b);
  Id simplify_int(Op op, Id a, Id b);
  Id simplify_float(Op op, Id a, Id b);
  Id chain(Op op, Id a, Id b);  // kAnd, kOr
  bool chain_contains(Op op, Id chain, Id part) const;
  Id select_bool(Id condition, Id yes, Id no);

  Expr pool_;
  std::unordered_multimap<size_t, Id> by_hash_;
};

}  // namespace flashtile::variant
