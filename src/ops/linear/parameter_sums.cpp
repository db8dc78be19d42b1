// SPDX-License-Identifier: Apache-2.0
#include "ops/linear/parameter_sums.hpp"

#include "core/element.hpp"
#include "ops/linear/sequences.hpp"

namespace flashtile {

ParameterSums::ParameterSums(const LinearProblem& problem, const LinearArgs& args)
    : batch_size_(problem.batch_size) {
  for (const LinearInput& input : problem.op->inputs) {
    if (input.is_timed || input.access_gradient == nullptr) continue;
    const TensorView* gradient =
        input.access_gradient(const_cast<LinearArgs*>(&args), {}, /*create=*/false);
    if (!*gradient) continue;
    Parameter parameter{gradient, gradient->shape[0], 1, {}};
    for (int d = 1; d < gradient->ndim; ++d) {
      parameter.num_elements *= gradient->shape[static_cast<size_t>(d)];
    }
    const int64_t size = batch_size_ * parameter.num_heads * parameter.num_elements;
    parameter.sums.assign(static_cast<size_t>(size), 0.0);
    parameters_.push_back(std::move(parameter));
  }
}

void ParameterSums::add(const TensorView& gradient, int64_t batch_idx, int64_t head, int64_t i,
                        double value) {
  for (Parameter& parameter : parameters_) {
    if (parameter.gradient != &gradient) continue;
    const int64_t first = (batch_idx * parameter.num_heads + head) * parameter.num_elements;
    parameter.sums[static_cast<size_t>(first + (gradient.ndim > 1 ? i : 0))] += value;
  }
}

void ParameterSums::store() const {
  for (const Parameter& parameter : parameters_) {
    const TensorView& gradient = *parameter.gradient;
    const int64_t size = parameter.num_heads * parameter.num_elements;
    for (int64_t n = 0; n < size; ++n) {
      double sum = 0;
      for (int64_t b = 0; b < batch_size_; ++b) {
        sum += parameter.sums[static_cast<size_t>(b * size + n)];
      }
      store_float(parameter_at(gradient, n / parameter.num_elements, n % parameter.num_elements),
                  gradient.dtype, sum);
    }
  }
}

}  // namespace flashtile
