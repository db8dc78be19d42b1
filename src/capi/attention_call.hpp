// SPDX-License-Identifier: Apache-2.0
//
// The typed attention arguments of the C face, as a list: which member stands for which tensor or
// option of the operator table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/op_spec.hpp"
#include "flashtile/flashtile.h"

namespace flashtile::capi {

/// What a member is, and so how it becomes an argument.
enum class MemberKind : uint8_t {
  kTensor,
  kFlag,   ///< int32_t, 0 or 1
  kInt,    ///< int64_t
  kUint,   ///< uint64_t
  kFloat,  ///< double
  kText,   ///< const char*
  kAuxTensors,
  kAuxGradients,
  kParams,
};

/// One member. `name` is that of the table's row.
struct AttentionMember {
  const char* name;
  MemberKind kind;
  size_t offset;
  size_t bytes;
  uint64_t present_bit;  ///< 0: the member counts when it is not 0
};

std::span<const AttentionMember> attention_members();

/// The call of attention_fwd or attention_bwd that the arguments describe. Throws Error.
OpCall attention_call(const OpSpec& spec, const flashtile_attention_args& args);

}  // namespace flashtile::capi
