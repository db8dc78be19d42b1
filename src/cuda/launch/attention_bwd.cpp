// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch/attention_bwd.hpp"

#include "cuda/device/params/backward_params.hpp"
#include "cuda/jit/kernel.hpp"
#include "cuda/launch/attention_params.hpp"

namespace flashtile::cuda {
namespace {

template <class T>
T* region_at(char* workspace, const WorkspaceRegion& region) {
  return region.bytes == 0 ? nullptr : reinterpret_cast<T*>(workspace + region.offset);
}

device::BackwardParams backward_params(const BackwardPlan& plan, const AttentionArgs& args,
                                       char* workspace) {
  device::BackwardParams backward;
  backward.dout = rows_param(args.dout);
  backward.dq = rows_param(args.dq);
  backward.dk = rows_param(args.dk);
  backward.dv = rows_param(args.dv);
  backward.dlse = row_scalars_param(args.dlse);
  backward.lse = region_at<float>(workspace, plan.lse);
  backward.delta = region_at<float>(workspace, plan.delta);
  backward.dq_sums = region_at<float>(workspace, plan.dq_sums);
  backward.padded_rows = plan.padded_rows;
  backward.dsink = head_scalars_param(args.dsink);
  backward.dalibi_slopes = head_scalars_param(args.dalibi_slopes);
  backward.has_slopes_by_batch = args.dalibi_slopes.ndim == 2 ? 1 : 0;
  backward.num_parts = plan.parts.bytes / 4;
  backward.slope_parts_per_head = static_cast<int>(plan.num_slope_parts);
  float* parts = region_at<float>(workspace, plan.parts);
  if (plan.num_sink_parts > 0) backward.sink_parts = parts;
  if (plan.num_slope_parts > 0) backward.slope_parts = parts + plan.num_sink_parts;
  backward.num_n_blocks = static_cast<int>(plan.num_n_blocks);
  return backward;
}

device::BlocksParam map_param(const AttentionArgs& args, const BackwardPlan& plan,
                              char* workspace) {
  device::BlocksParam blocks;
  const BlockMapPlan& from = plan.blocks;
  blocks.map = region_at<unsigned int>(workspace, plan.map);
  blocks.map_batches = static_cast<int>(from.map_batches);
  blocks.map_heads = static_cast<int>(from.map_heads);
  blocks.map_words = static_cast<int>(from.map_words);
  if (!args.block_counts) return blocks;
  const device::ScoresParam counts = scores_param(args.block_counts);
  const device::ScoresParam indices = scores_param(args.block_indices);
  blocks.counts = counts.data;
  blocks.counts_batch_stride = counts.batch_stride;
  blocks.counts_head_stride = counts.head_stride;
  blocks.counts_row_stride = counts.row_stride;
  blocks.indices = indices.data;
  blocks.indices_batch_stride = indices.batch_stride;
  blocks.indices_head_stride = indices.head_stride;
  blocks.indices_row_stride = indices.row_stride;
  blocks.indices_entry_stride = indices.key_stride;
  blocks.max_entries = static_cast<int>(args.block_indices.shape[3]);
  blocks.block_rows = args.block_rows;
  blocks.block_cols = args.block_cols;
  blocks.listed = region_at<unsigned int>(workspace, plan.listed);
  blocks.list_batches = static_cast<int>(from.list_batches);
  blocks.list_heads = static_cast<int>(from.list_heads);
  blocks.list_rows = static_cast<int>(from.list_rows);
  blocks.list_cols = static_cast<int>(from.list_cols);
  blocks.list_words = static_cast<int>(from.list_words);
  return blocks;
}

/// Everything that the kernels of a call are given.
class BackwardArguments {
 public:
  BackwardArguments(const AttentionProblem& problem, const BackwardPlan& plan,
                    const AttentionArgs& args, char* workspace)
      : params_(attention_params(problem, args)),
        backward_(backward_params(plan, args, workspace)),
        expressions_(problem, args) {
    params_.grid.num_m_blocks = static_cast<int>(plan.num_m_blocks);
    params_.blocks = map_param(args, plan, workspace);
  }

  /// One pointer for each parameter of a kernel.
  std::vector<void*> of(std::string_view stem) {
    if (stem == "attention_bwd_portable" || stem == "attention_blocks") {
      return {&params_, expressions_.data(), &backward_};
    }
    return {&params_, &backward_};
  }

 private:
  device::AttentionParams params_;
  device::BackwardParams backward_;
  ExpressionArguments expressions_;
};

}  // namespace

void launch_backward_plan(const AttentionProblem& problem, const BackwardPlan& plan,
                          const AttentionArgs& args, const Context& context) {
  char* workspace = device_workspace("attention_bwd", context, plan.workspace_bytes);
  BackwardArguments arguments(problem, plan, args, workspace);
  const std::vector<KernelChoice> kernels = backward_kernels(problem, plan);
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

void launch_attention_bwd(const AttentionProblem& problem, const AttentionPlan&,
                          const AttentionArgs& args, const Context& context) {
  launch_backward_plan(problem, make_backward_plan(problem), args, context);
}

}  // namespace flashtile::cuda
