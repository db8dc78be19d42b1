// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan/attention_bwd_plan.hpp"

#include <algorithm>

#include "cuda/plan/attention_config.hpp"
#include "cuda/plan/backward_tiling.hpp"
#include "cuda/plan/kernel_plan.hpp"
#include "cuda/plan/user_expressions.hpp"
#include "variant/expr/derivative.hpp"
#include "variant/expr/print.hpp"

namespace flashtile::cuda {
namespace {

/// Lanes that share a row of out: a power of two that divides its chunks of eight elements.
int64_t row_lanes(int64_t head_dim_v) {
  const int64_t chunks = head_dim_v / 8;
  int64_t lanes = 1;
  while (lanes < 32 && chunks % (2 * lanes) == 0) lanes *= 2;
  return lanes;
}

void take_workspace(const AttentionProblem& problem, BackwardPlan& plan) {
  WorkspaceRegions regions;
  const int64_t num_rows = problem.num_heads * plan.padded_rows;
  plan.lse = regions.take(num_rows * 4);
  plan.delta = regions.take(num_rows * 4);
  plan.dq_sums = regions.take(num_rows * plan.tiling.shape.head_dim * 4);
  const BlockMapPlan& blocks = plan.blocks;
  plan.listed = regions.take(blocks.list_batches * blocks.list_heads * blocks.list_rows *
                             blocks.list_words * 4);
  plan.map = regions.take(blocks.map_batches * blocks.map_heads * plan.num_m_blocks *
                          blocks.map_words * 4);
  if (problem.wants_sink_gradient) plan.num_sink_parts = num_rows / device::kRowPadding;
  if (problem.wants_alibi_gradient) {
    plan.num_slope_parts = plan.num_n_blocks * plan.tiling.shape.num_warps();
  }
  plan.parts = regions.take(
      (plan.num_sink_parts + plan.num_slope_parts * problem.batch_size * problem.num_heads) * 4);
  plan.workspace_bytes = regions.used();
}

std::string head_text() {
  return "#include \"cuda/device/ptx/convert.cuh\"\nstruct Config {\n"
         "  using Element = flashtile::device::Element;\n";
}

std::string prepare_config(const AttentionProblem& problem, const BackwardPlan& plan) {
  const device::BackwardShape& shape = plan.tiling.shape;
  const bool has_unused_keys = problem.has_seqused || problem.has_leftpad || problem.is_packed_k;
  return head_text() + config_element("kElement", problem.dtype) +
         config_bool("kLog2Lse", !ScoreFlags(problem).has_options) +
         config_bool("kHasUnusedKeys", has_unused_keys) +
         config_element("kOutElement", problem.out.dtype) +
         config_element("kDoutElement", problem.dout.dtype) +
         config_int("kHeadDim", shape.head_dim) + config_int("kHeadDimV", shape.head_dim_v) +
         config_int("kRowLanes", row_lanes(shape.head_dim_v)) +
         config_bool("kVectors",
                     std::min(copy_bytes(problem.out), copy_bytes(problem.dout)) == 16) +
         config_bool("kWantsSink", problem.wants_sink_gradient) + config_bool("kSumsDq", true) +
         "};\n";
}

std::string convert_config(const AttentionProblem& problem, const BackwardPlan& plan) {
  return head_text() + config_element("kElement", problem.dtype) +
         config_int("kHeadDim", plan.tiling.shape.head_dim) +
         config_bool("kVectors", copy_bytes(problem.dq) == 16) + "};\n";
}

/// The derivative of the user's score, as a further member of its expressions.
std::string derivative_text(const AttentionProblem& problem) {
  if (problem.user_score.empty()) return {};
  return expression_function(
      problem, "Float score_derivative(const Params& user, const Pair& pair, Float score)",
      print(variant::derivative_score(problem.user_score), variant::PrintStyle::kDevice));
}

/// True when masks by position differ between the heads of a group.
bool positions_differ_by_head(const AttentionProblem& problem) {
  const MaskParts mask = split_mask(problem.user_mask);
  bool differ = false;
  for (const auto* bounds : {&mask.lower, &mask.upper}) {
    for (const variant::Expr& bound : *bounds) {
      differ = differ || reads_variable(bound, variant::Variable::kHead);
    }
  }
  return differ && problem.group_size() > 1;
}

std::string backward_config(const AttentionProblem& problem, const BackwardPlan& plan) {
  const ScoreFlags flags(problem);
  const device::BackwardShape& shape = plan.tiling.shape;
  return "#include \"cuda/device/score/expression.cuh\"\n" +
         user_expressions_text(problem, derivative_text(problem)) + "struct Config {\n" +
         flags.text(problem) + config_bool("kHasBlockMap", plan.blocks.is_on) +
         config_bool("kWantsSlopes", problem.wants_alibi_gradient) +
         config_bool("kHeadsDiffer", positions_differ_by_head(problem)) +
         config_bool("kPackHeads", false) + config_bool("kPaged", false) +
         config_int("kHeadDim", shape.head_dim) + config_int("kHeadDimV", shape.head_dim_v) +
         config_int("kBlockM", shape.block_m) + config_int("kBlockN", shape.block_n) +
         config_int("kWarpsN", shape.warps_n) + config_int("kWarpsM", shape.warps_m) +
         config_int("kDqWarpsM", shape.dq_warps_m) + config_int("kDqPasses", shape.dq_passes) +
         config_int("kSlice", shape.slice) + config_int("kNumStages", shape.num_stages) +
         config_int("kMinCtas", plan.tiling.min_ctas) +
         config_int("kCopyBytes", std::min(copy_bytes(problem.k), copy_bytes(problem.v))) +
         config_int("kQueryCopyBytes", copy_bytes(problem.q)) +
         config_int("kDoutCopyBytes", copy_bytes(problem.dout)) +
         config_int("kStoreBytes", std::min(copy_bytes(problem.dk), copy_bytes(problem.dv))) +
         "};\n";
}

}  // namespace

std::string refuse_attention_bwd(const AttentionProblem& problem) {
  std::string refusal = refuse_attention(problem);
  if (!refusal.empty()) return refusal;
  if (problem.dtype == DType::kF32) return "takes f16 and bf16";
  if (problem.dout.dtype != problem.dtype) return "takes a dout of q's dtype";
  if (std::max(problem.head_dim, problem.head_dim_v) > 256) return "takes head dims up to 256";
  if (problem.dbias || problem.wants_aux_gradient || problem.wants_alibi_gradient) {
    return "gives no gradients of slopes, biases and aux tensors";
  }
  if (problem.deterministic) return "sums dq in any order";
  return {};
}

BackwardPlan make_backward_plan(const AttentionProblem& problem, const BackwardTiling& tiling) {
  BackwardPlan plan;
  plan.tiling = tiling;
  plan.num_n_blocks = ceil_div(problem.max_seqlen_k, tiling.shape.block_n);
  plan.num_ctas = plan.num_n_blocks * problem.batch_size * problem.num_heads_kv;
  plan.num_m_blocks = ceil_div(problem.max_seqlen_q, tiling.shape.block_m);
  plan.blocks =
      make_block_map_plan(problem, plan.num_m_blocks, tiling.shape.block_n, problem.num_heads);
  constexpr int64_t kPadding = device::kRowPadding;
  plan.padded_rows = problem.is_packed_q
                         ? round_up(problem.total_q, kPadding) + kPadding * problem.batch_size
                         : round_up(problem.max_seqlen_q, kPadding) * problem.batch_size;
  take_workspace(problem, plan);
  return plan;
}

BackwardPlan make_backward_plan(const AttentionProblem& problem) {
  return make_backward_plan(problem, choose_backward_tiling(problem));
}

std::vector<KernelChoice> backward_kernels(const AttentionProblem& problem,
                                           const BackwardPlan& plan) {
  std::vector<KernelChoice> kernels;
  const std::string config = backward_config(problem, plan);
  const KernelChoice main =
      tile_kernel(problem, "attention_bwd_portable", config, plan.num_ctas,
                  plan.tiling.shape.num_threads(), plan.tiling.shape.shared_bytes());
  if (plan.is_main_only) return {main};
  const int64_t num_row_blocks =
      problem.batch_size * ceil_div(problem.max_seqlen_q, device::kRowPadding) * problem.num_heads;
  const int64_t num_parts = plan.parts.bytes / 4;
  if (num_parts > 0) {
    kernels.push_back(strided_kernel(problem, "attention_bwd_clear", "", ceil_div(num_parts, 32)));
  }
  kernels.push_back(strided_kernel(problem, "attention_bwd_prepare", prepare_config(problem, plan),
                                   num_row_blocks));
  const BlockMapPlan& blocks = plan.blocks;
  const int64_t num_lines = blocks.list_batches * blocks.list_heads * blocks.list_rows;
  if (num_lines > 0) {
    kernels.push_back(strided_kernel(problem, "attention_prepare", "", num_lines));
  }
  if (blocks.is_on) {
    kernels.push_back(strided_kernel(
        problem, "attention_blocks", config,
        blocks.map_batches * blocks.map_heads * plan.num_m_blocks * blocks.map_words));
  }
  if (plan.num_ctas > 0) kernels.push_back(main);
  kernels.push_back(strided_kernel(problem, "attention_bwd_convert", convert_config(problem, plan),
                                   num_row_blocks));
  if (num_parts > 0) {
    kernels.push_back(strided_kernel(problem, "attention_bwd_reduce", "", problem.num_heads));
  }
  return kernels;
}

AttentionPlan plan_attention_bwd(const AttentionProblem& problem) {
  const BackwardPlan backward = make_backward_plan(problem);
  AttentionPlan plan;
  plan.implementation = "attention_bwd_portable";
  plan.block_m = backward.tiling.shape.block_m;
  plan.block_n = backward.tiling.shape.block_n;
  plan.num_tasks = backward.num_ctas;
  plan.workspace_bytes = backward.workspace_bytes;
  plan.kernels = backward_kernels(problem, backward);
  return plan;
}

}  // namespace flashtile::cuda
