// SPDX-License-Identifier: Apache-2.0
#include "fake_cuda.hpp"

#include <cstdlib>
#include <cstring>
#include <set>

using namespace flashtile::cuda::driver;
using flashtile::fake::State;

namespace flashtile::cuda::driver {
struct ModuleTag {
  ContextHandle context;
};
struct FunctionTag {
  std::string name;
  ContextHandle context;
};
struct EventTag {
  float milliseconds;
};
}  // namespace flashtile::cuda::driver

namespace {

constexpr int kNumDevices = 2;
constexpr int kVersion = 13010;
constexpr Result kInvalidValue = 1;
constexpr Result kNoDevice = 101;
constexpr Result kNoContext = 201;

State state;
ContextTag primary[kNumDevices] = {{0, 1}, {1, 2}};
ContextTag other;  // the one that is made and destroyed
unsigned long long next_id = 3;
thread_local std::vector<ContextHandle> stack;
thread_local int capture_mode = kCaptureGlobal;
float now = 0;

/// What is loaded; kept to the end of the process, as a driver does.
std::set<ModuleHandle>& modules() {
  static auto* const loaded = new std::set<ModuleHandle>();
  return *loaded;
}

ContextHandle current() { return stack.empty() ? nullptr : stack.back(); }

Result answer(const char* function) {
  const std::lock_guard<std::mutex> lock(state.mutex);
  const auto found = state.failures.find(function);
  return found == state.failures.end() ? kSuccess : found->second;
}

bool is_known(const LaunchConfig& config, const StreamTag* stream) {
  return config.block_x >= 1 && config.block_x <= 1024 &&
         (stream == nullptr || stream->context == current());
}

Result log_launch(const LaunchConfig& config, FunctionHandle function, void** arguments) {
  if (current() == nullptr) return kNoContext;
  if (!is_known(config, config.stream)) return kInvalidValue;
  flashtile::fake::Launch launch;
  launch.function = function->name;
  launch.config = config;
  launch.context = current();
  launch.function_context = function->context;
  for (unsigned int i = 0; i < config.num_attributes; ++i) {
    const LaunchAttribute& attribute = config.attributes[i];
    if (attribute.id == kClusterDimension) launch.cluster_x = attribute.value.cluster.x;
    if (attribute.id == kProgrammaticSerialization) {
      launch.overlaps_previous = attribute.value.programmatic_serialization == 1;
    }
  }
  launch.config.attributes = nullptr;
  std::memcpy(&launch.first_argument, arguments[0], sizeof launch.first_argument);
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.launches.push_back(launch);
  return kSuccess;
}

int device_attribute(int attribute, int device) {
  const bool is_first = device == 0;
  switch (attribute) {
    case kComputeCapabilityMajor:
      return is_first ? 9 : 8;
    case kComputeCapabilityMinor:
      return is_first ? 0 : 6;
    case kNumSms:
      return is_first ? 132 : 84;
    case kSharedBytesPerCtaOptIn:
      return is_first ? 232448 : 101376;
    case kSharedBytesPerSm:
      return is_first ? 233472 : 102400;
    case kL2Bytes:
      return is_first ? 52428800 : 6291456;
    case kClockRateKhz:
      return 1980000;
    case kMemoryClockRateKhz:
      return 3201000;
    case kMemoryBusBits:
      return 6144;
    case kRegistersPerSm:
      return 65536;
    default:
      return 0;
  }
}

}  // namespace

