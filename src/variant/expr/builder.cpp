// SPDX-License-Identifier: Apache-2.0
#include "variant/expr/builder.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

#include "flashtile/error.hpp"
#include "variant/expr/scalar_ops.hpp"

namespace flashtile::variant {
namespace {

size_t hash_node(const Node& node, std::span<const int32_t> args) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto mix = [&hash](uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15 + (hash >> 29);
  };
  mix(static_cast<uint64_t>(node.op) | static_cast<uint64_t>(node.type) << 8 |
      static_cast<uint64_t>(node.variable) << 16);
  mix(static_cast<uint64_t>(node.name_idx));
  mix(static_cast<uint64_t>(node.int_value));
  mix(std::bit_cast<uint64_t>(node.float_value));
  for (const int32_t arg : args) mix(static_cast<uint64_t>(arg));
  return static_cast<size_t>(hash);
}

bool same(const Node& a, const Node& b) {
  return a.op == b.op && a.type == b.type && a.variable == b.variable && a.name_idx == b.name_idx &&
         a.int_value == b.int_value &&
         std::bit_cast<uint64_t>(a.float_value) == std::bit_cast<uint64_t>(b.float_value);
}

[[noreturn]] void fail(const std::string& text) { throw Error(ErrorCode::kInvalidArgument, text); }

}  // namespace

ExprBuilder::Id ExprBuilder::make(Node node, std::span<const Id> args) {
  const size_t hash = hash_node(node, args);
  const auto [first, last] = by_hash_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (same(pool_.node(it->second), node) && std::ranges::equal(pool_.args(it->second), args)) {
      return it->second;
    }
  }
  const std::vector<Id> copy(args.begin(), args.end());  // args may lie in pool_.arguments
  node.first_argument = static_cast<int32_t>(pool_.arguments.size());
  node.num_arguments = static_cast<int32_t>(copy.size());
  pool_.arguments.insert(pool_.arguments.end(), copy.begin(), copy.end());
  pool_.nodes.push_back(node);
  by_hash_.emplace(hash, pool_.root());
  return pool_.root();
}

ExprBuilder::Id ExprBuilder::make1(Op op, Type type, Id a) {
  Node node;
  node.op = op;
  node.type = type;
  return make(node, std::array{a});
}

ExprBuilder::Id ExprBuilder::make2(Op op, Type type, Id a, Id b) {
  Node node;
  node.op = op;
  node.type = type;
  return make(node, std::array{a, b});
}

ExprBuilder::Id ExprBuilder::bool_const(bool value) {
  Node node;
  node.op = Op::kBoolConst;
  node.type = Type::kBool;
  node.int_value = value ? 1 : 0;
  return make(node, {});
}

ExprBuilder::Id ExprBuilder::int_const(int64_t value) {
  Node node;
  node.op = Op::kIntConst;
  node.type = Type::kInt;
  node.int_value = value;
  return make(node, {});
}

ExprBuilder::Id ExprBuilder::float_const(double value) {
  Node node;
  node.op = Op::kFloatConst;
  node.type = Type::kFloat;
  // One NaN, so that equal expressions have equal bits.
  node.float_value = std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
  return make(node, {});
}

ExprBuilder::Id ExprBuilder::variable(Variable variable) {
  Node node;
  node.op = Op::kVariable;
  node.type = variable_type(variable);
  node.variable = variable;
  return make(node, {});
}

ExprBuilder::Id ExprBuilder::param(std::string_view name) {
  const auto found = std::ranges::find(pool_.params, name);
  Node node;
  node.op = Op::kParam;
  node.type = Type::kFloat;
  node.name_idx = static_cast<int32_t>(found - pool_.params.begin());
  if (found == pool_.params.end()) pool_.params.emplace_back(name);
  return make(node, {});
}

int32_t ExprBuilder::aux_idx(const AuxSignature& signature) {
  const auto found = std::ranges::find(pool_.aux, signature.name, &AuxSignature::name);
  const auto idx = static_cast<int32_t>(found - pool_.aux.begin());
  if (found == pool_.aux.end()) {
    pool_.aux.push_back(signature);
  } else if (*found != signature) {
    fail("aux tensor '" + signature.name + "' is used with two different ranks or types");
  }
  return idx;
}

