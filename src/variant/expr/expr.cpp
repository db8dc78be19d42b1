// SPDX-License-Identifier: Apache-2.0
#include "variant/expr/expr.hpp"

#include <algorithm>
#include <bit>

namespace flashtile::variant {
namespace {

bool same_node(const Expr& a, const Expr& b, int32_t idx) {
  const Node& x = a.node(idx);
  const Node& y = b.node(idx);
  return x.op == y.op && x.type == y.type && x.variable == y.variable && x.name_idx == y.name_idx &&
         x.int_value == y.int_value &&
         std::bit_cast<uint64_t>(x.float_value) == std::bit_cast<uint64_t>(y.float_value) &&
         std::ranges::equal(a.args(idx), b.args(idx));
}

}  // namespace

bool operator==(const Expr& a, const Expr& b) {
  if (a.nodes.size() != b.nodes.size() || a.aux != b.aux || a.params != b.params) return false;
  for (int32_t idx = 0; idx <= a.root(); ++idx) {
    if (!same_node(a, b, idx)) return false;
  }
  return true;
}

std::string_view variable_name(Variable variable) {
  switch (variable) {
    case Variable::kScore:
      return "score";
    case Variable::kBatch:
      return "batch";
    case Variable::kHead:
      return "head";
    case Variable::kHeadKv:
      return "head_kv";
    case Variable::kQIdx:
      return "q_idx";
    case Variable::kKIdx:
      return "k_idx";
    case Variable::kSeqlenQ:
      return "seqlen_q";
    case Variable::kSeqlenK:
      return "seqlen_k";
    case Variable::kQueryOffset:
      return "query_offset";
    case Variable::kLeftpad:
      return "leftpad";
  }
  return "";
}

Type variable_type(Variable variable) {
  return variable == Variable::kScore ? Type::kFloat : Type::kInt;
}

std::string_view type_name(Type type) {
  switch (type) {
    case Type::kBool:
      return "bool";
    case Type::kInt:
      return "int";
    case Type::kFloat:
      return "float";
  }
  return "";
}

}  // namespace flashtile::variant
