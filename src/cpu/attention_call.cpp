// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention_call.hpp"

#include <algorithm>
#include <numeric>

#include "core/fail.hpp"

namespace flashtile::cpu {

const OperandKernels& operands_of(const IsaEntry& isa, const AttentionProblem& problem) {
  const OperandKernels* pairs = problem.batch_invariant ? isa.invariant_pairs : isa.attention_pairs;
  return problem.dtype == DType::kBF16 && pairs != nullptr ? *pairs : isa.kernels->operands;
}

std::unique_ptr<CallVariant> KeptVariants::take() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.reserve(idle_.size() + num_used_ + 1);  // so that all are put back without an allocation
  ++num_used_;
  if (idle_.empty()) return nullptr;
  std::unique_ptr<CallVariant> variant = std::move(idle_.back());
  idle_.pop_back();
  return variant;
}

void KeptVariants::put_back(std::unique_ptr<CallVariant> variant) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  --num_used_;
  if (variant != nullptr) idle_.push_back(std::move(variant));
}

KeptVariants::Use::Use(const AttentionProblem& problem, const AttentionPlan& plan,
                       const AttentionArgs& args)
    : kept_(*static_cast<const KeptVariants*>(plan.details.get())), variant_(kept_.take()) {
  try {
    if (variant_ == nullptr) {
      variant_ = std::make_unique<CallVariant>(problem, args);
      return;
    }
    variant_->mask.bind(problem, args);
    variant_->programs.bind_tensors(args);
  } catch (...) {
    kept_.put_back(std::move(variant_));
    throw;
  }
}

AttentionCall::AttentionCall(const AttentionProblem& problem, const AttentionPlan& plan,
                             const AttentionArgs& args)
    : problem_(problem), args_(args), variant_(problem, plan, args) {
  find_sequences(problem, args, &sequences_);
  pairs_.reserve(sequences_.size() * static_cast<size_t>(problem.num_heads_kv));
  for (const Sequence& sequence : sequences_) {
    for (int64_t h = 0; h < problem.num_heads_kv; ++h) pairs_.push_back({&sequence, h});
  }
}

double AttentionCall::work() const {
  constexpr double kElement = 16;     // reading one from memory
  constexpr double kExpression = 64;  // working out a user's score or mask once
  const double dims = static_cast<double>(problem_.head_dim + problem_.head_dim_v);
  const bool has_expression = !problem_.user_score.empty() || !problem_.user_mask.empty();
  double total = 0;
  for (const Sequence& sequence : sequences_) {
    const auto seqlen_k = static_cast<double>(sequence.seqlen_k);
    const double scores = static_cast<double>(problem_.num_heads * sequence.seqlen_q) * seqlen_k;
    const double keys = static_cast<double>(problem_.num_heads_kv) * seqlen_k;
    total += scores * (dims + (has_expression ? kExpression : 0)) + keys * dims * kElement;
  }
  return problem_.is_backward ? 2.5 * total : total;
}

void AttentionCall::order_pairs(int64_t num_workers, PairOrder* order) const {
  const auto work_of = [&](size_t pair) {
    const Sequence& sequence = *pairs_[pair].sequence;
    return static_cast<double>(sequence.seqlen_q) * static_cast<double>(sequence.seqlen_k);
  };
  KeptList<size_t> all(pairs_.size());
  std::iota(all.begin(), all.end(), size_t{0});
  // Equal ones in their order, but not by a stable sort: that allocates.
  std::sort(all.begin(), all.end(), [&](size_t a, size_t b) {
    const double of_a = work_of(a), of_b = work_of(b);
    return of_a != of_b ? of_a > of_b : a < b;
  });
  double left = 0;
  for (const size_t pair : all) left += work_of(pair);
  auto first = all.begin();
  while (first != all.end() && work_of(*first) * static_cast<double>(num_workers) > left) {
    left -= work_of(*first++);
  }
  const auto last = all.end() - (all.end() - first) % num_workers;
  order->alone.assign(first, last);
  order->shared.assign(all.begin(), first);
  order->shared.insert(order->shared.end(), last, all.end());
}

int64_t AttentionCall::program_bytes(const AttentionKernels& kernels) const {
  int64_t bytes = 0;
  programs().for_each([&](const CallProgram& program) {
    bytes += (kernels.strip_bytes(program.view()) + 127) / 64 * 64;
  });
  return bytes;
}

void fail_to_fit(std::string_view op) {
  throw Error(ErrorCode::kInternal,
              std::string(op) + ": the planned workspace has no room for a sequence");
}

void AttentionCall::check_index_errors() const {
  if (out_of_range_.empty()) return;
  fail(attention_op_name(problem_.is_backward), "an expression reads aux tensor '", out_of_range_,
       "' outside its shape");
}

