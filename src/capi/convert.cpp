// SPDX-License-Identifier: Apache-2.0
#include "capi/convert.hpp"

#include <array>
#include <string>

#include "capi/structs.hpp"
#include "core/fail.hpp"
#include "core/registry.hpp"

namespace flashtile::capi {
namespace {

constexpr std::array kTensorMembers = {
    FLASHTILE_MEMBER(flashtile_tensor, dtype),
    FLASHTILE_MEMBER(flashtile_tensor, device_type),
    FLASHTILE_MEMBER(flashtile_tensor, device_index),
    FLASHTILE_MEMBER(flashtile_tensor, data),
    FLASHTILE_MEMBER(flashtile_tensor, shape),
    FLASHTILE_MEMBER(flashtile_tensor, strides),
    FLASHTILE_MEMBER(flashtile_tensor, ndim),
    FLASHTILE_MEMBER(flashtile_tensor, reserved),
};

constexpr std::array kContextMembers = {
    FLASHTILE_MEMBER(flashtile_context, device_type),
    FLASHTILE_MEMBER(flashtile_context, device_index),
    FLASHTILE_MEMBER(flashtile_context, max_workers),
    FLASHTILE_MEMBER(flashtile_context, stream),
    FLASHTILE_MEMBER(flashtile_context, workspace),
    FLASHTILE_MEMBER(flashtile_context, workspace_bytes),
    FLASHTILE_MEMBER(flashtile_context, implementation),
    FLASHTILE_MEMBER(flashtile_context, executor_state),
    FLASHTILE_MEMBER(flashtile_context, executor_num_workers),
    FLASHTILE_MEMBER(flashtile_context, executor_run),
};

flashtile_context read_context(const flashtile_context* context) {
  if (context != nullptr) return read_struct(*context, "flashtile_context", kContextMembers);
  flashtile_context fresh;
  flashtile_context_init(&fresh, sizeof(fresh));
  return fresh;
}

}  // namespace

void check_struct(const void* from, std::string_view type, size_t known_bytes,
                  std::span<const Member> members) {
  uint32_t struct_size = 0;
  std::memcpy(&struct_size, from, sizeof(struct_size));
  if (struct_size < sizeof(struct_size) || struct_size > kMaxStructBytes) {
    fail(type, "struct_size is ", struct_size, "; call the init function of ", type, " first");
  }
  for (const Member& member : members) {
    if (struct_size > member.offset && struct_size < member.offset + member.bytes) {
      fail(type, "struct_size is ", struct_size, ", which is inside the member ", member.name);
    }
  }
  const char* bytes = static_cast<const char*>(from);
  for (size_t i = known_bytes; i < struct_size; ++i) {
    if (bytes[i] == 0) continue;
    fail(type, "byte ", i, " is not 0, but this library (", FLASHTILE_VERSION_STRING,
         ") knows only the first ", known_bytes, " bytes");
  }
}

TensorView to_view(std::string_view op, std::string_view name, const flashtile_tensor* tensor) {
  if (tensor == nullptr) return {};
  const flashtile_tensor source = [&] {
    try {
      return read_struct(*tensor, "flashtile_tensor", kTensorMembers);
    } catch (const Error& error) {
      fail(op, name, ": ", error.what());
    }
  }();
  if (source.reserved != 0) fail(op, name, ": reserved is ", source.reserved, ", expected 0");
  if (source.dtype == FLASHTILE_NONE) {
    if (source.data == nullptr && source.ndim == 0) return {};
    fail(op, "dtype of ", name, " is 0 (none), expected one for a tensor");
  }
  if (source.ndim < 0 || source.ndim > TensorView::kMaxDims) {
    fail(op, name, " has ", source.ndim, " dimensions, expected 0 to ", TensorView::kMaxDims);
  }
  if (source.ndim > 0 && source.shape == nullptr) fail(op, "shape of ", name, " is NULL");
  if (source.device_type != FLASHTILE_CPU && source.device_type != FLASHTILE_CUDA) {
    fail(op, "device_type of ", name, " is ", source.device_type, ", expected ",
         static_cast<int>(FLASHTILE_CPU), " (CPU) or ", static_cast<int>(FLASHTILE_CUDA),
         " (CUDA)");
  }
  const auto ndim = static_cast<size_t>(source.ndim);
  const auto dtype = static_cast<DType>(source.dtype);
  try {
    TensorView view = source.strides == nullptr
                          ? TensorView(source.data, dtype, std::span(source.shape, ndim))
                          : TensorView(source.data, dtype, std::span(source.shape, ndim),
                                       std::span(source.strides, ndim));
    view.device = {static_cast<DeviceType>(source.device_type), source.device_index};
    return view;
  } catch (const Error& error) {
    fail(op, name, ": ", error.what());
  }
}

CallContext::CallContext(const flashtile_context* context)
    : copy_(read_context(context)), executor_(copy_) {
  constexpr std::string_view kType = "flashtile_context";
  if ((copy_.executor_num_workers == nullptr) != (copy_.executor_run == nullptr)) {
    fail(kType, "executor_num_workers and executor_run must be given together");
  }
  if (copy_.executor_run == nullptr && copy_.executor_state != nullptr) {
    fail(kType, "executor_state is given without executor_run");
  }
  if (copy_.device_type != 0 && copy_.device_type != FLASHTILE_CPU &&
      copy_.device_type != FLASHTILE_CUDA) {
    fail(kType, "device_type is ", copy_.device_type, ", expected ",
         static_cast<int>(FLASHTILE_CPU), " (CPU) or ", static_cast<int>(FLASHTILE_CUDA),
         " (CUDA)");
  }
  if (copy_.device_type == 0 && copy_.device_index != 0) {
    fail(kType, "device_index is ", copy_.device_index, " without a device_type");
  }
  if (copy_.max_workers < 0) {
    fail(kType, "max_workers is ", copy_.max_workers, ", expected at least 0");
  }
  context_->device = {};
  // A context that ends before the device is one for the CPU.
  if (copy_.device_type != 0) {
    context_->device = {static_cast<DeviceType>(copy_.device_type), copy_.device_index};
  }
  context_->stream = copy_.stream;
  context_->workspace = copy_.workspace;
  context_->workspace_bytes = copy_.workspace_bytes;
  context_->max_workers = copy_.max_workers;
  context_->executor = copy_.executor_run != nullptr ? &executor_ : nullptr;
  context_->implementation = copy_.implementation != nullptr ? copy_.implementation : "";
  context_->arch.clear();  // no caller in C has one
}

int CallContext::CallerExecutor::num_workers() const {
  return context_.executor_num_workers(context_.executor_state);
}

void CallContext::CallerExecutor::run(int64_t num_tasks, Task task, void* state) {
  context_.executor_run(context_.executor_state, num_tasks, task, state);
}

uint64_t workspace_bytes(const OpSpec& spec, const void* args, const flashtile_context* context) {
  const Explanation explanation = spec.explain(args, CallContext(context));
  if (explanation.chosen.empty()) fail_refused(spec.name, explanation.candidates);
  return static_cast<uint64_t>(explanation.workspace_bytes);
}

}  // namespace flashtile::capi

