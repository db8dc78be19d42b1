// SPDX-License-Identifier: Apache-2.0
//
// Linear attention: ops whose past is a state of fixed size. docs/linear.md has each op's formula
// and the names that its table has for the members below.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "flashtile/context.hpp"
#include "flashtile/export.hpp"
#include "flashtile/tensor.hpp"

namespace flashtile {

/// What runs over time, and parameters. Each op has some of them; in comments the name that the
/// op's table has where it is another one. (batch, seqlen, heads, dim), or packed (total, heads,
/// dim); f32, f16 or bf16; any strides.
struct LinearTensors {
  TensorView q;        ///< queries; mamba2: C
  TensorView k;        ///< keys; mamba2: B
  TensorView v;        ///< values; mamba2: x
  TensorView g;        ///< log decay; -inf resets exactly
  TensorView g_gamma;  ///< (heads) constant log decay; has no gradient
  TensorView i;        ///< input gate before its activation
  TensorView f;        ///< forget gate before its activation
  TensorView dt;       ///< step size before dt_bias and dt_softplus
  TensorView dt_bias;  ///< added to dt
  TensorView A;        ///< decay of a unit step, negative
  TensorView D;        ///< skip: how much of the input the output takes directly

  bool operator==(const LinearTensors&) const = default;
};

/// States, (sequences, heads, key_dim, value_dim) and the like, float32. Which ones an op has
/// follows from it and its options.
struct LinearStates {
  TensorView state;  ///< S
  TensorView norm;   ///< sum of keys: (sequences, heads, key_dim)
  TensorView max;    ///< running maximum of the exponential input gate: (sequences, heads)

  bool operator==(const LinearStates&) const = default;
};

/// The arguments of every linear-attention op. A forward op reads `inputs` and `initial_states` and
/// writes `out` and `final_states`; a backward op reads `dout` and `dfinal_states` as well and
/// writes `gradients` and `dinitial_states`, each where it is wanted. Everything that an op does
/// not have is an error, and so is whatever its table says; nothing has been written then.
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

  std::optional<double> scale;  ///< multiplies q; default 1/sqrt(head_dim)
  bool normalize = false;       ///< divides by what q reads of the summed keys
  int64_t layer = 0;            ///< lightning: of `layers`, from 0
  int64_t layers = 1;
  bool dt_softplus = false;
  double dt_min = -std::numeric_limits<double>::infinity();  ///< dt is clamped to these limits
  double dt_max = std::numeric_limits<double>::infinity();

  bool operator==(const LinearArgs&) const = default;
};

// Scalar decay: S_t = exp(a_t) S_{t-1} + w_t k_t v_t', o_t = S_t' (scale q_t), one a_t for a head.

/// a = 0, w = 1; `normalize`: o / (q.z + 1e-10) with z the sum of keys (Katharopoulos 2020).
FLASHTILE_API void linear_attention_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void linear_attention_bwd(const LinearArgs& args, const Context& context = {});
/// a = log(1 - 2^(-5-h)) for head h (RetNet, Sun 2023).
FLASHTILE_API void retention_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void retention_bwd(const LinearArgs& args, const Context& context = {});
/// a = -(8/H) (1 - layer/layers) h (Lightning attention, Qin 2024).
FLASHTILE_API void lightning_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void lightning_bwd(const LinearArgs& args, const Context& context = {});
/// a = g + g_gamma; either may be absent.
FLASHTILE_API void simple_gla_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void simple_gla_bwd(const LinearArgs& args, const Context& context = {});
/// State-space duality (Dao 2024): d = dt + dt_bias, softplus with dt_softplus, clamped; a = d A,
/// w = d, and D v is added to o. scale is 1.
FLASHTILE_API void mamba2_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void mamba2_bwd(const LinearArgs& args, const Context& context = {});
/// xLSTM's matrix memory (Beck 2024): m = max(logsigmoid(f) + m', i), a = logsigmoid(f) + m' - m,
/// w = exp(i - m); o / (max(|q.n|, exp(-m)) + 1e-6). m is held constant in gradients, the divisor
/// is not.
FLASHTILE_API void mlstm_exp_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void mlstm_exp_bwd(const LinearArgs& args, const Context& context = {});
/// a = logsigmoid(f), w = sigmoid(i); `normalize`: o / (max(|q.n|, 1) + 1e-6).
FLASHTILE_API void mlstm_sig_fwd(const LinearArgs& args, const Context& context = {});
FLASHTILE_API void mlstm_sig_bwd(const LinearArgs& args, const Context& context = {});

}  // namespace flashtile
