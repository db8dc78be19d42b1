// SPDX-License-Identifier: Apache-2.0
//
// The ops of the scan family.
#include "ops/linear/inputs.hpp"
#include "ops/linear/options.hpp"
#include "ops/linear/table.hpp"
#include "ops/scan/scan.hpp"

namespace flashtile {
namespace {

using T = LinearTensors;
using S = LinearStates;

constexpr std::string_view kChannels = "num_channels";

constexpr std::array kHgrnInputs = {
    linear_input<&T::v>("x", kChannels, kLinearFloats, "what is added"),
    linear_input<&T::g>("g", kChannels, "f32 =x f64", "log decay").filled(Fill::kLogDecay),
};
constexpr std::array kHgrnStates = {linear_state<&S::state>("state", kChannels, "state")};
constexpr LinearOp kHgrn = {
    .name = "hgrn",
    .doc = "HGRN, a gated sum of each channel",
    .family = LinearFamily::kHgrn,
    .reference = hgrn_reference,
    .gate = LinearGate::kLogDecay,
    .inputs = kHgrnInputs,
    .states = kHgrnStates,
    .out_shape = kChannels,
};

constexpr std::array kMamba1Inputs = {
    linear_input<&T::v>("u", kChannels, kLinearFloats, "what enters the state"),
    linear_input<&T::dt>("dt", kChannels, "=u f32 f64", "step size").filled(Fill::kPositive),
    linear_input<&T::k>("B", "num_groups head_dim", "=u", "how it enters"),
    linear_input<&T::q>("C", "num_groups head_dim", "=u", "how it is read"),
    linear_input<&T::z>("z", kChannels, "=u", "gate of the output").optional(),
    linear_input<&T::A>("A", "num_channels head_dim", kParameterDtypes, "log decay of a unit step")
        .untimed()
        .filled(Fill::kLogDecay),
    linear_input<&T::D>("D", kChannels, kParameterDtypes, "skip").optional().untimed(),
    linear_input<&T::dt_bias>("dt_bias", kChannels, kParameterDtypes, "added to dt")
        .optional()
        .untimed(),
};
constexpr std::array kMamba1States = {
    linear_state<&S::state>("state", "num_channels head_dim", "state")};
constexpr std::array kMamba1Options = {kDtSoftplusOption};
constexpr LinearOp kMamba1 = {
    .name = "mamba1",
    .doc = "Mamba's selective scan",
    .family = LinearFamily::kMamba1,
    .reference = mamba1_reference,
    .gate = LinearGate::kStep,
    .has_unit_scale = true,
    .inputs = kMamba1Inputs,
    .states = kMamba1States,
    .out_shape = kChannels,
    .options = kMamba1Options,
};

constexpr std::array kRwkv4Inputs = {
    linear_input<&T::k>("k", kChannels, kLinearFloats, "logarithm of a value's weight"),
    linear_input<&T::v>("v", kChannels, "=k", "values"),
    linear_input<&T::g>("w", kChannels, kParameterDtypes, "log decay")
        .untimed()
        .filled(Fill::kLogDecay),
    linear_input<&T::u_bonus>("u_bonus", kChannels, kParameterDtypes,
                              "added to k of the row itself")
        .untimed(),
};
constexpr std::array kRwkv4States = {
    linear_state<&S::state>("state", "3 num_channels", "alpha, beta, eps").filled(Fill::kPositive)};
constexpr LinearOp kRwkv4 = {
    .name = "rwkv4",
    .doc = "RWKV-4, a weighted mean of each channel",
    .family = LinearFamily::kRwkv4,
    .reference = rwkv4_reference,
    .gate = LinearGate::kExponential,
    .reads_before = true,
    .inputs = kRwkv4Inputs,
    .states = kRwkv4States,
    .out_shape = kChannels,
};

constexpr std::string_view kCells = "num_heads head_dim";
constexpr std::array kSlstmInputs = {
    linear_input<&T::i>("i", kCells, kLinearFloats, "input gate, raw"),
    linear_input<&T::f>("f", kCells, "=i", "forget gate, raw"),
    linear_input<&T::z>("z", kCells, "=i", "cell input, raw"),
    linear_input<&T::o>("o", kCells, "=i", "output gate, raw"),
    linear_input<&T::weight>("weight", "num_heads 4 head_dim head_dim", "f32 =i f64",
                             "what i, f, z and o add of the row before")
        .untimed()
        .filled(Fill::kUnit),
};
constexpr std::array kSlstmStates = {
    linear_state<&S::state>("state", kCells, "cell"),
    linear_state<&S::norm>("norm", kCells, "sum of input weights").filled(Fill::kPositive),
    linear_state<&S::max>("max", kCells, "maximum of the input gate").without_gradient(),
    linear_state<&S::hidden>("hidden", kCells, "output of the row before"),
};
constexpr LinearOp kSlstm = {
    .name = "slstm",
    .doc = "xLSTM's scalar memory",
    .family = LinearFamily::kSlstm,
    .reference = slstm_reference,
    .gate = LinearGate::kExponential,
    .normalizer = LinearNormalizer::kAtLeastFloor,
    .is_always_normalized = true,
    .inputs = kSlstmInputs,
    .states = kSlstmStates,
    .out_shape = kCells,
};

}  // namespace

std::vector<const OpSpec*> scan_specs() {
  return linear_specs_of<kHgrn, kMamba1, kRwkv4, kSlstm>();
}

void hgrn_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kHgrn, LinearPass::kForward>(args, context);
}
void hgrn_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kHgrn, LinearPass::kBackward>(args, context);
}
void hgrn_step(const LinearArgs& args, const Context& context) {
  call_linear<kHgrn, LinearPass::kStep>(args, context);
}
void mamba1_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kMamba1, LinearPass::kForward>(args, context);
}
void mamba1_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kMamba1, LinearPass::kBackward>(args, context);
}
void mamba1_step(const LinearArgs& args, const Context& context) {
  call_linear<kMamba1, LinearPass::kStep>(args, context);
}
void rwkv4_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kRwkv4, LinearPass::kForward>(args, context);
}
void rwkv4_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kRwkv4, LinearPass::kBackward>(args, context);
}
void rwkv4_step(const LinearArgs& args, const Context& context) {
  call_linear<kRwkv4, LinearPass::kStep>(args, context);
}
void slstm_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kSlstm, LinearPass::kForward>(args, context);
}
void slstm_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kSlstm, LinearPass::kBackward>(args, context);
}
void slstm_step(const LinearArgs& args, const Context& context) {
  call_linear<kSlstm, LinearPass::kStep>(args, context);
}

}  // namespace flashtile
