// SPDX-License-Identifier: Apache-2.0
//
// The library's own declarations of the CUDA driver against NVIDIA's, where those are installed.
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <type_traits>

#include "cuda/runtime/driver_api.hpp"

#if __has_include(</usr/local/cuda/include/cuda.h>)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#include </usr/local/cuda/include/cuda.h>
#pragma GCC diagnostic pop
#define FLASHTILE_HAS_CUDA_HEADER 1
#endif

namespace flashtile::cuda::driver {
namespace {

#ifdef FLASHTILE_HAS_CUDA_HEADER

/// What the binary interface sees of a parameter: sizes of numbers and enums, for pointers also
/// what they point to where that is a number, and whether it may change.
template <class T>
constexpr int kind() {
  if constexpr (std::is_pointer_v<T>) {
    using Target = std::remove_pointer_t<T>;
    int target_bytes = 0;
    if constexpr (std::is_arithmetic_v<Target> || std::is_enum_v<Target>) {
      target_bytes = static_cast<int>(sizeof(Target));
    }
    return 100 + (std::is_const_v<Target> ? 50 : 0) + target_bytes;
  } else {
    return static_cast<int>(sizeof(T));
  }
}

template <class Ours, class Theirs>
constexpr bool kSameCall = false;
template <class... A, class... B>
requires(sizeof...(A) ==
         sizeof...(B)) constexpr bool kSameCall<Result (*)(A...), CUresult (*)(B...)> =
    (... && (kind<A>() == kind<B>()));

// cuda.h makes each name a macro for the symbol of its newest version.
#define SYMBOL_TEXT_(name) #name
#define SYMBOL_TEXT(name) SYMBOL_TEXT_(name)

TEST(RuntimeHeader, FunctionsTakeTheSameArguments) {
#define SAME_CALL(member, symbol, parameters) \
  EXPECT_TRUE((kSameCall<Result(*) parameters, decltype(&::member)>)) << symbol;
  FLASHTILE_DRIVER_REQUIRED(SAME_CALL)
  FLASHTILE_DRIVER_OPTIONAL(SAME_CALL)
#undef SAME_CALL
}

TEST(RuntimeHeader, SymbolsAreTheNewestVersions) {
#define SAME_SYMBOL(member, symbol, parameters)      \
  if (std::string(symbol) != "cuEventElapsedTime") { \
    EXPECT_STREQ(symbol, SYMBOL_TEXT(member));       \
  }
  FLASHTILE_DRIVER_REQUIRED(SAME_SYMBOL)
  FLASHTILE_DRIVER_OPTIONAL(SAME_SYMBOL)
#undef SAME_SYMBOL
  // Its second version is missing in drivers before 12.8, and differs for events not recorded
  // alone.
  EXPECT_STREQ(SYMBOL_TEXT(cuEventElapsedTime), "cuEventElapsedTime_v2");
}

TEST(RuntimeHeader, StructsLieTheSameInMemory) {
  EXPECT_EQ(sizeof(LaunchConfig), sizeof(CUlaunchConfig));
  EXPECT_EQ(offsetof(LaunchConfig, block_x), offsetof(CUlaunchConfig, blockDimX));
  EXPECT_EQ(offsetof(LaunchConfig, shared_bytes), offsetof(CUlaunchConfig, sharedMemBytes));
  EXPECT_EQ(offsetof(LaunchConfig, stream), offsetof(CUlaunchConfig, hStream));
  EXPECT_EQ(offsetof(LaunchConfig, attributes), offsetof(CUlaunchConfig, attrs));
  EXPECT_EQ(offsetof(LaunchConfig, num_attributes), offsetof(CUlaunchConfig, numAttrs));
  EXPECT_EQ(sizeof(LaunchAttribute), sizeof(CUlaunchAttribute));
  EXPECT_EQ(offsetof(LaunchAttribute, value), offsetof(CUlaunchAttribute, value));
  EXPECT_EQ(offsetof(LaunchAttributeValue, cluster), offsetof(CUlaunchAttributeValue, clusterDim));
  EXPECT_EQ(sizeof(TensorMapBytes), sizeof(CUtensorMap));
  EXPECT_EQ(alignof(TensorMapBytes), alignof(CUtensorMap));
}

#define SAME_NUMBER(ours, theirs) EXPECT_EQ(static_cast<int>(ours), static_cast<int>(theirs))

TEST(RuntimeHeader, NumbersAreTheSame) {
  SAME_NUMBER(kSuccess, CUDA_SUCCESS);
  SAME_NUMBER(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
  SAME_NUMBER(kInvalidImage, CUDA_ERROR_INVALID_IMAGE);
  SAME_NUMBER(kNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU);
  SAME_NUMBER(kNotFound, CUDA_ERROR_NOT_FOUND);
  SAME_NUMBER(kClockRateKhz, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  SAME_NUMBER(kNumSms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  SAME_NUMBER(kMemoryClockRateKhz, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
  SAME_NUMBER(kMemoryBusBits, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
  SAME_NUMBER(kL2Bytes, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  SAME_NUMBER(kComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  SAME_NUMBER(kComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  SAME_NUMBER(kSharedBytesPerSm, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  SAME_NUMBER(kRegistersPerSm, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  SAME_NUMBER(kSharedBytesPerCtaOptIn, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  SAME_NUMBER(kMaxThreadsPerCta, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  SAME_NUMBER(kStaticSharedBytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
  SAME_NUMBER(kLocalBytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
  SAME_NUMBER(kNumRegisters, CU_FUNC_ATTRIBUTE_NUM_REGS);
  SAME_NUMBER(kMaxDynamicSharedBytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  SAME_NUMBER(kNonPortableClusterSize, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
  SAME_NUMBER(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
  SAME_NUMBER(kEventDefault, CU_EVENT_DEFAULT);
  SAME_NUMBER(kCapturing, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  SAME_NUMBER(kCaptureInvalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  SAME_NUMBER(kCaptureGlobal, CU_STREAM_CAPTURE_MODE_GLOBAL);
  SAME_NUMBER(kCaptureThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  SAME_NUMBER(kCaptureRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
  SAME_NUMBER(kClusterDimension, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
  SAME_NUMBER(kProgrammaticSerialization, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
  SAME_NUMBER(kMapUint8, CU_TENSOR_MAP_DATA_TYPE_UINT8);
  SAME_NUMBER(kMapInt32, CU_TENSOR_MAP_DATA_TYPE_INT32);
  SAME_NUMBER(kMapFloat16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
  SAME_NUMBER(kMapFloat32, CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
  SAME_NUMBER(kMapBfloat16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
  SAME_NUMBER(kSwizzle32, CU_TENSOR_MAP_SWIZZLE_32B);
  SAME_NUMBER(kSwizzle64, CU_TENSOR_MAP_SWIZZLE_64B);
  SAME_NUMBER(kSwizzle128, CU_TENSOR_MAP_SWIZZLE_128B);
  SAME_NUMBER(kPromote64, CU_TENSOR_MAP_L2_PROMOTION_L2_64B);
  SAME_NUMBER(kPromote128, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  SAME_NUMBER(kPromote256, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(CU_STREAM_LEGACY), 1u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(CU_STREAM_PER_THREAD), kLastSpecialStream);
}

#else

TEST(RuntimeHeader, IsComparedWithNvidias) { GTEST_SKIP() << "there is no cuda.h to compare with"; }

#endif

}  // namespace
}  // namespace flashtile::cuda::driver
