// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "variant/expr/expr.hpp"

namespace flashtile::variant {

/// An integer as q * q_idx + k * k_idx + a sum of other nodes + a constant, each node once: what is
/// left of + - and multiplication by constants. Equal to the expression modulo 2^64.
struct LinearForm {
  struct Term {
    int32_t node = 0;
    int64_t factor = 0;
  };

  int64_t q = 0;
  int64_t k = 0;
  std::vector<Term> terms;  ///< by node, no factor 0; not q_idx, k_idx or constants
  int64_t constant = 0;
};

/// The form of an int node. A node whose factors would leave 64 bits stays one term.
LinearForm linear_form(const Expr& expr, int32_t node);

/// a - b; false if a factor or the constant leaves 64 bits.
bool subtract(const LinearForm& a, const LinearForm& b, LinearForm* difference);

}  // namespace flashtile::variant
