// SPDX-License-Identifier: Apache-2.0
//
// What the keys of remembered calls are made of: all that checks and plans look at, without
// addresses.
#pragma once

#include <cstdint>
#include <string>

#include "core/kept_list.hpp"
#include "core/op_spec.hpp"
#include "flashtile/context.hpp"
#include "flashtile/tensor.hpp"

namespace flashtile {

/// Puts the alignment of an address in place of the address, as far as plans look at it; null stays
/// null.
void forget_address(TensorView& tensor);

/// Writes the implementations that context and environment ask for.
void assign_asked(std::string& asked, const Context& context);

/// The tensors of arguments that become a key.
class CallTensors {
 public:
  /// `most`: how many are added at most.
  explicit CallTensors(size_t most) { tensors_.reserve(most); }

  void add(TensorView& tensor, bool is_written);
  /// Whether an output shares memory with another tensor; true also where that takes long to tell.
  /// Addresses have to be there still.
  bool overlap() const;
  void forget_addresses() const;

 private:
  struct Entry {
    TensorView* tensor;
    int64_t begin, end;  ///< from the first byte to the one behind the last
    bool is_written;
  };
  KeptList<Entry> tensors_;
};

/// The key of a call of an op whose table has neither families nor tensors that are written only at
/// times: options, shapes and strides, and outputs that share no memory with anything.
template <class Args>
struct TableKey {
  /// Becomes the key of a call, in the memory of the key that it was.
  void assign(const OpSpec& op, const Args& call_args, const Context& context) {
    spec = &op;
    args = call_args;
    assign_asked(asked, context);
    CallTensors tensors(op.tensors.size());
    for (const TensorSpec& row : op.tensors) {
      TensorView& tensor = *row.access(&args, {}, /*create=*/false);
      if (tensor) tensors.add(tensor, row.direction != Direction::kIn);
    }
    may_be_kept = !tensors.overlap();
    tensors.forget_addresses();
  }

  const OpSpec* spec = nullptr;
  Args args;          ///< without addresses
  std::string asked;  ///< implementations asked for, by the context and the environment
  bool may_be_kept = true;

  bool operator==(const TableKey&) const = default;
};

}  // namespace flashtile
