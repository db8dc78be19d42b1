// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "variant/expr/op.hpp"

namespace flashtile::variant {

struct Node {
  Op op = Op::kBoolConst;
  Type type = Type::kBool;
  Variable variable = Variable::kScore;
  int32_t name_idx = -1;
  int32_t first_argument = 0;  ///< into Expr::arguments
  int32_t num_arguments = 0;
  int64_t int_value = 0;   ///< of kIntConst; of kBoolConst 0 or 1
  double float_value = 0;  ///< of kFloatConst
};

/// What an expression may read: the aux tensors, by name.
struct AuxSignature {
  std::string name;
  int rank = 0;
  bool is_float = false;
  bool operator==(const AuxSignature&) const = default;
};

/// A typed expression: nodes in an order where arguments come before their users; the last is the
/// root. Equal subtrees are one node. A value; cheap to copy for the sizes that occur.
struct Expr {
  std::vector<Node> nodes;
  std::vector<int32_t> arguments;
  std::vector<AuxSignature> aux;    ///< those that are read, by Node::name_idx
  std::vector<std::string> params;  ///< those that are read, by Node::name_idx

  int32_t root() const { return static_cast<int32_t>(nodes.size()) - 1; }
  bool empty() const { return nodes.empty(); }
  const Node& node(int32_t idx) const { return nodes[static_cast<size_t>(idx)]; }
  std::span<const int32_t> args(int32_t idx) const {
    return {arguments.data() + node(idx).first_argument,
            static_cast<size_t>(node(idx).num_arguments)};
  }
};

/// True if both are the same expression, node by node. Float constants are compared by their bits.
bool operator==(const Expr& a, const Expr& b);

/// "score", "batch", ..., as texts write it.
std::string_view variable_name(Variable variable);

/// The type of a variable: kFloat for the score, else kInt.
Type variable_type(Variable variable);

/// "bool", "int" or "float".
std::string_view type_name(Type type);

}  // namespace flashtile::variant
