// SPDX-License-Identifier: Apache-2.0
//
// The typed attention arguments of the C face, as a list: which member stands for which tensor or
// option of the operator table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "flashtile/flashtile.h"
#include "ops/attention/args.hpp"

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
  uint64_t present_bit;                        ///< 0: the member counts when it is not 0
  std::string AttentionArgs::*text = nullptr;  ///< of kText: where it goes
};

std::span<const AttentionMember> attention_members();

/// Makes `args` those of attention_fwd or attention_bwd that the caller describes, in the memory of
/// what they were: a call like the last one allocates nothing. Limits are checked where the call
/// is. Throws Error.
void read_attention_args(const OpSpec& spec, const flashtile_attention_args& given,
                         AttentionArgs& args);

}  // namespace flashtile::capi