extern "C" {

State* fake_cuda_state() { return &state; }

ContextHandle fake_cuda_create_context(int device) {
  other = {device, next_id++};
  return &other;
}
void fake_cuda_destroy_context(ContextHandle context) { context->id = 0; }
int fake_cuda_stack_depth() { return static_cast<int>(stack.size()); }

/// NVRTC asks the driver for a table of its own making, and does without where there is none.
Result cuGetExportTable(const void** table, const void*) {
  *table = nullptr;
  return kNotFound;
}
Result cuInit(unsigned int) { return answer("cuInit"); }
Result cuDriverGetVersion(int* version) {
  *version = kVersion;
  return kSuccess;
}
Result cuGetErrorName(Result result, const char** text) {
  *text = result == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_INVALID_VALUE";
  return result == kSuccess || result == 777 ? kInvalidValue : kSuccess;
}
Result cuGetErrorString(Result result, const char** text) {
  *text = result == kOutOfMemory ? "out of memory" : "invalid argument";
  return kSuccess;
}
Result cuDeviceGetCount(int* count) {
  *count = kNumDevices;
  return kSuccess;
}
Result cuDeviceGet(DeviceHandle* device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < kNumDevices ? kSuccess : kNoDevice;
}
Result cuDeviceGetName(char* name, int bytes, DeviceHandle device) {
  std::strncpy(name, device == 0 ? "Fake H200" : "Fake A10", static_cast<size_t>(bytes));
  return kSuccess;
}
Result cuDeviceGetAttribute(int* value, int attribute, DeviceHandle device) {
  *value = device_attribute(attribute, device);
  return kSuccess;
}
Result cuDeviceTotalMem_v2(size_t* bytes, DeviceHandle device) {
  *bytes = (device == 0 ? size_t{141} : size_t{24}) << 30;
  return kSuccess;
}
Result cuDevicePrimaryCtxRetain(ContextHandle* context, DeviceHandle device) {
  const std::lock_guard<std::mutex> lock(state.mutex);
  ++state.num_primary_retains;
  *context = &primary[device];
  return kSuccess;
}
Result cuCtxGetCurrent(ContextHandle* context) {
  *context = current();
  return kSuccess;
}
Result cuCtxGetDevice(DeviceHandle* device) {
  if (current() == nullptr) return kNoContext;
  *device = current()->device;
  return kSuccess;
}
Result cuCtxGetId(ContextHandle context, unsigned long long* id) {
  *id = context->id;
  return kSuccess;
}
Result cuCtxPushCurrent_v2(ContextHandle context) {
  stack.push_back(context);
  return kSuccess;
}
Result cuCtxPopCurrent_v2(ContextHandle* context) {
  if (stack.empty()) return kNoContext;
  *context = stack.back();
  stack.pop_back();
  return kSuccess;
}
Result cuModuleLoadData(ModuleHandle* module, const void* image) {
  if (current() == nullptr) return kNoContext;
  if (const Result result = answer("cuModuleLoadData"); result != kSuccess) return result;
  if (std::memcmp(image, flashtile::fake::kBadImage, 8) == 0) return kInvalidImage;
  *module = new ModuleTag{current()};
  const std::lock_guard<std::mutex> lock(state.mutex);
  modules().insert(*module);
  state.loads.push_back({current(), capture_mode});
  return kSuccess;
}
Result cuModuleUnload(ModuleHandle module) {
  const std::lock_guard<std::mutex> lock(state.mutex);
  modules().erase(module);
  delete module;
  return kSuccess;
}
Result cuModuleGetFunction(FunctionHandle* function, ModuleHandle module, const char* name) {
  if (const Result result = answer("cuModuleGetFunction"); result != kSuccess) return result;
  *function = new FunctionTag{name, module->context};
  return kSuccess;
}
Result cuFuncLoad(FunctionHandle) { return kSuccess; }
Result cuFuncGetAttribute(int* value, int attribute, FunctionHandle) {
  *value = attribute == kNumRegisters ? 168 : attribute == kStaticSharedBytes ? 1000 : 0;
  return kSuccess;
}
Result cuFuncSetAttribute(FunctionHandle function, int attribute, int value) {
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (attribute == kMaxDynamicSharedBytes) state.max_shared_bytes[function->name] = value;
  return kSuccess;
}
Result cuLaunchKernel(FunctionHandle function, unsigned int grid_x, unsigned int grid_y,
                      unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                      unsigned int block_z, unsigned int shared_bytes, StreamHandle stream,
                      void** arguments, void**) {
  if (const Result result = answer("cuLaunchKernel"); result != kSuccess) return result;
  return log_launch(
      {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, nullptr, 0},
      function, arguments);
}
Result cuLaunchKernelEx(const LaunchConfig* config, FunctionHandle function, void** arguments,
                        void**) {
  return log_launch(*config, function, arguments);
}
Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, FunctionHandle, int num_threads,
                                                   size_t) {
  *count = 2048 / num_threads;
  return kSuccess;
}
Result cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return kSuccess;
}
Result cuStreamCreate(StreamHandle* stream, unsigned int) {
  *stream = new StreamTag{current()};
  return kSuccess;
}
Result cuStreamDestroy_v2(StreamHandle stream) {
  delete stream;
  return kSuccess;
}
Result cuStreamSynchronize(StreamHandle) {
  const std::lock_guard<std::mutex> lock(state.mutex);
  ++state.num_stream_waits;
  return kSuccess;
}
Result cuStreamGetCtx(StreamHandle stream, ContextHandle* context) {
  *context = stream->context;
  return kSuccess;
}
Result cuStreamIsCapturing(StreamHandle, int* status) {
  *status = kNotCapturing;
  return kSuccess;
}
Result cuStreamBeginCapture_v2(StreamHandle, int) { return kSuccess; }
Result cuStreamEndCapture(StreamHandle, GraphHandle*) { return kSuccess; }
Result cuStreamWaitEvent(StreamHandle, EventHandle, unsigned int) { return kSuccess; }
Result cuGraphLaunch(GraphExecHandle, StreamHandle) { return kSuccess; }
Result cuGraphDestroy(GraphHandle) { return kSuccess; }
Result cuGraphExecDestroy(GraphExecHandle) { return kSuccess; }
Result cuEventCreate(EventHandle* event, unsigned int) {
  *event = new EventTag{0};
  return kSuccess;
}
Result cuEventRecord(EventHandle event, StreamHandle) {
  now += 1.5f;
  event->milliseconds = now;
  return kSuccess;
}
Result cuEventSynchronize(EventHandle) { return kSuccess; }
Result cuEventElapsedTime(float* milliseconds, EventHandle start, EventHandle end) {
  *milliseconds = end->milliseconds - start->milliseconds;
  return kSuccess;
}
Result cuEventDestroy_v2(EventHandle event) {
  delete event;
  return kSuccess;
}
Result cuMemAlloc_v2(Address* address, size_t bytes) {
  if (const Result result = answer("cuMemAlloc"); result != kSuccess) return result;
  constexpr size_t kAlignment = 256;
  *address = reinterpret_cast<Address>(
      std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment));
  const std::lock_guard<std::mutex> lock(state.mutex);
  ++state.num_allocations;
  return kSuccess;
}
Result cuMemFree_v2(Address address) {
  std::free(reinterpret_cast<void*>(address));
  const std::lock_guard<std::mutex> lock(state.mutex);
  --state.num_allocations;
  return kSuccess;
}
Result cuMemAllocAsync(Address* address, size_t bytes, StreamHandle) {
  if (const Result result = answer("cuMemAllocAsync"); result != kSuccess) return result;
  return cuMemAlloc_v2(address, bytes);
}
Result cuMemFreeAsync(Address address, StreamHandle) { return cuMemFree_v2(address); }
Result cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, StreamHandle) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return kSuccess;
}
Result cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, StreamHandle) {
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return kSuccess;
}
Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, StreamHandle) {
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return kSuccess;
}
Result cuMemsetD8Async(Address to, unsigned char value, size_t bytes, StreamHandle) {
  std::memset(reinterpret_cast<void*>(to), value, bytes);
  return kSuccess;
}
Result cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = size_t{100} << 30;
  *total_bytes = size_t{141} << 30;
  return kSuccess;
}
Result cuTensorMapEncodeTiled(TensorMapBytes*, int type, uint32_t rank, void*,
                              const uint64_t* shape, const uint64_t* strides, const uint32_t* box,
                              const uint32_t*, int, int swizzle, int promotion, int) {
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.tensor_maps.push_back({type,
                               {shape, shape + rank},
                               {strides, strides + rank - 1},
                               {box, box + rank},
                               swizzle,
                               promotion});
  return kSuccess;
}

}  // extern "C"
