// SPDX-License-Identifier: Apache-2.0
//
// Calls of the forward on a GPU that hopper_sweep checks and times: their tensors, and what float64
// says about them.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/float16.hpp"
#include "cuda/runtime/device.hpp"
#include "cuda/runtime/launch.hpp"
#include "device_timing.hpp"
#include "flashtile/attention.hpp"
#include "ops/attention/problem.hpp"

namespace flashtile::bench {

struct Problem {
  int64_t batch, heads, heads_kv, seqlen_q, seqlen_k;
  bool causal;
  float magnitude = 1;  ///< of queries
  float outlier = 1;    ///< times which the first keys are larger
};

template <class T>
void upload(void* target, const std::vector<T>& values, const Context& context) {
  const cuda::CurrentContext current(context);
  current.driver().check(
      current.api().cuMemcpyHtoDAsync(reinterpret_cast<cuda::driver::Address>(target),
                                      values.data(), values.size() * sizeof(T), nullptr),
      "copy");
  wait(context);
}

template <class T>
std::vector<T> download(const void* source, int64_t count, const Context& context) {
  std::vector<T> values(static_cast<size_t>(count));
  const cuda::CurrentContext current(context);
  current.driver().check(current.api().cuMemcpyDtoHAsync(
                             values.data(), reinterpret_cast<cuda::driver::Address>(source),
                             values.size() * sizeof(T), nullptr),
                         "copy");
  wait(context);
  return values;
}

inline uint16_t rounded(float value, DType dtype) {
  return dtype == DType::kBF16 ? float_to_bf16(value) : float_to_f16(value);
}
inline float widened(uint16_t bits, DType dtype) {
  return dtype == DType::kBF16 ? bf16_to_float(bits) : f16_to_float(bits);
}

/// Ends the process when a step takes too long: a kernel that hangs cannot be stopped otherwise.
class Watchdog {
 public:
  explicit Watchdog(int seconds) : seconds_(seconds) {
    std::thread([this] {
      while (true) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        const int64_t deadline = deadline_;
        if (deadline == 0 || now() < deadline) continue;
        std::printf("# HANGS: %s\n", text_.c_str());
        std::fflush(stdout);
        ::_exit(3);
      }
    }).detach();
  }
  void begin(const std::string& text) {
    deadline_ = 0;
    text_ = text;
    deadline_ = now() + seconds_ * 1000;
  }
  void end() { deadline_ = 0; }

 private:
  static int64_t now() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  int64_t seconds_;
  std::atomic<int64_t> deadline_{0};
  std::string text_;
};

/// A call on the device: tensors, the plan of a variant, and what it is compared with.
class Call {
 public:
  Call(const Problem& problem, int64_t dim, DType dtype, const Context& context)
      : problem_(problem), dim_(dim), dtype_(dtype), context_(context) {
    // Numbers come again after a while, of which no tensor's rows are a multiple.
    static const std::vector<float> pool = [] {
      constexpr size_t kPool = 1048583;
      std::mt19937 generator(1);
      std::normal_distribution<float> normal;
      std::vector<float> made(kPool);
      for (float& number : made) number = normal(generator);
      return made;
    }();
    size_t next = static_cast<size_t>(problem.seqlen_q * 7 + problem.seqlen_k) % pool.size();
    const auto fill = [&](std::vector<uint16_t>& to, int64_t rows, int64_t heads, float magnitude,
                          float outlier) {
      to.resize(static_cast<size_t>(problem.batch * rows * heads * dim));
      for (size_t i = 0; i < to.size(); ++i) {
        const int64_t row = static_cast<int64_t>(i) / (heads * dim) % rows;
        to[i] = rounded(pool[next] * magnitude * (row < 3 ? outlier : 1.0f), dtype);
        next = next + 1 == pool.size() ? 0 : next + 1;
      }
    };
    fill(q_, problem.seqlen_q, problem.heads, problem.magnitude, 1);
    fill(k_, problem.seqlen_k, problem.heads_kv, 1, problem.outlier);
    fill(v_, problem.seqlen_k, problem.heads_kv, 1, 1);
    args_.q = tensor(problem.seqlen_q, problem.heads, &q_);
    args_.k = tensor(problem.seqlen_k, problem.heads_kv, &k_);
    args_.v = tensor(problem.seqlen_k, problem.heads_kv, &v_);
    args_.out = tensor(problem.seqlen_q, problem.heads, nullptr);
    const int64_t rows = problem.batch * problem.heads * problem.seqlen_q;
    args_.lse = TensorView(allocate(rows * 4, context).get(), DType::kF32,
                           {problem.batch, problem.heads, problem.seqlen_q});
    args_.lse.device = context.device;
    args_.causal = problem.causal;
  }

