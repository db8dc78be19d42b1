// SPDX-License-Identifier: Apache-2.0
#include "core/element.hpp"
#include "ops/attention_merge/merge.hpp"

namespace flashtile {
namespace {

std::string refuse(const MergeProblem& problem) {
  if (problem.device.type != DeviceType::kCpu) return "runs on the CPU, tensors are on a device";
  return {};
}

void launch(const MergeProblem& problem, const MergePlan&, const MergeArgs& args, const Context&) {
  MergeWeights weights;
  for (int64_t index = 0; index < problem.num_rows(); ++index) {
    const MergeRow row = merge_row(problem, args, index);
    weights.compute(row, problem.num_parts, problem.lse_dtype);
    for (int64_t d = 0; d < problem.head_dim_v; ++d) {
      double sum = 0;
      bool is_first = true;  // -0 stays -0 where there is one part
      for (int64_t p = 0; p < problem.num_parts; ++p) {
        if (weights.is_read[static_cast<size_t>(p)] == 0) continue;
        const double term =
            weights.weights[static_cast<size_t>(p)] *
            load_float(row.part + p * row.part_step + d * row.part_stride, problem.dtype);
        sum = is_first ? term : sum + term;
        is_first = false;
      }
      store_float(row.out + d * row.out_stride, args.out.dtype, sum);
    }
    if (row.lse != nullptr) store_float(row.lse, args.lse.dtype, weights.lse);
  }
}

}  // namespace

MergeImplementation merge_reference() {
  return {"attention_merge_reference", refuse,
          [](const MergeProblem&) {
            return MergePlan{"attention_merge_reference", 0};
          },
          launch};
}

}  // namespace flashtile
