// SPDX-License-Identifier: Apache-2.0
//
// Calls of the operator table on a GPU: their tensors' memory there, and the way there and back.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "core/op_spec.hpp"
#include "cuda/runtime/memory.hpp"
#include "flashtile/context.hpp"

namespace flashtile::cli {

/// "cpu", "cuda" or "cuda:1". Throws Error.
Device parse_device(std::string_view text);

/// The call as it would be on the context's device, with addresses that no memory is behind: for
/// questions to plans. Options that a device's tensors need are stated.
OpCall planned_for_device(const OpCall& host, const Context& context);

/// What `explain` says of a host's call on the context's device, the CPU or a GPU.
Explanation explain_on(const OpCall& host, const Context& context);

/// A call whose tensors are copies, on the context's device, of another call's tensors; layouts
/// stay as they are, memory between the elements included.
class DeviceCall {
 public:
  /// Throws Error where the device has not enough memory.
  DeviceCall(const OpCall& host, const Context& context);

  /// The forward call that belongs to this backward call, on the same memory; the context may force
  /// another implementation.
  DeviceCall forward(const Context& context) const;

  const OpCall& call() const { return call_; }
  /// The context with a workspace as large as the implementation needs.
  const Context& context() const { return context_; }
  /// Of the tensors and the workspace, on the device.
  int64_t memory_bytes() const;

  /// Runs it once, with the implementation forced that the context names. Does not wait for it.
  void run() const { call_.run(context_); }

  /// Copies what the call writes back into the host's tensors; waits for it.
  void download() const;

 private:
  struct Piece {
    TensorView host;
    int64_t first_byte = 0;  ///< of the memory that the tensor spans, from its element 0
    int64_t num_bytes = 0;
    std::shared_ptr<cuda::DeviceMemory> memory;
    bool is_written = false;
  };

  explicit DeviceCall(OpCall call) : call_(std::move(call)) {}
  void add_workspace(const Context& context);

  Context context_;
  OpCall call_;
  std::vector<Piece> pieces_;
  std::shared_ptr<cuda::DeviceMemory> workspace_;
};

}  // namespace flashtile::cli
