// SPDX-License-Identifier: Apache-2.0
//
// Any op by name, and what would run.
#include "capi/convert.hpp"
#include "capi/status.hpp"
#include "core/op_spec.hpp"
#include "core/problem_text.hpp"
#include "flashtile/explain.hpp"

using flashtile::OptionValue;
using flashtile::capi::CallContext;
using flashtile::capi::copy_text;
using flashtile::capi::guarded;
using flashtile::capi::required;

struct flashtile_call {
  flashtile::OpCall op_call;
};

namespace {

flashtile_status set_option(flashtile_call* call, const char* function, const char* name,
                            const OptionValue& value) {
  return guarded([&] {
    required(call, function, "call").op_call.set_option(&required(name, function, "name"), value);
  });
}

}  // namespace

extern "C" {

flashtile_call* flashtile_call_new(const char* op) {
  flashtile_call* call = nullptr;
  guarded([&] {
    const std::string_view name = &required(op, "flashtile_call_new", "op");
    const flashtile::OpSpec* spec = flashtile::find_op(name);
    if (spec == nullptr) {
      throw flashtile::Error(flashtile::ErrorCode::kInvalidArgument,
                             "flashtile_call_new: there is no op '" + std::string(name) + "'");
    }
    call = new flashtile_call{flashtile::OpCall(*spec)};
  });
  return call;
}

void flashtile_call_free(flashtile_call* call) { delete call; }

flashtile_status flashtile_call_set_tensor(flashtile_call* call, const char* name,
                                           const flashtile_tensor* tensor) {
  return guarded([&] {
    flashtile::OpCall& op_call = required(call, "flashtile_call_set_tensor", "call").op_call;
    const std::string_view tensor_name = &required(name, "flashtile_call_set_tensor", "name");
    op_call.set_tensor(tensor_name,
                       flashtile::capi::to_view(op_call.spec().name, tensor_name, tensor));
  });
}

flashtile_status flashtile_call_set_bool(flashtile_call* call, const char* name, int32_t value) {
  // As an integer: 2 is an error, not true.
  return set_option(call, "flashtile_call_set_bool", name, int64_t{value});
}

flashtile_status flashtile_call_set_int(flashtile_call* call, const char* name, int64_t value) {
  return set_option(call, "flashtile_call_set_int", name, value);
}

flashtile_status flashtile_call_set_uint(flashtile_call* call, const char* name, uint64_t value) {
  return set_option(call, "flashtile_call_set_uint", name, value);
}

flashtile_status flashtile_call_set_float(flashtile_call* call, const char* name, double value) {
  return set_option(call, "flashtile_call_set_float", name, value);
}

flashtile_status flashtile_call_set_text(flashtile_call* call, const char* name,
                                         const char* value) {
  return guarded([&] {
    constexpr const char* kFunction = "flashtile_call_set_text";
    required(call, kFunction, "call")
        .op_call.set_option_text(&required(name, kFunction, "name"),
                                 &required(value, kFunction, "value"));
  });
}

flashtile_status flashtile_call_unset(flashtile_call* call, const char* name) {
  return set_option(call, "flashtile_call_unset", name, OptionValue());
}

flashtile_status flashtile_call_run(const flashtile_context* context, const flashtile_call* call) {
  return guarded(
      [&] { required(call, "flashtile_call_run", "call").op_call.run(CallContext(context)); });
}

flashtile_status flashtile_call_workspace_bytes(const flashtile_context* context,
                                                const flashtile_call* call, uint64_t* bytes) {
  return guarded([&] {
    constexpr const char* kFunction = "flashtile_call_workspace_bytes";
    const flashtile::OpCall& op_call = required(call, kFunction, "call").op_call;
    required(bytes, kFunction, "bytes") =
        flashtile::capi::workspace_bytes(op_call.spec(), op_call.args(), context);
  });
}

flashtile_status flashtile_call_explain(const flashtile_context* context,
                                        const flashtile_call* call, char* buffer, size_t* bytes) {
  return guarded([&] {
    constexpr const char* kFunction = "flashtile_call_explain";
    const flashtile::OpCall& op_call = required(call, kFunction, "call").op_call;
    flashtile::Explanation explanation = op_call.explain(CallContext(context));
    if (explanation.problem.empty()) explanation.problem = flashtile::problem_text(op_call);
    copy_text(to_string(explanation), kFunction, buffer, bytes);
  });
}

flashtile_status flashtile_call_problem(const flashtile_call* call, char* buffer, size_t* bytes) {
  return guarded([&] {
    constexpr const char* kFunction = "flashtile_call_problem";
    copy_text(flashtile::problem_text(required(call, kFunction, "call").op_call), kFunction, buffer,
              bytes);
  });
}

flashtile_status flashtile_explain(const char* problem, char* buffer, size_t* bytes) {
  return guarded([&] {
    constexpr const char* kFunction = "flashtile_explain";
    copy_text(to_string(flashtile::explain(&required(problem, kFunction, "problem"))), kFunction,
              buffer, bytes);
  });
}

flashtile_status flashtile_supports(const char* problem, int32_t* is_supported) {
  return guarded([&] {
    constexpr const char* kFunction = "flashtile_supports";
    int32_t& result = required(is_supported, kFunction, "is_supported");
    result = flashtile::supports(&required(problem, kFunction, "problem")) ? 1 : 0;
  });
}

}  // extern "C"
