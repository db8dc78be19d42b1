// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/linear/recurrent_head.hpp"

namespace flashtile {

/// A RecurrentHead whose rows know nothing of each other: there is no state.
template <class Derived>
class RowHead : public RecurrentHead<Derived> {
 public:
  Numbers initial_state() const { return {}; }
  Numbers final_gradient() const { return {}; }
  void step(int64_t, Numbers&) const {}
  void store_final(const Numbers&) const {}
  void add_step_gradient(int64_t, const Numbers&, Numbers&) const {}
  void store_gradients(const Numbers&) const {}

 protected:
  using RecurrentHead<Derived>::RecurrentHead;
};

}  // namespace flashtile
