// SPDX-License-Identifier: Apache-2.0
//
// Rows of tables that several ops have.
#pragma once

#include "ops/linear/op.hpp"

namespace flashtile {

inline constexpr std::string_view kLinearFloats = "f32 f16 bf16 f64";

// Grouped queries: several heads of q and of the output share a state.
inline constexpr LinearInput kQueryInput =
    linear_input<&LinearTensors::q>("q", "num_heads head_dim", kLinearFloats, "queries");
inline constexpr LinearInput kKeyInput =
    linear_input<&LinearTensors::k>("k", "num_heads_kv head_dim", "=q", "keys");
inline constexpr LinearInput kValueInput =
    linear_input<&LinearTensors::v>("v", "num_heads_kv head_dim_v", "=q", "values");
inline constexpr std::string_view kQueryOut = "num_heads head_dim_v";
inline constexpr LinearState kMatrixState =
    linear_state<&LinearStates::state>("state", "num_heads_kv head_dim head_dim_v", "state");

/// Parameters have no 16-bit dtypes.
inline constexpr std::string_view kParameterDtypes = "f32 f64";

}  // namespace flashtile
