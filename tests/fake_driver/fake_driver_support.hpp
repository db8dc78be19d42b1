// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "core/kernel_choice.hpp"
#include "driver/fake_cuda.hpp"
#include "flashtile/context.hpp"

namespace flashtile::fake {

/// What the fake driver has besides the driver's own functions.
struct FakeCuda {
  State* state = nullptr;
  driver::ContextHandle (*create_context)(int device) = nullptr;
  void (*destroy_context)(driver::ContextHandle context) = nullptr;
  int (*stack_depth)() = nullptr;
};

/// Throws where a real driver is in the place of the fake one.
const FakeCuda& fake_cuda();

/// Folder of this run, with the cache and with the pack of packed_source().
const std::string& run_folder();

/// Kernels that are in the pack of this run, for sm_90a: "one" and "two"; "bad" does not load.
KernelSource packed_source(const std::string& stem);

inline Context on_device(int index) {
  Context context;
  context.device = {DeviceType::kCuda, index};
  return context;
}

/// Forgets what was asked for before.
class FakeDriver : public ::testing::Test {
 protected:
  void SetUp() override {
    state_.launches.clear();
    state_.loads.clear();
    state_.tensor_maps.clear();
    state_.failures.clear();
    state_.num_stream_waits = 0;
    ASSERT_EQ(fake_cuda().stack_depth(), 0);
  }
  void TearDown() override { EXPECT_EQ(fake_cuda().stack_depth(), 0); }

  State& state_ = *fake_cuda().state;
};

}  // namespace flashtile::fake
