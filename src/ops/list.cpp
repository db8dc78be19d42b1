// SPDX-License-Identifier: Apache-2.0
//
// All ops that the library has.
#include <array>

#include "core/op_spec.hpp"
#include "ops/attention/args.hpp"
#include "ops/attention_merge/merge.hpp"

namespace flashtile {

std::span<const OpSpec* const> built_in_ops() {
  static const std::array all = {&attention_fwd_spec(), &attention_bwd_spec(),
                                 &attention_merge_spec()};
  return all;
}

}  // namespace flashtile
