// SPDX-License-Identifier: Apache-2.0
//
// All ops that the library has.
#include <vector>

#include "core/op_spec.hpp"
#include "ops/attention/args.hpp"
#include "ops/attention_merge/merge.hpp"
#include "ops/linear/table.hpp"

namespace flashtile {

std::span<const OpSpec* const> built_in_ops() {
  static const std::vector<const OpSpec*> all = [] {
    std::vector<const OpSpec*> list = {&attention_fwd_spec(), &attention_bwd_spec(),
                                       &attention_merge_spec()};
    for (const OpSpec* spec : linear_specs()) list.push_back(spec);
    return list;
  }();
  return all;
}

}  // namespace flashtile
