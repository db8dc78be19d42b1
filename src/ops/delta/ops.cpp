// SPDX-License-Identifier: Apache-2.0
//
// The ops of the delta family. Values have as many heads as q and k or a multiple of that; states,
// gates and the output have those of values.
#include "ops/delta/delta.hpp"
#include "ops/linear/inputs.hpp"
#include "ops/linear/options.hpp"
#include "ops/linear/table.hpp"

namespace flashtile {
namespace {

using T = LinearTensors;
using S = LinearStates;

constexpr std::array kDeltaStates = {
    linear_state<&S::state>("state", "num_heads_v head_dim head_dim_v", "state")};
constexpr std::string_view kOut = "num_heads_v head_dim_v";

constexpr LinearInput kDeltaQ =
    linear_input<&T::q>("q", "num_heads head_dim", kLinearFloats, "queries").filled(Fill::kUnit);
constexpr LinearInput kDeltaK =
    linear_input<&T::k>("k", "num_heads head_dim", "=q", "keys").filled(Fill::kUnit);
constexpr LinearInput kDeltaV = linear_input<&T::v>("v", "num_heads_v head_dim_v", "=q", "values");
constexpr LinearInput kBeta =
    linear_input<&T::beta>("beta", "num_heads_v", "=q f32 f64", "how far a value is corrected")
        .filled(Fill::kPositive);
constexpr LinearInput kHeadGate =
    linear_input<&T::g>("g", "num_heads_v", "f32 =q f64", "log decay").filled(Fill::kLogDecay);
constexpr LinearInput kVectorGate =
    linear_input<&T::g>("g", "num_heads_v head_dim", "f32 =q f64", "log decay")
        .filled(Fill::kLogDecay);

constexpr std::array kDeltaOptions = {kScaleOption, kL2NormOption};

constexpr std::array kDeltaInputs = {kDeltaQ, kDeltaK, kDeltaV, kBeta};
constexpr LinearOp kDeltaRule = {
    .name = "delta_rule",
    .doc = "the delta rule",
    .family = LinearFamily::kDelta,
    .reference = delta_reference,
    .update = LinearUpdate::kDelta,
    .inputs = kDeltaInputs,
    .states = kDeltaStates,
    .out_shape = kOut,
    .options = kDeltaOptions,
};

constexpr std::array kGatedDeltaInputs = {kDeltaQ, kDeltaK, kDeltaV, kHeadGate, kBeta};
constexpr LinearOp kGatedDeltaRule = {
    .name = "gated_delta_rule",
    .doc = "the gated delta rule, a log decay for each row and head",
    .family = LinearFamily::kDelta,
    .reference = delta_reference,
    .gate = LinearGate::kLogDecay,
    .update = LinearUpdate::kDelta,
    .inputs = kGatedDeltaInputs,
    .states = kDeltaStates,
    .out_shape = kOut,
    .options = kDeltaOptions,
};

constexpr std::array kKdaInputs = {kDeltaQ, kDeltaK, kDeltaV, kVectorGate, kBeta};
constexpr LinearOp kKda = {
    .name = "kda",
    .doc = "Kimi delta attention, a log decay for each row and key dimension",
    .family = LinearFamily::kDelta,
    .reference = delta_reference,
    .gate = LinearGate::kVectorLogDecay,
    .update = LinearUpdate::kDelta,
    .inputs = kKdaInputs,
    .states = kDeltaStates,
    .out_shape = kOut,
    .options = kDeltaOptions,
};

// Diagonal plus low rank: every tensor has the same heads.
constexpr std::string_view kKeyShape = "num_heads head_dim";
constexpr std::string_view kValueShape = "num_heads head_dim_v";
constexpr std::array kLowRankStates = {
    linear_state<&S::state>("state", "num_heads head_dim head_dim_v", "state")};

constexpr std::array kRwkv7Inputs = {
    linear_input<&T::q>("r", kKeyShape, kLinearFloats, "queries"),
    linear_input<&T::g>("w", kKeyShape, "f32 =r f64", "log decay").filled(Fill::kLogDecay),
    linear_input<&T::k>("k", kKeyShape, "=r", "keys"),
    linear_input<&T::v>("v", kValueShape, "=r", "values"),
    linear_input<&T::a>("a", kKeyShape, "=r", "what reads the old state").filled(Fill::kUnit),
    linear_input<&T::b>("b", kKeyShape, "=r", "where that is written").filled(Fill::kUnit),
};
constexpr std::array kRwkv7Options = {kUnitScaleOption};
constexpr LinearOp kRwkv7 = {
    .name = "rwkv7",
    .doc = "RWKV-7, diagonal decay plus a term of rank one",
    .family = LinearFamily::kDelta,
    .reference = delta_reference,
    .gate = LinearGate::kVectorLogDecay,
    .update = LinearUpdate::kLowRank,
    .has_unit_scale = true,
    .inputs = kRwkv7Inputs,
    .states = kLowRankStates,
    .out_shape = kValueShape,
    .options = kRwkv7Options,
};

constexpr std::array kScale = {kScaleOption};
constexpr LinearInput kLowRankQ = linear_input<&T::q>("q", kKeyShape, kLinearFloats, "queries");
constexpr LinearInput kLowRankK = linear_input<&T::k>("k", kKeyShape, "=q", "keys");
constexpr LinearInput kLowRankV = linear_input<&T::v>("v", kValueShape, "=q", "values");
constexpr LinearInput kLowRankA =
    linear_input<&T::a>("a", kKeyShape, "=q", "what reads the old state").filled(Fill::kUnit);
constexpr LinearInput kLowRankB =
    linear_input<&T::b>("b", kKeyShape, "=q", "where that is written").filled(Fill::kUnit);

constexpr std::array kDplrInputs = {
    kLowRankQ,
    kLowRankK,
    kLowRankV,
    kLowRankA,
    kLowRankB,
    linear_input<&T::g>("g", kKeyShape, "f32 =q f64", "log decay").filled(Fill::kLogDecay)};
constexpr LinearOp kDplr = {
    .name = "dplr_delta_rule",
    .doc = "diagonal decay plus a term of rank one",
    .family = LinearFamily::kDelta,
    .reference = delta_reference,
    .gate = LinearGate::kVectorLogDecay,
    .update = LinearUpdate::kLowRank,
    .inputs = kDplrInputs,
    .states = kLowRankStates,
    .out_shape = kValueShape,
    .options = kScale,
};

constexpr std::array kIplrInputs = {kLowRankQ, kLowRankK, kLowRankV, kLowRankA, kLowRankB};
constexpr LinearOp kIplr = {
    .name = "iplr_delta_rule",
    .doc = "identity plus a term of rank one",
    .family = LinearFamily::kDelta,
    .reference = delta_reference,
    .update = LinearUpdate::kLowRank,
    .inputs = kIplrInputs,
    .states = kLowRankStates,
    .out_shape = kValueShape,
    .options = kScale,
};

}  // namespace

std::vector<const OpSpec*> delta_specs() {
  return linear_specs_of<kDeltaRule, kGatedDeltaRule, kKda, kRwkv7, kDplr, kIplr>();
}

void delta_rule_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kDeltaRule, LinearPass::kForward>(args, context);
}
void delta_rule_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kDeltaRule, LinearPass::kBackward>(args, context);
}
void delta_rule_step(const LinearArgs& args, const Context& context) {
  call_linear<kDeltaRule, LinearPass::kStep>(args, context);
}
void gated_delta_rule_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kGatedDeltaRule, LinearPass::kForward>(args, context);
}
void gated_delta_rule_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kGatedDeltaRule, LinearPass::kBackward>(args, context);
}
void gated_delta_rule_step(const LinearArgs& args, const Context& context) {
  call_linear<kGatedDeltaRule, LinearPass::kStep>(args, context);
}
void kda_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kKda, LinearPass::kForward>(args, context);
}
void kda_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kKda, LinearPass::kBackward>(args, context);
}
void kda_step(const LinearArgs& args, const Context& context) {
  call_linear<kKda, LinearPass::kStep>(args, context);
}
void rwkv7_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kRwkv7, LinearPass::kForward>(args, context);
}
void rwkv7_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kRwkv7, LinearPass::kBackward>(args, context);
}
void rwkv7_step(const LinearArgs& args, const Context& context) {
  call_linear<kRwkv7, LinearPass::kStep>(args, context);
}
void dplr_delta_rule_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kDplr, LinearPass::kForward>(args, context);
}
void dplr_delta_rule_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kDplr, LinearPass::kBackward>(args, context);
}
void dplr_delta_rule_step(const LinearArgs& args, const Context& context) {
  call_linear<kDplr, LinearPass::kStep>(args, context);
}
void iplr_delta_rule_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kIplr, LinearPass::kForward>(args, context);
}
void iplr_delta_rule_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kIplr, LinearPass::kBackward>(args, context);
}
void iplr_delta_rule_step(const LinearArgs& args, const Context& context) {
  call_linear<kIplr, LinearPass::kStep>(args, context);
}

}  // namespace flashtile
