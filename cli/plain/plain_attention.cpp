// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <limits>
#include <mutex>
#include <optional>

#include "core/element.hpp"
#include "core/executor.hpp"
#include "ops/attention/append.hpp"
#include "ops/attention/implementations.hpp"
#include "plain/attention_head.hpp"
#include "plain/plain.hpp"
#include "plain/shared_gradients.hpp"

namespace flashtile::cli {
namespace {

template <class Real>
void scatter_row(std::span<const Real> values, char* address, int64_t element_stride, DType dtype) {
  for (const Real value : values) {
    store_float(address, dtype, static_cast<double>(value));
    address += element_stride;
  }
}

/// One attention call: a task for each (sequence, head_kv).
template <class Real>
class PlainRun {
 public:
  PlainRun(const AttentionProblem& problem, const AttentionArgs& args, const PlainConfig& config)
      : problem_(problem),
        args_(args),
        config_(config),
        sequences_(attention_sequences(problem, args)),
        max_logits_(static_cast<size_t>(problem.num_heads),
                    -std::numeric_limits<double>::infinity()),
        gradients_(problem, args) {}

  void run(const Context& context) {
    const auto num_sequences = static_cast<int64_t>(sequences_.size());
    const bool is_whole = config_.num_rows == 0;  // else what is not worked on stays as it is
    for (const TensorView& tensor : {args_.weights, args_.dropout_mask}) {
      if (tensor && is_whole) fill_zero(tensor);
    }
    for (const TensorView& tensor : {args_.dk, args_.dv}) {
      if (tensor) fill_zero(tensor);
    }
    parallel_for(context, num_sequences * problem_.num_heads_kv, [&](int64_t task_idx, int) {
      const Sequence& sequence = sequences_[static_cast<size_t>(task_idx / problem_.num_heads_kv)];
      run_group(sequence, task_idx % problem_.num_heads_kv);
    });
    if (args_.max_logit && is_whole) {
      for (int64_t h = 0; h < problem_.num_heads; ++h) {
        store_float(args_.max_logit.at({h}), args_.max_logit.dtype,
                    max_logits_[static_cast<size_t>(h)]);
      }
    }
    gradients_.write();
  }

 private:
  static void fill_zero(const TensorView& tensor) {
    const int64_t bytes = tensor.numel() * dtype_bytes(tensor.dtype);
    std::fill_n(static_cast<char*>(tensor.data), bytes, char{0});
  }

  void run_group(const Sequence& sequence, int64_t head_kv) {
    const PlainKeys<Real> keys(problem_, args_, sequence, head_kv);
    Matrix<Real> dk, dv;
    if (problem_.is_backward) {
      dk = Matrix<Real>(sequence.seqlen_k, problem_.head_dim);
      dv = Matrix<Real>(sequence.seqlen_k, problem_.head_dim_v);
    }
    const int64_t group_size = problem_.group_size();
    for (int64_t h = head_kv * group_size; h < (head_kv + 1) * group_size; ++h) {
      PlainHead<Real> head(problem_, args_, sequence, h, config_, keys);
      head.forward();
      if (problem_.is_backward) {
        backward(sequence, h, head, dk, dv);
      } else {
        write_forward(sequence, h, head);
      }
    }
    if (!problem_.is_backward) return;
    write_keys(args_.dk, sequence, head_kv, dk);
    write_keys(args_.dv, sequence, head_kv, dv);
  }

  void write_keys(const TensorView& tensor, const Sequence& sequence, int64_t head_kv,
                  const Matrix<Real>& values) {
    if (!tensor) return;
    const KeyRows rows = key_rows(tensor, args_, sequence, head_kv);
    for (int64_t j = 0; j < sequence.seqlen_k; ++j) {
      scatter_row(values.row(j), rows.row(j), rows.element_stride, tensor.dtype);
    }
  }

  void write_queries(const TensorView& tensor, const Sequence& sequence, int64_t h,
                     const PlainHead<Real>& head, const Matrix<Real>& values) {
    if (!tensor) return;
    const Rows rows = query_rows(tensor, sequence, h);
    for (size_t n = 0; n < head.q_indices().size(); ++n) {
      scatter_row(values.row(static_cast<int64_t>(n)), rows.row(head.q_indices()[n]),
                  rows.element_stride, tensor.dtype);
    }
  }

