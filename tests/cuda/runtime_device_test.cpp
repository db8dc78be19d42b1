// SPDX-License-Identifier: Apache-2.0
//
// The runtime on a GPU: what a driver without one cannot show.
#include <algorithm>
#include <memory>
#include <numeric>
#include <thread>

#include "cuda/device_support.hpp"
#include "cuda/jit/nvrtc.hpp"
#include "cuda/jit_support.hpp"
#include "cuda/runtime/current.hpp"
#include "cuda/runtime/device.hpp"
#include "cuda/runtime/event.hpp"
#include "cuda/runtime/launch.hpp"
#include "cuda/runtime/memory.hpp"
#include "cuda/runtime/tensor_map.hpp"
#include "flashtile/error.hpp"

namespace flashtile::cuda {
namespace {

constexpr const char* kScaleText = R"(
struct Params { const float* in; float* out; long long count; float factor; };
extern "C" __global__ void scale(const __grid_constant__ Params params) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < params.count) params.out[i] = params.in[i] * params.factor;
}
)";

struct ScaleParams {
  const float* in;
  float* out;
  long long count;
  float factor;
};

/// A kernel of the test's own text, loaded without the store.
Function load_text(const std::string& entry, const std::string& text, const Context& context) {
  const CompiledKernel kernel =
      Nvrtc::get()->compile({entry, text, gpu_model(context.device).arch, {}});
  const CurrentContext current(context);
  driver::ModuleHandle module = nullptr;
  Function function;
  function.stem = entry;
  current.driver().check(current.api().cuModuleLoadData(&module, kernel.cubin.data()), "load");
  current.driver().check(current.api().cuModuleGetFunction(&function.handle, module, entry.c_str()),
                         "function");
  return function;
}

class RuntimeDevice : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (!IsSkipped() && Nvrtc::get() == nullptr) GTEST_SKIP() << Nvrtc::fault();
  }

  static std::vector<float> numbers(size_t count) {
    std::vector<float> values(count);
    std::iota(values.begin(), values.end(), 1.0f);
    return values;
  }
  static void expect_scaled(const DeviceMemory& out, size_t count, float factor) {
    std::vector<float> result(count);
    out.download(result.data(), count * sizeof(float));
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(result[i], static_cast<float>(i + 1) * factor) << i;
    }
  }
  static LaunchShape shape_for(size_t count) {
    return {{static_cast<uint32_t>((count + 255) / 256), 1, 1}, 256};
  }
};

TEST_F(RuntimeDevice, ModelIsThatOfTheDevice) {
  for (int i = 0; i < Driver::get()->num_devices(); ++i) {
    const DeviceInfo& info = device_info(i);
    EXPECT_EQ(info.model.fault, "");
    EXPECT_FALSE(info.model.name.empty());
    EXPECT_TRUE(info.model.arch.starts_with("sm_"));
    EXPECT_GT(info.model.num_sms, 0);
    EXPECT_GE(info.model.shared_bytes_per_sm, info.model.shared_bytes_per_cta);
    EXPECT_GE(info.model.shared_bytes_per_cta, 48 * 1024);
    EXPECT_GT(info.memory_bytes, int64_t{1} << 30);
  }
}

TEST_F(RuntimeDevice, KernelsComputeOnEveryDevice) {
  constexpr size_t kCount = 100000;
  const std::vector<float> values = numbers(kCount);
  for (int i = 0; i < Driver::get()->num_devices(); ++i) {
    const Context context = on_device(i);
    const Function scale = load_text("scale", kScaleText, context);
    DeviceMemory in(kCount * sizeof(float), context);
    DeviceMemory out(kCount * sizeof(float), context);
    in.upload(values.data(), in.bytes());
    out.fill(0xff);
    const ScaleParams params = {static_cast<const float*>(in.data()),
                                static_cast<float*>(out.data()), kCount, 0.5f};
    launch(scale, shape_for(kCount), context, params);
    expect_scaled(out, kCount, 0.5f);
  }
}

