// SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/kernel.hpp"
#include "cuda/launch/attention_bwd.hpp"
#include "cuda/launch/attention_fwd.hpp"
#include "cuda/launch/attention_fwd_sm90.hpp"
#include "cuda/launch/attention_merge.hpp"
#include "cuda/plan/attention_fwd_latent_plan.hpp"
#include "ops/attention/implementations.hpp"
#include "ops/attention_merge/merge.hpp"

namespace flashtile {
namespace {

std::string refuse_forward(const AttentionProblem& problem) {
  std::string refusal = cuda::refuse_attention_fwd(problem);
  if (refusal.empty()) refusal = cuda::cannot_run(*problem.gpu);
  return refusal;
}

std::string refuse_forward_latent(const AttentionProblem& problem) {
  std::string refusal = cuda::refuse_attention_fwd_latent_sm90(problem);
  if (refusal.empty()) refusal = cuda::cannot_run(*problem.gpu);
  return refusal;
}

std::string refuse_forward_sm90(const AttentionProblem& problem) {
  std::string refusal = cuda::refuse_attention_fwd_sm90(problem);
  if (refusal.empty()) refusal = cuda::leave_to_portable(problem);
  if (refusal.empty()) refusal = cuda::cannot_run(*problem.gpu);
  return refusal;
}

std::string refuse_backward(const AttentionProblem& problem) {
  std::string refusal = cuda::refuse_attention_bwd(problem);
  if (refusal.empty()) refusal = cuda::cannot_run(*problem.gpu);
  return refusal;
}

}  // namespace

std::vector<AttentionImplementation> cuda_attention_implementations(bool is_backward) {
  if (is_backward) {
    return {{"attention_bwd_portable", refuse_backward, cuda::plan_attention_bwd,
             cuda::launch_attention_bwd, DeviceType::kCuda}};
  }
  return {{"attention_fwd_latent_sm90", refuse_forward_latent, cuda::plan_attention_fwd_latent_sm90,
           cuda::launch_attention_fwd, DeviceType::kCuda},
          {"attention_fwd_sm90", refuse_forward_sm90, cuda::plan_attention_fwd_sm90,
           cuda::launch_attention_fwd_sm90, DeviceType::kCuda},
          {"attention_fwd_portable", refuse_forward, cuda::plan_attention_fwd,
           cuda::launch_attention_fwd, DeviceType::kCuda}};
}

std::vector<MergeImplementation> cuda_merge_implementations() {
  return {{"attention_merge_portable", cuda::refuse_attention_merge, cuda::plan_attention_merge,
           cuda::launch_attention_merge, DeviceType::kCuda}};
}

}  // namespace flashtile
