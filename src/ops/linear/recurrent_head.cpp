// SPDX-License-Identifier: Apache-2.0
#include "ops/linear/recurrent_head.hpp"

namespace flashtile {

Numbers load_rows(const HeadRows& rows, int64_t length, int64_t dim) {
  Numbers numbers;
  numbers.reserve(static_cast<size_t>(length * dim));
  for (int64_t t = 0; t < length; ++t) {
    for (int64_t i = 0; i < dim; ++i) numbers.push_back(rows.load(t, i));
  }
  return numbers;
}

void store_rows(const HeadRows& rows, const Numbers& numbers, int64_t length, int64_t dim) {
  for (int64_t t = 0; t < length; ++t) {
    for (int64_t i = 0; i < dim; ++i) rows.store(t, i, row_of(numbers, t, dim)[i]);
  }
}

namespace {

double inverse_length(const double* row, int64_t dim) {
  double sum = 1e-6;
  for (int64_t i = 0; i < dim; ++i) sum += row[i] * row[i];
  return 1 / std::sqrt(sum);
}

}  // namespace

void l2_normalize(double* row, int64_t dim) {
  const double factor = inverse_length(row, dim);
  for (int64_t i = 0; i < dim; ++i) row[i] *= factor;
}

void l2_normalize_gradient(const double* raw_row, double* gradient, int64_t dim) {
  const double factor = inverse_length(raw_row, dim);
  double along = 0;
  for (int64_t i = 0; i < dim; ++i) along += factor * raw_row[i] * gradient[i];
  for (int64_t i = 0; i < dim; ++i) {
    gradient[i] = factor * (gradient[i] - factor * raw_row[i] * along);
  }
}

SharedRows::SharedRows(const LinearProblem& problem, const LinearSequence& sequence) {
  const Numbers zeros(static_cast<size_t>(sequence.length * problem.head_dim), 0.0);
  dq.assign(static_cast<size_t>(problem.num_query_heads), zeros);
  dk.assign(static_cast<size_t>(problem.num_key_heads), zeros);
}

void SharedRows::store(const LinearProblem& problem, const LinearArgs& args,
                       const LinearSequence& sequence) {
  const auto store_heads = [&](const TensorView& input, const TensorView& gradient,
                               std::vector<Numbers>& heads) {
    for (size_t h = 0; h < heads.size(); ++h) {
      const auto head = static_cast<int64_t>(h);
      if (args.qk_l2norm) {
        const Numbers raw = load_rows(timed_rows(problem, input, sequence, head), sequence.length,
                                      problem.head_dim);
        for (int64_t t = 0; t < sequence.length; ++t) {
          l2_normalize_gradient(row_of(raw, t, problem.head_dim),
                                row_of(heads[h], t, problem.head_dim), problem.head_dim);
        }
      }
      store_rows(timed_rows(problem, gradient, sequence, head), heads[h], sequence.length,
                 problem.head_dim);
    }
  };
  store_heads(args.inputs.q, args.gradients.q, dq);
  store_heads(args.inputs.k, args.gradients.k, dk);
}

std::string refuse_as_reference(const LinearProblem& problem) {
  if (problem.device.type != DeviceType::kCpu) return "runs on the CPU, tensors are on a device";
  return {};
}

LinearPlan plan_as_reference(const LinearProblem&) { return {"reference"}; }

}  // namespace flashtile
