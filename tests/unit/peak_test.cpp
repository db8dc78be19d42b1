// SPDX-License-Identifier: Apache-2.0
#include "cpu/peak.hpp"

#include <gtest/gtest.h>

#include "cpu/cpu_info.hpp"

namespace flashtile::cpu {
namespace {

TEST(Peak, IsMeasuredForTheUnitsThatThereAre) {
  Context context;
  context.max_workers = 1;
  const Peak peak = measure_peak(context);
  // Slower than any machine, even an emulated one; faster than any core.
  EXPECT_GT(peak.f32_gflops, 0.01);
  EXPECT_LT(peak.f32_gflops, 2000);
  EXPECT_EQ(peak.bf16_dot_gflops > 0, cpu_info().has(Isa::kAvx512Bf16));
}

TEST(Peak, ReadBandwidthIsThatOfAMachine) {
  Context context;
  context.max_workers = 1;
  const double bandwidth = measure_read_bandwidth(context);
  EXPECT_GT(bandwidth, 0.01);
  EXPECT_LT(bandwidth, 5000);
}

TEST(Peak, WorkOnBf16IsMeasuredAgainstTheDotUnit) {
  EXPECT_EQ(peak_gflops({100, 200}, DType::kBF16), 200);
  EXPECT_EQ(peak_gflops({100, 0}, DType::kBF16), 100);
  EXPECT_EQ(peak_gflops({100, 200}, DType::kF32), 100);
  EXPECT_EQ(peak_gflops({100, 200}, DType::kF16), 100);
}

}  // namespace
}  // namespace flashtile::cpu
