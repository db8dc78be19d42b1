// SPDX-License-Identifier: Apache-2.0
#include "variant/expr/bounds.hpp"

#include <algorithm>
#include <cmath>

#include "variant/expr/bounds_plan.hpp"
#include "variant/expr/scalar_ops.hpp"

namespace flashtile::variant {
namespace {

using Kind = BoundsStep::Kind;

constexpr double kSafeSize = 0x1p62;  // sums of sizes below it stay inside 64 bits

double size_of(IntRange range) {
  return std::max(std::fabs(static_cast<double>(range.lo)),
                  std::fabs(static_cast<double>(range.hi)));
}

// range += factor * part, known not to overflow.
void accumulate(IntRange* range, int64_t factor, IntRange part) {
  const int64_t a = factor * part.lo;
  const int64_t b = factor * part.hi;
  range->lo += std::min(a, b);
  range->hi += std::max(a, b);
}

bool intersect(IntRange* range, IntRange with) {
  range->lo = std::max(range->lo, with.lo);
  range->hi = std::min(range->hi, with.hi);
  return range->lo <= range->hi;
}

// Whether some, or every, x of the range has x mod m == r.
Truth bound_congruence(Op op, IntRange x, int64_t m, int64_t r) {
  if (x.is_point() || m == 0 || m == 1 || m == -1) {
    if (m == 0 || m == 1 || m == -1) return truth_of(r == 0);
    return truth_of(int_op(op, x.lo, m) == r);
  }
  if (m == std::numeric_limits<int64_t>::min()) return Truth::kMaybe;
  const int64_t size = m < 0 ? -m : m;
  const bool can_be = op == Op::kMod ? r > -size && r < size
                                     : r == 0 || ((r < 0) == (m < 0) && r > -size && r < size);
  if (!can_be) return Truth::kFalse;
  if (op == Op::kMod && r > 0) x.lo = std::max<int64_t>(x.lo, 1);
  if (op == Op::kMod && r < 0) x.hi = std::min<int64_t>(x.hi, -1);
  if (x.lo > x.hi) return Truth::kFalse;
  // The first x from lo on with the remainder: at a distance below |m|.
  const int64_t distance = floor_mod(floor_mod(r, size) - floor_mod(x.lo, size), size);
  return static_cast<uint64_t>(distance) <=
                 static_cast<uint64_t>(x.hi) - static_cast<uint64_t>(x.lo)
             ? Truth::kMaybe
             : Truth::kFalse;
}

}  // namespace

struct Bounds::Runner {
  const BoundsPlan& plan;
  const std::array<int64_t, kNumVariables>& uniform;
  Slot* slots;
  IntRange q;
  IntRange k;

  Slot& slot(int32_t idx) const { return slots[static_cast<size_t>(idx)]; }

  void run(const std::vector<BoundsStep>& steps) const {
    for (const BoundsStep& step : steps) run(step);
  }

  void run(const BoundsStep& step) const {
    Slot& out = slot(step.out);
    switch (step.kind) {
      case Kind::kVariable: {
        const int64_t value = uniform[static_cast<size_t>(step.variable)];
        out.i = {value, value};
        break;
      }
      case Kind::kLinear:
        if (!form(step.data, &out.i)) out.i = {};
        break;
      case Kind::kInt:
        out.i = bound_int_op(step.op, slot(step.args[0]).i,
                             step.args[1] < 0 ? IntRange{0, 0} : slot(step.args[1]).i);
        break;
      case Kind::kFloat:
        out.f = bound_float_op(step.op, slot(step.args[0]).f,
                               step.args[1] < 0 ? Interval{0, 0, false} : slot(step.args[1]).f);
        break;
      case Kind::kToInt:
        out.i = step.type == Type::kBool ? bool_range(slot(step.args[0]).t)
                                         : bound_to_int(slot(step.args[0]).f);
        break;
      case Kind::kToFloat:
        out.f = bound_to_float(step.type == Type::kBool ? bool_range(slot(step.args[0]).t)
                                                        : slot(step.args[0]).i);
        break;
      case Kind::kLoad:
        load(step, &out);
        break;
      case Kind::kSelect:
        select(step, &out);
        break;
      default:
        out.t = truth(step);
        break;
    }
  }

  static IntRange bool_range(Truth truth) {
    return {truth == Truth::kTrue ? 1 : 0, truth == Truth::kFalse ? 0 : 1};
  }

  Truth truth(const BoundsStep& step) const {
    switch (step.kind) {
      case Kind::kCompareLinear:
        return compare_linear(step);
      case Kind::kCompareInt:
        return bound_comparison(step.op, slot(step.args[0]).i, slot(step.args[1]).i);
      case Kind::kCompareFloat:
        return bound_comparison(step.op, slot(step.args[0]).f, slot(step.args[1]).f);
      case Kind::kCongruence: {
        const BoundsCongruence& congruence = plan.congruences[static_cast<size_t>(step.data)];
        IntRange x;
        if (!form(congruence.form, &x)) x = {};
        return residue(congruence, x);
      }
      case Kind::kNot:
        return truth_not(slot(step.args[0]).t);
      case Kind::kOr:
        return truth_or(slot(step.args[0]).t, slot(step.args[1]).t);
      case Kind::kAll:
        return all(plan.groups[static_cast<size_t>(step.data)]);
      default:
        return Truth::kMaybe;
    }
  }

