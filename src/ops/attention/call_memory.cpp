// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/call_memory.hpp"

#include <algorithm>

#include "core/call_key.hpp"
#include "core/validate.hpp"

namespace flashtile {
namespace {

/// Calls visit(tensor) for what a row of the table stands for in the arguments. Families of tensors
/// are the aux tensors and their gradients.
template <class Visit>
void visit_row(const TensorSpec& row, AttentionArgs& args, const Visit& visit) {
  if (!row.is_family()) {
    visit(row.access(&args, {}, /*create=*/false));
    return;
  }
  for (const AuxTensor& aux : args.aux) visit(row.access(&args, aux.name, /*create=*/false));
}

/// Rows of the other op's table, which calls may give and which are not looked at.
std::vector<const TensorSpec*> find_unused_rows(bool is_backward) {
  const OpSpec& spec = is_backward ? attention_bwd_spec() : attention_fwd_spec();
  const OpSpec& other = is_backward ? attention_fwd_spec() : attention_bwd_spec();
  std::vector<const TensorSpec*> rows;
  for (const TensorSpec& row : other.tensors) {
    const auto is_same = [&](const TensorSpec& own) { return own.name == row.name; };
    if (std::none_of(spec.tensors.begin(), spec.tensors.end(), is_same)) rows.push_back(&row);
  }
  return rows;
}

const std::vector<const TensorSpec*>& unused_rows(bool is_backward) {
  static const std::vector<const TensorSpec*> forward = find_unused_rows(false);
  static const std::vector<const TensorSpec*> backward = find_unused_rows(true);
  return is_backward ? backward : forward;
}

}  // namespace

void CallKey::assign(const AttentionArgs& call_args, bool backward, const Context& context) {
  args = call_args;
  is_backward = backward;
  values_in_keys = is_leading_part(args.v, args.k);
  assign_asked(asked, context);
  may_be_kept = true;
  const OpSpec& spec = is_backward ? attention_bwd_spec() : attention_fwd_spec();
  CallTensors tensors(spec.tensors.size() + 2 * args.aux.size());
  const auto take = [&](TensorView* tensor, bool is_written) {
    if (tensor == nullptr || !*tensor) return;
    // Lengths in host memory are read by the checks.
    may_be_kept = may_be_kept && tensor->device.type == call_args.q.device.type;
    tensors.add(*tensor, is_written);
  };
  for (const TensorSpec& row : spec.tensors) {
    // Caches are written where there is something to append.
    const bool is_written =
        row.direction == Direction::kOut || (row.direction == Direction::kInOut && args.k_new);
    visit_row(row, args, [&](TensorView* tensor) { take(tensor, is_written); });
  }
  for (const TensorSpec* row : unused_rows(is_backward)) {
    visit_row(*row, args, [](TensorView* tensor) {
      if (tensor != nullptr && *tensor) forget_address(*tensor);
    });
  }
  may_be_kept = may_be_kept && !tensors.overlap() && context.arch.empty() &&
                args.dropout_offset >= 0 && args.dropout_offset >> 32 == 0 &&
                (args.dropout_seed == 0 || !args.dropout_seed_tensor);
  tensors.forget_addresses();
  args.dropout_seed = 0;
  args.dropout_offset = 0;
}

bool CallMemory::is_still(PreparedCall& call, const AttentionArgs& args) {
  if (!has_lengths_of(call.problem, args, &call.index_checks)) return false;
  if (call.problem.dropout.is_on) {
    call.problem.dropout.seed = dropout_seed_of(args);
    call.problem.dropout.offset = static_cast<uint32_t>(args.dropout_offset);
  }
  return true;
}

}  // namespace flashtile
