// SPDX-License-Identifier: Apache-2.0
#include "cpu/peak.hpp"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "core/executor.hpp"
#include "cpu/cpu_info.hpp"

namespace flashtile::cpu {

#define FLASHTILE_DECLARE_PEAK(isa)                           \
  namespace isa {                                             \
  float peak_f32(int64_t num_rounds, double* num_operations); \
  float read_sum(const float* data, int64_t count);           \
  }
FLASHTILE_DECLARE_PEAK(scalar)
#if defined(__x86_64__)
FLASHTILE_DECLARE_PEAK(avx2)
FLASHTILE_DECLARE_PEAK(avx512)
namespace avx512_bf16 {
float peak_bf16_dot(int64_t num_rounds, double* num_operations);
}
#elif defined(__aarch64__)
FLASHTILE_DECLARE_PEAK(neon)
#endif
#undef FLASHTILE_DECLARE_PEAK

namespace {

using Clock = std::chrono::steady_clock;
using Kernel = float (*)(int64_t num_rounds, double* num_operations);

struct IsaLoops {
  Kernel peak_f32;
  float (*read_sum)(const float* data, int64_t count);
};

IsaLoops best_loops() {
#if defined(__x86_64__)
  if (cpu_info().has(Isa::kAvx512)) return {avx512::peak_f32, avx512::read_sum};
  if (cpu_info().has(Isa::kAvx2)) return {avx2::peak_f32, avx2::read_sum};
#elif defined(__aarch64__)
  if (cpu_info().has(Isa::kNeon)) return {neon::peak_f32, neon::read_sum};
#endif
  return {scalar::peak_f32, scalar::read_sum};
}

Kernel bf16_dot_kernel() {
#if defined(__x86_64__)
  if (cpu_info().has(Isa::kAvx512Bf16)) return avx512_bf16::peak_bf16_dot;
#endif
  return nullptr;
}

/// Processor time of the calling thread: does not count what others take from it.
double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Rounds that keep one thread busy for `seconds`.
int64_t rounds_for(Kernel kernel, double seconds) {
  double operations = 0;
  for (int64_t num_rounds = 1 << 14;; num_rounds *= 2) {
    const double start = thread_seconds();
    volatile float result = kernel(num_rounds, &operations);
    static_cast<void>(result);
    if (thread_seconds() - start >= seconds) return num_rounds;
  }
}

/// Every worker runs the kernel at the same time; the sum of their rates, at its best. Processor
/// time counts, so that what others take from the machine is not missing from its peak.
double best_gflops(Kernel kernel, const Context& context) {
  constexpr int kRuns = 8;
  constexpr double kSecondsPerRun = 0.02;
  const int64_t num_rounds = rounds_for(kernel, kSecondsPerRun);
  const int num_workers = num_workers_of(context);
  std::vector<float> results(static_cast<size_t>(num_workers));
  std::vector<double> rates(static_cast<size_t>(num_workers));
  double best = 0;
  for (int run = 0; run < kRuns; ++run) {
    parallel_for(context, num_workers, [&](int64_t task_idx, int) {
      const auto i = static_cast<size_t>(task_idx);
      double operations = 0;
      const double start = thread_seconds();
      results[i] = kernel(num_rounds, &operations);
      rates[i] = operations / (thread_seconds() - start);
    });
    double total = 0;
    for (const double rate : rates) total += rate;
    best = std::max(best, total / 1e9);
  }
  return best;
}

}  // namespace

Peak measure_peak(const Context& context) {
  Peak peak;
  peak.f32_gflops = best_gflops(best_loops().peak_f32, context);
  if (bf16_dot_kernel() != nullptr) peak.bf16_dot_gflops = best_gflops(bf16_dot_kernel(), context);
  return peak;
}

double measure_read_bandwidth(const Context& context) {
  constexpr int kRuns = 20;                      // where others use the memory, few get all of it
  constexpr int64_t kFloats = int64_t{1} << 25;  // 128 MiB a worker
  const int num_workers = num_workers_of(context);
  // Each part lies in memory that its worker has touched first, and is no page of zeros.
  std::vector<std::unique_ptr<float[]>> parts(static_cast<size_t>(num_workers));
  std::vector<float> sums(parts.size());
  double best = 0;
  for (int run = 0; run <= kRuns; ++run) {
    const Clock::time_point start = Clock::now();
    parallel_for(context, num_workers, [&](int64_t task_idx, int) {
      const auto i = static_cast<size_t>(task_idx);
      if (parts[i] == nullptr) {
        parts[i].reset(new float[kFloats]);
        std::fill_n(parts[i].get(), kFloats, 1.0f);
      } else {
        sums[i] = best_loops().read_sum(parts[i].get(), kFloats);
      }
    });
    const std::chrono::duration<double> time = Clock::now() - start;
    const double bytes = static_cast<double>(num_workers) * kFloats * sizeof(float);
    if (run > 0) best = std::max(best, bytes / time.count() / 1e9);
  }
  return best;
}

double peak_gflops(const Peak& peak, DType dtype) {
  return dtype == DType::kBF16 ? std::max(peak.f32_gflops, peak.bf16_dot_gflops) : peak.f32_gflops;
}

}  // namespace flashtile::cpu
