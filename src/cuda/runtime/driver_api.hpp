// SPDX-License-Identifier: Apache-2.0
//
// What the library uses of the CUDA driver, declared here so that no CUDA header is needed: types,
// numbers and the table of functions. The functions have the driver's own names; the numbers are
// those of its stable binary interface (a test compares them with cuda.h where that is installed).
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashtile::cuda::driver {

using Result = int;
using DeviceHandle = int;
using ContextHandle = struct ContextTag*;
using StreamHandle = struct StreamTag*;
using ModuleHandle = struct ModuleTag*;
using FunctionHandle = struct FunctionTag*;
using EventHandle = struct EventTag*;
using GraphHandle = struct GraphTag*;
using GraphExecHandle = struct GraphExecTag*;
using Address = unsigned long long;

inline constexpr Result kSuccess = 0;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNoBinaryForGpu = 209;
inline constexpr Result kInvalidImage = 200;
inline constexpr Result kNotFound = 500;

enum DeviceAttribute : int {
  kClockRateKhz = 13,
  kNumSms = 16,
  kMemoryClockRateKhz = 36,
  kMemoryBusBits = 37,
  kL2Bytes = 38,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kSharedBytesPerSm = 81,
  kRegistersPerSm = 82,
  kSharedBytesPerCtaOptIn = 97,
};

enum FunctionAttribute : int {
  kMaxThreadsPerCta = 0,
  kStaticSharedBytes = 1,
  kLocalBytes = 3,
  kNumRegisters = 4,
  kMaxDynamicSharedBytes = 8,
  kNonPortableClusterSize = 14,
};

inline constexpr unsigned int kStreamNonBlocking = 1;
inline constexpr unsigned int kEventDefault = 0;
/// Streams that are not handles: the legacy default stream, and each thread's own.
inline constexpr uintptr_t kLastSpecialStream = 2;

enum CaptureStatus : int { kNotCapturing = 0, kCapturing = 1, kCaptureInvalidated = 2 };
enum CaptureMode : int { kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2 };

enum LaunchAttributeId : int { kClusterDimension = 4, kProgrammaticSerialization = 6 };

union LaunchAttributeValue {
  char pad[64];
  struct {
    unsigned int x, y, z;
  } cluster;
  int programmatic_serialization;
};

struct LaunchAttribute {
  int id;
  char pad[4];
  LaunchAttributeValue value;
};

struct LaunchConfig {
  unsigned int grid_x, grid_y, grid_z;
  unsigned int block_x, block_y, block_z;
  unsigned int shared_bytes;
  StreamHandle stream;
  LaunchAttribute* attributes;
  unsigned int num_attributes;
};

struct alignas(128) TensorMapBytes {
  uint64_t words[16];
};

enum TensorMapType : int {
  kMapUint8 = 0,
  kMapInt32 = 3,
  kMapFloat16 = 6,
  kMapFloat32 = 7,
  kMapBfloat16 = 9,
};
enum TensorMapSwizzle : int { kSwizzleNone = 0, kSwizzle32 = 1, kSwizzle64 = 2, kSwizzle128 = 3 };
enum TensorMapPromotion : int {
  kPromoteNone = 0,
  kPromote64 = 1,
  kPromote128 = 2,
  kPromote256 = 3
};

/// X(member, symbol, parameters): functions that every driver since CUDA 11 has.
#define FLASHTILE_DRIVER_REQUIRED(X)                                                               \
  X(cuInit, "cuInit", (unsigned int flags))                                                        \
  X(cuDriverGetVersion, "cuDriverGetVersion", (int* version))                                      \
  X(cuGetErrorName, "cuGetErrorName", (Result result, const char** text))                          \
  X(cuGetErrorString, "cuGetErrorString", (Result result, const char** text))                      \
  X(cuDeviceGetCount, "cuDeviceGetCount", (int* count))                                            \
  X(cuDeviceGet, "cuDeviceGet", (DeviceHandle * device, int ordinal))                              \
  X(cuDeviceGetName, "cuDeviceGetName", (char* name, int bytes, DeviceHandle device))              \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute",                                                  \
    (int* value, int attribute, DeviceHandle device))                                              \
  X(cuDeviceTotalMem, "cuDeviceTotalMem_v2", (size_t * bytes, DeviceHandle device))                \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain",                                          \
    (ContextHandle * context, DeviceHandle device))                                                \
  X(cuCtxGetCurrent, "cuCtxGetCurrent", (ContextHandle * context))                                 \
  X(cuCtxGetDevice, "cuCtxGetDevice", (DeviceHandle * device))                                     \
  X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", (ContextHandle context))                              \
  X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", (ContextHandle * context))                              \
  X(cuModuleLoadData, "cuModuleLoadData", (ModuleHandle * module, const void* image))              \
  X(cuModuleUnload, "cuModuleUnload", (ModuleHandle module))                                       \
  X(cuModuleGetFunction, "cuModuleGetFunction",                                                    \
    (FunctionHandle * function, ModuleHandle module, const char* name))                            \
  X(cuFuncGetAttribute, "cuFuncGetAttribute",                                                      \
    (int* value, int attribute, FunctionHandle function))                                          \
  X(cuFuncSetAttribute, "cuFuncSetAttribute", (FunctionHandle function, int attribute, int value)) \
  X(cuLaunchKernel, "cuLaunchKernel",                                                              \
    (FunctionHandle function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,       \
     unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,  \
     StreamHandle stream, void** arguments, void** extra))                                         \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor, "cuOccupancyMaxActiveBlocksPerMultiprocessor",    \
    (int* count, FunctionHandle function, int num_threads, size_t shared_bytes))                   \
  X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", (int* mode))           \
  X(cuStreamCreate, "cuStreamCreate", (StreamHandle * stream, unsigned int flags))                 \
  X(cuStreamDestroy, "cuStreamDestroy_v2", (StreamHandle stream))                                  \
  X(cuStreamSynchronize, "cuStreamSynchronize", (StreamHandle stream))                             \
  X(cuStreamGetCtx, "cuStreamGetCtx", (StreamHandle stream, ContextHandle * context))              \
  X(cuStreamIsCapturing, "cuStreamIsCapturing", (StreamHandle stream, int* status))                \
  X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (StreamHandle stream, int mode))              \
  X(cuStreamEndCapture, "cuStreamEndCapture", (StreamHandle stream, GraphHandle * graph))          \
  X(cuStreamWaitEvent, "cuStreamWaitEvent",                                                        \
    (StreamHandle stream, EventHandle event, unsigned int flags))                                  \
  X(cuGraphLaunch, "cuGraphLaunch", (GraphExecHandle exec, StreamHandle stream))                   \
  X(cuGraphDestroy, "cuGraphDestroy", (GraphHandle graph))                                         \
  X(cuGraphExecDestroy, "cuGraphExecDestroy", (GraphExecHandle exec))                              \
  X(cuEventCreate, "cuEventCreate", (EventHandle * event, unsigned int flags))                     \
  X(cuEventRecord, "cuEventRecord", (EventHandle event, StreamHandle stream))                      \
  X(cuEventSynchronize, "cuEventSynchronize", (EventHandle event))                                 \
  X(cuEventElapsedTime, "cuEventElapsedTime",                                                      \
    (float* milliseconds, EventHandle start, EventHandle end))                                     \
  X(cuEventDestroy, "cuEventDestroy_v2", (EventHandle event))                                      \
  X(cuMemAlloc, "cuMemAlloc_v2", (Address * address, size_t bytes))                                \
  X(cuMemFree, "cuMemFree_v2", (Address address))                                                  \
  X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2",                                                     \
    (Address to, const void* from, size_t bytes, StreamHandle stream))                             \
  X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2",                                                     \
    (void* to, Address from, size_t bytes, StreamHandle stream))                                   \
  X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2",                                                     \
    (Address to, Address from, size_t bytes, StreamHandle stream))                                 \
  X(cuMemsetD8Async, "cuMemsetD8Async",                                                            \
    (Address to, unsigned char value, size_t bytes, StreamHandle stream))                          \
  X(cuMemGetInfo, "cuMemGetInfo_v2", (size_t * free, size_t * total))