  // The range of a form; false where an overflow is possible.
  bool form(int32_t idx, IntRange* range) const {
    const BoundsForm& form = plan.forms[static_cast<size_t>(idx)];
    if (!is_safe(form)) return false;
    *range = rest(form);
    accumulate(range, form.q, q);
    accumulate(range, form.k, k);
    return true;
  }

  bool is_safe(const BoundsForm& form) const {
    double size = form.guard_constant + form.guard_q * size_of(q) + form.guard_k * size_of(k);
    for (const auto& guard : form.guards) size += guard.factor * size_of(slot(guard.slot).i);
    return size < kSafeSize;
  }

  IntRange rest(const BoundsForm& form) const {
    IntRange range{form.constant, form.constant};
    for (const auto& term : form.terms) accumulate(&range, term.factor, slot(term.slot).i);
    return range;
  }

  Truth compare_linear(const BoundsStep& step) const {
    Truth found = Truth::kMaybe;
    IntRange range;
    if (form(step.data, &range)) found = bound_comparison(step.op, range, IntRange{0, 0});
    if (found != Truth::kMaybe || step.equality < 0) return found;
    const BoundsEquality& equality = plan.equalities[static_cast<size_t>(step.equality)];
    std::array<IntRange, TensorView::kMaxDims> a;
    std::array<IntRange, TensorView::kMaxDims> b;
    gather(plan.loads[static_cast<size_t>(equality.a)], a.data());
    gather(plan.loads[static_cast<size_t>(equality.b)], b.data());
    if (equality.index->may_be_equal(a.data(), b.data())) return Truth::kMaybe;
    return truth_of(step.op == Op::kNe);
  }

  void gather(const BoundsLoad& load, IntRange* index) const {
    for (size_t d = 0; d < load.args.size(); ++d) index[d] = slot(load.args[d]).i;
  }

  void load(const BoundsStep& step, Slot* out) const {
    const BoundsLoad& load = plan.loads[static_cast<size_t>(step.data)];
    std::array<IntRange, TensorView::kMaxDims> index;
    gather(load, index.data());
    if (step.type == Type::kFloat) {
      out->f = load.index->floats(index.data());
    } else {
      out->i = load.index->ints(index.data());
    }
  }

  void select(const BoundsStep& step, Slot* out) const {
    const Truth condition = slot(step.args[0]).t;
    const Slot& yes = slot(step.args[1]);
    const Slot& no = slot(step.args[2]);
    if (condition != Truth::kMaybe) {
      *out = condition == Truth::kTrue ? yes : no;
    } else if (step.type == Type::kFloat) {
      out->f = hull(yes.f, no.f);
    } else if (step.type == Type::kBool) {
      out->t = yes.t == no.t ? yes.t : Truth::kMaybe;
    } else {
      out->i = hull(yes.i, no.i);
    }
  }

  Truth residue(const BoundsCongruence& congruence, IntRange x) const {
    const IntRange m = slot(congruence.modulus).i;
    const IntRange r = slot(congruence.remainder).i;
    if (!m.is_point() || !r.is_point()) return Truth::kMaybe;
    const Truth equal = bound_congruence(congruence.op, x, m.lo, r.lo);
    return congruence.equal ? equal : truth_not(equal);
  }

  Truth all(const BoundsGroup& group) const {
    Truth found = Truth::kTrue;
    for (const int32_t conjunct : group.conjuncts) found = truth_and(found, slot(conjunct).t);
    return found == Truth::kMaybe && is_contradiction(group) ? Truth::kFalse : found;
  }

