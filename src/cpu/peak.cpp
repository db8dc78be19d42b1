// SPDX-License-Identifier: Apache-2.0
#include "cpu/peak.hpp"

#include <algorithm>
#include <chrono>
#include <vector>

#include "core/executor.hpp"
#include "cpu/cpu_info.hpp"

namespace flashtile::cpu {

#define FLASHTILE_DECLARE_PEAK(isa, function)                 \
  namespace isa {                                             \
  float function(int64_t num_rounds, double* num_operations); \
  }
FLASHTILE_DECLARE_PEAK(scalar, peak_f32)
#if defined(__x86_64__)
FLASHTILE_DECLARE_PEAK(avx2, peak_f32)
FLASHTILE_DECLARE_PEAK(avx512, peak_f32)
FLASHTILE_DECLARE_PEAK(avx512_bf16, peak_bf16_dot)
#elif defined(__aarch64__)
FLASHTILE_DECLARE_PEAK(neon, peak_f32)
#endif
#undef FLASHTILE_DECLARE_PEAK

namespace {

using Clock = std::chrono::steady_clock;
using Kernel = float (*)(int64_t num_rounds, double* num_operations);

Kernel f32_kernel() {
#if defined(__x86_64__)
  if (cpu_info().has(Isa::kAvx512)) return avx512::peak_f32;
  if (cpu_info().has(Isa::kAvx2)) return avx2::peak_f32;
#elif defined(__aarch64__)
  if (cpu_info().has(Isa::kNeon)) return neon::peak_f32;
#endif
  return scalar::peak_f32;
}

Kernel bf16_dot_kernel() {
#if defined(__x86_64__)
  if (cpu_info().has(Isa::kAvx512Bf16)) return avx512_bf16::peak_bf16_dot;
#endif
  return nullptr;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Every worker runs the kernel at the same time; the rate of all together, at its best.
double best_gflops(Kernel kernel, const Context& context) {
  constexpr int kTries = 3;
  constexpr int kLongRuns = 5;
  constexpr double kSecondsPerRun = 0.02;
  const int num_workers = num_workers_of(context);
  std::vector<float> results(static_cast<size_t>(num_workers));
  std::vector<double> operations(static_cast<size_t>(num_workers));
  double best = 0;
  const auto run_all = [&](int64_t num_rounds) {
    const Clock::time_point start = Clock::now();
    parallel_for(context, num_workers, [&](int64_t task_idx, int) {
      const auto i = static_cast<size_t>(task_idx);
      results[i] = kernel(num_rounds, &operations[i]);
    });
    const double seconds = seconds_since(start);
    double total = 0;
    for (const double count : operations) total += count;
    best = std::max(best, total / seconds / 1e9);
    return seconds;
  };
  // A run that the system interrupts looks long although it is not: the shortest one decides.
  int64_t num_rounds = int64_t{1} << 14;
  for (double shortest = 0; shortest < kSecondsPerRun; num_rounds *= 2) {
    shortest = run_all(num_rounds);
    for (int i = 1; i < kTries; ++i) shortest = std::min(shortest, run_all(num_rounds));
  }
  for (int i = 0; i < kLongRuns; ++i) run_all(num_rounds);
  return best;
}

}  // namespace

Peak measure_peak(const Context& context) {
  Peak peak;
  peak.f32_gflops = best_gflops(f32_kernel(), context);
  if (bf16_dot_kernel() != nullptr) peak.bf16_dot_gflops = best_gflops(bf16_dot_kernel(), context);
  return peak;
}

double peak_gflops(const Peak& peak, DType dtype) {
  return dtype == DType::kBF16 && peak.bf16_dot_gflops > 0 ? peak.bf16_dot_gflops : peak.f32_gflops;
}

}  // namespace flashtile::cpu
