// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "variant/expr/expr.hpp"

namespace flashtile::variant {

/// What a score function adds to the score, where it does nothing else and adds the same for all
/// pairs with one k_idx - shift q_idx: shift 1 for a diagonal, 0 for a key (or for all pairs).
struct ScoreLine {
  Expr term;  ///< a float that does not read the score
  int64_t shift = 0;
};

/// The line of a score function: a sum in which the score is one summand and all others together
/// change along lines only. nullopt for any other.
std::optional<ScoreLine> score_line(const Expr& score);

}  // namespace flashtile::variant
