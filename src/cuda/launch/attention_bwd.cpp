// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch/attention_bwd.hpp"

#include <algorithm>
#include <span>

#include "cuda/device/params/backward_params.hpp"
#include "cuda/device/params/gradient_params.hpp"
#include "cuda/jit/kernel.hpp"
#include "cuda/launch/attention_params.hpp"
#include "cuda/plan/user_expressions.hpp"

namespace flashtile::cuda {
namespace {

/// A contiguous copy of dout in q's dtype, rows at multiples of 16 bytes.
device::RowsParam dout_copy_param(const AttentionProblem& problem, const BackwardPlan& plan,
                                  char* workspace) {
  device::RowsParam copy;
  copy.data = region_at<char>(workspace, plan.dout);
  copy.element_stride = dtype_bytes(problem.dtype);
  copy.head_stride = (problem.head_dim_v + 7) / 8 * 8 * copy.element_stride;
  copy.row_stride = copy.head_stride * problem.num_heads;
  copy.batch_stride = problem.is_packed_q ? 0 : copy.row_stride * problem.max_seqlen_q;
  return copy;
}

device::BackwardParams backward_params(const AttentionProblem& problem, const BackwardPlan& plan,
                                       const AttentionArgs& args, char* workspace) {
  device::BackwardParams backward;
  backward.dout = rows_param(args.dout);
  backward.dq = rows_param(args.dq);
  backward.dk = rows_param(args.dk);
  backward.dv = rows_param(args.dv);
  backward.dlse = row_scalars_param(args.dlse);
  backward.lse = region_at<float>(workspace, plan.lse);
  backward.delta = region_at<float>(workspace, plan.delta);
  backward.dq_sums = region_at<float>(workspace, plan.dq_sums);
  backward.finished = region_at<unsigned int>(workspace, plan.finished);
  backward.padded_rows = plan.padded_rows;
  backward.odd_rows = region_at<int>(workspace, plan.odd_rows);
  if (plan.copies_dout) backward.dout_copy = dout_copy_param(problem, plan, workspace);
  backward.dsink = head_scalars_param(args.dsink);
  backward.dalibi_slopes = head_scalars_param(args.dalibi_slopes);
  backward.has_slopes_by_batch = args.dalibi_slopes.ndim == 2 ? 1 : 0;
  backward.cleared = region_at<unsigned int>(workspace, plan.cleared);
  backward.num_cleared = plan.cleared.bytes / 4;
  backward.slope_parts_per_head = static_cast<int>(plan.num_slope_parts);
  float* parts = region_at<float>(workspace, plan.parts);
  if (plan.num_sink_parts > 0) backward.sink_parts = parts;
  if (plan.num_slope_parts > 0) backward.slope_parts = parts + plan.num_sink_parts;
  backward.num_key_parts = static_cast<int>(plan.keys.num_parts);
  backward.num_query_parts = 1;
  if (args.dbias) {
    backward.dbias = scores_param(args.dbias);
    backward.dbias_batches = static_cast<int>(args.dbias.shape[0]);
    backward.dbias_heads = static_cast<int>(args.dbias.shape[1]);
    backward.dbias_rows = static_cast<int>(args.dbias.shape[2]);
    backward.dbias_cols = static_cast<int>(args.dbias.shape[3]);
  }
  return backward;
}

int ceil_log2(int64_t value) {
  int log2 = 0;
  while (log2 < 62 && (int64_t{1} << log2) < value) ++log2;
  return log2;
}

/// Sums of aux tensors' gradients, and where they go, by the order in which kernels get the
/// tensors.
struct AuxArguments {
  device::AuxGradientParams sums;
  device::AuxTargetParams targets;