TEST_F(RuntimeDevice, UsageOfTheCubinIsThatOfTheDriver) {
  const std::string text = R"(
extern "C" __global__ void __launch_bounds__(128) uses(const float* in, float* out) {
  __shared__ float part[300];
  part[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = part[(threadIdx.x * 7) % 128];
})";
  const Context context = on_device(0);
  const CompiledKernel kernel =
      Nvrtc::get()->compile({"uses", text, gpu_model(context.device).arch, {}});
  const Function function = load_text("uses", text, context);
  const CurrentContext current(context);
  const auto attribute = [&](driver::FunctionAttribute which) {
    int value = -1;
    current.driver().check(current.api().cuFuncGetAttribute(&value, which, function.handle), "");
    return value;
  };
  EXPECT_EQ(attribute(driver::kNumRegisters), kernel.usage.num_registers);
  EXPECT_EQ(attribute(driver::kStaticSharedBytes), kernel.usage.static_shared_bytes);
  EXPECT_EQ(attribute(driver::kLocalBytes), kernel.usage.stack_bytes);
  EXPECT_EQ(kernel.usage.static_shared_bytes, 1200);
}

TEST_F(RuntimeDevice, LaunchesAreInTheOrderOfTheirStream) {
  constexpr size_t kCount = 1 << 20;
  const std::vector<float> values = numbers(kCount);
  OwnStream first;
  OwnStream second;
  const Function scale = load_text("scale", kScaleText, first.context());
  DeviceMemory data(kCount * sizeof(float), first.context());
  data.upload(values.data(), data.bytes());
  const ScaleParams twice = {static_cast<const float*>(data.data()),
                             static_cast<float*>(data.data()), kCount, 2.0f};
  for (int i = 0; i < 10; ++i) launch(scale, shape_for(kCount), first.context(), twice);
  Event done(first.context());
  done.record();
  done.hold(second.context());
  const ScaleParams back = {twice.in, twice.out, kCount, 1.0f / 1024};
  launch(scale, shape_for(kCount), second.context(), back);
  synchronize(second.context());
  expect_scaled(data, kCount, 1.0f);
}

TEST_F(RuntimeDevice, LaunchesCanBeCapturedAndReplayed) {
  if (Driver::get()->api().cuGraphInstantiate == nullptr) GTEST_SKIP() << "an old driver";
  constexpr size_t kCount = 1000;
  const std::vector<float> values = numbers(kCount);
  OwnStream stream;
  const Context& context = stream.context();
  const Function scale = load_text("scale", kScaleText, context);
  DeviceMemory data(kCount * sizeof(float), context);
  data.upload(values.data(), data.bytes());
  const ScaleParams params = {static_cast<const float*>(data.data()),
                              static_cast<float*>(data.data()), kCount, 2.0f};
  const CapturedGraph graph(context, [&] {
    launch(scale, shape_for(kCount), context, params);
    fill_bytes(static_cast<char*>(data.data()) + kCount * sizeof(float) - 4, 0, 4, context);
  });
  for (int i = 0; i < 3; ++i) graph.launch();
  expect_scaled(data, kCount - 1, 8.0f);
  float last = 1;
  data.download(&last, 4, (kCount - 1) * sizeof(float));
  EXPECT_EQ(last, 0.0f);
}

