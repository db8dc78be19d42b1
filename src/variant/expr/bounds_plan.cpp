// SPDX-License-Identifier: Apache-2.0
#include "variant/expr/bounds_plan.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "variant/expr/access.hpp"
#include "variant/expr/linear.hpp"
#include "variant/expr/scalar_ops.hpp"

namespace flashtile::variant {
namespace {

using Kind = BoundsStep::Kind;

double size_of(int64_t factor) { return std::fabs(static_cast<double>(factor)); }

class Planner {
 public:
  Planner(const Expr& mask, std::span<const TensorView> aux, std::span<const double> params)
      : plan_(std::make_shared<BoundsPlan>()), params_(params.begin(), params.end()) {
    plan_->mask = rewrite_for_bounds(mask);
    // The rewritten mask may list its tensors and parameters in another order.
    for (const AuxSignature& signature : plan_->mask.aux) {
      const auto at = std::ranges::find(mask.aux, signature) - mask.aux.begin();
      aux_.push_back(aux[static_cast<size_t>(at)]);
      given_aux_.push_back(static_cast<size_t>(at));
    }
    params_.clear();
    for (const std::string& name : plan_->mask.params) {
      const auto at = std::ranges::find(mask.params, name) - mask.params.begin();
      params_.push_back(params[static_cast<size_t>(at)]);
    }
    uses_ = variables_of_nodes(plan_->mask);
    slots_.assign(plan_->mask.nodes.size(), -1);
  }

  std::shared_ptr<BoundsPlan> run() {
    plan_->root = slot(plan_->mask.root());
    return plan_;
  }

 private:
  const Expr& mask() const { return plan_->mask; }
  VariableSet uses(int32_t node) const { return uses_[static_cast<size_t>(node)]; }
  bool is_moving(int32_t node) const { return (uses(node) & (kQueryBit | kKeyBit)) != 0; }
  int32_t new_slot() { return plan_->num_slots++; }

  void add(int32_t node, const BoundsStep& step) {
    const size_t rank =
        ((uses(node) & kQueryBit) != 0 ? 1u : 0u) + ((uses(node) & kKeyBit) != 0 ? 2u : 0u);
    plan_->steps[rank].push_back(step);
  }

  // The slot of a node, planned with what it needs when it is first asked for.
  int32_t slot(int32_t node) {
    int32_t& known = slots_[static_cast<size_t>(node)];
    if (known < 0) {
      const int32_t made = make(node);
      slots_[static_cast<size_t>(node)] = made;
      return made;
    }
    return known;
  }

  int32_t make(int32_t idx) {
    const Node& node = mask().node(idx);
    switch (node.op) {
      case Op::kBoolConst:
      case Op::kIntConst:
      case Op::kFloatConst:
        plan_->constants.push_back({new_slot(), node.type, node.int_value, node.float_value});
        return plan_->num_slots - 1;
      case Op::kParam:
        plan_->constants.push_back(
            {new_slot(), Type::kFloat, 0, params_[static_cast<size_t>(node.name_idx)]});
        return plan_->num_slots - 1;
      case Op::kAnd:
        return make_group(idx);
      default:
        break;
    }
    BoundsStep step;
    step.op = node.op;
    step.type = node.type;
    step.variable = node.variable;
    if (is_comparison(node.op)) {
      plan_comparison(idx, &step);
    } else if (node.type == Type::kInt && is_linear(node)) {
      step.kind = Kind::kLinear;
      step.data = add_form(linear_form(mask(), idx), {linear_form(mask(), idx)});
    } else {
      plan_plain(idx, &step);
    }
    step.out = new_slot();
    add(idx, step);
    return step.out;
  }

  static bool is_linear(const Node& node) {
    if (node.op == Op::kVariable) {
      return node.variable == Variable::kQIdx || node.variable == Variable::kKIdx;
    }
    return node.op == Op::kAdd || node.op == Op::kSub || node.op == Op::kNeg;
  }

  void plan_plain(int32_t idx, BoundsStep* step) {
    const Node& node = mask().node(idx);
    if (node.op == Op::kLoad) {
      step->kind = Kind::kLoad;
      step->data = add_load(idx);
      return;
    }
    const auto args = mask().args(idx);
    for (size_t n = 0; n < args.size(); ++n) step->args[n] = slot(args[n]);
    switch (node.op) {
      case Op::kVariable:
        step->kind = Kind::kVariable;
        break;
      case Op::kToInt:
      case Op::kToFloat:
        step->kind = node.op == Op::kToInt ? Kind::kToInt : Kind::kToFloat;
        step->type = mask().node(args[0]).type;
        break;
      case Op::kSelect:
        step->kind = Kind::kSelect;
        break;
      case Op::kNot:
        step->kind = Kind::kNot;
        break;
      case Op::kOr:
        step->kind = Kind::kOr;
        break;
      default:
        step->kind = node.type == Type::kInt ? Kind::kInt : Kind::kFloat;
        break;
    }
  }