using flashtile::capi::init_struct;

extern "C" void flashtile_tensor_init(flashtile_tensor* tensor, size_t struct_size) {
  init_struct(tensor, struct_size);
  if (tensor != nullptr && struct_size >= offsetof(flashtile_tensor, device_index)) {
    tensor->device_type = FLASHTILE_CPU;
  }
}

extern "C" void flashtile_context_init(flashtile_context* context, size_t struct_size) {
  init_struct(context, struct_size);
  if (context != nullptr && struct_size >= offsetof(flashtile_context, device_index)) {
    context->device_type = FLASHTILE_CPU;
  }
}

static_assert(static_cast<int>(flashtile::DType::kF32) == FLASHTILE_F32);
static_assert(static_cast<int>(flashtile::DType::kF16) == FLASHTILE_F16);
static_assert(static_cast<int>(flashtile::DType::kBF16) == FLASHTILE_BF16);
static_assert(static_cast<int>(flashtile::DType::kF64) == FLASHTILE_F64);
static_assert(static_cast<int>(flashtile::DType::kI32) == FLASHTILE_I32);
static_assert(static_cast<int>(flashtile::DType::kI64) == FLASHTILE_I64);
static_assert(static_cast<int>(flashtile::DType::kU8) == FLASHTILE_U8);
static_assert(static_cast<int>(flashtile::DType::kBool) == FLASHTILE_BOOL);
static_assert(static_cast<int>(flashtile::DType::kI8) == FLASHTILE_I8);
static_assert(static_cast<int>(flashtile::DType::kE4M3) == FLASHTILE_E4M3);
static_assert(static_cast<int>(flashtile::DType::kE5M2) == FLASHTILE_E5M2);
static_assert(static_cast<int>(flashtile::DeviceType::kCpu) == FLASHTILE_CPU);
static_assert(static_cast<int>(flashtile::DeviceType::kCuda) == FLASHTILE_CUDA);
