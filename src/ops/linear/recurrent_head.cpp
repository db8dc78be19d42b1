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

SharedRows::SharedRows(const LinearProblem& problem, const LinearSequence& sequence) {
  const Numbers zeros(static_cast<size_t>(sequence.length * problem.head_dim), 0.0);
  dq.assign(static_cast<size_t>(problem.num_query_heads), zeros);
  dk.assign(static_cast<size_t>(problem.num_key_heads), zeros);
}

void SharedRows::store(const LinearProblem& problem, const LinearArgs& args,
                       const LinearSequence& sequence) const {
  const auto store_heads = [&](const TensorView& tensor, const std::vector<Numbers>& heads) {
    for (size_t h = 0; h < heads.size(); ++h) {
      store_rows(timed_rows(problem, tensor, sequence, static_cast<int64_t>(h)), heads[h],
                 sequence.length, problem.head_dim);
    }
  };
  store_heads(args.gradients.q, dq);
  store_heads(args.gradients.k, dk);
}

std::string refuse_as_reference(const LinearProblem& problem) {
  if (problem.device.type != DeviceType::kCpu) return "runs on the CPU, tensors are on a device";
  return {};
}

LinearPlan plan_as_reference(const LinearProblem&) { return {"reference"}; }

}  // namespace flashtile