  // `form` with slots for its terms; guarded for the values of `parts` and all between.
  int32_t add_form(const LinearForm& form, std::initializer_list<LinearForm> parts) {
    BoundsForm out;
    out.q = form.q;
    out.k = form.k;
    out.constant = form.constant;
    for (const auto& term : form.terms) out.terms.push_back({slot(term.node), term.factor});
    for (const LinearForm& part : parts) {
      out.guard_q += size_of(part.q);
      out.guard_k += size_of(part.k);
      out.guard_constant += size_of(part.constant);
      for (const auto& term : part.terms) {
        out.guards.push_back({slot(term.node), size_of(term.factor)});
      }
    }
    plan_->forms.push_back(std::move(out));
    return static_cast<int32_t>(plan_->forms.size()) - 1;
  }

  void plan_comparison(int32_t idx, BoundsStep* step) {
    const auto args = mask().args(idx);
    const bool is_equality = step->op == Op::kEq || step->op == Op::kNe;
    if (mask().node(args[0]).type == Type::kFloat) {
      step->kind = Kind::kCompareFloat;
      step->args = {slot(args[0]), slot(args[1]), -1};
      return;
    }
    if (is_equality &&
        (plan_congruence(args[0], args[1], step) || plan_congruence(args[1], args[0], step))) {
      return;
    }
    const LinearForm left = linear_form(mask(), args[0]);
    const LinearForm right = linear_form(mask(), args[1]);
    LinearForm difference;
    if (subtract(left, right, &difference)) {
      step->kind = Kind::kCompareLinear;
      step->data = add_form(difference, {left, right});
      if (is_equality) step->equality = add_equality(args[0], args[1]);
    } else {
      step->kind = Kind::kCompareInt;
      step->args = {slot(args[0]), slot(args[1]), -1};
    }
  }

  bool plan_congruence(int32_t mod, int32_t remainder, BoundsStep* step) {
    const Node& node = mask().node(mod);
    if ((node.op != Op::kMod && node.op != Op::kFloorMod) || is_moving(remainder)) return false;
    const auto args = mask().args(mod);
    if (!is_moving(args[0]) || is_moving(args[1])) return false;
    const LinearForm form = linear_form(mask(), args[0]);
    BoundsCongruence congruence;
    congruence.form = add_form(form, {form});
    congruence.modulus = slot(args[1]);
    congruence.remainder = slot(remainder);
    congruence.op = node.op;
    congruence.equal = step->op == Op::kEq;
    plan_->congruences.push_back(congruence);
    step->kind = Kind::kCongruence;
    step->data = static_cast<int32_t>(plan_->congruences.size()) - 1;
    return true;
  }

  // The one dimension of a load whose index moves; -1 if there is none or more than one.
  int moving_dim(int32_t load) const {
    int found = -1;
    const auto args = mask().args(load);
    for (size_t d = 0; d < args.size(); ++d) {
      if (!is_moving(args[d])) continue;
      if (found >= 0) return -1;
      found = static_cast<int>(d);
    }
    return found;
  }

  int32_t add_load(int32_t idx) {
    const Node& node = mask().node(idx);
    const int dim = moving_dim(idx);
    const AuxIndex* index = nullptr;
    for (const AuxKey& each : aux_keys_) {
      if (each.name_idx == node.name_idx && each.dim == dim) index = each.index;
    }
    if (index == nullptr) {
      const auto name = static_cast<size_t>(node.name_idx);
      plan_->aux_indices.push_back(
          {std::make_unique<AuxIndex>(aux_[name], node.type == Type::kFloat, dim),
           given_aux_[name]});
      index = plan_->aux_indices.back().index.get();
      aux_keys_.push_back({node.name_idx, dim, index});
    }
    BoundsLoad load;
    load.index = index;
    for (const int32_t arg : mask().args(idx)) load.args.push_back(slot(arg));
    plan_->loads.push_back(std::move(load));
    return static_cast<int32_t>(plan_->loads.size()) - 1;
  }

