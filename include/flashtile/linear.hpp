// SPDX-License-Identifier: Apache-2.0
//
// Linear attention: ops whose past is a state of fixed size. docs/linear.md has each op's formula
// and the names that its table has for the members below.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "flashtile/context.hpp"
#include "flashtile/export.hpp"
#include "flashtile/tensor.hpp"

namespace flashtile {

/// What runs over time, and parameters. Each op has some of them; in comments the name that the
/// op's table has where it is another one. (batch, seqlen, heads, dim), or packed (total, heads,
/// dim), gates of a head without the last; f32, f16 or bf16; any strides. `flashtile info OP`
/// prints the shapes and dtypes of an op.
struct LinearTensors {
  TensorView q;  ///< queries; mamba1, mamba2: C; rwkv6, rwkv7: r
  TensorView k;  ///< keys; mamba1, mamba2: B
  TensorView v;  ///< values; mamba2, hgrn: x; mamba1: u
  /// Natural log of the decay: one for a head, or for each key dimension (vector decay, kda, low
  /// rank). -inf resets exactly. rwkv4, rwkv6, rwkv7: w.
  TensorView g;
  TensorView g_gamma;  ///< (heads) constant log decay; has no gradient
  TensorView i;        ///< input gate before its activation
  TensorView f;        ///< forget gate before its activation
  TensorView o;        ///< output gate before its activation
  TensorView dt;       ///< step size before dt_bias and dt_softplus
  TensorView dt_bias;  ///< added to dt
  TensorView A;        ///< decay of a unit step, negative
  TensorView D;        ///< skip: how much of the input the output takes directly
  TensorView z;        ///< gate of the output, before silu; slstm: what enters the cell
  TensorView beta;     ///< delta rules: how far a value is corrected
  TensorView a;        ///< low rank: what reads the old state
  TensorView b;        ///< low rank: where that is written
  TensorView s;        ///< gsa: weights of the slots
  TensorView weight;   ///< short_conv: (channels, width); gated_norm: (head_dim); slstm: R
  TensorView bias;     ///< short_conv: added; log_decay_gate: added before the activation
  TensorView A_log;    ///< log_decay_gate: logarithm of the rate
  TensorView u_bonus;  ///< rwkv4, rwkv6: extra weight of the row itself

  bool operator==(const LinearTensors&) const = default;
};

/// States, (sequences, heads, key_dim, value_dim) and the like, float32. Which ones an op has
/// follows from it and its options.
struct LinearStates {
  TensorView state;    ///< S; gsa: state_v
  TensorView state_k;  ///< gsa: the state that q reads
  TensorView norm;     ///< sum of keys: (sequences, heads, key_dim)
  TensorView max;      ///< running maximum of the exponential input gate: (sequences, heads)
  TensorView hidden;   ///< slstm: output of the row before

  bool operator==(const LinearStates&) const = default;
};

/// The arguments of every linear-attention op. A forward op reads `inputs` and `initial_states` and
/// writes `out` and `final_states`; a backward op reads `dout` and `dfinal_states` as well and
/// writes `gradients` and `dinitial_states`, each where it is wanted. A step op takes one row of
/// each sequence, (batch, heads, dim), and takes `states` past it in place. Everything that an op
/// does not have is an error, and so is whatever its table refuses: each function throws Error, and
/// nothing has been written then.
struct LinearArgs {
  LinearTensors inputs;
  LinearTensors gradients;  ///< in the place of what they are the gradient of; alike
  TensorView cu_seqlens;    ///< (sequences + 1) i32: first row of each packed sequence
  TensorView out;
  TensorView dout;
  LinearStates initial_states;  ///< absent: zero
  LinearStates final_states;
  LinearStates dinitial_states;
  LinearStates dfinal_states;  ///< absent: zero
  LinearStates states;         ///< of a step op, which changes them in place
  TensorView state_slots;      ///< (sequences) i32: their lines in `states`; absent: 0, 1, ...

