// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch/attention_fwd.hpp"

#include <algorithm>
#include <span>

#include "cuda/jit/kernel.hpp"
#include "cuda/launch/attention_params.hpp"
#include "cuda/runtime/current.hpp"

namespace flashtile::cuda {
namespace {

device::GridParam grid_param(const ForwardPlan& plan, char* workspace) {
  device::GridParam grid;
  grid.num_m_blocks = static_cast<int>(plan.num_m_blocks);
  const int64_t num_parts = plan.num_splits * plan.num_v_parts;
  set_sections(grid, plan.num_pairs, plan.num_m_blocks * num_parts, plan.section_heads);
  grid.parts = divisor_param(num_parts);
  grid.splits = divisor_param(plan.num_splits);
  grid.heads = divisor_param(plan.num_heads_in_grid);
  grid.num_splits = static_cast<int>(plan.num_splits);
  grid.num_v_parts = static_cast<int>(plan.num_v_parts);
  grid.combine_ctas = static_cast<int>(std::max<int64_t>(plan.combine_ctas, 1));
  grid.combine_warps = static_cast<int>(plan.combine_warps);
  grid.descending = plan.is_descending ? 1 : 0;
  grid.partial_out = region_at<float>(workspace, plan.partial_out);
  grid.partial_lse = region_at<float>(workspace, plan.partial_lse);
  return grid;
}

device::WeightsParam debug_param(const AttentionArgs& args) {
  device::WeightsParam debug;
  if (args.weights) {
    debug.weights = scores_param(args.weights);
    debug.weight_rows = static_cast<int>(args.weights.shape[2]);
    debug.weight_cols = static_cast<int>(args.weights.shape[3]);
  }
  if (args.dropout_mask) {
    debug.dropout_mask = scores_param(args.dropout_mask);
    debug.mask_rows = static_cast<int>(args.dropout_mask.shape[2]);
    debug.mask_cols = static_cast<int>(args.dropout_mask.shape[3]);
  }
  return debug;
}

/// lse in the workspace, laid out like the caller's would be.
device::RowScalarsParam own_lse(const AttentionProblem& problem, const ForwardPlan& plan,
                                char* workspace) {
  device::RowScalarsParam lse;
  lse.data = region_at<float>(workspace, plan.lse);
  lse.row_stride = 4;
  lse.head_stride = 4 * (problem.is_packed_q ? problem.total_q : problem.max_seqlen_q);
  lse.batch_stride = problem.is_packed_q ? 0 : lse.head_stride * problem.num_heads;
  return lse;
}

/// Everything that the kernels of a call are given.
class ForwardArguments {
 public:
  ForwardArguments(const AttentionProblem& problem, const ForwardPlan& plan,
                   const AttentionArgs& args, char* workspace)
      : params_(attention_params(problem, args)), expressions_(problem, args) {
    params_.grid = grid_param(plan, workspace);
    params_.blocks =
        blocks_param(args, plan.blocks, region_at<unsigned int>(workspace, plan.listed),
                     region_at<unsigned int>(workspace, plan.map));
    params_.blocks.order = region_at<int>(workspace, plan.order);
    params_.debug = debug_param(args);
    if (plan.lse.bytes > 0) params_.lse = own_lse(problem, plan, workspace);
    before_ = params_;
    if (plan.tiling.box_rows > 0) keys_ = row_boxes(args.k, plan.tiling.box_rows);
    append_ = append_params(problem, args, region_at<char>(workspace, plan.turned_q));
    if (append_.turned_q.data != nullptr) params_.q = append_.turned_q;
  }

  /// One pointer for each parameter of a kernel.
  std::vector<void*> of(std::string_view stem) {
    if (stem == "attention_append") return {&before_, &append_};
    if (stem == "attention_fwd_latent_sm90") return {&params_, expressions_.data(), &keys_};
    if (stem == "attention_order") return {&params_};
    return {&params_, expressions_.data()};
  }

 private:
  device::AttentionParams params_;
  device::AttentionParams before_;  ///< with queries as they came
  device::AppendParams append_;
  device::TensorMapParam keys_;  ///< where the copy engine takes them
  ExpressionArguments expressions_;
};

void launch_forward_kernels(const AttentionProblem& problem, const ForwardPlan& plan,
                            std::span<const KernelChoice> kernels, const AttentionArgs& args,
                            const Context& context) {
  const CurrentContext current(context);  // tensor maps are made in one
  char* workspace = device_workspace("attention_fwd", context, plan.workspace_bytes);
  ForwardArguments arguments(problem, plan, args, workspace);
  // All are found before the first one runs.
  std::vector<const Function*> functions;
  for (const KernelChoice& kernel : kernels) {
    functions.push_back(&get_kernel(kernel.source, context));
  }
  for (size_t n = 0; n < kernels.size(); ++n) {
    launch(*functions[n], launch_shape(kernels[n]), context,
           arguments.of(kernels[n].source.stem).data());
  }
}

}  // namespace

void launch_forward_plan(const AttentionProblem& problem, const ForwardPlan& plan,
                         const AttentionArgs& args, const Context& context) {
  launch_forward_kernels(problem, plan, forward_kernels(problem, plan), args, context);
}

void launch_attention_fwd(const AttentionProblem& problem, const AttentionPlan& plan,
                          const AttentionArgs& args, const Context& context) {
  const auto& forward = *static_cast<const ForwardPlan*>(plan.details.get());
  launch_forward_kernels(problem, forward, plan.kernels, args, context);
}

}  // namespace flashtile::cuda
