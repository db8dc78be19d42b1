// SPDX-License-Identifier: Apache-2.0
//
// Checks and times shapes of the Hopper forward beside each other:
//   hopper_sweep [--json FILE] [--rounds N] [--dims 64,128,256] [--seqlens 512,2048,16384]
//     [--check-only] [--compile-only] [--small]
// First all kernels are compiled, several at a time; --compile-only needs no GPU. Then each shape
// is checked (--small: on few and small problems) in a process of its own, against attention in
// float64 and the portable kernel: a shape that hangs, or fails, is left out. The others are timed
// (16k tokens, hidden size 2048, bf16) in rounds in which each is timed once.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/float16.hpp"
#include "cuda/jit/kernel.hpp"
#include "cuda/jit/kernel_store.hpp"
#include "cuda/jit/program.hpp"
#include "cuda/launch/attention_fwd_sm90.hpp"
#include "cuda/runtime/launch.hpp"
#include "device_timing.hpp"
#include "flashtile/attention.hpp"
#include "flashtile/error.hpp"

namespace {

using namespace flashtile;
using bench::milliseconds;
using device::Sm90Reference;

constexpr int64_t kTokens = 16384;
constexpr int64_t kHidden = 2048;
constexpr int64_t kMib = int64_t{1} << 20;
constexpr int kCheckSeconds = 40;
constexpr int kTimeSeconds = 150;
constexpr int kLaunchSeconds = 20;
constexpr int kSlowFactor = 30;  ///< of --small, which is meant for slow devices

struct Variant {
  std::string name;
  cuda::Sm90Tiling tiling;
  DType dtype = DType::kBF16;
};

struct Problem {
  int64_t batch, heads, heads_kv, seqlen_q, seqlen_k;
  bool causal;
  float magnitude = 1;  ///< of queries
  float outlier = 1;    ///< times which the first keys are larger
};

cuda::Sm90Tiling tiling(int dim, int warpgroups, int block_n, int stages, Sm90Reference reference,
                        int copy_registers, int compute_registers) {
  cuda::Sm90Tiling made;
  made.shape = {dim, dim, block_n, warpgroups, stages, dim > 128 ? 1 : 2};
  made.reference = reference;
  made.query_in_registers = dim == 128;
  made.takes_turns = dim <= 128;
  made.holds_back = dim == 128 && reference != Sm90Reference::kMaximum;
  made.copy_registers = copy_registers;
  made.compute_registers = compute_registers;
  made.section_bytes = 32 * kMib;
  return made;
}

template <class Change>
Variant changed(Variant variant, const std::string& name, const Change& change) {
  variant.name += name;
  change(variant.tiling);
  return variant;
}

std::vector<Variant> variants_of(int64_t dim) {
  constexpr Sm90Reference kMaximum = Sm90Reference::kMaximum;
  constexpr Sm90Reference kFirst = Sm90Reference::kFirstBlock;
  constexpr Sm90Reference kZero = Sm90Reference::kZero;
  const auto small_section = [](cuda::Sm90Tiling& t) { t.section_bytes = 8 * kMib; };
  // Less than 0: tiles are dealt out in turns.
  const auto is_static = [](cuda::Sm90Tiling& t) { t.section_bytes = -32 * kMib; };
  const auto small_static = [](cuda::Sm90Tiling& t) { t.section_bytes = -8 * kMib; };
  const auto no_turns = [](cuda::Sm90Tiling& t) { t.takes_turns = false; };
  if (dim == 64) {
    const Variant base = {"3x128 first", tiling(64, 3, 128, 2, kFirst, 32, 160)};
    const Variant small = {"4x64 first", tiling(64, 4, 64, 4, kFirst, 32, 112)};
    const Variant zero = {"4x64 zero", tiling(64, 4, 64, 4, kZero, 32, 112)};
    return {base,
            {"3x128 zero", tiling(64, 3, 128, 2, kZero, 32, 160)},
            {"3x128 maximum", tiling(64, 3, 128, 2, kMaximum, 32, 160)},
            {"3x128 maximum f16", tiling(64, 3, 128, 2, kMaximum, 32, 160), DType::kF16},
            {"2x128 first", tiling(64, 2, 128, 2, kFirst, 40, 232)},
            small,
            zero,
            {"4x64 maximum f16", tiling(64, 4, 64, 4, kMaximum, 32, 112), DType::kF16},
            {"4x64 first, 3 stages", tiling(64, 4, 64, 3, kFirst, 32, 112)},
            {"3x128 first, 3 stages", tiling(64, 3, 128, 3, kFirst, 32, 160)},
            changed(zero, " no-turns", no_turns),
            changed(zero, " 8MB", small_section),
            changed(zero, " static 8MB", small_static),
            changed(base, " no-turns", no_turns),
            changed(base, " static", is_static),
            changed(small, " 8MB", small_section)};
  }
  if (dim == 128) {
    const Variant base = {"2x128 first", tiling(128, 2, 128, 2, kFirst, 40, 232)};
    const Variant zero = {"2x128 zero", tiling(128, 2, 128, 2, kZero, 40, 232)};
    return {base,
            zero,
            {"2x128 maximum", tiling(128, 2, 128, 2, kMaximum, 40, 232)},
            {"2x128 maximum f16", tiling(128, 2, 128, 2, kMaximum, 40, 232), DType::kF16},
            changed(base, " free", [](cuda::Sm90Tiling& t) { t.holds_back = false; }),
            changed(base, " q-shared",
                    [](cuda::Sm90Tiling& t) { t.query_in_registers = t.holds_back = false; }),
            changed(base, " no-turns", no_turns),
            changed(base, " static", is_static),
            changed(zero, " no-turns", no_turns),
            changed(zero, " 8MB", small_section),
            {"2x64 zero, 4 stages", tiling(128, 2, 64, 4, kZero, 40, 232)},
            changed({"3x64 zero, 3 stages", tiling(128, 3, 64, 3, kZero, 32, 160)}, " q-shared",
                    [](cuda::Sm90Tiling& t) { t.query_in_registers = t.holds_back = false; }),
            changed(zero, " static 8MB", small_static)};
  }
  const Variant zero = {"2x64 zero", tiling(256, 2, 64, 2, kZero, 40, 232)};
  const Variant base = {"2x64 first", tiling(256, 2, 64, 2, kFirst, 40, 232)};
  return {base,
          {"2x80 first", tiling(256, 2, 80, 2, kFirst, 40, 232)},
          {"2x80 zero", tiling(256, 2, 80, 2, kZero, 40, 232)},
          {"2x80 maximum", tiling(256, 2, 80, 2, kMaximum, 40, 232)},
          {"2x64 maximum f16", tiling(256, 2, 64, 2, kMaximum, 40, 232), DType::kF16},
          zero,
          changed(zero, " 8MB", small_section),
          changed(zero, " static 8MB", small_static),
          changed(base, " static", is_static),
          changed(base, " turns", [](cuda::Sm90Tiling& t) { t.takes_turns = true; })};
}

/// Small ones with ragged ends, rows without keys, groups of heads, tiles that fail, then one that
/// keeps every multiprocessor busy for several tiles.
std::vector<Problem> problems() {
  return {{1, 1, 1, 64, 64, false},          {1, 1, 1, 128, 256, false},
          {2, 4, 2, 300, 517, false},        {2, 4, 2, 300, 517, true},
          {1, 3, 1, 1000, 1000, true},       {1, 2, 2, 77, 3000, true},
          {1, 2, 1, 700, 200, true},         {1, 1, 1, 1, 1, true},
          {1, 2, 2, 600, 900, false, 8, 60}, {1, 2, 1, 900, 900, true, 8, 60},
          {1, 2, 1, 513, 1100, true, 30, 1}, {5, 40, 8, 700, 700, true},
          {5, 40, 40, 640, 520, false}};
}

// --------------------------------------------------------------------------------------- memory

void* allocate(int64_t bytes, const Context& context) {
  const cuda::CurrentContext current(context);
  cuda::driver::Address address = 0;
  current.driver().check(current.api().cuMemAlloc(&address, static_cast<size_t>(bytes)), "memory");
  return reinterpret_cast<void*>(address);
}

void wait(const Context& context) {
  const cuda::CurrentContext current(context);
  current.driver().check(current.api().cuStreamSynchronize(nullptr), "waiting");
}

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

uint16_t rounded(float value, DType dtype) {
  return dtype == DType::kBF16 ? float_to_bf16(value) : float_to_f16(value);
}
float widened(uint16_t bits, DType dtype) {
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
    args_.lse = TensorView(allocate(rows * 4, context), DType::kF32,
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
    void* memory = allocate(count * 2, context_);
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

cuda::Sm90ForwardPlan plan_of(const AttentionProblem& problem, const Variant& variant) {
  cuda::Sm90Tiling made = variant.tiling;
  made.is_dynamic = problem.window_right.has_value() && made.section_bytes >= 0;
  made.section_bytes = std::abs(made.section_bytes);
  return cuda::make_sm90_plan(problem, made);
}

// ---------------------------------------------------------------------------------------- check

struct Device {
  Device() {
    constexpr int64_t kWorkspaceBytes = int64_t{1} << 26;
    context.device = {DeviceType::kCuda, 0};
    context.workspace = allocate(kWorkspaceBytes, context);
    context.workspace_bytes = static_cast<size_t>(kWorkspaceBytes);
    cuda::fill_bytes(context.workspace, 0xa5, static_cast<size_t>(kWorkspaceBytes), context);
    current = std::make_unique<cuda::CurrentContext>(context);
  }
  Context context;
  std::unique_ptr<cuda::CurrentContext> current;  ///< calls then find one
};

std::string text_of(const Problem& p) {
  std::ostringstream text;
  text << "b" << p.batch << " h" << p.heads << "/" << p.heads_kv << " q" << p.seqlen_q << " k"
       << p.seqlen_k << (p.causal ? " causal" : "");
  if (p.magnitude != 1) text << " x" << p.magnitude << " outlier " << p.outlier;
  return text.str();
}

/// Prints what is wrong; true when all is right.
bool check_problem(const Problem& problem, int64_t dim, const Variant& variant,
                   const Context& context, Watchdog& watchdog) {
  Call call(problem, dim, variant.dtype, context);
  const AttentionProblem made = call.made_problem();
  const std::string what = variant.name + " " + text_of(problem);
  const std::string refusal = cuda::refuse_attention_fwd_sm90(made);
  if (!refusal.empty()) {
    std::printf("# %s: refused: %s\n", what.c_str(), refusal.c_str());
    return false;
  }
  const cuda::Sm90ForwardPlan plan = plan_of(made, variant);
  const auto kernels = cuda::sm90_kernels(made, plan);
  cuda::get_kernel(kernels.front().source, context);
  std::vector<uint16_t> out;
  bool is_repeatable = true;
  for (int repeat = 0; repeat < 3; ++repeat) {
    call.clear();
    watchdog.begin(what);
    cuda::launch_sm90_plan(made, plan, kernels, call.args(), context);
    wait(context);
    watchdog.end();
    const std::vector<uint16_t> again = call.out();
    is_repeatable = is_repeatable && (out.empty() || again == out);
    out = again;
  }
  const std::vector<float> lse = call.lse();
  call.clear();
  Context portable = context;
  portable.implementation = "attention_fwd_portable";
  attention_fwd(call.args().q, call.args().k, call.args().v, call.args().out, call.args().lse,
                call.args(), portable);
  const std::vector<uint16_t> other = call.out();
  const auto value = [&](const std::vector<uint16_t>& from, int64_t n) {
    return double{widened(from[static_cast<size_t>(n)], variant.dtype)};
  };
  double difference = 0;  // from the portable kernel
  for (size_t i = 0; i < out.size(); ++i) {
    const double d =
        std::fabs(value(out, static_cast<int64_t>(i)) - value(other, static_cast<int64_t>(i)));
    if (!(d <= difference)) difference = d;
  }
  double worst = 0, worst_portable = 0, worst_lse = 0;
  const int64_t step = std::max<int64_t>(1, problem.seqlen_q / 20);
  for (int64_t b = 0; b < problem.batch; b += std::max<int64_t>(1, problem.batch - 1)) {
    for (int64_t h = 0; h < problem.heads; h += std::max<int64_t>(1, problem.heads - 1)) {
      for (int64_t row = 0; row < problem.seqlen_q; row += step) {
        const std::vector<double> expected = call.expected(b, h, row);
        for (int64_t c = 0; c < dim; ++c) {
          const int64_t n = call.row_number(b, row, h) * dim + c;
          const double e = expected[static_cast<size_t>(c)];
          const double d = std::fabs(value(out, n) - e);
          if (!(d <= worst)) worst = d;
          worst_portable = std::max(worst_portable, std::fabs(value(other, n) - e));
        }
        const double found = lse[static_cast<size_t>(call.lse_number(b, row, h))];
        const double l = found == expected.back() ? 0
                                                  : std::fabs(found - expected.back()) /
                                                        (1 + std::fabs(expected.back()));
        if (!(l <= worst_lse)) worst_lse = l;
      }
    }
  }
  const bool is_good = worst <= 2 * worst_portable + 2e-3 && worst_lse <= 1e-4 && is_repeatable &&
                       std::isfinite(difference);
  std::printf("%s %s: error %.2e (portable %.2e), lse %.1e, from portable %.2e%s\n",
              is_good ? "  ok  " : "  BAD ", what.c_str(), worst, worst_portable, worst_lse,
              difference, is_repeatable ? "" : ", NOT REPEATABLE");
  std::fflush(stdout);
  return is_good;
}

int check(int64_t dim, size_t index, bool is_small) {
  const Variant variant = variants_of(dim)[index];
  Device device;
  Watchdog watchdog(is_small ? kLaunchSeconds * kSlowFactor : kLaunchSeconds);
  bool is_good = true;
  for (const Problem& problem : problems()) {
    if (is_small && problem.batch * problem.heads * problem.seqlen_q > 2400) continue;
    is_good = check_problem(problem, dim, variant, device.context, watchdog) && is_good;
  }
  return is_good ? 0 : 1;
}

// ----------------------------------------------------------------------------------------- time

struct Candidate {
  std::string name;
  std::function<void()> run;
  std::vector<double> times;

  double median() const { return bench::median(times); }
};

void time_point(int64_t dim, int64_t seqlen, bool causal, const std::vector<size_t>& indices,
                int rounds, const std::string& json, const Context& context, Watchdog& watchdog) {
  const Problem problem = {kTokens / seqlen, kHidden / dim, kHidden / dim, seqlen, seqlen, causal};
  Call call(problem, dim, DType::kBF16, context);
  Call half(problem, dim, DType::kF16, context);
  const AttentionProblem made = call.made_problem();
  const AttentionProblem made_half = half.made_problem();
  std::vector<Candidate> candidates;
  Context portable = context;
  portable.implementation = "attention_fwd_portable";
  candidates.push_back({"portable",
                        [&] {
                          attention_fwd(call.args().q, call.args().k, call.args().v,
                                        call.args().out, call.args().lse, call.args(), portable);
                        },
                        {}});
  const std::vector<Variant> variants = variants_of(dim);
  for (const size_t index : indices) {
    const Variant& variant = variants[index];
    const bool is_half = variant.dtype == DType::kF16;
    const AttentionProblem& of = is_half ? made_half : made;
    const AttentionArgs& args = is_half ? half.args() : call.args();
    const cuda::Sm90ForwardPlan plan = plan_of(of, variant);
    const auto kernels = cuda::sm90_kernels(of, plan);
    cuda::get_kernel(kernels.front().source, context);
    candidates.push_back({variant.name,
                          [&of, &args, plan, kernels, &context] {
                            cuda::launch_sm90_plan(of, plan, kernels, args, context);
                          },
                          {}});
  }
  const double work = 4.0 * static_cast<double>(kTokens) * static_cast<double>(seqlen) *
                      static_cast<double>(kHidden) * (causal ? 0.5 : 1.0);
  const int repeats = std::clamp(static_cast<int>(1.2e13 / work), 3, 200);
  std::mt19937 shuffle(7);
  for (int round = 0; round < rounds; ++round) {
    std::shuffle(candidates.begin(), candidates.end(), shuffle);
    for (Candidate& candidate : candidates) {
      watchdog.begin(candidate.name);
      if (round == 0) candidate.run();
      candidate.times.push_back(milliseconds(context, repeats, candidate.run));
      watchdog.end();
    }
  }
  std::sort(candidates.begin(), candidates.end(),
            [](Candidate& a, Candidate& b) { return a.median() < b.median(); });
  std::ofstream file;
  if (!json.empty()) file.open(json, std::ios::app);
  for (Candidate& candidate : candidates) {
    const double tflops = work / candidate.median() * 1e-9;
    std::printf("d=%ld causal=%d s=%ld %7.1f TFLOP/s (%.1f to %.1f)  %s\n", dim, causal, seqlen,
                tflops, work / candidate.times.back() * 1e-9, work / candidate.times.front() * 1e-9,
                candidate.name.c_str());
    if (file.is_open()) {
      file << "{\"head_dim\": " << dim << ", \"causal\": " << (causal ? "true" : "false")
           << ", \"seqlen\": " << seqlen << ", \"variant\": \"" << candidate.name
           << "\", \"tflops\": " << tflops << ", \"ms\": " << candidate.median() << "}\n";
    }
  }
  std::fflush(stdout);
}

std::vector<int64_t> numbers(const std::string& text) {
  std::vector<int64_t> list;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) list.push_back(std::stoll(word));
  return list;
}

int time_all(int64_t dim, const std::string& index_text, const std::string& seqlens, int rounds,
             const std::string& json) {
  std::vector<size_t> indices;
  for (const int64_t index : numbers(index_text)) indices.push_back(static_cast<size_t>(index));
  for (const bool causal : {false, true}) {
    for (const int64_t seqlen : numbers(seqlens)) {
      Device device;
      Watchdog watchdog(kLaunchSeconds);
      time_point(dim, seqlen, causal, indices, rounds, json, device.context, watchdog);
    }
  }
  return 0;
}

// -------------------------------------------------------------------------------------- compile

/// Compiles all kernels into the cache and prints what they take.
int compile(const std::vector<int64_t>& dims) {
  struct Job {
    std::string name;
    KernelChoice kernel;
    std::string text;
  };
  std::vector<Job> jobs;
  const GpuModel& gpu = *named_gpu_model("sm_90a");
  for (const int64_t dim : dims) {
    for (const Variant& variant : variants_of(dim)) {
      for (const bool causal : {false, true}) {
        AttentionProblem problem;
        problem.gpu = &gpu;
        problem.dtype = variant.dtype;
        problem.batch_size = problem.num_heads = problem.num_heads_kv = 1;
        problem.max_seqlen_q = problem.max_seqlen_k = 4096;
        problem.head_dim = problem.head_dim_v = dim;
        if (causal) problem.window_right = 0;
        jobs.push_back({"d" + std::to_string(dim) + " " + variant.name + (causal ? " causal" : ""),
                        cuda::sm90_kernels(problem, plan_of(problem, variant)).front(), ""});
      }
    }
  }
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < std::max(1u, std::min(16u, std::thread::hardware_concurrency())); ++t) {
    threads.emplace_back([&] {
      for (size_t n = next++; n < jobs.size(); n = next++) {
        try {
          const auto made =
              cuda::KernelStore::of_process().get(cuda::program_of(jobs[n].kernel.source));
          std::ostringstream text;
          text << made->usage.num_registers << " registers, " << made->usage.spill_store_bytes
               << " bytes spilled, " << jobs[n].kernel.shared_bytes << " shared " << made->notes;
          jobs[n].text = text.str();
        } catch (const Error& error) {
          jobs[n].text = error.what();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Job& job : jobs) std::printf("# %s: %s\n", job.name.c_str(), job.text.c_str());
  return 0;
}

/// Runs this program again; its exit status, or -1 where it took longer.
int run_child(const std::vector<std::string>& arguments, int seconds) {
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    std::vector<char*> list;
    for (const std::string& argument : arguments)
      list.push_back(const_cast<char*>(argument.data()));
    list.push_back(nullptr);
    ::execv("/proc/self/exe", list.data());
    ::_exit(127);
  }
  for (int tick = 0; tick < seconds * 20; ++tick) {
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) == child) {
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    ::usleep(50000);
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return -1;
}

}  // namespace

int main(int argc, char** argv) {
  std::string json, dims = "64,128,256", seqlens = "512,2048,16384", rounds = "5";
  bool check_only = false, compile_only = false, is_small = false;
  std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.size() == 4 && words[0] == "check-child") {
      return check(std::stoll(words[1]), static_cast<size_t>(std::stoll(words[2])),
                   words[3] == "small");
    }
    if (words.size() == 6 && words[0] == "time-child") {
      return time_all(std::stoll(words[1]), words[2], words[3], std::stoi(words[4]), words[5]);
    }
    if (words.size() == 2 && words[0] == "compile-child") return compile(numbers(words[1]));
  } catch (const std::exception& error) {
    std::printf("# %s\n", error.what());
    return 1;
  }
  for (size_t i = 0; i < words.size(); ++i) {
    const bool has_value = i + 1 < words.size();
    if (words[i] == "--check-only") {
      check_only = true;
    } else if (words[i] == "--small") {
      is_small = true;
    } else if (words[i] == "--compile-only") {
      compile_only = true;
    } else if (words[i] == "--json" && has_value) {
      json = words[++i];
    } else if (words[i] == "--dims" && has_value) {
      dims = words[++i];
    } else if (words[i] == "--seqlens" && has_value) {
      seqlens = words[++i];
    } else if (words[i] == "--rounds" && has_value) {
      rounds = words[++i];
    } else {
      std::cerr << "hopper_sweep: what is '" << words[i] << "'?\n";
      return 2;
    }
  }
  run_child({"hopper_sweep", "compile-child", dims}, kTimeSeconds);
  if (compile_only) return 0;
  bool is_good = true;
  for (const int64_t dim : numbers(dims)) {
    const std::vector<Variant> variants = variants_of(dim);
    std::string good;
    for (size_t n = 0; n < variants.size(); ++n) {
      const int status = run_child({"hopper_sweep", "check-child", std::to_string(dim),
                                    std::to_string(n), is_small ? "small" : "all"},
                                   is_small ? kCheckSeconds * kSlowFactor : kCheckSeconds);
      std::printf("%s d=%ld %s (%d)\n", status == 0 ? "GOOD" : "FAIL", dim,
                  variants[n].name.c_str(), status);
      is_good = is_good && status == 0;
      if (status == 0) good += (good.empty() ? "" : ",") + std::to_string(n);
    }
    if (check_only || good.empty()) continue;
    const int status =
        run_child({"hopper_sweep", "time-child", std::to_string(dim), good, seqlens, rounds, json},
                  kTimeSeconds);
    if (status != 0) std::printf("# timing of d=%ld ended with %d\n", dim, status);
  }
  return is_good ? 0 : 1;
}
