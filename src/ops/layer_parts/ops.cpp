// SPDX-License-Identifier: Apache-2.0
//
// The ops that layers have around their recurrence.
#include "ops/layer_parts/layer_parts.hpp"
#include "ops/linear/inputs.hpp"
#include "ops/linear/options.hpp"
#include "ops/linear/table.hpp"

namespace flashtile {
namespace {

using A = LinearArgs;
using T = LinearTensors;

constexpr std::array kShortConvInputs = {
    linear_input<&T::v>("x", "num_channels", kLinearFloats, "what is convolved"),
    linear_input<&T::weight>("weight", "num_channels num_past+1", "f32 =x f64", "oldest row first")
        .untimed(),
    linear_input<&T::bias>("bias", "num_channels", "f32 =x f64", "added").optional().untimed(),
};
constexpr std::array kShortConvStates = {
    linear_state<&LinearStates::state>("state", "num_channels num_past", "last inputs")};
constexpr std::array kShortConvOptions = {
    linear_option<&A::silu>("silu", "false", 0, 1, "the output goes through silu"),
    linear_option<&A::residual>("residual", "false", 0, 1, "x is added to the output"),
};
constexpr LinearOp kShortConv = {
    .name = "short_conv",
    .doc = "short causal convolution of each channel",
    .family = LinearFamily::kShortConv,
    .reference = short_conv_reference,
    .reads_before = true,
    .inputs = kShortConvInputs,
    .states = kShortConvStates,
    .out_shape = "num_channels",
    .options = kShortConvOptions,
};

constexpr std::string_view kShape = "num_heads head_dim";

constexpr std::array kGateInputs = {
    linear_input<&T::v>("x", kShape, kLinearFloats, "what becomes a log decay"),
    linear_input<&T::bias>("bias", kShape, kParameterDtypes, "added to x").optional().untimed(),
    linear_input<&T::A_log>("A_log", "num_heads", kParameterDtypes, "logarithm of the rate")
        .optional()
        .untimed(),
};
constexpr std::array kGateOptions = {
    linear_option<&A::lower_bound>("lower_bound", "none", -kLinearMaxFloat, 0,
                                   "the decay is between this and 0"),
    linear_option<&A::divisor>("divisor", "1", 1e-30, kLinearMaxFloat, "divides the result"),
};
constexpr LinearOp kLogDecayGate = {
    .name = "log_decay_gate",
    .doc = "log decays from what a layer projects",
    .family = LinearFamily::kLogDecayGate,
    .reference = log_decay_gate_reference,
    .inputs = kGateInputs,
    .states = {},
    .out_shape = kShape,
    .options = kGateOptions,
};

constexpr std::array kNormInputs = {
    linear_input<&T::v>("x", kShape, kLinearFloats, "what is normalised"),
    linear_input<&T::z>("z", kShape, "=x", "gate before its activation").optional(),
    linear_input<&T::weight>("weight", "head_dim", "f32 =x f64", "multiplies the result")
        .optional()
        .untimed(),
};
constexpr std::array kNormOptions = {
    linear_option<&A::gate_first>("gate_first", "false", 0, 1, "the gate comes before the norm"),
    linear_option<&A::is_sigmoid>("is_sigmoid", "false", 0, 1, "sigmoid(z), not silu(z)"),
    linear_option<&A::eps>("eps", "1e-5", 0, kLinearMaxFloat, "added to the mean of squares"),
};
constexpr LinearOp kGatedNorm = {
    .name = "gated_norm",
    .doc = "RMS norm of each head, with a gate",
    .family = LinearFamily::kGatedNorm,
    .reference = gated_norm_reference,
    .inputs = kNormInputs,
    .states = {},
    .out_shape = kShape,
    .options = kNormOptions,
};

constexpr std::array kMapInputs = {
    linear_input<&T::v>("x", kShape, kLinearFloats, "queries or keys"),
};
constexpr std::array kMapOptions = {
    linear_option<&A::feature_map>("feature_map", "elu", 0, 0, "elu, relu, relu2 or softmax"),
};
constexpr LinearOp kFeatureMap = {
    .name = "feature_map",
    .doc = "what makes queries and keys of linear attention positive",
    .family = LinearFamily::kFeatureMap,
    .reference = feature_map_reference,
    .inputs = kMapInputs,
    .states = {},
    .out_shape = kShape,
    .options = kMapOptions,
};

}  // namespace

std::vector<const OpSpec*> layer_part_specs() {
  return linear_specs_of<kShortConv, kLogDecayGate, kGatedNorm, kFeatureMap>();
}

void short_conv_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kShortConv, LinearPass::kForward>(args, context);
}
void short_conv_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kShortConv, LinearPass::kBackward>(args, context);
}
void short_conv_step(const LinearArgs& args, const Context& context) {
  call_linear<kShortConv, LinearPass::kStep>(args, context);
}
void log_decay_gate_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kLogDecayGate, LinearPass::kForward>(args, context);
}
void log_decay_gate_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kLogDecayGate, LinearPass::kBackward>(args, context);
}
void log_decay_gate_step(const LinearArgs& args, const Context& context) {
  call_linear<kLogDecayGate, LinearPass::kStep>(args, context);
}
void gated_norm_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kGatedNorm, LinearPass::kForward>(args, context);
}
void gated_norm_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kGatedNorm, LinearPass::kBackward>(args, context);
}
void gated_norm_step(const LinearArgs& args, const Context& context) {
  call_linear<kGatedNorm, LinearPass::kStep>(args, context);
}
void feature_map_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kFeatureMap, LinearPass::kForward>(args, context);
}
void feature_map_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kFeatureMap, LinearPass::kBackward>(args, context);
}
void feature_map_step(const LinearArgs& args, const Context& context) {
  call_linear<kFeatureMap, LinearPass::kStep>(args, context);
}

}  // namespace flashtile
