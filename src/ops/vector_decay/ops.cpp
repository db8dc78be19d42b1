// SPDX-License-Identifier: Apache-2.0
//
// The ops of the vector-decay family, and gated slots.
#include "ops/linear/inputs.hpp"
#include "ops/linear/options.hpp"
#include "ops/linear/table.hpp"
#include "ops/vector_decay/vector_decay.hpp"

namespace flashtile {
namespace {

using T = LinearTensors;
using S = LinearStates;

constexpr std::array kScale = {kScaleOption};
constexpr std::array kStates = {kMatrixState};

constexpr std::array kGlaInputs = {
    kQueryInput,
    kKeyInput,
    kValueInput,
    linear_input<&T::g>("g", "num_heads_kv head_dim", "f32 =q f64", "log decay")
        .filled(Fill::kLogDecay),
};
constexpr LinearOp kGla = {
    .name = "gla",
    .doc = "gated linear attention, a log decay for each row and key dimension",
    .family = LinearFamily::kVectorDecay,
    .reference = vector_decay_reference,
    .gate = LinearGate::kVectorLogDecay,
    .inputs = kGlaInputs,
    .states = kStates,
    .out_shape = kQueryOut,
    .options = kScale,
};

constexpr std::array kRwkv6Inputs = {
    linear_input<&T::q>("r", "num_heads head_dim", kLinearFloats, "queries"),
    linear_input<&T::k>("k", "num_heads_kv head_dim", "=r", "keys"),
    linear_input<&T::v>("v", "num_heads_kv head_dim_v", "=r", "values"),
    linear_input<&T::g>("w", "num_heads_kv head_dim", "f32 =r f64", "log decay")
        .filled(Fill::kLogDecay),
    linear_input<&T::u_bonus>("u_bonus", "num_heads_kv head_dim", kParameterDtypes,
                              "weight of the row itself")
        .untimed(),
};
constexpr LinearOp kRwkv6 = {
    .name = "rwkv6",
    .doc = "RWKV-6, vector decay with a bonus for the row itself",
    .family = LinearFamily::kVectorDecay,
    .reference = vector_decay_reference,
    .gate = LinearGate::kVectorLogDecay,
    .reads_before = true,
    .inputs = kRwkv6Inputs,
    .states = kStates,
    .out_shape = kQueryOut,
    .options = kScale,
};

constexpr std::array kGsaInputs = {
    kQueryInput,
    kKeyInput,
    kValueInput,
    linear_input<&T::s>("s", "num_heads_kv num_slots", "=q", "weights of the slots"),
    linear_input<&T::g>("g", "num_heads_kv num_slots", "f32 =q f64", "log decay of the slots")
        .filled(Fill::kLogDecay),
};
constexpr std::array kGsaStates = {
    linear_state<&S::state_k>("state_k", "num_heads_kv head_dim num_slots", "keys of the slots"),
    linear_state<&S::state>("state_v", "num_heads_kv num_slots head_dim_v", "values of the slots"),
};
constexpr LinearOp kGsa = {
    .name = "gsa",
    .doc = "gated slot attention",
    .family = LinearFamily::kSlots,
    .reference = slots_reference,
    .gate = LinearGate::kVectorLogDecay,
    .inputs = kGsaInputs,
    .states = kGsaStates,
    .out_shape = kQueryOut,
    .options = kScale,
};

}  // namespace

std::vector<const OpSpec*> vector_decay_specs() { return linear_specs_of<kGla, kRwkv6, kGsa>(); }

void gla_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kGla, LinearPass::kForward>(args, context);
}
void gla_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kGla, LinearPass::kBackward>(args, context);
}
void gla_step(const LinearArgs& args, const Context& context) {
  call_linear<kGla, LinearPass::kStep>(args, context);
}
void rwkv6_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kRwkv6, LinearPass::kForward>(args, context);
}
void rwkv6_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kRwkv6, LinearPass::kBackward>(args, context);
}
void rwkv6_step(const LinearArgs& args, const Context& context) {
  call_linear<kRwkv6, LinearPass::kStep>(args, context);
}
void gsa_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kGsa, LinearPass::kForward>(args, context);
}
void gsa_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kGsa, LinearPass::kBackward>(args, context);
}
void gsa_step(const LinearArgs& args, const Context& context) {
  call_linear<kGsa, LinearPass::kStep>(args, context);
}

}  // namespace flashtile