HeadRules::HeadRules(const AttentionCall& call, const Sequence& sequence, int64_t head,
                     const HeadMask& mask)
    : call_(call) {
  const AttentionProblem& problem = call.problem();
  const AttentionArgs& args = call.args();
  rules_.softmax_scale = static_cast<float>(problem.softmax_scale);
  rules_.softcap = static_cast<float>(problem.softcap.value_or(0));
  rules_.query_offset = sequence.query_offset;
  const ScorePrograms& programs = call.programs();
  const auto bind = [&](const std::optional<CallProgram>& program, int32_t* error) {
    return program ? program->bind(problem, sequence, head, error) : BoundProgram{};
  };
  // All other indices have been checked before the call began.
  const bool has_doubt = programs.has_indices_by_score;
  rules_.score = bind(problem.is_backward ? programs.gradient : programs.score,
                      has_doubt ? &score_error_ : nullptr);
  rules_.guarded_score =
      bind(problem.is_backward ? programs.guarded_gradient : programs.guarded_score,
           has_doubt ? &guarded_score_error_ : nullptr);
  rules_.line = bind(programs.line, nullptr);
  rules_.line_shift = programs.line_shift;
  rules_.mask = bind(programs.mask, nullptr);
  if (args.bias) {
    const Rows bias = bias_rows(args.bias, sequence, head);
    rules_.bias = bias.data;
    rules_.bias_row_stride = bias.row_stride;
    rules_.bias_key_stride = bias.element_stride;
    rules_.bias_dtype = args.bias.dtype;
  }
  if (problem.has_alibi) {
    rules_.has_alibi = true;
    rules_.alibi_slope = alibi_slope(args.alibi_slopes, sequence.batch_idx, head);
  }
  rules_.position = mask.position();
  if (mask.block_list().is_given()) {
    rules_.list_first = mask.block_list().first();
    rules_.list_cols = mask.block_list().cols();
    rules_.block_rows = mask.block_list().block_rows();
    rules_.block_cols = mask.block_list().block_cols();
  }
  const Dropout& dropout = problem.dropout;
  rules_.has_dropout = dropout.is_on;
  rules_.dropout_threshold = dropout.threshold;
  rules_.dropout_gain = static_cast<float>(dropout.gain);
  rules_.dropout_seed = dropout.seed;
  rules_.dropout_offset = dropout.offset;
  rules_.batch_head = static_cast<uint32_t>(sequence.batch_idx * problem.num_heads + head);
  const bool has_program = rules_.score.program != nullptr;
  rules_.is_log2 = !problem.softcap && !has_program && rules_.bias == nullptr;
  rules_.is_plain = rules_.is_log2 && !rules_.has_alibi && rules_.line.program == nullptr;
}

HeadRules::~HeadRules() {
  const ScorePrograms& programs = call_.programs();
  const bool is_backward = call_.problem().is_backward;
  const auto report = [&](const std::optional<CallProgram>& program, int32_t error) {
    if (error == 0) return;
    const std::lock_guard<std::mutex> lock(call_.mutex_);
    call_.out_of_range_ = program->aux_name(error - 1);
  };
  report(is_backward ? programs.gradient : programs.score, score_error_);
  report(is_backward ? programs.guarded_gradient : programs.guarded_score, guarded_score_error_);
}

bool pack_keys(const AttentionCall& call, void (*pack)(const PackRequest&), int64_t block_n,
               const Pair& pair, int64_t begin, int64_t end, char* destination) {
  const AttentionProblem& problem = call.problem();
  const AttentionArgs& args = call.args();
  const KeyRows k = key_rows(args.k, args, *pair.sequence, pair.head_kv);
  const KeyRows v = key_rows(args.v, args, *pair.sequence, pair.head_kv);
  thread_local std::vector<void*> k_addresses;
  thread_local std::vector<void*> v_addresses;
  row_addresses(k, begin, end, &k_addresses);
  row_addresses(v, begin, end, &v_addresses);
  thread_local std::vector<float> k_scales;
  thread_local std::vector<float> v_scales;
  k_scales.clear();
  v_scales.clear();
  if (problem.is_quantised) {
    const KeyScales of_k = key_scales(args.k_scale, args.k, args, *pair.sequence, pair.head_kv);
    const KeyScales of_v = key_scales(args.v_scale, args.v, args, *pair.sequence, pair.head_kv);
    for (int64_t j = begin; j < end; ++j) {
      k_scales.push_back(of_k.of(j));
      v_scales.push_back(of_v.of(j));
    }
  }
  uint8_t has_nonfinite = 0;
  PackRequest request{};
  request.first_rows = k_addresses.data();
  request.second_rows = v_addresses.data();
  request.first_dtype = request.second_dtype = problem.k.dtype;
  request.first_stride = element_stride(k, problem.k.dtype);
  request.second_stride = element_stride(v, problem.k.dtype);
  if (problem.is_quantised) {
    request.first_scales = k_scales.data();
    request.second_scales = v_scales.data();
  }
  request.num_rows = end - begin;
  request.block_rows = block_n;
  request.head_dim = problem.head_dim;
  request.head_dim_v = problem.head_dim_v;
  request.destination = destination;
  request.has_nonfinite = &has_nonfinite;
  pack(request);
  return has_nonfinite != 0;
}

}  // namespace flashtile::cpu
