// SPDX-License-Identifier: Apache-2.0
//
// What the keys of remembered calls are made of: all that checks and plans look at, without
// addresses.
#pragma once

#include <cstdint>
#include <string>

#include "core/kept_list.hpp"
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

}  // namespace flashtile
