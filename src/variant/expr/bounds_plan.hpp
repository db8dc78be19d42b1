// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "variant/expr/aux_index.hpp"
#include "variant/expr/expr.hpp"
#include "variant/expr/interval.hpp"

namespace flashtile::variant {

/// q * q_idx + k * k_idx + a sum of slots + a constant, with what it takes to know that nothing
/// overflows: sizes of the factors, including those that have cancelled.
struct BoundsForm {
  struct Term {
    int32_t slot;
    int64_t factor;
  };
  struct Guard {
    int32_t slot;
    double factor;
  };
  int64_t q = 0;
  int64_t k = 0;
  int64_t constant = 0;
  std::vector<Term> terms;
  double guard_q = 0;
  double guard_k = 0;
  double guard_constant = 0;
  std::vector<Guard> guards;
};

/// One step of interval evaluation: slot `out` from slots `args` and what `data` refers to.
struct BoundsStep {
  enum class Kind : uint8_t {
    kVariable,
    kLinear,  // int from forms[data]
    kInt,     // bound_int_op
    kFloat,   // bound_float_op
    kToInt,
    kToFloat,
    kLoad,  // loads[data]
    kSelect,
    kCompareLinear,  // forms[data] op 0; for == and != equalities[equality] as well
    kCompareInt,
    kCompareFloat,
    kCongruence,  // congruences[data]
    kNot,
    kOr,
    kAll,  // groups[data]
  };
  Kind kind = Kind::kVariable;
  Op op = Op::kBoolConst;
  Type type = Type::kBool;  // of the result; for conversions of the argument
  Variable variable = Variable::kBatch;
  int32_t out = -1;
  std::array<int32_t, 3> args{-1, -1, -1};
  int32_t data = -1;
  int32_t equality = -1;
};

struct BoundsLoad {
  const AuxIndex* index = nullptr;
  std::vector<int32_t> args;  // slots
};

/// Elements of two loads that are compared for equality.
struct BoundsEquality {
  std::unique_ptr<EqualityIndex> index;
  int32_t a = -1;  // into loads
  int32_t b = -1;
  size_t aux_a = 0;  // their tensors, by the mask's own aux
  size_t aux_b = 0;
};

/// forms[form] mod slot `modulus` == or != slot `remainder`, by the rules of `op` (kMod,
/// kFloorMod).
struct BoundsCongruence {
  int32_t form = -1;
  int32_t modulus = -1;
  int32_t remainder = -1;
  Op op = Op::kMod;
  bool equal = true;
};

/// Conjuncts, and what those that are linear say together about a few directions, that is sums
/// a q_idx + b k_idx with coprime a, b.
struct BoundsGroup {
  static constexpr size_t kMaxDirections = 6;

  struct Direction {
    int64_t q;
    int64_t k;
  };
  /// scale * direction + the rest of forms[form] op 0
  struct Constraint {
    int32_t form;
    int32_t direction;
    int64_t scale;
    Op op;
  };
  /// congruences[congruence], whose form is sign * direction + rest
  struct Residue {
    int32_t congruence;
    int32_t direction;
    int64_t sign;
  };
  std::vector<int32_t> conjuncts;  // slots
  std::vector<Direction> directions;
  std::vector<Constraint> constraints;
  std::vector<Residue> residues;
};

/// What is known of a tensor.
struct BoundsAux {
  std::unique_ptr<AuxIndex> index;
  size_t aux = 0;  // by the mask's own aux
};

/// How a mask is bounded; made once, shared by the threads.
struct BoundsPlan {
  /// Reads tensors, in the order of the mask's aux, that lie as the first ones do.
  void read(std::span<const TensorView> aux);

  Expr mask;  // rewritten for bounding: !, abs, min, max taken apart
  // Steps by what they depend on: nothing of the block, its queries, its keys, both.
  std::array<std::vector<BoundsStep>, 4> steps;
  std::vector<BoundsForm> forms;
  std::vector<BoundsAux> aux_indices;
  std::vector<BoundsLoad> loads;
  std::vector<BoundsEquality> equalities;
  std::vector<BoundsCongruence> congruences;
  std::vector<BoundsGroup> groups;

  struct Constant {
    int32_t slot;
    Type type;
    int64_t int_value;
    double float_value;
  };
  std::vector<Constant> constants;
  int32_t num_slots = 0;
  int32_t root = -1;
};

std::shared_ptr<BoundsPlan> plan_bounds(const Expr& mask, std::span<const TensorView> aux,
                                        std::span<const double> params);

/// The same mask in the form that bounds are best for: no ! but before what cannot be negated, no
/// conditional truth values, abs, min and max at the sides of comparisons taken apart. Not lazy in
/// the same places: for bounding only.
Expr rewrite_for_bounds(const Expr& mask);

}  // namespace flashtile::variant
