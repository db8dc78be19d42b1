// SPDX-License-Identifier: Apache-2.0
#include "variant/expr/lower.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "flashtile/error.hpp"
#include "variant/expr/builder.hpp"

namespace flashtile::variant {
namespace {

using Id = ExprBuilder::Id;

constexpr size_t kMaxInstructions = 1 << 16;

Rank later(Rank a, Rank b) {
  return static_cast<Rank>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}

// Turns nodes into instructions over values, each made once. A load belongs to a path: the same
// element read under two conditions that exclude each other is two instructions, because neither
// may run ahead of its condition.
class Lowering {
 public:
  Lowered run(std::span<const Expr> roots) {
    std::vector<Id> ids;
    for (const Expr& root : roots) ids.push_back(builder_.import(root));
    find_loads();
    std::vector<int32_t> values;
    for (const Id id : ids) values.push_back(emit(id, kAlways));
    return {std::move(values_), std::move(values), std::move(aux_), std::move(params_)};
  }

 private:
  // A path: the conditions on the way from a root, the last one first.
  struct Path {
    int32_t parent;
    Id condition;
    bool positive;
    int32_t predicate = -1;  // its value, once a load has asked for it
  };
  static constexpr int32_t kAlways = 0;

  void find_loads() {
    for (Id id = 0; id < builder_.size(); ++id) {
      bool reads = builder_.node(id).op == Op::kLoad;
      for (const Id arg : builder_.args(id)) reads = reads || reads_[static_cast<size_t>(arg)];
      reads_.push_back(reads);
    }
  }

  int32_t extend(int32_t path, Id condition, bool positive) {
    for (int32_t at = path; at != kAlways; at = paths_[static_cast<size_t>(at)].parent) {
      const Path& known = paths_[static_cast<size_t>(at)];
      if (known.condition == condition && known.positive == positive) return path;
    }
    const auto [found, is_new] =
        path_of_.try_emplace({path, condition, positive}, static_cast<int32_t>(paths_.size()));
    if (is_new) paths_.push_back({path, condition, positive});
    return found->second;
  }

  // The value of a node where `path` is taken; elsewhere its lanes hold anything.
  int32_t emit(Id id, int32_t path) {
    if (!reads_[static_cast<size_t>(id)]) path = kAlways;
    // What was worked out for a shorter path holds on this one too.
    for (int32_t at = path;; at = paths_[static_cast<size_t>(at)].parent) {
      if (const auto found = value_of_.find({id, at}); found != value_of_.end()) {
        return found->second;
      }
      if (at == kAlways) break;
    }
    const int32_t value = emit_new(id, path);
    value_of_.emplace(std::pair{id, path}, value);
    return value;
  }

  int32_t emit_new(Id id, int32_t path) {
    const Node node = builder_.node(id);
    const std::vector<Id> args(builder_.args(id).begin(), builder_.args(id).end());
    StripValue value;
    value.type = node.type;
    StripInstruction& instruction = value.instruction;
    instruction.op = node.op;
    instruction.type = node.type;
    instruction.variable = node.variable;
    instruction.int_value = node.int_value;
    instruction.float_value = static_cast<float>(node.float_value);
    switch (node.op) {
      case Op::kVariable:
        value.rank = rank_of(node.variable);
        break;
      case Op::kParam:
        instruction.aux = name_idx(params_, builder_.param_name(node.name_idx));
        break;
      case Op::kSelect:
        value.args.push_back(emit(args[0], path));
        value.args.push_back(emit(args[1], extend(path, args[0], true)));
        value.args.push_back(emit(args[2], extend(path, args[0], false)));
        break;
      case Op::kAnd:
      case Op::kOr:
        value.args.push_back(emit(args[0], path));
        value.args.push_back(emit(args[1], extend(path, args[0], node.op == Op::kAnd)));
        break;
      default:
        for (const Id arg : args) value.args.push_back(emit(arg, path));
        // The type of the arguments says which arithmetic it is.
        if (!args.empty() && node.op != Op::kLoad) instruction.type = builder_.type(args[0]);
        break;
    }
    if (node.op == Op::kLoad) {
      instruction.aux = name_idx(aux_, builder_.aux(node.name_idx));
      value.predicate = predicate(path);
    }
    return append(std::move(value));
  }

  int32_t append(StripValue value) {
    if (values_.size() >= kMaxInstructions) {
      throw Error(ErrorCode::kUnsupported, "an expression and its derivatives take more than " +
                                               std::to_string(kMaxInstructions) + " instructions");
    }
    for (const int32_t arg : value.args) {
      value.rank = later(value.rank, values_[static_cast<size_t>(arg)].rank);
    }
    if (value.predicate >= 0) {
      value.rank = later(value.rank, values_[static_cast<size_t>(value.predicate)].rank);
    }
    values_.push_back(std::move(value));
    return static_cast<int32_t>(values_.size()) - 1;
  }

  // A bool that is true where the path is taken; -1 for always.
  int32_t predicate(int32_t path) {
    if (path == kAlways) return -1;
    const Path at = paths_[static_cast<size_t>(path)];
    if (at.predicate >= 0) return at.predicate;
    const int32_t before = predicate(at.parent);
    int32_t here = emit(at.condition, at.parent);
    if (!at.positive) here = append(logic(Op::kNot, {here}));
    if (before >= 0) here = append(logic(Op::kAnd, {before, here}));
    paths_[static_cast<size_t>(path)].predicate = here;
    return here;
  }

  static StripValue logic(Op op, std::vector<int32_t> args) {
    StripValue value;
    value.type = Type::kBool;
    value.instruction.op = op;
    value.instruction.type = Type::kBool;
    value.args = std::move(args);
    return value;
  }

  static Rank rank_of(Variable variable) {
    if (variable == Variable::kScore) return Rank::kElement;
    if (variable == Variable::kQIdx) return Rank::kRow;
    return variable == Variable::kKIdx ? Rank::kColumn : Rank::kTile;
  }

  template <typename T>
  static int32_t name_idx(std::vector<T>& names, const T& name) {
    const auto found = std::ranges::find(names, name);
    const auto idx = static_cast<int32_t>(found - names.begin());
    if (found == names.end()) names.push_back(name);
    return idx;
  }

  ExprBuilder builder_;
  std::vector<bool> reads_;  // whether a node contains a load
  std::vector<Path> paths_{{-1, -1, true}};
  std::map<std::tuple<int32_t, Id, bool>, int32_t> path_of_;
  std::map<std::pair<Id, int32_t>, int32_t> value_of_;
  std::vector<StripValue> values_;
  std::vector<AuxSignature> aux_;
  std::vector<std::string> params_;
};

}  // namespace

Lowered lower(std::span<const Expr> roots) { return Lowering().run(roots); }

}  // namespace flashtile::variant