  void write_forward(const Sequence& sequence, int64_t h, const PlainHead<Real>& head) {
    write_queries(args_.out, sequence, h, head, head.out());
    const Rows lse = lse_rows(args_.lse, sequence, h);
    for (size_t n = 0; n < head.q_indices().size(); ++n) {
      const int64_t i = head.q_indices()[n];
      if (lse.data != nullptr) store_float(lse.row(i), args_.lse.dtype, head.lse()[n]);
      write_weights(sequence, h, head, n);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    double& top = max_logits_[static_cast<size_t>(h)];
    top = std::max(top, head.max_logit());
  }

  void write_weights(const Sequence& sequence, int64_t h, const PlainHead<Real>& head, size_t n) {
    if (!args_.weights && !args_.dropout_mask) return;
    const int64_t i = head.q_indices()[n];
    const Rows weights = weight_rows(args_.weights, sequence, h);
    const Rows mask = weight_rows(args_.dropout_mask, sequence, h);
    const std::vector<Real> factors = head.keep_factors(i);
    const std::span<const Real> p = head.probabilities().row(static_cast<int64_t>(n));
    for (size_t j = 0; j < p.size(); ++j) {
      const int64_t slot = static_cast<int64_t>(j) + sequence.leftpad;
      if (weights.data != nullptr) {
        store_float(weights.row(i) + slot * weights.element_stride, args_.weights.dtype,
                    static_cast<double>(p[j] * factors[j]));
      }
      if (mask.data != nullptr) *(mask.row(i) + slot * mask.element_stride) = factors[j] != 0;
    }
  }

  void backward(const Sequence& sequence, int64_t h, PlainHead<Real>& head, Matrix<Real>& dk,
                Matrix<Real>& dv) {
    Matrix<Real> dout = gather_rows<Real>(query_rows(args_.dout, sequence, h), head.q_indices(),
                                          problem_.head_dim_v, args_.dout.dtype);
    round_to(problem_.dtype, dout.all());
    std::vector<double> dlse(head.q_indices().size(), 0.0);
    if (args_.dlse) {
      const Rows rows = lse_rows(args_.dlse, sequence, h);
      for (size_t n = 0; n < dlse.size(); ++n) {
        dlse[n] = load_float(rows.row(head.q_indices()[n]), args_.dlse.dtype);
      }
    }
    head.backward(dout, dlse);
    write_queries(args_.dq, sequence, h, head, head.dq());
    head.add_key_gradients(dout, dk, dv);
    gradients_.add(sequence, h, head);
  }

  const AttentionProblem& problem_;
  const AttentionArgs& args_;
  PlainConfig config_;
  std::vector<Sequence> sequences_;
  std::mutex mutex_;
  std::vector<double> max_logits_;
  SharedGradients<Real> gradients_;
};

template <bool is_backward>
void run_plain(const OpCall& call, const PlainConfig& config, const Context& context) {
  const auto& given = *static_cast<const AttentionArgs*>(call.args());
  const AttentionProblem problem = make_attention_problem(given, is_backward);
  std::optional<AppendedCall> appended;
  if (problem.has_new_keys) appended.emplace(problem, given, context);
  const AttentionArgs& args = appended ? appended->args() : given;
  if (problem.dtype == DType::kF64) {
    PlainRun<double>(problem, args, config).run(context);
  } else {
    PlainRun<float>(problem, args, config).run(context);
  }
}

void mask_gradients(const OpCall& call, const PlainConfig& config) {
  const auto& args = *static_cast<const AttentionArgs*>(call.args());
  const AttentionProblem problem = make_attention_problem(args, /*is_backward=*/true);
  for (const Sequence& sequence : attention_sequences(problem, args)) {
    for (int64_t h = 0; h < problem.num_heads; ++h) {
      const Rows dout = query_rows(args.dout, sequence, h);
      const Rows dlse = lse_rows(args.dlse, sequence, h);
      for (int64_t i = 0; i < sequence.seqlen_q; ++i) {
        if (is_plain_row(config, i, sequence.seqlen_q)) continue;
        for (int64_t d = 0; d < problem.head_dim_v; ++d) {
          store_float(dout.row(i) + d * dout.element_stride, args.dout.dtype, 0);
        }
        if (dlse.data != nullptr) store_float(dlse.row(i), args.dlse.dtype, 0);
      }
    }
  }
}

template <bool is_backward>
double plain_bytes(const OpCall& call, const Context& context) {
  const auto& args = *static_cast<const AttentionArgs*>(call.args());
  const AttentionProblem problem = make_attention_problem(args, is_backward);
  // Scores, their slopes, the gradients of both, and a rounded copy of the weights.
  const double num_matrices = is_backward ? 5 : 2;
  const double real_bytes = problem.dtype == DType::kF64 ? 8 : 4;
  return num_matrices * real_bytes * static_cast<double>(problem.max_seqlen_q) *
         static_cast<double>(problem.max_seqlen_k) * num_workers_of(context);
}

}  // namespace

bool is_plain_row(const PlainConfig& config, int64_t q_idx, int64_t seqlen_q) {
  if (config.num_rows <= 0 || seqlen_q <= config.num_rows) return true;
  return q_idx % (seqlen_q / config.num_rows) == 0 || q_idx == seqlen_q - 1;
}

const PlainOp* find_plain(std::string_view op) {
  static constexpr PlainOp kOps[] = {
      {"attention_fwd", run_plain<false>, [](const OpCall&, const PlainConfig&) {},
       plain_bytes<false>},
      {"attention_bwd", run_plain<true>, mask_gradients, plain_bytes<true>},
  };
  for (const PlainOp& plain : kOps) {
    if (plain.op == op) return &plain;
  }
  return nullptr;
}

}  // namespace flashtile::cli