TEST_F(RuntimeDevice, ThreadsDoNotDisturbEachOther) {
  constexpr size_t kCount = 50000;
  const std::vector<float> values = numbers(kCount);
  const int num_devices = Driver::get()->num_devices();
  std::vector<std::unique_ptr<Function>> functions;
  for (int i = 0; i < num_devices; ++i) {
    functions.push_back(std::make_unique<Function>(load_text("scale", kScaleText, on_device(i))));
  }
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const int device = thread % num_devices;
      const OwnStream stream(device);
      DeviceMemory in(kCount * sizeof(float), stream.context());
      DeviceMemory out(kCount * sizeof(float), stream.context());
      in.upload(values.data(), in.bytes());
      for (int round = 1; round <= 20; ++round) {
        const auto factor = static_cast<float>(thread * 100 + round);
        const ScaleParams params = {static_cast<const float*>(in.data()),
                                    static_cast<float*>(out.data()), kCount, factor};
        launch(*functions[static_cast<size_t>(device)], shape_for(kCount), stream.context(),
               params);
        expect_scaled(out, kCount, factor);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(RuntimeDevice, WhatIsTooLargeIsAnErrorAndTheDeviceGoesOn) {
  const Context context = on_device(0);
  const Function scale = load_text("scale", kScaleText, context);
  DeviceMemory data(4, context);
  const ScaleParams params = {static_cast<const float*>(data.data()),
                              static_cast<float*>(data.data()), 1, 1.0f};
  EXPECT_THROW(launch(scale, {{1, 1, 1}, 2048}, context, params), Error);
  EXPECT_THROW(launch(scale, {{1, 1, 1}, 256, 1 << 20}, context, params), Error);
  EXPECT_THROW(DeviceMemory(size_t{1} << 50, context), Error);
  const float one = 1;
  data.upload(&one, 4);
  launch(scale, {{1, 1, 1}, 256}, context, params);
  expect_scaled(data, 1, 1.0f);
  EXPECT_GT(max_ctas_per_sm(scale, {{1, 1, 1}, 256}, context), 0);
}

TEST_F(RuntimeDevice, OverlappingLaunchesAndClustersWork) {
  const Context context = on_device(0);
  if (gpu_model(context.device).compute_capability < 90) GTEST_SKIP() << "no clusters before 9.0";
  const std::string text = R"(
extern "C" __global__ void cluster_rank(unsigned int* out) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  unsigned int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) out[blockIdx.x] = out[blockIdx.x] * 10 + rank + 1;
})";
  const Function function = load_text("cluster_rank", text, context);
  DeviceMemory out(8 * sizeof(unsigned int), context);
  out.fill(0);
  LaunchShape shape{{8, 1, 1}, 32};
  shape.cluster_size = 4;
  shape.overlaps_previous = true;
  void* address = out.data();
  for (int i = 0; i < 2; ++i) launch(function, shape, context, address);
  std::vector<unsigned int> ranks(8);
  out.download(ranks.data(), out.bytes());
  EXPECT_EQ(ranks, (std::vector<unsigned int>{11, 22, 33, 44, 11, 22, 33, 44}));
}

TEST_F(RuntimeDevice, TensorMapsAreTaken) {
  const Context context = on_device(0);
  if (gpu_model(context.device).compute_capability < 90)
    GTEST_SKIP() << "no copy engine before 9.0";
  DeviceMemory memory(1 << 20, context);
  const CurrentContext current(context);
  for (DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kI32}) {
    TensorMapSpec spec;
    spec.dtype = dtype;
    spec.data = memory.data();
    spec.ndim = 4;
    spec.shape = {64, 100, 4, 2};
    spec.strides = {1, 256, 64, 25600};
    spec.box = {16, 64, 1, 1};
    spec.swizzle = dtype_bytes(dtype) == 2 ? driver::kSwizzle32 : driver::kSwizzle64;
    const driver::TensorMapBytes map = encode_tensor_map(spec);
    EXPECT_TRUE(std::any_of(std::begin(map.words), std::end(map.words),
                            [](uint64_t word) { return word != 0; }));
  }
}

TEST_F(RuntimeDevice, EventsMeasureTheDevicesTime) {
  const Context context = on_device(0);
  const std::string text = R"(
extern "C" __global__ void spin(long long nanoseconds) {
  long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - begin < nanoseconds);
})";
  const Function spin = load_text("spin", text, context);
  Event start(context);
  Event end(context);
  const long long nanoseconds = 5'000'000;
  launch(spin, {{1, 1, 1}, 1}, context, nanoseconds);
  start.record();
  launch(spin, {{1, 1, 1}, 1}, context, nanoseconds);
  end.record();
  end.wait();
  EXPECT_GT(end.milliseconds_since(start), 4.5);
  EXPECT_LT(end.milliseconds_since(start), 50.0);
}

}  // namespace
}  // namespace flashtile::cuda
