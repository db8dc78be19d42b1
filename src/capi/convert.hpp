// SPDX-License-Identifier: Apache-2.0
//
// From structs of the C face to the library's own.
#pragma once

#include <string_view>

#include "core/kept.hpp"
#include "core/op_spec.hpp"
#include "flashtile/context.hpp"
#include "flashtile/flashtile.h"
#include "flashtile/tensor.hpp"

namespace flashtile::capi {

/// The view of a tensor; no tensor for null. Errors name the op and the tensor.
TensorView to_view(std::string_view op, std::string_view name, const flashtile_tensor* tensor);

/// A Context and the executor that it may refer to, made from a C struct; neither may be moved.
class CallContext {
 public:
  explicit CallContext(const flashtile_context* context);
  CallContext(const CallContext&) = delete;
  CallContext& operator=(const CallContext&) = delete;

  operator const Context&() const { return *context_; }

 private:
  class CallerExecutor final : public Executor {
   public:
    explicit CallerExecutor(const flashtile_context& context) : context_(context) {}
    int num_workers() const override;
    void run(int64_t num_tasks, Task task, void* state) override;

   private:
    const flashtile_context& context_;
  };

  flashtile_context copy_;
  CallerExecutor executor_;
  Kept<Context> context_;
};

/// What the workspace of a context must hold for a call of an op. Throws Error, also where nothing
/// takes it.
uint64_t workspace_bytes(const OpSpec& spec, const void* args, const flashtile_context* context);

}  // namespace flashtile::capi
