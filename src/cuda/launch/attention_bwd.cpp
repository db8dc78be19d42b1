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
  backward.num_n_blocks = static_cast<int>(plan.num_n_blocks);
  return backward;
}

/// Everything that the kernels of a call are given.
class BackwardArguments {
 public:
  BackwardArguments(const AttentionProblem& problem, const BackwardPlan& plan,
                    const AttentionArgs& args, char* workspace)
      : params_(attention_params(problem, args)),
        backward_(backward_params(plan, args, workspace)),
        expressions_(problem, args) {}

  /// One pointer for each parameter of a kernel.
  std::vector<void*> of(std::string_view stem) {
    if (stem == "attention_bwd_portable") return {&params_, expressions_.data(), &backward_};
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
