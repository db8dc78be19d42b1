// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/reference.hpp"

#include <limits>

#include "core/element.hpp"
#include "core/fail.hpp"
#include "ops/attention/finish.hpp"
#include "ops/attention/reference_row.hpp"
#include "variant/expr/derivative.hpp"

namespace flashtile {
namespace {

using Matrix = std::vector<double>;

template <class AnyRows>
void write_rows(const AnyRows& rows, const Matrix& values, int64_t num_rows, int64_t dim,
                DType dtype) {
  if (rows.data == nullptr) return;
  for (int64_t i = 0; i < num_rows; ++i) {
    for (int64_t d = 0; d < dim; ++d) {
      store_float(rows.row(i) + d * rows.element_stride, dtype,
                  values[static_cast<size_t>(i * dim + d)]);
    }
  }
}

// ---- Forward

void forward_row(const AttentionProblem& problem, const ReferenceHead& head,
                 const ReferenceRow& row, double* out) {
  for (size_t j = 0; j < row.probability.size(); ++j) {
    if (row.is_seen[j] == 0) continue;
    const double weight = row.probability[j] * row.keep[j];
    const double* v = head.value(static_cast<int64_t>(j));
    for (int64_t d = 0; d < problem.head_dim_v; ++d) out[d] += weight * v[d];
  }
}

void write_weights_row(const AttentionArgs& args, const Sequence& sequence, int64_t h, int64_t i,
                       const ReferenceRow& row) {
  const Rows weights = weight_rows(args.weights, sequence, h);
  if (weights.data == nullptr) return;
  for (size_t j = 0; j < row.probability.size(); ++j) {
    if (row.is_seen[j] == 0) continue;
    const int64_t key = static_cast<int64_t>(j) + sequence.leftpad;
    store_float(weights.row(i) + key * weights.element_stride, args.weights.dtype,
                row.probability[j] * row.keep[j]);
  }
}

void launch_forward(const AttentionProblem& problem, const AttentionPlan&,
                    const AttentionArgs& args, const Context&) {
  const AttentionVariant variant = attention_variant(problem, args);
  const std::vector<Sequence> sequences = attention_sequences(problem, args);
  fill_debug_outputs(problem, args, sequences);
  fill_uncovered_rows(problem, args);
  for (int64_t h = 0; h < problem.num_heads; ++h) {
    double max_logit = -std::numeric_limits<double>::infinity();
    for (const Sequence& sequence : sequences) {
      ReferenceHead head(problem, args, variant, sequence, h);
      ReferenceRow row;
      Matrix out(static_cast<size_t>(sequence.seqlen_q * problem.head_dim_v), 0.0);
      const Rows lse = lse_rows(args.lse, sequence, h);
      for (int64_t i = 0; i < sequence.seqlen_q; ++i) {
        head.compute(i, &row);
        forward_row(problem, head, row, out.data() + i * problem.head_dim_v);
        if (lse.data != nullptr) store_float(lse.row(i), args.lse.dtype, row.lse);
        write_weights_row(args, sequence, h, i, row);
        if (row.max_logit > max_logit) max_logit = row.max_logit;
      }
      write_rows(query_rows(args.out, sequence, h), out, sequence.seqlen_q, problem.head_dim_v,
                 args.out.dtype);
    }
    if (args.max_logit) store_float(args.max_logit.at({h}), args.max_logit.dtype, max_logit);
  }
}

// ---- Backward

/// A tensor that the score reads, with its gradient summed in double, row-major.
struct AuxGradient {
  std::vector<variant::Evaluator> index;
  variant::Evaluator active, derivative;
  TensorView target;
  size_t sum_idx = 0;  ///< into Gradients::aux_sums; sites of one tensor share a sum
};

struct Gradients {
  std::vector<TensorView> targets;
  std::vector<Matrix> aux_sums;  ///< by target
  std::vector<AuxGradient> sites;
  Matrix sink;
};

Gradients make_gradients(const AttentionProblem& problem, const AttentionArgs& args,
                         const variant::Expr& score) {
  Gradients result;
  result.sink.assign(static_cast<size_t>(problem.num_heads), 0.0);
  const auto evaluator = [&](const variant::Expr& expr) {
    return variant::Evaluator(expr, bound_aux(expr, args), bound_params(expr, args));
  };
  std::vector<TensorView> all = {args.dbias, args.dalibi_slopes};
  for (const AuxTensor& aux : args.aux) all.push_back(aux.gradient);
  for (const TensorView& target : all) {
    if (!target) continue;
    result.targets.push_back(target);
    result.aux_sums.emplace_back(static_cast<size_t>(target.numel()), 0.0);
  }
  for (const variant::LoadSite& site : variant::load_gradients(score)) {
    const std::string& name = score.aux[static_cast<size_t>(site.aux_idx)].name;
    const TensorView target = aux_gradient(name, args);
    if (!target) continue;
    AuxGradient gradient{{}, evaluator(site.active), evaluator(site.derivative), target, 0};
    while (result.targets[gradient.sum_idx].data != target.data) ++gradient.sum_idx;
    for (const variant::Expr& index : site.index) gradient.index.push_back(evaluator(index));
    result.sites.push_back(std::move(gradient));
  }
  return result;
}

void add_aux_gradients(Gradients& gradients, const variant::Variables& at, double dlogit) {
  for (AuxGradient& site : gradients.sites) {
    if (!site.active.truth(at)) continue;
    int64_t flat = 0;
    for (size_t d = 0; d < site.index.size(); ++d) {
      flat = flat * site.target.shape[d] + site.index[d].integer(at);
    }
    gradients.aux_sums[site.sum_idx][static_cast<size_t>(flat)] +=
        dlogit * site.derivative.number(at);
  }
}

/// Sums of one (sequence, head); dk and dv are shared by the heads of a group.
struct HeadSums {
  Matrix dq;
  Matrix* dk;
  Matrix* dv;
};

/// With dP = keep (dout . v) and delta = sum P dP - dlse: dlogit = P (dP - delta), and the chain
/// of the score options gives the gradient of q . k.
void backward_row(const AttentionProblem& problem, const ReferenceHead& head,
                  const ReferenceRow& row, variant::Evaluator& dscore, int64_t i,
                  const double* dout, double dlse, Gradients& gradients, int64_t h,
                  HeadSums& sums) {
  const size_t num_keys = row.probability.size();
  Matrix dp(num_keys, 0.0);
  double delta = -dlse;
  for (size_t j = 0; j < num_keys; ++j) {
    if (row.is_seen[j] == 0) continue;
    const auto k_idx = static_cast<int64_t>(j);
    const double* v = head.value(k_idx);
    double* dv = sums.dv->data() + k_idx * problem.head_dim_v;
    const double weight = row.probability[j] * row.keep[j];
    double dot = 0;
    for (int64_t d = 0; d < problem.head_dim_v; ++d) {
      dot += dout[d] * v[d];
      dv[d] += weight * dout[d];
    }
    dp[j] = dot * row.keep[j];
    delta += row.probability[j] * dp[j];
  }
  if (row.sink_probability > 0) {
    gradients.sink[static_cast<size_t>(h)] -= row.sink_probability * delta;
  }
  const double* q = head.query(i);
  for (size_t j = 0; j < num_keys; ++j) {
    if (row.is_seen[j] == 0) continue;
    const auto k_idx = static_cast<int64_t>(j);
    const double dlogit = row.probability[j] * (dp[j] - delta);
    const variant::Variables at = head.variables_at(i, k_idx, row.scaled[j]);
    add_aux_gradients(gradients, at, dlogit);
    const double dproduct = dlogit * dscore.number(at) * problem.softmax_scale;
    const double* k = head.key(k_idx);
    double* dq = sums.dq.data() + i * problem.head_dim;
    double* dk = sums.dk->data() + k_idx * problem.head_dim;
    for (int64_t d = 0; d < problem.head_dim; ++d) {
      dq[d] += dproduct * k[d];
      dk[d] += dproduct * q[d];
    }
  }
}

void write_gradients(const AttentionArgs& args, const Gradients& gradients) {
  for (size_t n = 0; n < gradients.targets.size(); ++n) {
    const TensorView& target = gradients.targets[n];
    for_each_element(target, [&](int64_t flat, char* address) {
      store_float(address, target.dtype, gradients.aux_sums[n][static_cast<size_t>(flat)]);
    });
  }
  for_each_element(args.dsink, [&](int64_t flat, char* address) {
    store_float(address, args.dsink.dtype, gradients.sink[static_cast<size_t>(flat)]);
  });
}

void launch_backward(const AttentionProblem& problem, const AttentionPlan&,
                     const AttentionArgs& args, const Context&) {
  const AttentionVariant variant = attention_variant(problem, args);
  const variant::Expr derivative = variant::derivative_score(variant.score);
  variant::Evaluator dscore(derivative, bound_aux(derivative, args),
                            bound_params(derivative, args));
  Gradients gradients = make_gradients(problem, args, variant.score);
  // Rows that no sequence covers (padding) have gradient 0.
  fill_zero(args.dq);
  fill_zero(args.dk);
  fill_zero(args.dv);
  for (const Sequence& sequence : attention_sequences(problem, args)) {
    for (int64_t h_kv = 0; h_kv < problem.num_heads_kv; ++h_kv) {
      Matrix dk(static_cast<size_t>(sequence.seqlen_k * problem.head_dim), 0.0);
      Matrix dv(static_cast<size_t>(sequence.seqlen_k * problem.head_dim_v), 0.0);
      for (int64_t g = 0; g < problem.group_size(); ++g) {
        const int64_t h = h_kv * problem.group_size() + g;
        ReferenceHead head(problem, args, variant, sequence, h);
        ReferenceRow row;
        HeadSums sums{Matrix(static_cast<size_t>(sequence.seqlen_q * problem.head_dim), 0.0), &dk,
                      &dv};
        const Matrix dout = read_rows(query_rows(args.dout, sequence, h), sequence.seqlen_q,
                                      problem.head_dim_v, args.dout.dtype);
        const Rows dlse = lse_rows(args.dlse, sequence, h);
        for (int64_t i = 0; i < sequence.seqlen_q; ++i) {
          head.compute(i, &row);
          const double dlse_i = dlse.data != nullptr ? load_float(dlse.row(i), args.dlse.dtype) : 0;
          backward_row(problem, head, row, dscore, i, dout.data() + i * problem.head_dim_v, dlse_i,
                       gradients, h, sums);
        }
        write_rows(query_rows(args.dq, sequence, h), sums.dq, sequence.seqlen_q, problem.head_dim,
                   args.dq.dtype);
      }
      write_rows(key_rows(args.dk, args, sequence, h_kv), dk, sequence.seqlen_k, problem.head_dim,
                 args.dk.dtype);
      write_rows(key_rows(args.dv, args, sequence, h_kv), dv, sequence.seqlen_k, problem.head_dim_v,
                 args.dv.dtype);
    }
  }
  write_gradients(args, gradients);
}

std::string refuse(const AttentionProblem& problem) {
  if (problem.device.type != DeviceType::kCpu) return "runs on the CPU, tensors are on a device";
  return {};
}

AttentionPlan plan_forward(const AttentionProblem&) {
  AttentionPlan plan;
  plan.implementation = "attention_fwd_reference";
  return plan;
}

AttentionPlan plan_backward(const AttentionProblem&) {
  AttentionPlan plan;
  plan.implementation = "attention_bwd_reference";
  return plan;
}

}  // namespace

AttentionImplementation attention_reference(bool is_backward) {
  if (is_backward) return {"attention_bwd_reference", refuse, plan_backward, launch_backward};
  return {"attention_fwd_reference", refuse, plan_forward, launch_forward};
}

}  // namespace flashtile