ExprBuilder::Id ExprBuilder::load(const AuxSignature& aux, std::span<const Id> index) {
  if (static_cast<int>(index.size()) != aux.rank) {
    fail("aux tensor '" + aux.name + "' takes " + std::to_string(aux.rank) + " indices, found " +
         std::to_string(index.size()));
  }
  std::vector<Id> places;
  for (const Id id : index) {
    if (type(id) == Type::kFloat) fail("an index of aux tensor '" + aux.name + "' is a float");
    places.push_back(to_int(id));
  }
  Node node;
  node.op = Op::kLoad;
  node.type = aux.is_float ? Type::kFloat : Type::kInt;
  node.name_idx = aux_idx(aux);
  return make(node, places);
}

bool ExprBuilder::is_int_const(Id id, int64_t value) const {
  return node(id).op == Op::kIntConst && node(id).int_value == value;
}

bool ExprBuilder::is_float_const(Id id, double value) const {
  return node(id).op == Op::kFloatConst && node(id).float_value == value;
}

std::vector<ExprBuilder::Id> ExprBuilder::import_nodes(const Expr& expr, Id score) {
  std::vector<Id> ids;
  std::vector<Id> args;
  for (int32_t idx = 0; idx <= expr.root(); ++idx) {
    const Node& node = expr.node(idx);
    args.clear();
    for (const int32_t arg : expr.args(idx)) args.push_back(ids[static_cast<size_t>(arg)]);
    const bool is_score = node.op == Op::kVariable && node.variable == Variable::kScore;
    ids.push_back(is_score && score >= 0 ? to_float(score) : rebuild(expr, node, args));
  }
  return ids;
}

ExprBuilder::Id ExprBuilder::import(const Expr& expr, Id score) {
  if (expr.empty()) fail("an expression is empty");
  return import_nodes(expr, score).back();
}

ExprBuilder::Id ExprBuilder::rebuild(const Expr& expr, const Node& node, std::span<const Id> args) {
  switch (node.op) {
    case Op::kBoolConst:
      return bool_const(node.int_value != 0);
    case Op::kIntConst:
      return int_const(node.int_value);
    case Op::kFloatConst:
      return float_const(node.float_value);
    case Op::kVariable:
      return variable(node.variable);
    case Op::kParam:
      return param(expr.params[static_cast<size_t>(node.name_idx)]);
    case Op::kLoad:
      return load(expr.aux[static_cast<size_t>(node.name_idx)], args);
    case Op::kSelect:
      return select(args[0], args[1], args[2]);
    default:
      return args.size() == 1 ? unary(node.op, args[0]) : binary(node.op, args[0], args[1]);
  }
}

Expr ExprBuilder::build(Id root) const {
  Expr out;
  std::vector<int32_t> place(pool_.nodes.size(), -1);
  std::vector<std::pair<Id, size_t>> stack{{root, 0}};  // a node and how many arguments are done
  while (!stack.empty()) {
    auto& [id, done] = stack.back();
    const auto args = pool_.args(id);
    if (place[static_cast<size_t>(id)] >= 0) {
      stack.pop_back();
      continue;
    }
    if (done < args.size()) {
      const Id next = args[done++];
      stack.emplace_back(next, 0);
      continue;
    }
    Node node = pool_.node(id);
    node.first_argument = static_cast<int32_t>(out.arguments.size());
    for (const Id arg : args) out.arguments.push_back(place[static_cast<size_t>(arg)]);
    if (node.op == Op::kLoad) {
      const AuxSignature& signature = aux(node.name_idx);
      const auto found = std::ranges::find(out.aux, signature);
      node.name_idx = static_cast<int32_t>(found - out.aux.begin());
      if (found == out.aux.end()) out.aux.push_back(signature);
    } else if (node.op == Op::kParam) {
      const std::string& name = pool_.params[static_cast<size_t>(node.name_idx)];
      const auto found = std::ranges::find(out.params, name);
      node.name_idx = static_cast<int32_t>(found - out.params.begin());
      if (found == out.params.end()) out.params.push_back(name);
    }
    place[static_cast<size_t>(id)] = static_cast<int32_t>(out.nodes.size());
    out.nodes.push_back(node);
    stack.pop_back();
  }
  return out;
}

}  // namespace flashtile::variant
