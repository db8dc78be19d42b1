// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch/attention_fwd.hpp"

#include "cuda/jit/kernel.hpp"
#include "cuda/launch/attention_params.hpp"

namespace flashtile::cuda {
namespace {

LaunchShape shape_of(const KernelChoice& kernel) {
  LaunchShape shape;
  shape.grid.x = static_cast<uint32_t>(kernel.grid[0]);
  shape.num_threads = static_cast<uint32_t>(kernel.num_threads);
  shape.shared_bytes = static_cast<uint32_t>(kernel.shared_bytes);
  return shape;
}

device::GridParam grid_param(const ForwardPlan& plan, char* workspace) {
  device::GridParam grid;
  grid.num_m_blocks = static_cast<int>(plan.num_m_blocks);
  grid.section_heads = static_cast<int>(plan.section_heads);
  grid.num_splits = static_cast<int>(plan.num_splits);
  grid.num_v_parts = static_cast<int>(plan.num_v_parts);
  grid.descending = plan.is_descending ? 1 : 0;
  if (plan.num_splits > 1) {
    grid.partial_out = reinterpret_cast<float*>(workspace);
    grid.partial_lse = reinterpret_cast<float*>(workspace + plan.partial_out_bytes);
  }
  return grid;
}

}  // namespace

void launch_forward_plan(const AttentionProblem& problem, const ForwardPlan& plan,
                         const AttentionArgs& args, const Context& context) {
  char* workspace = device_workspace("attention_fwd", context, plan.workspace_bytes);
  device::AttentionParams params = attention_params(problem, args);
  params.grid = grid_param(plan, workspace);
  ExpressionArguments expressions(problem, args);
  void* arguments[] = {&params, expressions.data()};
  const std::vector<KernelChoice> kernels = forward_kernels(problem, plan);
  // All are found before the first one runs.
  std::vector<const Function*> functions;
  for (const KernelChoice& kernel : kernels) {
    functions.push_back(&get_kernel(kernel.source, context));
  }
  for (size_t n = 0; n < kernels.size(); ++n) {
    launch(*functions[n], shape_of(kernels[n]), context, static_cast<void**>(arguments));
  }
}

void launch_attention_fwd(const AttentionProblem& problem, const AttentionPlan&,
                          const AttentionArgs& args, const Context& context) {
  launch_forward_plan(problem, make_forward_plan(problem), args, context);
}

}  // namespace flashtile::cuda
