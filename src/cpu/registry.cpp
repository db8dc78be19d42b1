// SPDX-License-Identifier: Apache-2.0
//
// The CPU backend's implementations: one for each instruction set that this build and this machine
// have, in the order of CpuInfo::isas.
#include <algorithm>
#include <array>
#include <span>

#include "core/env.hpp"
#include "core/float_mode.hpp"
#include "cpu/attention_call.hpp"
#include "cpu/attention_merge.hpp"
#include "cpu/cpu_info.hpp"
#include "cpu/layer_part_call.hpp"
#include "cpu/recurrent_call.hpp"
#include "cpu/scalar_decay_call.hpp"
#include "cpu/scan_call.hpp"
#include "ops/linear/implementation.hpp"

namespace flashtile {
namespace cpu {
namespace {

/// An instruction set; `base` has its kernels over floats, what follows is what it adds to them.
#define FLASHTILE_ENTRY(isa_value, name, base, ...)                                        \
  IsaEntry {                                                                               \
    isa_value, "attention_fwd_" #name, "attention_bwd_" #name, &base::attention_kernels(), \
        "attention_merge_" #name, &base::serving_kernels(),                                \
        &base::linear_kernels() __VA_OPT__(, ) __VA_ARGS__                                 \
  }

/// From least to most; `attention_kernels` of a set that the build lacks is not named.
const auto& all_entries() {
  static const std::array entries = {
    FLASHTILE_ENTRY(Isa::kScalar, scalar, scalar),
#if defined(__x86_64__)
    FLASHTILE_ENTRY(Isa::kAvx2, avx2, avx2),
    FLASHTILE_ENTRY(Isa::kAvx512, avx512, avx512, &avx512::delta_float_kernels()),
    FLASHTILE_ENTRY(Isa::kAvx512Bf16, avx512_bf16, avx512, &avx512::delta_float_kernels(),
                    &avx512_bf16::attention_pair_kernels(),
                    &avx512_bf16::scalar_decay_pair_kernels(), &avx512_bf16::delta_pair_kernels(),
                    &avx512_bf16::vector_decay_pair_kernels(), &avx512_bf16::decode_pair_kernels(),
                    &avx512_bf16::attention_pair_kernels()),
    // Where there are tiles, the dot product is slower than float32: decoding is widened.
    FLASHTILE_ENTRY(Isa::kAvx512Amx, avx512_amx, avx512, &avx512::delta_float_kernels(),
                    &avx512_amx::attention_pair_kernels(), &avx512_amx::scalar_decay_pair_kernels(),
                    &avx512_amx::delta_pair_kernels(), &avx512_amx::vector_decay_pair_kernels()),
#elif defined(__aarch64__)
    FLASHTILE_ENTRY(Isa::kNeon, neon, neon),
#endif
  };
  return entries;
}

#undef FLASHTILE_ENTRY

/// What no CPU kernel takes. Everything else, they all take.
std::string refuse(const AttentionProblem& problem) {
  if (problem.device.type != DeviceType::kCpu) return "runs on the CPU, tensors are on a device";
  if (problem.dtype == DType::kF64) return "computes in float32; f64 is served by the reference";
  for (const TensorLayout* layout : {&problem.bias, &problem.lse}) {
    if (layout->dtype == DType::kF64) return "computes in float32; it reads and writes no f64";
  }
  return problem.beyond_float;
}

/// A launch on an instruction set, in the mode that all kernels compute in.
template <size_t index, auto launch, class Problem, class Plan, class Args>
void launch_kernels(const Problem& problem, const Plan& plan, const Args& args,
                    const Context& context) {
  const KernelFloatMode mode;
  launch(all_entries()[index], problem, plan, args, context);
}

template <size_t index>
AttentionImplementation implementation(bool is_backward) {
  const IsaEntry& entry = all_entries()[index];
  if (is_backward) {
    return {entry.backward_name, refuse,
            [](const AttentionProblem& p) { return plan_attention_bwd(all_entries()[index], p); },
            launch_kernels<index, launch_attention_bwd>};
  }
  return {entry.forward_name, refuse,
          [](const AttentionProblem& p) { return plan_attention_fwd(all_entries()[index], p); },
          launch_kernels<index, launch_attention_fwd>};
}

std::string refuse_merge(const MergeProblem& problem) {
  if (problem.device.type != DeviceType::kCpu) return "runs on the CPU, tensors are on a device";
  if (problem.dtype == DType::kF64 || problem.lse_dtype == DType::kF64) {
    return "computes in float32; f64 is served by the reference";
  }
  return {};
}

template <size_t index>
MergeImplementation merge_implementation() {
  return {all_entries()[index].merge_name, refuse_merge,
          [](const MergeProblem& p) { return plan_attention_merge(all_entries()[index], p); },
          launch_kernels<index, launch_attention_merge>};
}

std::string refuse_linear(const LinearProblem& problem) {
  if (problem.device.type != DeviceType::kCpu) return "runs on the CPU, tensors are on a device";
  if (problem.dtype == DType::kF64) return "computes in float32; f64 is served by the reference";
  if (problem.num_past > kMaxPast) return "takes weights of at most 65 rows";
  return {};
}

using PlanLinear = LinearPlan (*)(const IsaEntry& isa, const LinearProblem& problem);
using LaunchLinear = void (*)(const IsaEntry& isa, const LinearProblem& problem,
                              const LinearPlan& plan, const LinearArgs& args,
                              const Context& context);

template <size_t index, PlanLinear plan, LaunchLinear launch>
LinearImplementation linear_implementation() {
  return {isa_name(all_entries()[index].isa), refuse_linear,
          [](const LinearProblem& p) { return plan(all_entries()[index], p); },
          launch_kernels<index, launch>};
}

/// How many entries FLASHTILE_MAX_ISA leaves: all where it is not set.
size_t num_allowed_entries() {
  std::vector<std::string_view> names;
  for (const IsaEntry& entry : all_entries()) names.push_back(isa_name(entry.isa));
  const std::string limit = env_max_isa(names);
  if (limit.empty()) return names.size();
  return static_cast<size_t>(std::find(names.begin(), names.end(), limit) - names.begin()) + 1;
}

constexpr size_t kNumEntries = std::tuple_size_v<std::remove_cvref_t<decltype(all_entries())>>;

/// The entries that this machine can run, best first. `all` is from worst to best.
template <class Entry>
std::vector<Entry> available(std::span<const Entry> all) {
  std::vector<Entry> result;
  const size_t num_allowed = num_allowed_entries();
  for (const Isa isa : cpu_info().isas()) {
    for (size_t n = 0; n < num_allowed; ++n) {
      if (all_entries()[n].isa == isa) result.push_back(all[n]);
    }
  }
  return result;
}

template <size_t... index>
std::vector<AttentionImplementation> list(bool is_backward, std::index_sequence<index...>) {
  const AttentionImplementation all[] = {implementation<index>(is_backward)...};
  return available<AttentionImplementation>(all);
}

template <size_t... index>
std::vector<MergeImplementation> merge_list(std::index_sequence<index...>) {
  const MergeImplementation all[] = {merge_implementation<index>()...};
  return available<MergeImplementation>(all);
}

/// A step as a forward of one row for each sequence.
template <size_t index, PlanLinear plan, LaunchLinear launch>
LinearImplementation step_by_forward() {
  LinearImplementation step = linear_implementation<index, plan, launch>();
  step.launch = [](const LinearProblem& p, const LinearPlan&, const LinearArgs& args,
                   const Context& context) {
    launch_step(linear_implementation<index, plan, launch>(), p, args, context);
  };
  return step;
}

template <PlanLinear plan, LaunchLinear launch, size_t... index>
std::vector<LinearImplementation> step_by_forward_list(std::index_sequence<index...>) {
  const LinearImplementation all[] = {step_by_forward<index, plan, launch>()...};
  return available<LinearImplementation>(all);
}

template <PlanLinear plan, LaunchLinear launch, size_t... index>
std::vector<LinearImplementation> linear_list(std::index_sequence<index...>) {
  const LinearImplementation all[] = {linear_implementation<index, plan, launch>()...};
  return available<LinearImplementation>(all);
}

}  // namespace
}  // namespace cpu

std::vector<AttentionImplementation> cpu_attention_implementations(bool is_backward) {
  return cpu::list(is_backward, std::make_index_sequence<cpu::kNumEntries>());
}

std::vector<MergeImplementation> cpu_merge_implementations() {
  return cpu::merge_list(std::make_index_sequence<cpu::kNumEntries>());
}

std::vector<LinearImplementation> cpu_linear_implementations(const LinearOp& op, LinearPass pass) {
  using namespace cpu;
  const auto entries = std::make_index_sequence<kNumEntries>();
  const bool is_backward = pass == LinearPass::kBackward;
  const bool is_step = pass == LinearPass::kStep;
  switch (op.family) {
    case LinearFamily::kScalarDecay:
      if (is_step) return linear_list<plan_state_step, launch_state_step>(entries);
      return is_backward ? linear_list<plan_scalar_decay_bwd, launch_scalar_decay_bwd>(entries)
                         : linear_list<plan_scalar_decay_fwd, launch_scalar_decay_fwd>(entries);
    case LinearFamily::kVectorDecay:
      if (is_step) return linear_list<plan_state_step, launch_state_step>(entries);
      return is_backward ? linear_list<plan_vector_decay_bwd, launch_vector_decay_bwd>(entries)
                         : linear_list<plan_recurrent_fwd, launch_recurrent_fwd>(entries);
    case LinearFamily::kDelta:
      if (is_step) return linear_list<plan_state_step, launch_state_step>(entries);
      return is_backward ? linear_list<plan_delta_bwd, launch_delta_bwd>(entries)
                         : linear_list<plan_delta_fwd, launch_delta_fwd>(entries);
    case LinearFamily::kSlots:
      if (is_step) return step_by_forward_list<plan_slots_fwd, launch_slots_fwd>(entries);
      return is_backward ? linear_list<plan_slots_bwd, launch_slots_bwd>(entries)
                         : linear_list<plan_slots_fwd, launch_slots_fwd>(entries);
    case LinearFamily::kSlstm:
      return is_step ? step_by_forward_list<plan_slstm, launch_slstm>(entries)
                     : linear_list<plan_slstm, launch_slstm>(entries);
    case LinearFamily::kHgrn:
    case LinearFamily::kMamba1:
    case LinearFamily::kRwkv4:
      if (is_step) return step_by_forward_list<plan_scan_fwd, launch_scan_fwd>(entries);
      return is_backward ? linear_list<plan_scan_bwd, launch_scan_bwd>(entries)
                         : linear_list<plan_scan_fwd, launch_scan_fwd>(entries);
    case LinearFamily::kShortConv:
    case LinearFamily::kLogDecayGate:
    case LinearFamily::kGatedNorm:
    case LinearFamily::kFeatureMap:
      if (is_step && !op.states.empty()) {
        return step_by_forward_list<plan_layer_part, launch_layer_part>(entries);
      }
      return linear_list<plan_layer_part, launch_layer_part>(entries);
    case LinearFamily::kReferenceOnly:
      break;
  }
  return {};
}

}  // namespace flashtile