  std::optional<double> scale;      ///< multiplies q; default 1/sqrt(head_dim)
  bool silu = false;                ///< short_conv: the output goes through silu
  bool residual = false;            ///< short_conv: x is added to the output
  bool gate_first = false;          ///< gated_norm: the gate comes before the norm
  bool is_sigmoid = false;          ///< gated_norm: the gate is sigmoid(z), not silu(z)
  double eps = 1e-5;                ///< gated_norm: added to the mean of squares
  std::string feature_map = "elu";  ///< feature_map: "elu", "relu", "relu2" or "softmax"
  /// log_decay_gate: with a number below 0 the decay is bounded by it.
  std::optional<double> lower_bound;
  double divisor = 1;      ///< log_decay_gate without A_log: of logsigmoid(x)
  bool normalize = false;  ///< divides by what q reads of the summed keys
  bool qk_l2norm = false;  ///< q and k are divided by sqrt(sum of squares + 1e-6)
  int64_t layer = 0;       ///< lightning: of `layers`, from 0
  int64_t layers = 1;
  bool dt_softplus = false;
  double dt_min = -std::numeric_limits<double>::infinity();  ///< dt is clamped to these limits
  double dt_max = std::numeric_limits<double>::infinity();

  bool operator==(const LinearArgs&) const = default;
};

// Scalar decay: S_t = exp(a_t) S_{t-1} + w_t k_t v_t', o_t = S_t' (scale q_t), one a_t for a head.

/// a = 0, w = 1; `normalize`: o / (q.z + 1e-10) with z the sum of keys (Katharopoulos 2020,
/// arXiv:2006.16236).
FLASHTILE_API void linear_attention_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void linear_attention_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void linear_attention_step(const LinearArgs& args, const Context& context = {});
/// a = log(1 - 2^(-5-h)) for head h (RetNet, Sun 2023, arXiv:2307.08621).
FLASHTILE_API void retention_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void retention_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void retention_step(const LinearArgs& args, const Context& context = {});
/// a = -(8/H) (1 - layer/layers) h (Lightning attention, Qin 2024, arXiv:2401.04658).
FLASHTILE_API void lightning_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void lightning_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void lightning_step(const LinearArgs& args, const Context& context = {});
/// a = g + g_gamma; either may be absent.
FLASHTILE_API void simple_gla_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void simple_gla_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void simple_gla_step(const LinearArgs& args, const Context& context = {});
/// State-space duality (Dao 2024, arXiv:2405.21060): d = dt + dt_bias, softplus with dt_softplus,
/// clamped; a = d A, w = d, and D v is added to o. scale is 1.
FLASHTILE_API void mamba2_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void mamba2_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void mamba2_step(const LinearArgs& args, const Context& context = {});
/// xLSTM's matrix memory (Beck 2024, arXiv:2405.04517): m = max(logsigmoid(f) + m', i),
/// a = logsigmoid(f) + m' - m, w = exp(i - m); o / (max(|q.n|, exp(-m)) + 1e-6). m is held constant
/// in gradients, the divisor is not.
FLASHTILE_API void mlstm_exp_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void mlstm_exp_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void mlstm_exp_step(const LinearArgs& args, const Context& context = {});
/// a = logsigmoid(f), w = sigmoid(i); `normalize`: o / (max(|q.n|, 1) + 1e-6) (Beck 2025,
/// arXiv:2503.14376).
FLASHTILE_API void mlstm_sig_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void mlstm_sig_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void mlstm_sig_step(const LinearArgs& args, const Context& context = {});

// Vector decay: S_t = Diag(exp(g_t)) S_{t-1} + k_t v_t', a decay for each key dimension.

/// o_t = S_t' (scale q_t) (Yang 2024, arXiv:2312.06635).
FLASHTILE_API void gla_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void gla_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void gla_step(const LinearArgs& args, const Context& context = {});
/// o_t = (S_{t-1} + Diag(u_bonus) k_t v_t')' (scale r_t) (Peng 2024, arXiv:2404.05892).
FLASHTILE_API void rwkv6_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void rwkv6_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void rwkv6_step(const LinearArgs& args, const Context& context = {});
/// Gated slot attention (Zhang 2024, arXiv:2409.07146): two such states, of keys and of values in
/// slots, and a softmax over the slots: o = Sv' softmax(Sk' (scale q)),
/// Sk = Sk Diag(exp(g)) + k s', Sv = Diag(exp(g)) Sv + s v'.
FLASHTILE_API void gsa_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void gsa_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void gsa_step(const LinearArgs& args, const Context& context = {});

// Delta rules: what k reads of the state is corrected towards v. R is the decayed state.

/// S = R + k (beta (v - R' k))' with R = S_{t-1} (Schlag 2021; Yang 2024,
/// arXiv:2406.06484).
FLASHTILE_API void delta_rule_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void delta_rule_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void delta_rule_step(const LinearArgs& args, const Context& context = {});
/// The same with R = exp(g) S_{t-1}, one g for a head (Yang 2024, arXiv:2412.06464).
FLASHTILE_API void gated_delta_rule_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void gated_delta_rule_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void gated_delta_rule_step(const LinearArgs& args, const Context& context = {});
/// The same with R = Diag(exp(g)) S_{t-1} (Kimi delta attention, arXiv:2510.26692).
FLASHTILE_API void kda_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void kda_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void kda_step(const LinearArgs& args, const Context& context = {});
/// S = Diag(exp(w)) S_{t-1} + b (S_{t-1}' a)' + k v', scale 1 (RWKV-7, Peng 2025,
/// arXiv:2503.14456).
FLASHTILE_API void rwkv7_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void rwkv7_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void rwkv7_step(const LinearArgs& args, const Context& context = {});
/// The same with q, g and scale 1/sqrt(head_dim): diagonal plus low rank.
FLASHTILE_API void dplr_delta_rule_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void dplr_delta_rule_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void dplr_delta_rule_step(const LinearArgs& args, const Context& context = {});
/// The same without decay: identity plus low rank.
FLASHTILE_API void iplr_delta_rule_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void iplr_delta_rule_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void iplr_delta_rule_step(const LinearArgs& args, const Context& context = {});

// Element-wise scans: channels instead of heads and key dimensions.

/// o = S = exp(g) S_{t-1} + x (Qin 2023, arXiv:2311.04823).
FLASHTILE_API void hgrn_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void hgrn_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void hgrn_step(const LinearArgs& args, const Context& context = {});
/// Selective scan (Gu 2023, arXiv:2312.00752): S = exp(d A) S_{t-1} + d u B,
/// o = (S.C + D u) silu(z), d as in mamba2.
FLASHTILE_API void mamba1_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void mamba1_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void mamba1_step(const LinearArgs& args, const Context& context = {});
/// A weighted mean of values (Peng 2023, arXiv:2305.13048), whose state (sequences, 3, channels)
/// has the sums alpha and beta relative to exp(eps), and eps; absent: 0, 0, -inf.
FLASHTILE_API void rwkv4_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void rwkv4_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void rwkv4_step(const LinearArgs& args, const Context& context = {});
/// xLSTM's scalar memory (Beck 2024, arXiv:2405.04517), whose gates read the output h of the row
/// before through R, weight (heads, 4, dim, dim) in the order i, f, z, o: c = k c' + e tanh(z~), n
/// = k n' + e, h = sigmoid(o~) c / n, with e and k those of mlstm_exp. An absent maximum is -inf,
/// which gives the first row all the weight. m is held constant in gradients.
FLASHTILE_API void slstm_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void slstm_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void slstm_step(const LinearArgs& args, const Context& context = {});

// What layers have around these. They have states and steps where they look back.

/// Causal convolution of each channel: o_t = act(sum over j of weight_j x_{t-W+1+j} + bias) [+
/// x_t], act silu or nothing. Its state (sequences, channels, W - 1) holds the last inputs, oldest
/// first.
FLASHTILE_API void short_conv_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void short_conv_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void short_conv_step(const LinearArgs& args, const Context& context = {});
/// Log decays from what a layer projects: logsigmoid(x + bias) / divisor (GLA); with A_log
/// -exp(A_log) softplus(x + bias) (gated delta rule, KDA); with lower_bound l as well
/// l sigmoid(exp(A_log) (x + bias)).
FLASHTILE_API void log_decay_gate_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void log_decay_gate_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void log_decay_gate_step(const LinearArgs& args, const Context& context = {});
/// RMS norm of each head with a gate: o = weight x / sqrt(mean of x^2 + eps) gate(z), or with
/// gate_first (Mamba-2) weight y / sqrt(mean of y^2 + eps) with y = x gate(z).
FLASHTILE_API void gated_norm_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void gated_norm_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void gated_norm_step(const LinearArgs& args, const Context& context = {});
/// What queries and keys of linear attention go through: elu(x) + 1, relu(x), its square, or
/// softmax over head_dim.
FLASHTILE_API void feature_map_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void feature_map_bwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void feature_map_step(const LinearArgs& args, const Context& context = {});

}  // namespace flashtile