  int32_t add_equality(int32_t a, int32_t b) {
    if (mask().node(a).op != Op::kLoad || mask().node(b).op != Op::kLoad) return -1;
    const int dim_a = moving_dim(a);
    const int dim_b = moving_dim(b);
    if (dim_a < 0 || dim_b < 0) return -1;
    const auto args_a = mask().args(a);
    const auto args_b = mask().args(b);
    const int32_t name_a = mask().node(a).name_idx;
    const int32_t name_b = mask().node(b).name_idx;
    bool same_line = name_a == name_b && dim_a == dim_b;
    for (size_t d = 0; same_line && d < args_a.size(); ++d) {
      same_line = static_cast<int>(d) == dim_a || args_a[d] == args_b[d];
    }
    BoundsEquality equality;
    equality.index =
        std::make_unique<EqualityIndex>(aux_[static_cast<size_t>(name_a)], dim_a,
                                        aux_[static_cast<size_t>(name_b)], dim_b, same_line);
    equality.aux_a = given_aux_[static_cast<size_t>(name_a)];
    equality.aux_b = given_aux_[static_cast<size_t>(name_b)];
    equality.a = add_load(a);
    equality.b = add_load(b);
    plan_->equalities.push_back(std::move(equality));
    return static_cast<int32_t>(plan_->equalities.size()) - 1;
  }

  void flatten(int32_t idx, std::vector<int32_t>* conjuncts) {
    if (mask().node(idx).op != Op::kAnd) {
      conjuncts->push_back(idx);
      return;
    }
    for (const int32_t arg : mask().args(idx)) flatten(arg, conjuncts);
  }

  int32_t make_group(int32_t idx) {
    std::vector<int32_t> nodes;
    flatten(idx, &nodes);
    BoundsGroup group;
    for (const int32_t node : nodes) {
      group.conjuncts.push_back(slot(node));
      if (is_comparison(mask().node(node).op)) add_to_group(node, &group);
    }
    plan_->groups.push_back(std::move(group));
    BoundsStep step;
    step.kind = Kind::kAll;
    step.data = static_cast<int32_t>(plan_->groups.size()) - 1;
    step.out = new_slot();
    add(idx, step);
    return step.out;
  }

  // What a planned comparison says about a direction.
  void add_to_group(int32_t node, BoundsGroup* group) {
    const BoundsStep* step = step_of(node);
    if (step == nullptr ||
        (step->kind != Kind::kCompareLinear && step->kind != Kind::kCongruence)) {
      return;
    }
    const bool is_residue = step->kind == Kind::kCongruence;
    if (!is_residue && step->op == Op::kNe) return;
    const int32_t form_idx =
        is_residue ? plan_->congruences[static_cast<size_t>(step->data)].form : step->data;
    const BoundsForm& form = plan_->forms[static_cast<size_t>(form_idx)];
    constexpr int64_t kLargestFactor = int64_t{1} << 31;
    if ((form.q == 0 && form.k == 0) || size_of(form.q) > size_of(kLargestFactor) ||
        size_of(form.k) > size_of(kLargestFactor)) {
      return;
    }
    int64_t scale = std::gcd(form.q, form.k);
    if (form.q < 0 || (form.q == 0 && form.k < 0)) scale = -scale;
    if (is_residue && scale != 1 && scale != -1) return;
    const int32_t direction = direction_of({form.q / scale, form.k / scale}, group);
    if (direction < 0) return;
    if (is_residue) {
      group->residues.push_back({step->data, direction, scale});
    } else {
      group->constraints.push_back({form_idx, direction, scale, step->op});
    }
  }

  const BoundsStep* step_of(int32_t node) const {
    for (const auto& steps : plan_->steps) {
      for (const BoundsStep& step : steps) {
        if (step.out == slots_[static_cast<size_t>(node)]) return &step;
      }
    }
    return nullptr;
  }

  static int32_t direction_of(BoundsGroup::Direction wanted, BoundsGroup* group) {
    for (size_t n = 0; n < group->directions.size(); ++n) {
      const auto& each = group->directions[n];
      if (each.q == wanted.q && each.k == wanted.k) return static_cast<int32_t>(n);
    }
    if (group->directions.size() == BoundsGroup::kMaxDirections) return -1;
    group->directions.push_back(wanted);
    return static_cast<int32_t>(group->directions.size()) - 1;
  }

  struct AuxKey {
    int32_t name_idx;
    int dim;
    const AuxIndex* index;
  };

  std::shared_ptr<BoundsPlan> plan_;
  std::vector<TensorView> aux_;
  std::vector<size_t> given_aux_;  // places of aux_ in the mask that was given
  std::vector<double> params_;
  std::vector<VariableSet> uses_;
  std::vector<int32_t> slots_;  // of the nodes of the mask; -1 while not planned
  std::vector<AuxKey> aux_keys_;
};

}  // namespace

void BoundsPlan::read(std::span<const TensorView> aux) {
  for (const BoundsAux& each : aux_indices) each.index->read(aux[each.aux]);
  for (const BoundsEquality& each : equalities) each.index->read(aux[each.aux_a], aux[each.aux_b]);
}

std::shared_ptr<BoundsPlan> plan_bounds(const Expr& mask, std::span<const TensorView> aux,
                                        std::span<const double> params) {
  return Planner(mask, aux, params).run();
}

}  // namespace flashtile::variant
