// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "core/kept_list.hpp"
#include "flashtile/tensor.hpp"
#include "variant/expr/evaluate.hpp"
#include "variant/expr/expr.hpp"
#include "variant/expr/interval.hpp"

namespace flashtile::variant {

struct BoundsPlan;

/// Bounds a mask over blocks of queries and keys by interval arithmetic: whether it keeps nothing,
/// everything, or something in between. It is sound: never kFalse where a pair is kept, never kTrue
/// where one is dropped, in double as in float32.
///
/// kFalse is also complete for comparisons of sums of q_idx, k_idx and values that are constant
/// over the block, for remainders of such sums by constants, for equality of two integer aux
/// elements, one indexed by q_idx and one by k_idx, and for what || makes of them; && is complete
/// for the first two. So it is for causal, window, sink, prefix, dilated and document masks and
/// their usual compositions. Other conjunctions may be kMaybe where each part keeps a pair but not
/// the same one.
///
/// Making one reads the aux tensors once; asking allocates nothing that is not kept. Not for two
/// threads at once, but copies are cheap and share what was prepared: one for each thread. The
/// tensors must stay.
class Bounds {
 public:
  /// `aux` and `params` in the order of `mask.aux` and `mask.params`; tensors in host memory.
  Bounds(const Expr& mask, std::span<const TensorView> aux, std::span<const double> params);
  Bounds(const Bounds& other) : plan_(other.plan_) {}
  Bounds& operator=(const Bounds& other);

  /// Reads tensors that lie as the first ones do. Copies that were made before are not to be asked
  /// any more.
  void read(std::span<const TensorView> aux);

  /// The mask over q_begin <= q_idx < q_end, k_begin <= k_idx < k_end, with the other variables as
  /// in `at`; kFalse for an empty block.
  Truth over(const Variables& at, int64_t q_begin, int64_t q_end, int64_t k_begin, int64_t k_end);

 private:
  struct Slot {
    IntRange i;
    Interval f;
    Truth t = Truth::kMaybe;
  };
  struct Runner;
  void prepare_slots();

  std::shared_ptr<BoundsPlan> plan_;
  KeptList<Slot> slots_;  ///< none before the first question
  // What the slots were last worked out for.
  std::array<int64_t, kNumVariables> uniform_{};
  IntRange q_;
  IntRange k_;
  bool is_fresh_ = true;
};

}  // namespace flashtile::variant
