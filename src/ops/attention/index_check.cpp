// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/index_check.hpp"

#include <algorithm>
#include <optional>

#include "core/fail.hpp"
#include "ops/attention/append.hpp"
#include "ops/attention/sequences.hpp"
#include "ops/attention/variant.hpp"
#include "variant/expr/access.hpp"
#include "variant/expr/bounds.hpp"
#include "variant/expr/paths.hpp"
#include "variant/expr/substitute.hpp"

namespace flashtile {
namespace {

using variant::Expr;

/// A block with fewer pairs than this is evaluated pair by pair.
constexpr int64_t kFewPairs = 64;

/// One expression of the user, and the pairs that it is asked for.
class IndexCheck {
 public:
  IndexCheck(std::string_view op, const AttentionProblem& problem, const AttentionArgs& args,
             const Expr& expr, const Expr& guard, const AttentionVariant& variant)
      : op_(op),
        problem_(problem),
        args_(args),
        is_mask_(&expr == &problem.user_mask),
        violation_(index_violation(expr, bound_aux(expr, args), guard)),
        depends_on_score_(has_any_score(violation_)),
        bounds_(violation_, violation_aux(), bound_params(violation_, args)),
        mask_(variant.mask, bound_aux(variant.mask, args), bound_params(variant.mask, args)),
        score_(expr, bound_aux(expr, args), bound_params(expr, args)) {}

  /// All pairs of one head of a sequence.
  void check(const Sequence& sequence, int64_t head) {
    at_ = attention_variables(problem_, sequence, head);
    block_list_.emplace(args_, sequence.batch_idx, head);
    check_block(0, sequence.seqlen_q, 0, sequence.seqlen_k);
  }

  /// False where every head of a sequence asks for the same.
  bool differs_by_head() const {
    return args_.block_counts || args_.bias || reads(variant::Variable::kHead) ||
           reads(variant::Variable::kHeadKv);
  }

 private:
  bool reads(variant::Variable variable) const {
    return variant::depends_on(violation_, violation_.root(), variable);
  }

  static bool has_any_score(const Expr& expr) {
    return std::any_of(expr.aux.begin(), expr.aux.end(),
                       [](const auto& aux) { return aux.name == variant::kAnyScore; });
  }

  /// Nothing is known of the elements of an empty tensor: any score.
  std::vector<TensorView> violation_aux() const {
    std::vector<TensorView> tensors;
    for (const variant::AuxSignature& signature : violation_.aux) {
      Expr one;
      one.aux = {signature};
      tensors.push_back(signature.name == variant::kAnyScore ? TensorView(nullptr, DType::kF32, {0})
                                                             : bound_aux(one, args_)[0]);
    }
    return tensors;
  }

  void check_block(int64_t q_begin, int64_t q_end, int64_t k_begin, int64_t k_end) {
    const int64_t num_q = q_end - q_begin;
    const int64_t num_k = k_end - k_begin;
    if (num_q <= 0 || num_k <= 0) return;
    if (bounds_.over(at_, q_begin, q_end, k_begin, k_end) == variant::Truth::kFalse) return;
    if (num_q * num_k < kFewPairs) {
      if (depends_on_score_) return;
      for (int64_t i = q_begin; i < q_end; ++i) {
        for (int64_t j = k_begin; j < k_end; ++j) check_pair(i, j);
      }
      return;
    }
    if (num_q > num_k) {
      const int64_t middle = q_begin + num_q / 2;
      check_block(q_begin, middle, k_begin, k_end);
      check_block(middle, q_end, k_begin, k_end);
    } else {
      const int64_t middle = k_begin + num_k / 2;
      check_block(q_begin, q_end, k_begin, middle);
      check_block(q_begin, q_end, middle, k_end);
    }
  }

  /// As the reference asks: block lists, then all masks from left to right, then the score.
  void check_pair(int64_t q_idx, int64_t k_idx) {
    if (!block_list_->sees(q_idx, k_idx)) return;
    at_.q_idx = q_idx;
    at_.k_idx = k_idx;
    const bool is_seen = mask_.truth(at_);
    if (!is_mask_ && is_seen) score_.number(at_);
    const variant::IndexError* error = is_mask_ ? mask_.index_error() : score_.index_error();
    if (error == nullptr) return;
    fail(op_, "an expression reads ", error->aux, " at ", error->index, " in dimension ",
         error->dimension, ", which has size ", error->size, "; sequence ", at_.batch, ", head ",
         at_.head, ", query ", q_idx, ", key ", k_idx);
  }

  std::string_view op_;
  const AttentionProblem& problem_;
  const AttentionArgs& args_;
  bool is_mask_;
  Expr violation_;
  bool depends_on_score_;
  variant::Bounds bounds_;
  variant::Evaluator mask_, score_;
  variant::Variables at_;
  std::optional<BlockList> block_list_;
};

}  // namespace

void check_indices(std::string_view op, const AttentionProblem& problem,
                   const AttentionArgs& args) {
  if (problem.user_mask.aux.empty() && problem.user_score.aux.empty()) return;
  AttentionArgs grown = args;
  std::vector<int32_t> lengths;
  if (problem.has_new_keys) {
    find_appended_lengths(problem, args, &lengths);
    grown.seqused_k = TensorView(lengths.data(), DType::kI32, {problem.batch_size});
  }
  const std::vector<Sequence> sequences = attention_sequences(problem, grown);
  const AttentionVariant variant = attention_variant(problem, args);
  std::vector<Expr> masks = built_in_masks(problem);
  const auto check = [&](const Expr& expr) {
    if (expr.aux.empty()) return;
    IndexCheck indices(op, problem, args, expr, variant::conjunction(masks), variant);
    const int64_t num_heads = indices.differs_by_head() ? problem.num_heads : 1;
    for (const Sequence& sequence : sequences) {
      for (int64_t head = 0; head < num_heads; ++head) indices.check(sequence, head);
    }
  };
  check(problem.user_mask);
  if (!problem.user_mask.empty()) masks.push_back(problem.user_mask);
  check(problem.user_score);
}

}  // namespace flashtile
