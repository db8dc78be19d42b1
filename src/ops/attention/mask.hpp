// SPDX-License-Identifier: Apache-2.0
//
// What a query block sees, by key blocks, and what sees a key block, by query blocks. Everything
// that masks (positions, block lists, user expressions) meets here; kernels visit what it says.
#pragma once

#include <optional>
#include <vector>

#include "ops/attention/args.hpp"
#include "ops/attention/problem.hpp"
#include "ops/attention/sequences.hpp"
#include "variant/block_run.hpp"
#include "variant/expr/bounds.hpp"
#include "variant/expr/evaluate.hpp"
#include "variant/expr/expr.hpp"
#include "variant/position_mask.hpp"

namespace flashtile {

/// The masks of a problem. Parts of a user mask that compare k_idx - q_idx with something that
/// varies with neither are taken as positions; the rest is bounded block by block.
class AttentionMask {
 public:
  AttentionMask(const AttentionProblem& problem, const AttentionArgs& args);

  /// Becomes the masks of another call of that problem, in the memory that there is: reads what
  /// tensors hold now. Both arguments must stay.
  void bind(const AttentionProblem& problem, const AttentionArgs& args);

  /// The positions that a head of a sequence sees.
  variant::PositionMask position(const Sequence& sequence, int64_t head) const;
  /// What is left of the user mask; empty: nothing.
  const variant::Expr& rest() const { return rest_; }
  const std::optional<variant::Bounds>& rest_bounds() const { return rest_bounds_; }
  /// The block lists of a head; those of one plane are one object.
  const BlockList& block_list(int64_t batch_idx, int64_t head) const;
  const AttentionProblem& problem() const { return *problem_; }

 private:
  /// Where k_idx - q_idx begins or ends.
  struct Bound {
    variant::Evaluator value;
    bool is_lower;
  };
  struct Limits {
    int64_t lower, upper;
  };

  void read_lists(const AttentionArgs& args);
  void find_limits(const AttentionArgs& args);

  const AttentionProblem* problem_ = nullptr;
  std::vector<Bound> bounds_;
  std::vector<Limits> limits_;  ///< by sequence and head, where there are bounds
  variant::Expr rest_;
  std::optional<variant::Bounds> rest_bounds_;
  BlockList no_list_;                   ///< that of all heads without lists
  std::vector<BlockList> block_lists_;  ///< (batch or 1, heads or 1)
  int64_t num_list_batches_ = 1;
  int64_t num_list_heads_ = 1;
};

/// The masks of one head of one sequence, as long as the AttentionMask is bound to that call. Not
/// for two threads at once.
class HeadMask {
 public:
  HeadMask(const AttentionMask& mask, const Sequence& sequence, int64_t head);

  const variant::PositionMask& position() const { return position_; }
  const BlockList& block_list() const { return *block_list_; }

  /// Keys that some query may see, by position alone.
  variant::KeyRange key_range() const;

  /// Key blocks of `block_n` keys that queries [q_begin, q_end) visit, in ascending order.
  void key_runs(int64_t q_begin, int64_t q_end, int64_t block_n,
                std::vector<variant::BlockRun>* runs);

  /// Query blocks of `block_m` queries that visit keys [k_begin, k_end).
  void query_runs(int64_t k_begin, int64_t k_end, int64_t block_m,
                  std::vector<variant::BlockRun>* runs);

  enum class Cover { kNone, kPart, kFull };

  /// How much of the rectangle of queries and keys is seen. kNone and kFull are certain.
  Cover cover(int64_t q_begin, int64_t q_end, int64_t k_begin, int64_t k_end);

 private:
  Cover list_cover(int64_t q_begin, int64_t q_end, int64_t k_begin, int64_t k_end) const;

  variant::Variables variables_;
  variant::PositionMask position_;
  const BlockList* block_list_;  ///< shared by the heads of a plane
  std::optional<variant::Bounds> rest_;
  int64_t seqlen_q_;
  int64_t seqlen_k_;
};

}  // namespace flashtile
