// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch/attention_merge.hpp"

#include <algorithm>
#include <iterator>

#include "cuda/device/params/merge_params.hpp"
#include "cuda/jit/kernel.hpp"
#include "cuda/launch/attention_params.hpp"
#include "cuda/plan/attention_config.hpp"
#include "cuda/plan/kernel_plan.hpp"
#include "cuda/runtime/launch.hpp"

namespace flashtile::cuda {
namespace {

KernelChoice merge_kernel(const MergeProblem& problem) {
  return strided_kernel(gpu_model(problem.device), "attention_merge",
                        "#include \"cuda/device/ptx/convert.cuh\"\nstruct Config {\n"
                        "  using Element = flashtile::device::Element;\n" +
                            config_element("kElement", problem.dtype) +
                            config_element("kOutElement", problem.out_dtype) + "};\n",
                        problem.num_rows());
}

/// Part 0 of a tensor whose first dimension is the parts.
TensorView first_part(const TensorView& parts) {
  TensorView part = parts;
  part.ndim = parts.ndim - 1;
  std::copy(parts.shape.begin() + 1, parts.shape.begin() + parts.ndim, part.shape.begin());
  std::copy(parts.strides.begin() + 1, parts.strides.begin() + parts.ndim, part.strides.begin());
  return part;
}

int64_t part_bytes(const TensorView& parts) { return parts.strides[0] * dtype_bytes(parts.dtype); }

}  // namespace

std::string refuse_attention_merge(const MergeProblem& problem) {
  if (problem.device.type != DeviceType::kCuda) return "runs on a GPU, tensors are on the CPU";
  const DType dtypes[] = {problem.dtype, problem.lse_dtype, problem.out_dtype,
                          problem.out_lse_dtype};
  if (std::find(std::begin(dtypes), std::end(dtypes), DType::kF64) != std::end(dtypes)) {
    return "computes in float32; it takes no f64";
  }
  return cannot_run(gpu_model(problem.device));
}

MergePlan plan_attention_merge(const MergeProblem&) { return {"attention_merge_portable", 0}; }

void launch_attention_merge(const MergeProblem& problem, const MergePlan&, const MergeArgs& args,
                            const Context& context) {
  if (problem.num_rows() == 0) return;
  device::MergeParams params;
  params.parts = rows_param(first_part(args.out_parts));
  params.lse_parts = row_scalars_param(first_part(args.lse_parts));
  params.out = rows_param(args.out);
  params.lse = row_scalars_param(args.lse);
  params.part_stride = part_bytes(args.out_parts);
  params.lse_part_stride = part_bytes(args.lse_parts);
  params.num_rows = problem.num_rows();
  params.seqlen_q = problem.seqlen_q;
  params.num_heads = static_cast<int>(problem.num_heads);
  params.num_parts = static_cast<int>(problem.num_parts);
  params.head_dim = static_cast<int>(problem.head_dim_v);
  Context here = context;
  here.device = problem.device;
  const KernelChoice kernel = merge_kernel(problem);
  launch(get_kernel(kernel.source, here), launch_shape(kernel), here, params);
}

}  // namespace flashtile::cuda
