// SPDX-License-Identifier: Apache-2.0
//
// Joining of partial attention on the CPU: rows are independent, parts are added in their order.
#include "cpu/attention_merge.hpp"

#include <algorithm>

#include "core/element.hpp"
#include "core/executor.hpp"

namespace flashtile::cpu {
namespace {

/// Elements that a task reads: enough to be worth a task.
constexpr int64_t kTaskElements = 1 << 15;

}  // namespace

void join_row(const IsaEntry& isa, const MergeProblem& problem, const MergeRow& row) {
  thread_local MergeWeights weights;
  thread_local std::vector<const void*> parts;
  thread_local std::vector<float> factors;
  const auto num_parts = static_cast<size_t>(problem.num_parts);
  parts.resize(num_parts);
  factors.resize(num_parts);
  weights.compute(row, problem.num_parts, problem.lse_dtype);
  for (size_t p = 0; p < num_parts; ++p) {
    const char* part = row.part + static_cast<int64_t>(p) * row.part_step;
    parts[p] = weights.is_read[p] != 0 ? part : nullptr;
    factors[p] = static_cast<float>(weights.weights[p]);
  }
  isa.serving->merge_row({parts.data(), factors.data(), problem.num_parts, problem.head_dim_v,
                          problem.dtype, row.part_stride / dtype_bytes(problem.dtype), row.out,
                          problem.out_dtype, row.out_stride / dtype_bytes(problem.out_dtype)});
  if (row.lse != nullptr) store_float(row.lse, problem.out_lse_dtype, weights.lse);
}

MergePlan plan_attention_merge(const IsaEntry& isa, const MergeProblem& problem) {
  const int64_t row_elements = std::max<int64_t>(1, problem.num_parts * problem.head_dim_v);
  return {isa.merge_name, std::max<int64_t>(1, kTaskElements / row_elements)};
}

void launch_attention_merge(const IsaEntry& isa, const MergeProblem& problem, const MergePlan& plan,
                            const MergeArgs& args, const Context& context) {
  const int64_t num_tasks = ceil_div(problem.num_rows(), plan.rows_a_task);
  const double elements = static_cast<double>(problem.num_rows()) *
                          static_cast<double>(problem.num_parts * problem.head_dim_v);
  constexpr double kElement = 32;  // reading and adding one, in multiply-adds
  parallel_for(with_workers_for(kElement * elements, context), num_tasks, [&](int64_t task, int) {
    const int64_t end = std::min((task + 1) * plan.rows_a_task, problem.num_rows());
    for (int64_t index = task * plan.rows_a_task; index < end; ++index) {
      join_row(isa, problem, merge_row(problem, args, index));
    }
  });
}

}  // namespace flashtile::cpu