  // Whether the linear conjuncts leave no pair, although each of them leaves some. Ranges of the
  // directions, of q_idx and of k_idx are cut by all conjuncts and by each other.
  bool is_contradiction(const BoundsGroup& group) const {
    constexpr double kFactors = 0x1p31;  // at least the factors of every direction
    if (group.constraints.size() + group.residues.size() < 2 ||
        (size_of(q) + size_of(k)) * kFactors >= kSafeSize) {
      return false;
    }
    std::array<IntRange, BoundsGroup::kMaxDirections> ranges;
    for (const auto& constraint : group.constraints) {
      IntRange bound;
      if (constraint_range(constraint, &bound) &&
          !intersect(&ranges[static_cast<size_t>(constraint.direction)], bound)) {
        return true;
      }
    }
    IntRange of_q = q;
    IntRange of_k = k;
    // Twice: what one direction takes from q_idx and k_idx may take from another.
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t n = 0; n < group.directions.size(); ++n) {
        if (!narrow(group.directions[n], &ranges[n], &of_q, &of_k)) return true;
      }
    }
    return std::ranges::any_of(group.residues, [&](const auto& each) {
      const BoundsCongruence& congruence = plan.congruences[static_cast<size_t>(each.congruence)];
      const BoundsForm& form = plan.forms[static_cast<size_t>(congruence.form)];
      if (!is_safe(form)) return false;
      IntRange x = rest(form);
      accumulate(&x, each.sign, ranges[static_cast<size_t>(each.direction)]);
      return residue(congruence, x) == Truth::kFalse;
    });
  }

  // scale * direction + rest op 0 for some rest: what is left for the direction.
  bool constraint_range(const BoundsGroup::Constraint& constraint, IntRange* bound) const {
    const BoundsForm& form = plan.forms[static_cast<size_t>(constraint.form)];
    if (!is_safe(form)) return false;
    const IntRange other = rest(form);
    const int64_t size = constraint.scale < 0 ? -constraint.scale : constraint.scale;
    const Op op = constraint.op;
    // size * x <= top and size * x >= bottom, where x is the direction or its negative.
    if (op == Op::kLt || op == Op::kLe || op == Op::kEq) {
      bound->hi = floor_div(-other.lo - (op == Op::kLt ? 1 : 0), size);
    }
    if (op == Op::kGt || op == Op::kGe || op == Op::kEq) {
      bound->lo = -floor_div(other.hi - (op == Op::kGt ? 1 : 0), size);
    }
    if (constraint.scale < 0) {
      constexpr IntRange kAll;
      *bound = {bound->hi == kAll.hi ? kAll.lo : -bound->hi,
                bound->lo == kAll.lo ? kAll.hi : -bound->lo};
    }
    return true;
  }

  // Cuts the range of a direction to what the block leaves of it, and the block to what the range
  // leaves, where a factor is 1 or -1.
  static bool narrow(const BoundsGroup::Direction& direction, IntRange* range, IntRange* of_q,
                     IntRange* of_k) {
    IntRange inside{0, 0};
    accumulate(&inside, direction.q, *of_q);
    accumulate(&inside, direction.k, *of_k);
    if (!intersect(range, inside)) return false;
    const auto cut = [&](int64_t own, IntRange* of_own, int64_t other, IntRange of_other) {
      if (own != 1 && own != -1) return true;
      IntRange left = *range;  // own * variable = direction - other * (the other variable)
      accumulate(&left, -other, of_other);
      return intersect(of_own, own == 1 ? left : IntRange{-left.hi, -left.lo});
    };
    return cut(direction.q, of_q, direction.k, *of_k) && cut(direction.k, of_k, direction.q, *of_q);
  }
};

Bounds::Bounds(const Expr& mask, std::span<const TensorView> aux, std::span<const double> params) {
  [[maybe_unused]] const Evaluator fits(mask, aux, params);  // checks that they do
  plan_ = plan_bounds(mask, aux, params);
}

Bounds& Bounds::operator=(const Bounds& other) {
  plan_ = other.plan_;
  slots_.clear();
  is_fresh_ = true;
  return *this;
}

void Bounds::read(std::span<const TensorView> aux) {
  plan_->read(aux);
  is_fresh_ = true;
}

void Bounds::prepare_slots() {
  slots_.resize(static_cast<size_t>(plan_->num_slots));
  for (const BoundsPlan::Constant& constant : plan_->constants) {
    Slot& slot = slots_[static_cast<size_t>(constant.slot)];
    slot.i = {constant.int_value, constant.int_value};
    slot.f = bound_float_value(constant.float_value);
    slot.t = truth_of(constant.int_value != 0);
  }
}

Truth Bounds::over(const Variables& at, int64_t q_begin, int64_t q_end, int64_t k_begin,
                   int64_t k_end) {
  if (q_begin >= q_end || k_begin >= k_end) return Truth::kFalse;
  const IntRange q{q_begin, q_end - 1};
  const IntRange k{k_begin, k_end - 1};
  const std::array<int64_t, kNumVariables> uniform = {
      0, at.batch,    at.head,     at.head_kv,      0,
      0, at.seqlen_q, at.seqlen_k, at.query_offset, at.leftpad};
  if (slots_.empty()) prepare_slots();
  const bool new_uniform = is_fresh_ || uniform != uniform_;
  const bool new_q = new_uniform || q.lo != q_.lo || q.hi != q_.hi;
  const bool new_k = new_uniform || k.lo != k_.lo || k.hi != k_.hi;
  uniform_ = uniform;
  q_ = q;
  k_ = k;
  is_fresh_ = false;
  const Runner runner{*plan_, uniform_, slots_.data(), q, k};
  if (new_uniform) runner.run(plan_->steps[0]);
  if (new_q) runner.run(plan_->steps[1]);
  if (new_k) runner.run(plan_->steps[2]);
  if (new_q || new_k) runner.run(plan_->steps[3]);
  return slots_[static_cast<size_t>(plan_->root)].t;
}

}  // namespace flashtile::variant