  const AttentionArgs& args() const { return args_; }
  AttentionProblem made_problem() const {
    AttentionProblem made = make_attention_problem(args_, /*is_backward=*/false);
    made.gpu = &gpu_model(made.device);
    return made;
  }

  void clear() {
    cuda::fill_bytes(args_.out.data, 0xff, static_cast<size_t>(args_.out.numel() * 2), context_);
    cuda::fill_bytes(args_.lse.data, 0xff, static_cast<size_t>(args_.lse.numel() * 4), context_);
  }
  std::vector<uint16_t> out() const {
    return download<uint16_t>(args_.out.data, args_.out.numel(), context_);
  }
  std::vector<float> lse() const {
    return download<float>(args_.lse.data, args_.lse.numel(), context_);
  }

  /// Attention in float64 of one row: out, and lse behind it.
  std::vector<double> expected(int64_t b, int64_t h, int64_t row) const {
    const int64_t head_kv = h / (problem_.heads / problem_.heads_kv);
    const auto at = [&](const std::vector<uint16_t>& from, int64_t rows, int64_t heads, int64_t r,
                        int64_t head, int64_t c) {
      return double{
          widened(from[static_cast<size_t>(((b * rows + r) * heads + head) * dim_ + c)], dtype_)};
    };
    const int64_t end = problem_.causal
                            ? std::clamp<int64_t>(row + 1 + problem_.seqlen_k - problem_.seqlen_q,
                                                  0, problem_.seqlen_k)
                            : problem_.seqlen_k;
    std::vector<double> logits(static_cast<size_t>(end));
    double top = -std::numeric_limits<double>::infinity();
    for (int64_t key = 0; key < end; ++key) {
      double sum = 0;
      for (int64_t c = 0; c < dim_; ++c) {
        sum += at(q_, problem_.seqlen_q, problem_.heads, row, h, c) *
               at(k_, problem_.seqlen_k, problem_.heads_kv, key, head_kv, c);
      }
      logits[static_cast<size_t>(key)] = sum / std::sqrt(static_cast<double>(dim_));
      top = std::max(top, logits[static_cast<size_t>(key)]);
    }
    std::vector<double> result(static_cast<size_t>(dim_) + 1, 0.0);
    double total = 0;
    for (int64_t key = 0; key < end; ++key) {
      const double weight = std::exp(logits[static_cast<size_t>(key)] - top);
      total += weight;
      for (int64_t c = 0; c < dim_; ++c) {
        result[static_cast<size_t>(c)] +=
            weight * at(v_, problem_.seqlen_k, problem_.heads_kv, key, head_kv, c);
      }
    }
    for (int64_t c = 0; c < dim_ && total > 0; ++c) result[static_cast<size_t>(c)] /= total;
    result.back() = total > 0 ? top + std::log(total) : -std::numeric_limits<double>::infinity();
    return result;
  }

  int64_t row_number(int64_t b, int64_t row, int64_t h) const {
    return (b * problem_.seqlen_q + row) * problem_.heads + h;
  }
  int64_t lse_number(int64_t b, int64_t row, int64_t h) const {
    return (b * problem_.heads + h) * problem_.seqlen_q + row;
  }

 private:
  TensorView tensor(int64_t rows, int64_t heads, const std::vector<uint16_t>* values) {
    const int64_t count = problem_.batch * rows * heads * dim_;
    void* memory = allocate(count * 2, context_).get();
    if (values != nullptr) upload(memory, *values, context_);
    TensorView made(memory, dtype_, {problem_.batch, rows, heads, dim_});
    made.device = context_.device;
    return made;
  }

  Problem problem_;
  int64_t dim_;
  DType dtype_;
  const Context& context_;
  std::vector<uint16_t> q_, k_, v_;
  AttentionArgs args_;
};

struct CallDevice {
  CallDevice() {
    constexpr int64_t kWorkspaceBytes = int64_t{1} << 26;
    context.device = {DeviceType::kCuda, 0};
    context.workspace = allocate(kWorkspaceBytes, context).get();
    context.workspace_bytes = static_cast<size_t>(kWorkspaceBytes);
    cuda::fill_bytes(context.workspace, 0xa5, static_cast<size_t>(kWorkspaceBytes), context);
    current = std::make_unique<cuda::CurrentContext>(context);
  }
  Context context;
  std::unique_ptr<cuda::CurrentContext> current;  ///< calls then find one
};

}  // namespace flashtile::bench
