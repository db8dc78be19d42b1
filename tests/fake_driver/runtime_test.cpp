// SPDX-License-Identifier: Apache-2.0
//
// The runtime against a driver that keeps books: contexts, loads, launches.
#include <thread>

#include "core/gpu_model.hpp"
#include "cuda/jit/kernel.hpp"
#include "cuda/jit/kernel_store.hpp"
#include "cuda/runtime/current.hpp"
#include "cuda/runtime/device.hpp"
#include "cuda/runtime/event.hpp"
#include "cuda/runtime/memory.hpp"
#include "cuda/runtime/tensor_map.hpp"
#include "fake_driver_support.hpp"
#include "flashtile/error.hpp"

namespace flashtile::cuda {
namespace {

using fake::FakeDriver;
using fake::on_device;
using fake::packed_source;

/// A context that is made current by somebody else.
class ForeignContext {
 public:
  explicit ForeignContext(int device) : handle_(fake::fake_cuda().create_context(device)) {
    Driver::required().api().cuCtxPushCurrent(handle_);
  }
  ~ForeignContext() {
    driver::ContextHandle popped = nullptr;
    Driver::required().api().cuCtxPopCurrent(&popped);
    EXPECT_EQ(popped, handle_) << "the caller's context is not where it was";
    fake::fake_cuda().destroy_context(handle_);
  }
  driver::ContextHandle handle() const { return handle_; }

