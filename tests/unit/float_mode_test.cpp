// SPDX-License-Identifier: Apache-2.0
//
// Kernels take subnormal numbers for zero; threads of callers and pools are left as they were.
#include "core/float_mode.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/executor.hpp"
#include "flashtile/attention.hpp"
#include "flashtile/explain.hpp"
#include "flashtile/linear.hpp"
#include "flashtile/merge.hpp"
#include "support/problem_cases.hpp"
#include "support/tensor.hpp"

namespace flashtile::test {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kModes[] = {0x1F80, 0x9FC0, 0x5F80};  // as threads start; kernels'; upwards
#elif defined(__aarch64__)
constexpr uint32_t kModes[] = {0, 1u << 24, 1u << 22};
#else
constexpr uint32_t kModes[] = {0};
#endif
constexpr bool kHasMode = std::size(kModes) > 1;

/// Subnormal results and operands both count.
bool has_subnormals() {
  volatile float smallest_normal = 0x1p-126f;
  volatile float half = 0.5f;
  volatile float subnormal = smallest_normal * half;
  volatile float back = subnormal * 2.0f;
  return back == 0x1p-126f;
}

/// Control bits; tests compute, too, which sets the flags of MXCSR.
uint32_t control_bits() {
#if defined(__x86_64__)
  return float_control() & ~0x3Fu;
#else
  return float_control();
#endif
}

/// Sets a mode for a test, and the one that threads start with after it.
class CallerIn {
 public:
  explicit CallerIn(uint32_t mode) { set_float_control(mode); }
  ~CallerIn() { set_float_control(kModes[0]); }
  CallerIn(const CallerIn&) = delete;
  CallerIn& operator=(const CallerIn&) = delete;
};

/// Starts its threads when it is called, as a lazy pool does.
class FreshThreads final : public Executor {
 public:
  int num_workers() const override { return 3; }
  void run(int64_t num_tasks, Task task, void* state) override {
    ++num_runs;
    expect_caller();
    std::atomic<int64_t> next{0};
    std::vector<std::thread> threads;
    for (int worker_idx = 0; worker_idx < num_workers(); ++worker_idx) {
      threads.emplace_back([&, worker_idx] {
        expect_caller();  // inherited
        for (int64_t i = next++; i < num_tasks; i = next++) {
          task(state, i, worker_idx);
          expect_caller();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  uint32_t caller = 0;
  int num_runs = 0;

 private:
  void expect_caller() const { EXPECT_EQ(control_bits(), caller); }
};

TEST(FloatMode, OfKernelsHasNoSubnormalNumbersAndEndsAsItBegan) {
  for (const uint32_t mode : kModes) {
    const CallerIn caller(mode);
    {
      const KernelFloatMode outer;
      EXPECT_EQ(has_subnormals(), !kHasMode);
      { const KernelFloatMode inner; }
      EXPECT_TRUE(KernelFloatMode::is_on());
      {
        const CallerFloatMode left;
        EXPECT_EQ(control_bits(), mode);
        EXPECT_FALSE(KernelFloatMode::is_on());
      }
      EXPECT_EQ(has_subnormals(), !kHasMode);
    }
    EXPECT_EQ(control_bits(), mode);
    EXPECT_FALSE(KernelFloatMode::is_on());
  }
}

TEST(FloatMode, TasksOfAKernelAreInItOnEveryThreadAndOthersAreNot) {
  for (const uint32_t mode : kModes) {
    const CallerIn caller(mode);
    FreshThreads pool;
    pool.caller = mode;
    for (Executor* executor : {static_cast<Executor*>(nullptr), static_cast<Executor*>(&pool)}) {
      for (const int max_workers : {0, 1}) {
        Context context;
        context.executor = executor;
        context.max_workers = max_workers;
        for (const bool is_kernel : {true, false}) {
          std::atomic<int> num_inside{0};
          const auto count = [&](int64_t task, int) {
            if (KernelFloatMode::is_on()) {
              EXPECT_EQ(has_subnormals(), !kHasMode);
              ++num_inside;
            }
            if (task == 3) throw std::runtime_error("task");
          };
          const auto run = [&] {
            if (!is_kernel) return parallel_for(context, 40, count);
            const KernelFloatMode kernel;
            parallel_for(context, 40, count);
          };
          EXPECT_THROW(run(), std::runtime_error);
          EXPECT_EQ(num_inside, is_kernel ? 40 : 0);
          EXPECT_EQ(control_bits(), mode);
        }
      }
    }
    EXPECT_GT(pool.num_runs, 0);
  }
  // What the default pool's threads are left with, whichever of them were started by the above.
  Context context;
  parallel_for(context, 200, [](int64_t, int) { EXPECT_EQ(control_bits(), kModes[0]); });
}

std::vector<std::string> kernels_of(const std::string& op) {
  std::vector<std::string> names = implementations(op);
  std::erase_if(names, [](const std::string& name) { return name.find("reference") != name.npos; });
  EXPECT_FALSE(names.empty());
  return names;
}

/// Every implementation, on all threads, on one and on a pool, in all modes of the caller.
template <class Call>
void in_all_ways(const std::string& op, const Call& call) {
  for (const std::string& implementation : kernels_of(op)) {
    for (const uint32_t mode : kModes) {
      const CallerIn caller(mode);
      FreshThreads pool;
      pool.caller = mode;
      for (const int way : {0, 1, 2}) {
        Context context;
        context.implementation = implementation;
        context.max_workers = way == 1 ? 1 : 0;
        if (way == 2) context.executor = &pool;
        SCOPED_TRACE(implementation);
        call(context);
        EXPECT_EQ(control_bits(), mode);
      }
    }
  }
}

TEST(FloatMode, ResultsBelowTheSmallestNormalNumberAreZero) {
  // Many rows for tiles, one for decoding; four keys of equal weight, of which one has a value.
  for (const int64_t rows : {int64_t{70}, int64_t{1}}) {
    const Tensor q = Tensor::filled(DType::kF32, {1, rows, 2, 16}, 0);
    const Tensor k = Tensor::filled(DType::kF32, {1, 4, 2, 16}, 1);
    const Tensor v = Tensor::filled(DType::kF32, {1, 4, 2, 16}, 0);
    for (int64_t head = 0; head < 2; ++head) {
      v.set({0, 1, head, 0}, 0x1.8p-126);  // a quarter of it is subnormal
      v.set({0, 1, head, 1}, 0x1p-127);    // is so already
      v.set({0, 1, head, 2}, 0x1p-124);    // a quarter of it is the smallest normal number
    }
    in_all_ways("attention_fwd", [&](const Context& context) {
      const Tensor out(DType::kF32, {1, rows, 2, 16});
      attention_fwd(q, k, v, out, {}, {}, context);
      for (int64_t row = 0; row < rows; ++row) {
        EXPECT_EQ(out.get({0, row, 1, 0}), 0);
        EXPECT_EQ(out.get({0, row, 1, 1}), 0);
        EXPECT_EQ(out.get({0, row, 1, 2}), 0x1p-126);
      }
    });
  }
}

TEST(FloatMode, SubnormalNumbersOfF16AndE4m3AreNumbers) {
  const Tensor k = Tensor::filled(DType::kF16, {1, 1, 1, 16}, 1);
  const Tensor v = Tensor::filled(DType::kF16, {1, 1, 1, 16}, 0x1p-24);
  const Tensor small_k = Tensor::filled(DType::kE4M3, {1, 1, 1, 16}, 1);
  const Tensor small_v = Tensor::filled(DType::kE4M3, {1, 1, 1, 16}, 0x1p-9);
  in_all_ways("attention_fwd", [&](const Context& context) {
    for (const bool is_small : {false, true}) {
      for (const int64_t rows : {int64_t{1}, int64_t{40}}) {
        const Tensor q = Tensor::filled(DType::kF16, {1, rows, 1, 16}, 0);
        const Tensor out(DType::kF16, {1, rows, 1, 16});
        attention_fwd(q, is_small ? small_k : k, is_small ? small_v : v, out, {}, {}, context);
        for (const double x : out.numbers()) EXPECT_EQ(x, is_small ? 0x1p-9 : 0x1p-24);
      }
    }
  });
}

TEST(FloatMode, OfLinearAttentionAndMergesToo) {
  const Tensor q = Tensor::filled(DType::kF32, {1, 3, 1, 16}, 0x1p-4);
  const Tensor k = Tensor::filled(DType::kF32, {1, 3, 1, 16}, 0x1p-70);
  const Tensor v = Tensor::filled(DType::kF32, {1, 3, 1, 16}, 0x1p-60);
  in_all_ways("linear_attention_fwd", [&](const Context& context) {
    const Tensor out(DType::kF32, {1, 3, 1, 16});
    LinearArgs args;
    args.inputs.q = q;
    args.inputs.k = k;
    args.inputs.v = v;
    args.out = out;
    linear_attention_fwd(args, context);
    for (const double x : out.numbers()) EXPECT_EQ(x, 0);
  });
  const Tensor parts = Tensor::filled(DType::kF32, {2, 1, 3, 1, 16}, 0x1p-127);
  const Tensor part_lse = Tensor::filled(DType::kF32, {2, 1, 1, 3}, 0);
  in_all_ways("attention_merge", [&](const Context& context) {
    const Tensor out(DType::kF32, {1, 3, 1, 16});
    const Tensor lse(DType::kF32, {1, 1, 3});
    attention_merge(parts, part_lse, out, lse, context);
    for (const double x : out.numbers()) EXPECT_EQ(x, 0);
  });
}

}  // namespace
}  // namespace flashtile::test
