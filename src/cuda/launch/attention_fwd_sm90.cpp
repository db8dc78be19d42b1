// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch/attention_fwd_sm90.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <initializer_list>
#include <random>

#include "cuda/jit/kernel.hpp"
#include "cuda/launch/attention_params.hpp"
#include "cuda/runtime/current.hpp"

namespace flashtile::cuda {
namespace {

constexpr int64_t kFar = int64_t{1} << 30;
constexpr double kLog2e = 1.4426950408889634;

/// An even number for each launch, far from what memory holds by chance, and not 0.
uint64_t next_launch() {
  static std::atomic<uint64_t> next{uint64_t{std::random_device{}()} << 32 | 2};
  return next.fetch_add(2, std::memory_order_relaxed);
}

device::Sm90GridParam grid_param(const AttentionProblem& problem, const Sm90ForwardPlan& plan,
                                 char* workspace) {
  device::Sm90GridParam grid;
  grid.tiles_per_section = divisor_param(plan.section_pairs * plan.num_m_blocks);
  grid.pairs_per_section = divisor_param(plan.section_pairs);
  grid.pairs_of_last_section =
      divisor_param(plan.num_pairs - plan.last_section * plan.section_pairs);
  grid.heads = divisor_param(problem.num_heads);
  grid.group_size = divisor_param(problem.group_size());
  grid.last_section = static_cast<unsigned int>(plan.last_section);
  grid.num_m_blocks = static_cast<int>(plan.num_m_blocks);
  grid.num_tiles = static_cast<int>(plan.num_tiles);
  grid.descending = plan.has_diagonal ? 1 : 0;
  if (plan.counter.bytes > 0) {
    grid.counter = reinterpret_cast<device::Sm90TileCounter*>(workspace + plan.counter.offset);
    grid.launch = next_launch();
  }
  if (plan.next_failed.bytes > 0) {
    grid.next_failed = reinterpret_cast<int*>(workspace + plan.next_failed.offset);
  }
  if (plan.list_capacity > 0) {
    grid.list.num_entries = region_at<int>(workspace, plan.num_listed);
    grid.list.entries = region_at<int>(workspace, plan.tiles);
    grid.list.capacity = static_cast<int>(plan.list_capacity);
    grid.list.heads_per_section = static_cast<int>(plan.list_section);
  }
  return grid;
}

/// Where all sequences are alike: query q stands at key q + offset.
int64_t offset_of(const AttentionProblem& problem) {
  return problem.query_offset.value_or(problem.max_seqlen_k - problem.max_seqlen_q);
}

/// Row q sees keys up to q + diagonal.
int diagonal_of(const AttentionProblem& problem) {
  const int64_t offset = offset_of(problem);
  const int64_t right = problem.window_right.value_or(0);
  return static_cast<int>(
      std::clamp(std::clamp(offset, -2 * kFar, kFar) + std::min(right, 4 * kFar), -kFar, kFar - 1));
}

/// Row q sees keys from q + lower on.
int lower_of(const AttentionProblem& problem) {
  const int64_t offset = offset_of(problem);
  const int64_t left = problem.window_left.value_or(4 * kFar);
  return static_cast<int>(
      std::clamp(std::clamp(offset, -2 * kFar, kFar) - std::min(left, 4 * kFar), -kFar, kFar - 1));
}

/// log2(e) softcap tanh(a softmax_scale / softcap) as polynomials in the product a: relative error
/// 2.2e-6 up to 0.6 of the cap, and 6.4e-5 up to a quarter of it.
void set_cap_lines(const AttentionProblem& problem, device::Sm90ForwardParams& params) {
  constexpr double kLargest = 3e38;
  const double factor = problem.softmax_scale / *problem.softcap;
  const auto set_line = [&](auto& line, std::initializer_list<double> coefficients) {
    double power = *problem.softcap * kLog2e * factor;
    float* next = line;
    for (const double coefficient : coefficients) {
      *next++ = static_cast<float>(std::clamp(coefficient * power, -kLargest, kLargest));
      power *= factor * factor;
    }
  };
  const auto fourth_power = [&](double limit) {
    return static_cast<float>(std::min(std::pow(limit / factor, 4), kLargest));
  };
  set_line(params.cap_line, {0.99999785, -0.33314039, 0.13057856, -0.04092942});
  params.small_products = fourth_power(0.6);
  set_line(params.short_cap_line, {0.99993729, -0.32520561});
  params.tiny_products = fourth_power(0.25);
}

device::Sm90ForwardParams forward_params(const AttentionProblem& problem,
                                         const Sm90ForwardPlan& plan, const AttentionArgs& args,
                                         char* workspace) {
  const device::Sm90Shape& shape = plan.tiling.shape;
  const int key_rows = sm90_page_rows(problem, shape.block_n);
  device::Sm90ForwardParams params;
  params.q = row_boxes(args.q, shape.block_m());
  params.k = row_boxes(args.k, key_rows);
  params.v = row_boxes(args.v, key_rows);
  params.out = row_boxes(args.out, shape.block_m());
  if (shape.copies_bias) {
    params.bias = bias_boxes(args.bias, shape.block_m(), device::Sm90Shape::kBiasColumns);
  }
  params.grid = grid_param(problem, plan, workspace);
  params.call = attention_params(problem, args);
  params.call.grid.num_m_blocks = params.grid.num_m_blocks;
  params.call.blocks =
      blocks_param(args, plan.blocks, region_at<unsigned int>(workspace, plan.listed),
                   region_at<unsigned int>(workspace, plan.map));
  params.seqlen_q = static_cast<int>(problem.max_seqlen_q);
  params.seqlen_k = static_cast<int>(problem.max_seqlen_k);
  params.diagonal = diagonal_of(problem);
  if (problem.window_right) {
    params.seqlen_k = std::clamp(params.seqlen_q + params.diagonal, 0, params.seqlen_k);
  }
  params.lower = lower_of(problem);
  params.offset = static_cast<int>(std::clamp<int64_t>(offset_of(problem), -kFar / 2, kFar / 2));
  params.chunk =
      static_cast<int>(std::clamp<int64_t>(problem.attention_chunk.value_or(1), 1, kFar - 1));
  const double natural = problem.softcap.value_or(problem.softmax_scale);
  params.scale = static_cast<float>(natural * kLog2e);
  if (problem.softcap) set_cap_lines(problem, params);
  return params;
}

}  // namespace

void launch_sm90_plan(const AttentionProblem& problem, const Sm90ForwardPlan& plan,
                      std::span<const KernelChoice> kernels, const AttentionArgs& args,
                      const Context& context) {
  const CurrentContext current(context);  // tensor maps are made in one
  char* workspace = device_workspace("attention_fwd", context, plan.workspace_bytes);
  device::Sm90ForwardParams params = forward_params(problem, plan, args, workspace);
  ExpressionArguments expressions(problem, args);
  // All are found before the first one runs.
  std::vector<const Function*> functions;
  for (const KernelChoice& kernel : kernels) {
    functions.push_back(&get_kernel(kernel.source, context));
  }
  for (size_t n = 0; n < kernels.size(); ++n) {
    const bool is_last = n + 1 == kernels.size();
    const bool lists_tiles = kernels[n].source.stem == "attention_tiles";
    void* first = is_last ? static_cast<void*>(&params) : static_cast<void*>(&params.call);
    void* second = lists_tiles ? static_cast<void*>(&params.grid.list) : expressions.data();
    void* arguments[] = {first, second};
    launch(*functions[n], launch_shape(kernels[n]), context, arguments);
  }
}

void launch_attention_fwd_sm90(const AttentionProblem& problem, const AttentionPlan& plan,
                               const AttentionArgs& args, const Context& context) {
  const auto& forward = *static_cast<const Sm90ForwardPlan*>(plan.details.get());
  launch_sm90_plan(problem, forward, plan.kernels, args, context);
}

}  // namespace flashtile::cuda