  AuxArguments(const AttentionProblem& problem, const BackwardPlan& plan, const AttentionArgs& args,
               char* workspace) {
    if (!problem.wants_aux_gradient) return;
    const ExpressionInputs inputs = expression_inputs(problem);
    sums.num_aux = static_cast<int>(inputs.aux.size());
    // One more for each place where a score reads a tensor.
    sums.log2_count = std::min(
        48, ceil_log2(problem.total_q * problem.num_heads) + ceil_log2(problem.max_seqlen_k) +
                ceil_log2(static_cast<int64_t>(problem.user_score.nodes.size())));
    auto* at = region_at<double>(workspace, plan.aux_sums);
    auto* largest = reinterpret_cast<int*>(at + problem.aux_gradient_elements);
    const auto add = [&](size_t n, const TensorView& gradient) {
      sums.aux[n] = {at, largest + n};
      targets.gradients[n] = aux_param(gradient);
      at += gradient.numel();
    };
    const auto place_of = [&](const AuxTensor& aux) {
      return static_cast<size_t>(
          std::find_if(inputs.aux.begin(), inputs.aux.end(),
                       [&](const auto& input) { return input.name == aux.name; }) -
          inputs.aux.begin());
    };
    for (const AuxTensor& aux : args.aux) {
      if (!aux.gradient) continue;
      // What the expressions never read stands behind the rest, and its sums stay 0.
      const size_t n = place_of(aux);
      add(n < inputs.aux.size() ? n : static_cast<size_t>(sums.num_aux++), aux.gradient);
    }
  }
};

device::BlocksParam map_param(const AttentionArgs& args, const BackwardPlan& plan,
                              const BackwardMap& map, char* workspace) {
  return blocks_param(args, map.blocks, region_at<unsigned int>(workspace, plan.listed),
                      region_at<unsigned int>(workspace, map.map));
}

/// Everything that the kernels of a call are given.
class BackwardArguments {
 public:
  BackwardArguments(const AttentionProblem& problem, const BackwardPlan& plan,
                    const AttentionArgs& args, char* workspace)
      : plan_(plan),
        tile_(attention_params(problem, args)),
        before_(backward_params(problem, plan, args, workspace)),
        aux_(problem, plan, args, workspace),
        expressions_(problem, args) {
    stream_ = tile_;
    tile_.grid.num_m_blocks = static_cast<int>(plan.tile.num_m_blocks);
    const int64_t num_pairs = problem.batch_size * problem.num_heads_kv;
    set_sections(tile_.grid, num_pairs, plan.tile.num_n_blocks, plan.section_pairs);
    set_sections(stream_.grid, num_pairs, plan.stream.num_n_blocks, 1);
    tile_.grid.heads = stream_.grid.heads = divisor_param(problem.num_heads_kv);
    tile_.blocks = map_param(args, plan, plan.tile, workspace);
    stream_.grid.num_m_blocks = static_cast<int>(plan.stream.num_m_blocks);
    stream_.blocks = map_param(args, plan, plan.stream, workspace);
    of_tile_ = before_;
    if (plan.copies_dout) of_tile_.dout = before_.dout_copy;
    of_stream_ = of_tile_;
    of_tile_.num_n_blocks = static_cast<int>(plan.tile.num_n_blocks);
    of_stream_.num_n_blocks = static_cast<int>(plan.stream.num_n_blocks);
    of_queries_ = of_stream_;
    of_queries_.num_query_parts = static_cast<int>(plan.queries.num_parts);
  }

  /// One pointer for each parameter of the next kernel.
  std::vector<void*> next(const KernelChoice& kernel) {
    const std::string& stem = kernel.source.stem;
    if (stem == "attention_blocks") {
      // The stream's map comes first.
      const bool is_stream = plan_.streams() && plan_.stream.blocks.is_on && num_maps_++ == 0;
      return {is_stream ? &stream_ : &tile_, expressions_.data()};
    }
    if (stem == "attention_prepare") return {plan_.tiling ? &tile_ : &stream_};
    if (stem == "attention_bwd_portable") return {&tile_, expressions_.data(), &of_tile_};
    if (stem == "attention_bwd_keys" || stem == "attention_bwd_bias") {
      return {&stream_, expressions_.data(), &of_stream_};
    }
    if (stem == "attention_bwd_queries") {
      // Only the first of them may have parts: the second one gives no dq.
      const bool has_parts = num_queries_++ == 0;
      return {&stream_, expressions_.data(), has_parts ? &of_queries_ : &of_stream_, &aux_.sums};
    }
    if (stem == "attention_bwd_aux") return {&aux_.sums, &aux_.targets};
    return {&tile_, &before_};
  }

 private:
  const BackwardPlan& plan_;
  device::AttentionParams tile_, stream_;
  device::BackwardParams before_;  ///< with dout as it came
  device::BackwardParams of_tile_, of_stream_, of_queries_;
  AuxArguments aux_;
  ExpressionArguments expressions_;
  int num_maps_ = 0, num_queries_ = 0;
};

void launch_backward_kernels(const AttentionProblem& problem, const BackwardPlan& plan,
                             std::span<const KernelChoice> kernels, const AttentionArgs& args,
                             const Context& context) {
  char* workspace = device_workspace("attention_bwd", context, plan.workspace_bytes);
  BackwardArguments arguments(problem, plan, args, workspace);
  // All are found before the first one runs.
  std::vector<const Function*> functions;
  for (const KernelChoice& kernel : kernels) {
    functions.push_back(&get_kernel(kernel.source, context));
  }
  for (size_t n = 0; n < kernels.size(); ++n) {
    launch(*functions[n], launch_shape(kernels[n]), context, arguments.next(kernels[n]).data());
  }
}

}  // namespace

void launch_backward_plan(const AttentionProblem& problem, const BackwardPlan& plan,
                          const AttentionArgs& args, const Context& context) {
  launch_backward_kernels(problem, plan, backward_kernels(problem, plan), args, context);
}

void launch_attention_bwd(const AttentionProblem& problem, const AttentionPlan& plan,
                          const AttentionArgs& args, const Context& context) {
  const auto& backward = *static_cast<const BackwardPlan*>(plan.details.get());
  launch_backward_kernels(problem, backward, plan.kernels, args, context);
}

}  // namespace flashtile::cuda
