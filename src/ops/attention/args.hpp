// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/op_spec.hpp"
#include "flashtile/attention.hpp"

namespace flashtile {

/// The arguments of both attention ops; attention_fwd leaves the gradients undefined.
struct AttentionArgs : AttentionOptions {
  TensorView q, k, v;
  TensorView out, lse;
  TensorView dout;
  TensorView dq, dk, dv;

  bool operator==(const AttentionArgs&) const = default;
};

/// The operator tables.
const OpSpec& attention_fwd_spec();
const OpSpec& attention_bwd_spec();

}  // namespace flashtile
