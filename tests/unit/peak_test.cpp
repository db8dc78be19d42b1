// SPDX-License-Identifier: Apache-2.0
#include "cpu/peak.hpp"

#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

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

TEST(Peak, WorkOnBf16IsMeasuredAgainstTheFasterUnit) {
  EXPECT_EQ(peak_gflops({100, 200}, DType::kBF16), 200);
  EXPECT_EQ(peak_gflops({100, 0}, DType::kBF16), 100);
  EXPECT_EQ(peak_gflops({100, 50}, DType::kBF16), 100);
  EXPECT_EQ(peak_gflops({100, 200}, DType::kF32), 100);
  EXPECT_EQ(peak_gflops({100, 200}, DType::kF16), 100);
}

#if defined(__x86_64__)

double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Twenty-four chains of one instruction, written by hand: no compiler, no vector layer.
#define FLASHTILE_CHAIN(op, n) op " %%zmm30, %%zmm31, %%zmm" #n "\n"
#define FLASHTILE_CHAINS_OF_6(op, a, b, c, d, e, f) \
  FLASHTILE_CHAIN(op, a)                            \
  FLASHTILE_CHAIN(op, b)                            \
  FLASHTILE_CHAIN(op, c) FLASHTILE_CHAIN(op, d) FLASHTILE_CHAIN(op, e) FLASHTILE_CHAIN(op, f)
#define FLASHTILE_CHAINS(op)                        \
  FLASHTILE_CHAINS_OF_6(op, 0, 1, 2, 3, 4, 5)       \
  FLASHTILE_CHAINS_OF_6(op, 6, 7, 8, 9, 10, 11)     \
  FLASHTILE_CHAINS_OF_6(op, 12, 13, 14, 15, 16, 17) \
  FLASHTILE_CHAINS_OF_6(op, 18, 19, 20, 21, 22, 23)
#define FLASHTILE_LOOP(op)                                                                     \
  asm volatile(                                                                                \
      "vpxord %%zmm30, %%zmm30, %%zmm30\nvpxord %%zmm31, %%zmm31, %%zmm31\n" FLASHTILE_CHAINS( \
          "vpxord") ".p2align 6\n1:\n" FLASHTILE_CHAINS(op) "dec %0\njnz 1b\n"                 \
      : "+r"(rounds)                                                                           \
      :                                                                                        \
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",  \
        "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")

constexpr int64_t kRounds = 1 << 19;

void multiply_add_loop() {
  int64_t rounds = kRounds;
  FLASHTILE_LOOP("vfmadd231ps");
}

#if !defined(FLASHTILE_EMULATE_CPU)
void dot_loop() {
  int64_t rounds = kRounds;
  FLASHTILE_LOOP("vdpbf16ps");
}
#endif

#undef FLASHTILE_LOOP
#undef FLASHTILE_CHAINS
#undef FLASHTILE_CHAINS_OF_6
#undef FLASHTILE_CHAIN

/// Best rates of a loop, and of `measured` in turns with it, until the two are within the limit or
/// have not become so: whoever shares the machine takes from either. Where the loop does not agree
/// with itself, nothing can be said.
void expect_alike(const std::function<void()>& loop, double operations,
                  const std::function<double(const Peak&)>& measured, const char* name) {
  constexpr double kLimit = 0.05;
  constexpr int kTries = 20;
  constexpr int kLoops = 4;  ///< of a try
  std::vector<double> rates;
  double by_hand = 0, by_library = 0;
  Context context;
  context.max_workers = 1;
  for (int n = 0; n < kTries; ++n) {
    for (int i = 0; i < kLoops; ++i) {
      const double start = thread_seconds();
      loop();
      rates.push_back(operations / (thread_seconds() - start) / 1e9);
      by_hand = std::max(by_hand, rates.back());
    }
    by_library = std::max(by_library, measured(measure_peak(context)));
    if (std::abs(by_library / by_hand - 1) <= kLimit) break;
  }
  std::sort(rates.begin(), rates.end());
  if (rates[rates.size() / 2] < (1 - kLimit) * by_hand) GTEST_SKIP() << "others use this core";
  EXPECT_NEAR(by_library / by_hand, 1, kLimit) << name << ": " << by_library << ", " << by_hand;
}

TEST(Peak, AgreesWithALoopWrittenByHand) {
  if (!FLASHTILE_RELEASE) GTEST_SKIP() << "the library is not optimised in this build";
  if (!cpu_info().has(Isa::kAvx512)) GTEST_SKIP() << "the loop is one of AVX-512";
  constexpr double kLanesOfAll = 24.0 * 16 * kRounds;
  expect_alike(
      multiply_add_loop, 2 * kLanesOfAll, [](const Peak& peak) { return peak.f32_gflops; },
      "multiply-add");
#if !defined(FLASHTILE_EMULATE_CPU)
  if (!cpu_info().has(Isa::kAvx512Bf16)) return;
  expect_alike(
      dot_loop, 4 * kLanesOfAll, [](const Peak& peak) { return peak.bf16_dot_gflops; }, "bf16 dot");
#endif
}
#endif

}  // namespace
}  // namespace flashtile::cpu
