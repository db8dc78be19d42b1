// SPDX-License-Identifier: Apache-2.0
//
// The ops of the scalar-decay family.
#include "ops/linear/inputs.hpp"
#include "ops/linear/options.hpp"
#include "ops/linear/table.hpp"
#include "ops/scalar_decay/scalar_decay.hpp"

namespace flashtile {
namespace {

using T = LinearTensors;
using S = LinearStates;

constexpr LinearState kNorm =
    linear_state<&S::norm>("norm", "num_heads_kv head_dim", "sum of keys");
constexpr LinearState kMax =
    linear_state<&S::max>("max", "num_heads_kv", "maximum of the input gate").without_gradient();

constexpr std::array kPlainInputs = {kQueryInput, kKeyInput, kValueInput};
constexpr std::array kPlainStates = {kMatrixState};
constexpr std::array kNormStates = {kMatrixState, kNorm};
constexpr std::array kScale = {kScaleOption};
constexpr std::array kScaleNormalize = {kScaleOption, kNormalizeOption};

constexpr LinearOp kLinearAttention = {
    .name = "linear_attention",
    .doc = "linear attention",
    .family = LinearFamily::kScalarDecay,
    .reference = scalar_decay_reference,
    .normalizer = LinearNormalizer::kSum,
    .inputs = kPlainInputs,
    .states = kNormStates,
    .out_shape = kQueryOut,
    .options = kScaleNormalize,
};

// Decays that follow from the head's number: a state shared by several heads of q would have
// several.
constexpr std::array kSameHeadsInputs = {
    kQueryInput,
    linear_input<&T::k>("k", "num_heads head_dim", "=q", "keys"),
    linear_input<&T::v>("v", "num_heads head_dim_v", "=q", "values"),
};
constexpr std::array kSameHeadsStates = {
    linear_state<&S::state>("state", "num_heads head_dim head_dim_v", "state")};

constexpr LinearOp kRetention = {
    .name = "retention",
    .doc = "retention, a constant decay for each head",
    .family = LinearFamily::kScalarDecay,
    .reference = scalar_decay_reference,
    .gate = LinearGate::kRetention,
    .inputs = kSameHeadsInputs,
    .states = kSameHeadsStates,
    .out_shape = kQueryOut,
    .options = kScale,
};

constexpr std::array kLightningOptions = {kScaleOption, kLayerOption, kLayersOption};
constexpr LinearOp kLightning = {
    .name = "lightning",
    .doc = "lightning attention, a constant decay for each head and layer",
    .family = LinearFamily::kScalarDecay,
    .reference = scalar_decay_reference,
    .gate = LinearGate::kLightning,
    .inputs = kSameHeadsInputs,
    .states = kSameHeadsStates,
    .out_shape = kQueryOut,
    .options = kLightningOptions,
};

constexpr std::array kSimpleGlaInputs = {
    kQueryInput,
    kKeyInput,
    kValueInput,
    linear_input<&T::g>("g", "num_heads_kv", "f32 =q f64", "log decay")
        .optional()
        .filled(Fill::kLogDecay),
    linear_input<&T::g_gamma>("g_gamma", "num_heads_kv", kParameterDtypes, "constant log decay")
        .optional()
        .untimed()
        .without_gradient()
        .filled(Fill::kLogDecay),
};
constexpr LinearOp kSimpleGla = {
    .name = "simple_gla",
    .doc = "gated linear attention, a log decay for each row and head",
    .family = LinearFamily::kScalarDecay,
    .reference = scalar_decay_reference,
    .gate = LinearGate::kLogDecay,
    .inputs = kSimpleGlaInputs,
    .states = kPlainStates,
    .out_shape = kQueryOut,
    .options = kScale,
};

constexpr std::array kMamba2Inputs = {
    linear_input<&T::v>("x", "num_heads head_dim_v", kLinearFloats, "what enters the state"),
    linear_input<&T::dt>("dt", "num_heads", "=x f32 f64", "step size").filled(Fill::kPositive),
    linear_input<&T::k>("B", "num_groups head_dim", "=x", "how it enters"),
    linear_input<&T::q>("C", "num_groups head_dim", "=x", "how it is read"),
    linear_input<&T::A>("A", "num_heads", kParameterDtypes, "log decay of a unit step, negative")
        .untimed()
        .filled(Fill::kLogDecay),
    linear_input<&T::D>("D", "num_heads; num_heads head_dim_v", kParameterDtypes, "skip")
        .optional()
        .untimed(),
    linear_input<&T::dt_bias>("dt_bias", "num_heads", kParameterDtypes, "added to dt")
        .optional()
        .untimed(),
};
constexpr std::array kMamba2Options = {kDtSoftplusOption, kDtMinOption, kDtMaxOption};
constexpr LinearOp kMamba2 = {
    .name = "mamba2",
    .doc = "Mamba-2, state-space duality",
    .family = LinearFamily::kScalarDecay,
    .reference = scalar_decay_reference,
    .gate = LinearGate::kStep,
    .has_unit_scale = true,
    .inputs = kMamba2Inputs,
    .states = kSameHeadsStates,
    .out_shape = "num_heads head_dim_v",
    .options = kMamba2Options,
};

constexpr std::array kMlstmInputs = {
    kQueryInput,
    kKeyInput,
    kValueInput,
    linear_input<&T::i>("i", "num_heads_kv", "f32 =q f64", "input gate, raw"),
    linear_input<&T::f>("f", "num_heads_kv", "f32 =q f64", "forget gate, raw"),
};
constexpr std::array kMlstmExpStates = {kMatrixState, kNorm, kMax};
constexpr LinearOp kMlstmExp = {
    .name = "mlstm_exp",
    .doc = "xLSTM's matrix memory with an exponential input gate",
    .family = LinearFamily::kScalarDecay,
    .reference = scalar_decay_reference,
    .gate = LinearGate::kExponential,
    .normalizer = LinearNormalizer::kAtLeastFloor,
    .is_always_normalized = true,
    .inputs = kMlstmInputs,
    .states = kMlstmExpStates,
    .out_shape = kQueryOut,
    .options = kScale,
};

constexpr LinearOp kMlstmSig = {
    .name = "mlstm_sig",
    .doc = "xLSTM's matrix memory with a sigmoid input gate",
    .family = LinearFamily::kScalarDecay,
    .reference = scalar_decay_reference,
    .gate = LinearGate::kSigmoid,
    .normalizer = LinearNormalizer::kAtLeastOne,
    .inputs = kMlstmInputs,
    .states = kNormStates,
    .out_shape = kQueryOut,
    .options = kScaleNormalize,
};

}  // namespace

std::vector<const OpSpec*> scalar_decay_specs() {
  return linear_specs_of<kLinearAttention, kRetention, kLightning, kSimpleGla, kMamba2, kMlstmExp,
                         kMlstmSig>();
}

void linear_attention_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kLinearAttention, LinearPass::kForward>(args, context);
}
void linear_attention_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kLinearAttention, LinearPass::kBackward>(args, context);
}
void linear_attention_step(const LinearArgs& args, const Context& context) {
  call_linear<kLinearAttention, LinearPass::kStep>(args, context);
}
void retention_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kRetention, LinearPass::kForward>(args, context);
}
void retention_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kRetention, LinearPass::kBackward>(args, context);
}
void retention_step(const LinearArgs& args, const Context& context) {
  call_linear<kRetention, LinearPass::kStep>(args, context);
}
void lightning_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kLightning, LinearPass::kForward>(args, context);
}
void lightning_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kLightning, LinearPass::kBackward>(args, context);
}
void lightning_step(const LinearArgs& args, const Context& context) {
  call_linear<kLightning, LinearPass::kStep>(args, context);
}
void simple_gla_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kSimpleGla, LinearPass::kForward>(args, context);
}
void simple_gla_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kSimpleGla, LinearPass::kBackward>(args, context);
}
void simple_gla_step(const LinearArgs& args, const Context& context) {
  call_linear<kSimpleGla, LinearPass::kStep>(args, context);
}
void mamba2_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kMamba2, LinearPass::kForward>(args, context);
}
void mamba2_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kMamba2, LinearPass::kBackward>(args, context);
}
void mamba2_step(const LinearArgs& args, const Context& context) {
  call_linear<kMamba2, LinearPass::kStep>(args, context);
}
void mlstm_exp_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kMlstmExp, LinearPass::kForward>(args, context);
}
void mlstm_exp_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kMlstmExp, LinearPass::kBackward>(args, context);
}
void mlstm_exp_step(const LinearArgs& args, const Context& context) {
  call_linear<kMlstmExp, LinearPass::kStep>(args, context);
}
void mlstm_sig_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kMlstmSig, LinearPass::kForward>(args, context);
}
void mlstm_sig_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kMlstmSig, LinearPass::kBackward>(args, context);
}
void mlstm_sig_step(const LinearArgs& args, const Context& context) {
  call_linear<kMlstmSig, LinearPass::kStep>(args, context);
}

}  // namespace flashtile