 private:
  driver::ContextHandle handle_;
};

driver::ContextHandle current_handle() {
  driver::ContextHandle handle = nullptr;
  Driver::required().api().cuCtxGetCurrent(&handle);
  return handle;
}

template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(FakeDriver, DevicesAreModels) {
  ASSERT_NE(Driver::get(), nullptr) << Driver::fault();
  EXPECT_EQ(Driver::get()->version(), 13010);
  const GpuModel& first = gpu_model({DeviceType::kCuda, 0});
  EXPECT_EQ(first.arch, "sm_90a");
  EXPECT_EQ(first.num_sms, 132);
  EXPECT_EQ(first.shared_bytes_per_cta, 227 * 1024);
  EXPECT_TRUE(first.is_present);
  EXPECT_EQ(first.fault, "");
  EXPECT_EQ(gpu_model({DeviceType::kCuda, 1}).arch, "sm_86");
  EXPECT_NEAR(device_info(0).peak_bytes_per_second(), 4.917e12, 1e9);
  for (int index : {-1, 2, 77}) {
    EXPECT_NE(gpu_model({DeviceType::kCuda, index}).fault.find("no CUDA device"),
              std::string::npos);
    EXPECT_EQ(gpu_model({DeviceType::kCuda, index}).arch, "");
  }
}

TEST_F(FakeDriver, PrimaryContextIsTakenWhereNoneIsCurrent) {
  driver::ContextHandle inside = nullptr;
  for (int round = 0; round < 3; ++round) {
    const CurrentContext current(on_device(0));
    inside = current_handle();
    EXPECT_EQ(inside->device, 0);
  }
  EXPECT_EQ(current_handle(), nullptr);
  {
    const CurrentContext outer(on_device(0));
    const CurrentContext inner(on_device(1));
    EXPECT_EQ(current_handle()->device, 1);
  }
  EXPECT_LE(state_.num_primary_retains, 2) << "once for each device";
}

TEST_F(FakeDriver, CallersContextIsUsedOnItsDevice) {
  const ForeignContext foreign(0);
  const CurrentContext current(on_device(0));
  EXPECT_EQ(current_handle(), foreign.handle());
  EXPECT_EQ(fake::fake_cuda().stack_depth(), 1);
}

TEST_F(FakeDriver, CallersContextOfAnotherDeviceIsPutBack) {
  const ForeignContext foreign(1);
  {
    const CurrentContext current(on_device(0));
    EXPECT_NE(current_handle(), foreign.handle());
    EXPECT_EQ(current_handle()->device, 0);
  }
  EXPECT_EQ(current_handle(), foreign.handle());
}

TEST_F(FakeDriver, StreamNamesItsContext) {
  driver::StreamTag stream{fake::fake_cuda().create_context(0)};
  Context context = on_device(0);
  context.stream = &stream;
  {
    const CurrentContext current(context);
    EXPECT_EQ(current_handle(), stream.context);
  }
  context.device.index = 1;
  EXPECT_NE(error_of([&] { const CurrentContext current(context); }).find("stream: it does not"),
            std::string::npos);
  EXPECT_EQ(current_handle(), nullptr);
  // The legacy stream and the thread's own are numbers, not handles.
  for (uintptr_t special : {1u, 2u}) {
    context.stream = reinterpret_cast<void*>(special);
    const CurrentContext current(context);
    EXPECT_EQ(current_handle()->device, 1);
  }
}

TEST_F(FakeDriver, KernelIsLoadedOnceForAContext) {
  const Context context = on_device(0);
  const int64_t num_compiled = KernelStore::of_process().counts().compiled;
  const Function& one = get_kernel(packed_source("one"), context);
  const size_t num_loads = state_.loads.size();
  EXPECT_EQ(&get_kernel(packed_source("one"), context), &one);
  EXPECT_EQ(state_.loads.size(), num_loads);
  EXPECT_NE(&get_kernel(packed_source("two"), context), &one);
  EXPECT_EQ(one.stem, "one");
  EXPECT_EQ(one.attributes.num_registers, 168);
  EXPECT_EQ(one.attributes.static_shared_bytes, 1000);
  EXPECT_EQ(state_.max_shared_bytes["one"], 227 * 1024 - 1000);
  EXPECT_EQ(KernelStore::of_process().counts().compiled, num_compiled);
}

TEST_F(FakeDriver, LoadingDoesNotDisturbACaptureElsewhere) {
  const ForeignContext foreign(0);
  get_kernel(packed_source("one"), on_device(0));
  ASSERT_EQ(state_.loads.size(), 1u);
  EXPECT_EQ(state_.loads[0].capture_mode, driver::kCaptureRelaxed);
  int mode = driver::kCaptureRelaxed;
  Driver::required().api().cuThreadExchangeStreamCaptureMode(&mode);
  EXPECT_EQ(mode, driver::kCaptureGlobal) << "as it was";
  Driver::required().api().cuThreadExchangeStreamCaptureMode(&mode);
}

TEST_F(FakeDriver, NewContextAtTheAddressOfAnOldOneLoadsAnew) {
  for (int round = 0; round < 3; ++round) {
    const ForeignContext foreign(0);
    get_kernel(packed_source("one"), on_device(0));
    get_kernel(packed_source("one"), on_device(0));
    EXPECT_EQ(state_.loads.size(), static_cast<size_t>(round) + 1);
    EXPECT_EQ(state_.loads.back().context, foreign.handle());
  }
}

TEST_F(FakeDriver, ManyThreadsLoadOnce) {
  const ForeignContext foreign(0);
  std::vector<std::thread> threads;
  std::vector<const Function*> found(8);
  for (size_t i = 0; i < found.size(); ++i) {
    threads.emplace_back([&, i] {
      driver::ContextHandle popped = nullptr;
      Driver::required().api().cuCtxPushCurrent(foreign.handle());
      found[i] = &get_kernel(packed_source("two"), on_device(0));
      Driver::required().api().cuCtxPopCurrent(&popped);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Function* function : found) EXPECT_EQ(function, found[0]);
  EXPECT_EQ(state_.loads.size(), 1u);
}

TEST_F(FakeDriver, CodeThatDoesNotLoadIsCompiledAnew) {
  // There is no such kernel to compile, so the compiler (or its absence) is what the error is
  // about.
  const std::string text = error_of([] { get_kernel(packed_source("bad"), on_device(0)); });
  EXPECT_TRUE(text.find("cannot compile it") != std::string::npos ||
              text.find("cannot be compiled") != std::string::npos)
      << text;
  EXPECT_TRUE(state_.loads.empty());
}

TEST_F(FakeDriver, LaunchesArriveAsTheyWereMeant) {
  const Context context = on_device(0);
  const Function& function = get_kernel(packed_source("one"), context);
  const struct Params {
    uint64_t number = 0x1234567890abcdef;
    int more[20] = {};
  } params;
  LaunchShape shape{{5, 6, 7}, 128, 40000};
  launch(function, shape, context, params);
  ASSERT_EQ(state_.launches.size(), 1u);
  const fake::Launch& plain = state_.launches[0];
  EXPECT_EQ(plain.function, "one");
  EXPECT_EQ(plain.config.grid_x, 5u);
  EXPECT_EQ(plain.config.grid_y, 6u);
  EXPECT_EQ(plain.config.grid_z, 7u);
  EXPECT_EQ(plain.config.block_x, 128u);
  EXPECT_EQ(plain.config.shared_bytes, 40000u);
  EXPECT_EQ(plain.first_argument, params.number);
  EXPECT_EQ(plain.context, plain.function_context);
  EXPECT_EQ(plain.cluster_x, 0u);
  EXPECT_FALSE(plain.overlaps_previous);

  shape.cluster_size = 2;
  shape.overlaps_previous = true;
  launch(function, shape, context, params);
  EXPECT_EQ(state_.launches[1].cluster_x, 2u);
  EXPECT_TRUE(state_.launches[1].overlaps_previous);
  EXPECT_EQ(state_.launches[1].config.grid_z, 7u);
  EXPECT_EQ(state_.num_stream_waits, 0) << "a launch waits for nothing";
  EXPECT_EQ(state_.num_allocations, 0) << "and allocates nothing";
}

TEST_F(FakeDriver, LaunchGoesToTheCallersStream) {
  driver::StreamTag stream{fake::fake_cuda().create_context(0)};
  Context context = on_device(0);
  context.stream = &stream;
  const Function& function = get_kernel(packed_source("one"), context);
  const uint64_t argument = 1;
  launch(function, {{1, 1, 1}, 32}, context, argument);
  ASSERT_EQ(state_.launches.size(), 1u);
  EXPECT_EQ(state_.launches[0].config.stream, &stream);
  EXPECT_EQ(state_.launches[0].context, stream.context);
  EXPECT_EQ(state_.launches[0].function_context, stream.context);
}

TEST_F(FakeDriver, EmptyGridLaunchesNothing) {
  const Function& function = get_kernel(packed_source("one"), on_device(0));
  const uint64_t argument = 1;
  launch(function, {{0, 1, 1}, 32}, on_device(0), argument);
  launch(function, {{1, 0, 1}, 32}, on_device(0), argument);
  EXPECT_TRUE(state_.launches.empty());
}

TEST_F(FakeDriver, ErrorsNameTheKernelAndTheShape) {
  const Function& function = get_kernel(packed_source("one"), on_device(0));
  const uint64_t argument = 1;
  state_.failures["cuLaunchKernel"] = 1;
  const std::string text = error_of([&] {
    launch(function, {{5, 6, 7}, 128, 40000}, on_device(0), argument);
  });
  EXPECT_EQ(text,
            "one: launch of grid 5x6x7, 128 threads, 40000 bytes shared: "
            "CUDA_ERROR_INVALID_VALUE (invalid argument)");
  state_.failures["cuLaunchKernel"] = 777;  // which the driver has no name for
  EXPECT_NE(error_of([&] {
              launch(function, {{1, 1, 1}, 128}, on_device(0), argument);
            }).find("CUDA error 777"),
            std::string::npos);
}

TEST_F(FakeDriver, GridsBeyondTheHardwareAreRefused) {
  KernelChoice kernel{packed_source("one"), {2147483647, 65535, 65535}, 128, 1000, 2};
  const LaunchShape shape = launch_shape(kernel);
  EXPECT_EQ(shape.grid.x, 2147483647u);
  EXPECT_EQ(shape.num_threads, 128u);
  EXPECT_EQ(shape.cluster_size, 2u);
  kernel.grid[1] = 65536;
  EXPECT_NE(error_of([&] { launch_shape(kernel); }).find("grid[1] is 65536"), std::string::npos);
  kernel.grid = {2147483648, 1, 1};
  EXPECT_THROW(launch_shape(kernel), Error);
  kernel.grid = {-1, 1, 1};
  EXPECT_THROW(launch_shape(kernel), Error);
}

TEST_F(FakeDriver, MemoryIsCopiedAndFreed) {
  for (bool has_pool : {true, false}) {
    if (!has_pool) state_.failures["cuMemAllocAsync"] = 801;
    const std::string text = "some bytes";
    std::string back(text.size(), '?');
    {
      DeviceMemory memory(100, on_device(0));
      memory.fill('x');
      memory.upload(text.data(), text.size(), 20);
      memory.download(back.data(), back.size(), 18);
      EXPECT_EQ(state_.num_allocations, 1);
    }
    EXPECT_EQ(back, "xxsome byt");
    EXPECT_EQ(state_.num_allocations, 0);
  }
  state_.failures["cuMemAlloc"] = driver::kOutOfMemory;
  try {
    const DeviceMemory memory(100, on_device(0));
    ADD_FAILURE() << "there was memory";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_NE(std::string(error.what()).find("100 bytes"), std::string::npos);
  }
}

TEST_F(FakeDriver, EventsMeasureTime) {
  Event start(on_device(0));
  Event end(on_device(0));
  start.record();
  end.record();
  end.wait();
  EXPECT_NEAR(end.milliseconds_since(start), 1.5, 1e-6);
}

TEST_F(FakeDriver, TensorMapsArriveAsTheyWereMeant) {
  alignas(16) static char memory[16];
  TensorMapSpec spec;
  spec.dtype = DType::kBF16;
  spec.data = memory;
  spec.ndim = 3;
  spec.shape = {128, 500, 8};
  spec.strides = {1, 1024, 128};
  spec.box = {64, 128, 1};
  spec.swizzle = driver::kSwizzle128;
  EXPECT_EQ(tensor_map_fault(spec), "");
  encode_tensor_map(spec);
  ASSERT_EQ(state_.tensor_maps.size(), 1u);
  const fake::TensorMapCall& call = state_.tensor_maps[0];
  EXPECT_EQ(call.type, 9);
  EXPECT_EQ(call.shape, (std::vector<uint64_t>{128, 500, 8}));
  EXPECT_EQ(call.strides, (std::vector<uint64_t>{2048, 256}));
  EXPECT_EQ(call.box, (std::vector<uint32_t>{64, 128, 1}));
  EXPECT_EQ(call.swizzle, 3);

  const auto fault_with = [&](auto change) {
    TensorMapSpec changed = spec;
    change(changed);
    EXPECT_THROW(encode_tensor_map(changed), Error);
    return tensor_map_fault(changed);
  };
  EXPECT_EQ(fault_with([](auto& s) { s.strides[1] = 1028; }),
            "bytes of strides[1] is 2056, expected a multiple of 16 below 2^40, and not 0");
  EXPECT_NE(fault_with([](auto& s) { s.data = memory + 2; }), "");
  EXPECT_NE(fault_with([](auto& s) { s.strides[0] = 2; }), "");
  EXPECT_NE(fault_with([](auto& s) { s.strides[2] = 0; }), "");
  EXPECT_NE(fault_with([](auto& s) { s.shape[1] = 0; }), "");
  EXPECT_NE(fault_with([](auto& s) { s.box[1] = 257; }), "");
  EXPECT_NE(fault_with([](auto& s) { s.box[0] = 65; }), "");
  EXPECT_NE(fault_with([](auto& s) { s.box[0] = 72; }), "") << "wider than the swizzle";
  EXPECT_NE(fault_with([](auto& s) { s.dtype = DType::kF64; }), "");
  EXPECT_NE(fault_with([](auto& s) { s.ndim = 6; }), "");
}

}  // namespace
}  // namespace flashtile::cuda
