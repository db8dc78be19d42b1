// SPDX-License-Identifier: Apache-2.0
//
// Calls of the operator table on a GPU: their tensors' memory there, and the way there and back.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "core/op_spec.hpp"
#include "flashtile/context.hpp"

namespace flashtile::cli {

/// "cpu", "cuda" or "cuda:1". Throws Error.
Device parse_device(std::string_view text);

/// Device memory that lasts as long as the pointer. Throws Error where there is none.
std::shared_ptr<void> allocate_device(int64_t bytes, const Context& context);

/// Waits until everything on the context's stream is done. Throws Error for faults of kernels.
void wait_for_device(const Context& context);

/// A call whose tensors are copies, on the context's device, of another call's tensors; layouts
/// stay as they are, memory between the elements included.
class DeviceCall {
 public:
  DeviceCall(const OpCall& host, const Context& context);

  const OpCall& call() const { return call_; }
  /// The context with a workspace as large as the implementation needs.
  const Context& context() const { return context_; }

  /// Runs it once, with the implementation forced that the context names.
  void run() const { call_.run(context_); }

  /// Copies what the call writes back into the host's tensors; waits for it.
  void download() const;

 private:
  struct Piece {
    TensorView host, device;
    int64_t first_byte = 0;  ///< of the memory that the tensor spans, from its element 0
    int64_t num_bytes = 0;
    bool is_written = false;
  };

  Context context_;
  OpCall call_;
  std::vector<Piece> pieces_;
  std::vector<std::shared_ptr<void>> memory_;
};

}  // namespace flashtile::cli
