// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/mask.hpp"

#include <algorithm>

#include "core/kept_list.hpp"
#include "ops/attention/variant.hpp"
#include "variant/expr/affine.hpp"
#include "variant/expr/substitute.hpp"

namespace flashtile {
namespace {

using variant::BlockRun;
using variant::KeyRange;
using variant::PositionMask;

int64_t clamped(int64_t value) {
  return std::clamp<int64_t>(value, -PositionMask::kUnbounded, PositionMask::kUnbounded);
}

/// Appends a block, to the last run where it continues that.
void append(int64_t block, bool is_full, std::vector<BlockRun>* runs) {
  if (!runs->empty() && runs->back().end == block && runs->back().is_full == is_full) {
    runs->back().end = block + 1;
  } else {
    runs->push_back({block, block + 1, is_full});
  }
}

/// The first of [0, count) for which `holds` is true; it must stay true from there on.
template <class Holds>
int64_t first_where(int64_t count, const Holds& holds) {
  int64_t low = 0;
  int64_t high = count;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (holds(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace

AttentionMask::AttentionMask(const AttentionProblem& problem, const AttentionArgs& args) {
  std::vector<variant::Expr> others;
  if (!problem.user_mask.empty()) {
    for (const variant::Expr& conjunct : variant::conjuncts(problem.user_mask)) {
      const auto band = variant::match_band(conjunct);
      if (!band) {
        others.push_back(conjunct);
        continue;
      }
      for (const auto* bound : {&band->lo, &band->hi}) {
        if (bound->empty()) continue;
        bounds_.push_back(
            {variant::Evaluator(*bound, bound_aux(*bound, args), bound_params(*bound, args)),
             bound == &band->lo});
      }
    }
  }
  if (!others.empty()) rest_ = variant::conjunction(others);
  bind(problem, args);
}

void AttentionMask::bind(const AttentionProblem& problem, const AttentionArgs& args) {
  problem_ = &problem;
  read_lists(args);
  if (!bounds_.empty()) find_limits(args);
  if (rest_.empty()) return;
  // The bounds see the whole mask, so that what its parts exclude together is not visited.
  const variant::Expr& whole = problem.user_mask;
  KeptList<TensorView> aux;
  find_aux(whole, args, &aux);
  if (rest_bounds_) {
    rest_bounds_->read(aux);
  } else {
    rest_bounds_.emplace(whole, aux, bound_params(whole, args));
  }
}

void AttentionMask::read_lists(const AttentionArgs& args) {
  if (!args.block_counts) return;
  num_list_batches_ = std::max(args.block_counts.shape[0], args.block_indices.shape[0]);
  num_list_heads_ = std::max(args.block_counts.shape[1], args.block_indices.shape[1]);
  // A batch of 0 may come with lists for one sequence, or none, which stand for nobody.
  if (problem_->batch_size == 0) num_list_batches_ = 0;
  block_lists_.resize(static_cast<size_t>(num_list_batches_ * num_list_heads_));
  for (size_t n = 0; n < block_lists_.size(); ++n) {
    const auto plane = static_cast<int64_t>(n);
    block_lists_[n].assign(args, plane / num_list_heads_, plane % num_list_heads_);
  }
}

void AttentionMask::find_limits(const AttentionArgs& args) {
  constexpr int64_t kUnbounded = PositionMask::kUnbounded;
  KeptList<TensorView> aux;
  for (Bound& bound : bounds_) {
    find_aux(bound.value.expr(), args, &aux);
    bound.value.bind(aux);
  }
  KeptList<Sequence> sequences;
  find_sequences(*problem_, args, &sequences);
  limits_.clear();
  for (const Sequence& sequence : sequences) {
    for (int64_t head = 0; head < problem_->num_heads; ++head) {
      const variant::Variables at = attention_variables(*problem_, sequence, head);
      Limits limits{-kUnbounded, kUnbounded};
      for (Bound& bound : bounds_) {
        const int64_t value = clamped(bound.value.integer(at));
        if (bound.is_lower) {
          limits.lower = std::max(limits.lower, value);
        } else {
          limits.upper = std::min(limits.upper, value);
        }
      }
      limits_.push_back(limits);
    }
  }
}

const BlockList& AttentionMask::block_list(int64_t batch_idx, int64_t head) const {
  if (block_lists_.empty()) return no_list_;
  const int64_t b = std::min(batch_idx, num_list_batches_ - 1);
  const int64_t h = std::min(head, num_list_heads_ - 1);
  return block_lists_[static_cast<size_t>(b * num_list_heads_ + h)];
}

PositionMask AttentionMask::position(const Sequence& sequence, int64_t head) const {
  PositionMask position;
  position.query_offset = sequence.query_offset;
  position.seqlen_k = sequence.seqlen_k;
  position.chunk = problem_->attention_chunk.value_or(0);
  if (problem_->window_left) {
    position.lower = clamped(sequence.query_offset - clamped(*problem_->window_left));
  }
  if (problem_->window_right) {
    position.upper = clamped(sequence.query_offset + clamped(*problem_->window_right));
  }
  if (!bounds_.empty()) {
    const Limits& limits =
        limits_[static_cast<size_t>(sequence.batch_idx * problem_->num_heads + head)];
    position.lower = std::max<long long>(position.lower, limits.lower);
    position.upper = std::min<long long>(position.upper, limits.upper);
  }
  return position;
}

HeadMask::HeadMask(const AttentionMask& mask, const Sequence& sequence, int64_t head)
    : variables_(attention_variables(mask.problem(), sequence, head)),
      position_(mask.position(sequence, head)),
      block_list_(&mask.block_list(sequence.batch_idx, head)),
      rest_(mask.rest_bounds()),
      seqlen_q_(sequence.seqlen_q),
      seqlen_k_(sequence.seqlen_k) {}

KeyRange HeadMask::key_range() const {
  if (seqlen_q_ == 0) return {0, 0};
  return {position_.keys(0).begin, position_.keys(seqlen_q_ - 1).end};
}

HeadMask::Cover HeadMask::list_cover(int64_t q_begin, int64_t q_end, int64_t k_begin,
                                     int64_t k_end) const {
  bool has_listed = false;
  bool has_unlisted = false;
  const BlockList& list = *block_list_;
  const int64_t last_row = (q_end - 1) / list.block_rows();
  const int64_t first_col = k_begin / list.block_cols();
  const int64_t end_col = (k_end - 1) / list.block_cols() + 1;
  for (int64_t row = q_begin / list.block_rows(); row <= last_row; ++row) {
    const int64_t num_listed = list.num_listed(row, first_col, end_col);
    has_listed = has_listed || num_listed > 0;
    has_unlisted = has_unlisted || num_listed < end_col - first_col;
  }
  if (!has_listed) return Cover::kNone;
  return has_unlisted ? Cover::kPart : Cover::kFull;
}

HeadMask::Cover HeadMask::cover(int64_t q_begin, int64_t q_end, int64_t k_begin, int64_t k_end) {
  const KeyRange first = position_.keys(q_begin);
  const KeyRange last = position_.keys(q_end - 1);
  if (k_end <= first.begin || k_begin >= last.end) return Cover::kNone;
  Cover result = k_begin >= last.begin && k_end <= first.end ? Cover::kFull : Cover::kPart;
  if (block_list_->is_given()) {
    const Cover listed = list_cover(q_begin, q_end, k_begin, k_end);
    if (listed == Cover::kNone) return Cover::kNone;
    if (listed == Cover::kPart) result = Cover::kPart;
  }
  if (rest_) {
    const variant::Truth truth = rest_->over(variables_, q_begin, q_end, k_begin, k_end);
    if (truth == variant::Truth::kFalse) return Cover::kNone;
    if (truth == variant::Truth::kMaybe) result = Cover::kPart;
  }
  return result;
}

void HeadMask::key_runs(int64_t q_begin, int64_t q_end, int64_t block_n,
                        std::vector<BlockRun>* runs) {
  runs->clear();
  if (q_begin >= q_end) return;
  const int64_t begin = position_.keys(q_begin).begin;
  const int64_t end = position_.keys(q_end - 1).end;
  for (int64_t n = begin / block_n; n * block_n < end; ++n) {
    const int64_t k_end = std::min((n + 1) * block_n, seqlen_k_);
    const Cover covered = cover(q_begin, q_end, n * block_n, k_end);
    if (covered != Cover::kNone) append(n, covered == Cover::kFull, runs);
  }
}

void HeadMask::query_runs(int64_t k_begin, int64_t k_end, int64_t block_m,
                          std::vector<BlockRun>* runs) {
  runs->clear();
  if (k_begin >= k_end || seqlen_q_ == 0) return;
  // Both ends of what a query sees only move forward, so the queries that see a key are one range.
  const int64_t num_blocks = (seqlen_q_ + block_m - 1) / block_m;
  const int64_t first = first_where(num_blocks, [&](int64_t m) {
    return position_.keys(std::min((m + 1) * block_m, seqlen_q_) - 1).end > k_begin;
  });
  const int64_t last = first_where(
      num_blocks, [&](int64_t m) { return position_.keys(m * block_m).begin >= k_end; });
  for (int64_t m = first; m < last; ++m) {
    const int64_t q_end = std::min((m + 1) * block_m, seqlen_q_);
    const Cover covered = cover(m * block_m, q_end, k_begin, k_end);
    if (covered != Cover::kNone) append(m, covered == Cover::kFull, runs);
  }
}

}  // namespace flashtile