/// Functions of newer drivers; null in older ones.
#define FLASHTILE_DRIVER_OPTIONAL(X)                                                            \
  X(cuCtxGetId, "cuCtxGetId", (ContextHandle context, unsigned long long* id))                  \
  X(cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId", (char* id, int bytes, DeviceHandle device))     \
  X(cuFuncLoad, "cuFuncLoad", (FunctionHandle function))                                        \
  X(cuGraphInstantiate, "cuGraphInstantiateWithFlags",                                          \
    (GraphExecHandle * exec, GraphHandle graph, unsigned long long flags))                      \
  X(cuLaunchKernelEx, "cuLaunchKernelEx",                                                       \
    (const LaunchConfig* config, FunctionHandle function, void** arguments, void** extra))      \
  X(cuMemAllocAsync, "cuMemAllocAsync", (Address * address, size_t bytes, StreamHandle stream)) \
  X(cuMemFreeAsync, "cuMemFreeAsync", (Address address, StreamHandle stream))                   \
  X(cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled",                                           \
    (TensorMapBytes * map, int type, uint32_t rank, void* address, const uint64_t* shape,       \
     const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides,             \
     int interleave, int swizzle, int promotion, int fill))

/// The driver's functions.
struct Api {
#define FLASHTILE_DRIVER_MEMBER(member, symbol, parameters) Result(*member) parameters = nullptr;
  FLASHTILE_DRIVER_REQUIRED(FLASHTILE_DRIVER_MEMBER)
  FLASHTILE_DRIVER_OPTIONAL(FLASHTILE_DRIVER_MEMBER)
#undef FLASHTILE_DRIVER_MEMBER
};

}  // namespace flashtile::cuda::driver
