// SPDX-License-Identifier: Apache-2.0
#include "xla_call.hpp"

#include <array>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/fail.hpp"
#include "core/op_spec.hpp"
#include "flashtile/error.hpp"

namespace flashtile::python {
namespace {

/// More is refused; what a workspace needs beyond it is asked for as size.
constexpr size_t kMemoryAlignment = 16;
constexpr size_t kWorkspaceRoom = 256;
constexpr std::string_view kSeed = "dropout_seed_tensor";

DType dtype_of(int type) {
  switch (type) {
    case xla::kPred:
      return DType::kBool;
    case xla::kS32:
      return DType::kI32;
    case xla::kS64:
      return DType::kI64;
    case xla::kU8:
      return DType::kU8;
    case xla::kF16:
      return DType::kF16;
    case xla::kF32:
      return DType::kF32;
    case xla::kF64:
      return DType::kF64;
    case xla::kBF16:
      return DType::kBF16;
    default:
      return DType::kNone;
  }
}

std::string_view attribute(const xla::Attributes& attributes, std::string_view name) {
  for (int64_t i = 0; i < attributes.size; ++i) {
    if (std::string_view(attributes.names[i]->data, attributes.names[i]->size) != name) continue;
    if (attributes.types[i] != xla::kStringType) fail("xla", "attribute ", name, " is no text");
    const auto* value = static_cast<const xla::Bytes*>(attributes.entries[i]);
    return {value->data, value->size};
  }
  fail("xla", "there is no attribute ", name);
}

/// What stands between separators; nothing for an empty text.
std::vector<std::string_view> parts(std::string_view text, char separator) {
  std::vector<std::string_view> result;
  while (!text.empty()) {
    const size_t end = text.find(separator);
    result.push_back(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return result;
}

const xla::Buffer& buffer(const xla::Buffers& buffers, int64_t i) {
  if (buffers.types[i] != xla::kBufferType) fail("xla", "argument ", i, " is no buffer");
  return *static_cast<const xla::Buffer*>(buffers.entries[i]);
}

/// The stream and device of a call on a GPU, and memory for as long as it lasts.
class GpuCall {
 public:
  GpuCall(const GpuCall&) = delete;
  GpuCall& operator=(const GpuCall&) = delete;
  ~GpuCall() {
    if (memory_.data != nullptr) frame_.api->memory_free(&memory_);
  }

  explicit GpuCall(const xla::CallFrame& frame) : frame_(frame) {
    xla::StreamGet get{sizeof(get), nullptr, frame.context, nullptr};
    check(frame.api->stream_get(&get), "stream");
    stream_ = get.stream;
    if (frame.api->struct_size >= sizeof(xla::Api)) {
      xla::DeviceOrdinalGet ordinal{sizeof(ordinal), nullptr, frame.context, 0};
      check(frame.api->device_ordinal_get(&ordinal), "device");
      device_ = ordinal.device_ordinal;
    }
  }

  void* stream() const { return stream_; }
  Device device() const { return {DeviceType::kCuda, device_}; }

  /// Once a call.
  void* allocate(size_t bytes) {
    xla::MemoryAllocate call{sizeof(call), nullptr,          frame_.context,
                             bytes,        kMemoryAlignment, nullptr};
    check(frame_.api->memory_allocate(&call), "memory");
    memory_ = {sizeof(memory_), nullptr, frame_.context, bytes, call.data};
    return call.data;
  }

 private:
  static void check(const xla::Error* error, const char* what) {
    if (error != nullptr) throw Error(ErrorCode::kInternal, std::string("xla: no ") + what);
  }

  const xla::CallFrame& frame_;
  void* stream_ = nullptr;
  int device_ = 0;
  xla::MemoryFree memory_{};
};

void set_tensors(OpCall& call, const xla::Buffers& buffers, std::string_view names,
                 const GpuCall* gpu) {
  const std::vector<std::string_view> list = parts(names, ',');
  if (static_cast<int64_t>(list.size()) != buffers.size) {
    fail(call.spec().name, list.size(), " names are given for ", buffers.size, " buffers");
  }
  for (int64_t i = 0; i < buffers.size; ++i) {
    const xla::Buffer& entry = buffer(buffers, i);
    const std::string_view name = list[static_cast<size_t>(i)];
    TensorView view;
    if (name == kSeed) {
      if (entry.dtype != xla::kU32 || entry.rank != 1 || entry.dims[0] != 2) {
        fail(call.spec().name, kSeed, " is no array of two u32");
      }
      view = TensorView(entry.data, DType::kI64, std::array<int64_t, 1>{1});
    } else {
      const DType dtype = dtype_of(entry.dtype);
      if (dtype == DType::kNone) fail(call.spec().name, "dtype of ", name, " is not taken");
      view = TensorView(entry.data, dtype, std::span(entry.dims, static_cast<size_t>(entry.rank)));
    }
    if (gpu != nullptr) view.device = gpu->device();
    call.set_tensor(name, view);
  }
}

void run(const xla::CallFrame& frame, GpuCall* gpu) {
  const std::string_view name = attribute(frame.attributes, "op");
  const OpSpec* spec = find_op(name);
  if (spec == nullptr) fail("xla", "there is no op '", name, "'");
  OpCall call(*spec);
  set_tensors(call, frame.arguments, attribute(frame.attributes, "inputs"), gpu);
  set_tensors(call, frame.results, attribute(frame.attributes, "outputs"), gpu);
  for (const std::string_view line : parts(attribute(frame.attributes, "options"), '\n')) {
    const size_t place = line.find('=');
    call.set_option_text(line.substr(0, place), line.substr(place + 1));
  }
  Context context;
  context.implementation = std::string(attribute(frame.attributes, "implementation"));
  if (gpu != nullptr) {
    context.stream = gpu->stream();
    const int64_t bytes = call.workspace_bytes(context);
    if (bytes > 0) {
      context.workspace_bytes = static_cast<size_t>(bytes) + kWorkspaceRoom;
      context.workspace = gpu->allocate(context.workspace_bytes);
    }
  }
  call.run(context);
}

/// Answers what XLA asks when a handler is registered: which interface it was written for.
bool answer_metadata(const xla::CallFrame& frame) {
  for (const xla::Extension* entry = frame.extensions; entry != nullptr; entry = entry->next) {
    if (entry->type != xla::kMetadataExtension) continue;
    xla::Metadata& metadata = *reinterpret_cast<const xla::MetadataExtension*>(entry)->metadata;
    metadata.api_version.major_version = xla::kMajorVersion;
    metadata.api_version.minor_version = xla::kMinorVersion;
    metadata.traits = 0;
    return true;
  }
  return false;
}

xla::Error* guarded(xla::CallFrame* frame, bool is_cuda) {
  if (answer_metadata(*frame)) return nullptr;
  int code = xla::kInternal;
  std::string text;
  try {
    if (is_cuda) {
      GpuCall gpu(*frame);
      run(*frame, &gpu);
    } else {
      run(*frame, nullptr);
    }
    return nullptr;
  } catch (const Error& error) {
    text = error.what();
    if (error.code() == ErrorCode::kInvalidArgument) code = xla::kInvalidArgument;
    if (error.code() == ErrorCode::kUnsupported) code = xla::kUnimplemented;
  } catch (const std::exception& error) {
    text = error.what();
  }
  xla::ErrorCreate create{sizeof(create), nullptr, text.c_str(), code};
  return frame->api->error_create(&create);
}

}  // namespace

xla::Error* run_on_cpu(xla::CallFrame* frame) { return guarded(frame, /*is_cuda=*/false); }

xla::Error* run_on_cuda(xla::CallFrame* frame) { return guarded(frame, /*is_cuda=*/true); }

}  // namespace flashtile::python
