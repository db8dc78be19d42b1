// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/index_check.hpp"

#include <algorithm>
#include <vector>

#include "core/fail.hpp"
#include "core/kept.hpp"
#include "core/kept_list.hpp"
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

bool reads(const Expr& expr, variant::Variable variable) {
  return variant::depends_on(expr, expr.root(), variable);
}

bool is_any_score(const variant::AuxSignature& aux) { return aux.name == variant::kAnyScore; }

/// The tensors that a violation reads. Nothing is known of the elements of an empty one, which
/// stands for any score.
void find_violation_aux(const Expr& violation, const AttentionArgs& args,
                        KeptList<TensorView>* tensors) {
  tensors->clear();
  for (const variant::AuxSignature& signature : violation.aux) {
    tensors->push_back(is_any_score(signature) ? TensorView(nullptr, DType::kF32, {0})
                                               : aux_tensor(signature.name, args));
  }
}

std::vector<TensorView> violation_aux(const Expr& violation, const AttentionArgs& args) {
  KeptList<TensorView> tensors;
  find_violation_aux(violation, args, &tensors);
  return {tensors.begin(), tensors.end()};
}

}  // namespace

/// One expression of the user, and the pairs that it is asked for.
class IndexChecks::ExprCheck {
 public:
  ExprCheck(const AttentionProblem& problem, const AttentionArgs& args, const Expr& expr,
            const Expr& guard, const AttentionVariant& variant)
      : is_mask_(&expr == &problem.user_mask),
        violation_(index_violation(expr, bound_aux(expr, args), guard)),
        reads_head_(reads(violation_, variant::Variable::kHead) ||
                    reads(violation_, variant::Variable::kHeadKv)),
        depends_on_score_(std::any_of(violation_.aux.begin(), violation_.aux.end(), is_any_score)),
        bounds_(violation_, violation_aux(violation_, args), bound_params(violation_, args)),
        mask_(variant.mask, bound_aux(variant.mask, args), bound_params(variant.mask, args)),
        score_(expr, bound_aux(expr, args), bound_params(expr, args)) {}

  /// Becomes the check of another call: reads its tensors.
  void read(const AttentionArgs& args) {
    KeptList<TensorView> aux;
    find_violation_aux(violation_, args, &aux);
    bounds_.read(aux);
    for (variant::Evaluator* evaluator : {&mask_, &score_}) {
      find_aux(evaluator->expr(), args, &aux);
      evaluator->bind(aux);
    }
  }

  void run(std::string_view op, const AttentionProblem& problem, const AttentionArgs& args,
           std::span<const Sequence> sequences) {
    op_ = op;
    problem_ = &problem;
    args_ = &args;
    const int64_t num_heads = differs_by_head() ? problem.num_heads : 1;
    for (const Sequence& sequence : sequences) {
      for (int64_t head = 0; head < num_heads; ++head) check(sequence, head);
    }
  }

 private:
  /// All pairs of one head of a sequence.
  void check(const Sequence& sequence, int64_t head) {
    at_ = attention_variables(*problem_, sequence, head);
    block_list_.assign(*args_, sequence.batch_idx, head);
    check_block(0, sequence.seqlen_q, 0, sequence.seqlen_k);
  }

  /// False where every head of a sequence asks for the same.
  bool differs_by_head() const { return args_->block_counts || args_->bias || reads_head_; }

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
    if (!block_list_.sees(q_idx, k_idx)) return;
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
  const AttentionProblem* problem_ = nullptr;
  const AttentionArgs* args_ = nullptr;
  bool is_mask_;
  Expr violation_;
  bool reads_head_;
  bool depends_on_score_;
  variant::Bounds bounds_;
  variant::Evaluator mask_, score_;
  variant::Variables at_;
  BlockList block_list_;
};

struct IndexChecks::Checks {
  Checks(const AttentionProblem& problem, const AttentionArgs& args) {
    const AttentionVariant variant = attention_variant(problem, args);
    std::vector<Expr> masks = built_in_masks(problem);
    const auto add = [&](const Expr& expr) {
      if (expr.aux.empty()) return;
      list.emplace_back(problem, args, expr, variant::conjunction(masks), variant);
    };
    add(problem.user_mask);
    if (!problem.user_mask.empty()) masks.push_back(problem.user_mask);
    add(problem.user_score);
  }

  std::vector<ExprCheck> list;
};

IndexChecks::IndexChecks() = default;
IndexChecks::~IndexChecks() = default;
IndexChecks::IndexChecks(IndexChecks&&) noexcept = default;
IndexChecks& IndexChecks::operator=(IndexChecks&&) noexcept = default;

void IndexChecks::run(std::string_view op, const AttentionProblem& problem,
                      const AttentionArgs& args) {
  if (problem.user_mask.aux.empty() && problem.user_score.aux.empty()) return;
  if (checks_ == nullptr) {
    checks_ = std::make_unique<Checks>(problem, args);
  } else {
    for (ExprCheck& check : checks_->list) check.read(args);
  }
  KeptList<int32_t> lengths;
  KeptList<Sequence> sequences;
  if (problem.has_new_keys) {
    Kept<AttentionArgs> grown;
    *grown = args;
    find_appended_lengths(problem, args, &lengths);
    grown->seqused_k = TensorView(lengths.data(), DType::kI32, {problem.batch_size});
    find_sequences(problem, *grown, &sequences);
  } else {
    find_sequences(problem, args, &sequences);
  }
  for (ExprCheck& check : checks_->list) check.run(op, problem, args, sequences);
}

}  // namespace flashtile
