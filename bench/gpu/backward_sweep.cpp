// SPDX-License-Identifier: Apache-2.0
//
// Times tile shapes of the portable backward beside each other, to choose those of the plan:
//   backward_sweep [--json FILE] [--rounds N] [--registers ARCH] [DIM:CAUSAL:SEQLEN ...]
// 16k tokens, hidden size 2048, bf16. Each shape is compiled first (several at a time), its
// gradients compared with those of the first shape; then all are timed once in each round: the
// whole backward, and its main kernel alone. --registers only compiles, without a GPU.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/float16.hpp"
#include "cuda/jit/kernel.hpp"
#include "cuda/jit/nvrtc.hpp"
#include "cuda/launch/attention_bwd.hpp"
#include "cuda/launch/attention_fwd.hpp"
#include "cuda/plan/backward_tiling.hpp"
#include "device_timing.hpp"
#include "flashtile/error.hpp"

namespace {

using namespace flashtile;
using bench::allocate;
using bench::median;
using bench::milliseconds;
using bench::wait;

constexpr int64_t kTokens = 16384;
constexpr int64_t kHidden = 2048;
constexpr int64_t kNumElements = kTokens * kHidden;

struct Settings {
  std::string json;
  std::string registers_arch;
  int rounds = 5;
};

struct Point {
  int64_t dim, seqlen;
  bool causal;
};

using Blocks = cuda::BackwardBlocks;

std::string name_of(const Blocks& b) {
  return std::to_string(b.block_m) + "x" + std::to_string(b.block_n) + " warps " +
         std::to_string(b.warps_n) + "x" + std::to_string(b.warps_m) + " dq " +
         std::to_string(b.dq_warps_m) + "/" + std::to_string(b.dq_passes) + " slice " +
         std::to_string(b.slice) + " stages " + std::to_string(b.num_stages) + " ctas " +
         std::to_string(b.min_ctas);
}

std::vector<Blocks> blocks_for(int64_t dim) {
  if (dim <= 64) {
    return {{64, 128, 4, 1, 2, 1, 32, 2, 2},  {64, 128, 4, 1, 4, 1, 32, 2, 2},
            {64, 128, 4, 1, 1, 1, 32, 2, 2},  {64, 128, 4, 1, 2, 1, 16, 2, 2},
            {64, 128, 4, 1, 2, 1, 32, 1, 2},  {128, 128, 4, 1, 2, 1, 32, 1, 2},
            {128, 128, 4, 1, 4, 1, 32, 1, 2}, {64, 256, 8, 1, 2, 1, 32, 2, 1},
            {64, 256, 8, 1, 4, 1, 32, 2, 1},  {128, 256, 8, 1, 4, 1, 32, 1, 1},
            {128, 128, 4, 2, 4, 1, 32, 2, 1}, {128, 128, 4, 2, 4, 1, 64, 2, 1},
            {64, 128, 8, 1, 4, 1, 32, 2, 1},  {64, 64, 2, 1, 2, 1, 32, 2, 4},
            {32, 128, 4, 1, 2, 1, 32, 2, 2},  {64, 128, 4, 2, 4, 1, 32, 2, 1}};
  }
  if (dim <= 128) {
    return {{64, 128, 4, 2, 2, 1, 32, 2, 1},  {64, 128, 4, 2, 4, 1, 32, 2, 1},
            {64, 128, 4, 2, 2, 1, 16, 2, 1},  {64, 128, 4, 2, 2, 1, 32, 1, 1},
            {128, 128, 4, 2, 2, 1, 32, 1, 1}, {128, 128, 4, 2, 4, 1, 32, 1, 1},
            {128, 128, 4, 2, 8, 1, 32, 1, 1}, {64, 64, 2, 2, 2, 1, 32, 1, 2},
            {64, 64, 2, 2, 1, 1, 32, 1, 2},   {64, 128, 8, 1, 2, 1, 32, 2, 1},
            {64, 128, 8, 1, 4, 1, 32, 2, 1},  {64, 128, 8, 1, 4, 1, 64, 2, 1},
            {32, 128, 4, 2, 2, 1, 16, 2, 1},  {64, 64, 4, 1, 4, 1, 32, 1, 2}};
  }
  return {{64, 64, 2, 4, 2, 1, 16, 2, 1},  {64, 64, 2, 4, 4, 1, 16, 2, 1},
          {64, 64, 2, 4, 2, 2, 16, 2, 1},  {64, 64, 2, 4, 2, 1, 16, 1, 1},
          {64, 64, 4, 2, 2, 1, 32, 2, 1},  {64, 64, 4, 2, 4, 1, 32, 2, 1},
          {128, 64, 2, 4, 2, 2, 32, 1, 1}, {128, 64, 2, 4, 4, 2, 32, 1, 1},
          {128, 64, 4, 2, 4, 2, 32, 1, 1}, {64, 64, 4, 2, 4, 1, 16, 2, 1}};
}

struct Candidate {
  Blocks blocks;
  cuda::BackwardPlan plan;
  cuda::BackwardPlan main_only;  ///< without the kernels before and after
  cuda::FunctionAttributes attributes;
  std::string fault;
  double difference[3] = {};
  std::vector<double> times, main_times;
};

class Sweep {
 public:
  explicit Sweep(const Settings& settings) : settings_(settings) {
    context_.device = {DeviceType::kCuda, 0};
    if (!settings_.json.empty()) json_.open(settings_.json);
    if (!settings_.registers_arch.empty()) return;
    std::vector<uint16_t> numbers(static_cast<size_t>(kNumElements));
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    for (int t = 0; t < 4; ++t) {  // q, k, v, dout
      for (uint16_t& number : numbers) number = float_to_bf16(normal(generator));
      tensors_.push_back(allocate(kNumElements * 2, context_));
      const cuda::CurrentContext current(context_);
      current.driver().check(current.api().cuMemcpyHtoDAsync(
                                 reinterpret_cast<cuda::driver::Address>(tensors_.back().get()),
                                 numbers.data(), numbers.size() * 2, nullptr),
                             "copy");
      wait(context_);
    }
    for (int t = 0; t < 4; ++t) {  // out, dq, dk, dv
      tensors_.push_back(allocate(kNumElements * 2, context_));
    }
    lse_ = allocate(kTokens * 64 * 4, context_);
    context_.workspace_bytes = static_cast<size_t>(kNumElements * 4 + (int64_t{64} << 20));
    workspace_ = allocate(static_cast<int64_t>(context_.workspace_bytes), context_);
    context_.workspace = workspace_.get();
  }

  void run(const Point& point) {
    const AttentionArgs args = arguments(point);
    AttentionProblem problem = settings_.registers_arch.empty()
                                   ? make_attention_problem(args, /*is_backward=*/true)
                                   : make_attention_problem_from_shapes(args, /*is_backward=*/true);
    problem.gpu = settings_.registers_arch.empty() ? &gpu_model(problem.device)
                                                   : named_gpu_model(settings_.registers_arch);
    if (problem.gpu == nullptr) throw Error(ErrorCode::kInvalidArgument, "no such architecture");
    std::vector<Candidate> candidates = prepare(problem, point);
    if (!settings_.registers_arch.empty()) return;
    run_forward(args);
    check(problem, args, candidates);
    const double flops = 10.0 * static_cast<double>(kNumElements) *
                         static_cast<double>(point.seqlen) * (point.causal ? 0.5 : 1.0);
    for (int round = 0; round < settings_.rounds; ++round) {
      std::shuffle(candidates.begin(), candidates.end(), shuffle_);
      for (Candidate& candidate : candidates) {
        if (!candidate.fault.empty()) continue;
        candidate.times.push_back(time(problem, candidate.plan, args, flops));
        candidate.main_times.push_back(time(problem, candidate.main_only, args, flops));
      }
    }
    std::erase_if(candidates, [](const Candidate& c) { return !c.fault.empty(); });
    std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
      return median(a.times) < median(b.times);
    });
    for (const Candidate& candidate : candidates) report(point, candidate, flops);
  }

 private:
  double time(const AttentionProblem& problem, const cuda::BackwardPlan& plan,
              const AttentionArgs& args, double flops) {
    const int repeats = std::clamp(static_cast<int>(4e12 / flops), 2, 100);
    return milliseconds(context_, repeats,
                        [&] { cuda::launch_backward_plan(problem, plan, args, context_); });
  }

  AttentionArgs arguments(const Point& point) const {
    AttentionArgs args;
    const std::vector<int64_t> shape = {kTokens / point.seqlen, point.seqlen, kHidden / point.dim,
                                        point.dim};
    TensorView* views[] = {&args.q,   &args.k,  &args.v,  &args.dout,
                           &args.out, &args.dq, &args.dk, &args.dv};
    for (size_t t = 0; t < 8; ++t) {
      *views[t] = TensorView(tensors_.empty() ? nullptr : tensors_[t].get(), DType::kBF16, shape);
      views[t]->device = context_.device;
    }
    args.lse = TensorView(lse_.get(), DType::kF32, {shape[0], shape[2], shape[1]});
    args.lse.device = context_.device;
    args.causal = point.causal;
    return args;
  }

  void run_forward(const AttentionArgs& args) {
    AttentionProblem problem = make_attention_problem(args, /*is_backward=*/false);
    problem.gpu = &gpu_model(problem.device);
    cuda::launch_forward_plan(problem, cuda::make_forward_plan(problem), args, context_);
    wait(context_);
  }

  std::vector<Candidate> prepare(const AttentionProblem& problem, const Point& point) {
    std::vector<Candidate> candidates;
    for (const Blocks& blocks : blocks_for(point.dim)) {
      const cuda::BackwardTiling tiling = cuda::backward_tiling(problem, blocks);
      if (tiling.shape.shared_bytes() > problem.gpu->shared_bytes_per_cta) {
        std::cout << "# " << name_of(blocks) << ": " << tiling.shape.shared_bytes()
                  << " bytes of shared memory\n";
        continue;
      }
      Candidate candidate;
      candidate.blocks = blocks;
      candidate.plan = candidate.main_only = cuda::make_backward_plan(problem, tiling);
      candidate.main_only.is_main_only = true;
      candidates.push_back(candidate);
    }
    std::vector<std::thread> threads;
    const size_t at_once = std::max<size_t>(1, std::thread::hardware_concurrency());
    for (size_t first = 0; first < candidates.size(); first += at_once) {
      threads.clear();
      for (size_t i = first; i < std::min(candidates.size(), first + at_once); ++i) {
        threads.emplace_back([&, i] { compile(problem, candidates[i]); });
      }
      for (std::thread& thread : threads) thread.join();
    }
    return candidates;
  }

  void compile(const AttentionProblem& problem, Candidate& candidate) {
    try {
      const KernelSource source =
          cuda::backward_kernels(problem, candidate.main_only).front().source;
      if (settings_.registers_arch.empty()) {
        candidate.attributes = cuda::get_kernel(source, context_).attributes;
        return;
      }
      const auto compiled = cuda::Nvrtc::get()->compile(cuda::program_of(source));
      std::printf("d=%3ld %3d registers %4ld spilled %6d shared  %s\n", problem.head_dim,
                  compiled.usage.num_registers, static_cast<long>(compiled.usage.spill_store_bytes),
                  candidate.plan.tiling->shape.shared_bytes(), name_of(candidate.blocks).c_str());
    } catch (const Error& error) {
      candidate.fault = error.what();
      std::printf("# %s: %s\n", name_of(candidate.blocks).c_str(),
                  candidate.fault.substr(0, 300).c_str());
    }
  }

  std::vector<uint16_t> result(size_t tensor) const {
    std::vector<uint16_t> values(static_cast<size_t>(kNumElements));
    const cuda::CurrentContext current(context_);
    current.api().cuMemcpyDtoHAsync(values.data(),
                                    reinterpret_cast<cuda::driver::Address>(tensors_[tensor].get()),
                                    values.size() * 2, nullptr);
    wait(context_);
    return values;
  }

  /// Every shape computes the same, up to the order of sums.
  void check(const AttentionProblem& problem, const AttentionArgs& args,
             std::vector<Candidate>& candidates) {
    std::vector<uint16_t> first[3];
    for (Candidate& candidate : candidates) {
      if (!candidate.fault.empty()) continue;
      for (size_t t = 5; t < 8; ++t) {
        cuda::fill_bytes(tensors_[t].get(), 0xff, kNumElements * 2, context_);
      }
      try {
        cuda::launch_backward_plan(problem, candidate.plan, args, context_);
        wait(context_);
      } catch (const Error& error) {
        candidate.fault = error.what();
        std::printf("# %s: %s\n", name_of(candidate.blocks).c_str(),
                    candidate.fault.substr(0, 300).c_str());
        continue;
      }
      for (size_t t = 0; t < 3; ++t) {
        const std::vector<uint16_t> values = result(5 + t);
        if (first[t].empty()) first[t] = values;
        for (size_t i = 0; i < values.size(); ++i) {
          const double d = std::fabs(bf16_to_float(values[i]) - bf16_to_float(first[t][i]));
          if (!(d <= candidate.difference[t])) candidate.difference[t] = d;
        }
      }
    }
  }

  void report(const Point& point, const Candidate& candidate, double flops) {
    const double whole = flops / median(candidate.times) * 1e-9;
    const double main = flops / median(candidate.main_times) * 1e-9;
    const std::string name = name_of(candidate.blocks);
    std::printf(
        "d=%3ld causal=%d s=%6ld %7.1f TFLOP/s (main %7.1f)  %3d regs %3ld local  diff %.4f %.4f "
        "%.4f  %s\n",
        point.dim, point.causal, point.seqlen, whole, main, candidate.attributes.num_registers,
        candidate.attributes.local_bytes, candidate.difference[0], candidate.difference[1],
        candidate.difference[2], name.c_str());
    std::fflush(stdout);
    if (!json_.is_open()) return;
    json_ << "{\"op\": \"bwd\", \"d\": " << point.dim
          << ", \"causal\": " << (point.causal ? "true" : "false")
          << ", \"seqlen\": " << point.seqlen << ", \"tflops\": " << whole
          << ", \"main_tflops\": " << main << ", \"ms\": " << median(candidate.times)
          << ", \"shape\": \"" << name
          << "\", \"registers\": " << candidate.attributes.num_registers
          << ", \"local_bytes\": " << candidate.attributes.local_bytes << "}\n";
  }

  Context context_;
  Settings settings_;
  std::ofstream json_;
  std::mt19937 shuffle_{7};
  std::vector<std::shared_ptr<void>> tensors_;
  std::shared_ptr<void> lse_, workspace_;
};

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  std::vector<Point> points;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word == "--json" && has_value) {
      settings.json = argv[++i];
    } else if (word == "--rounds" && has_value) {
      settings.rounds = std::atoi(argv[++i]);
    } else if (word == "--registers" && has_value) {
      settings.registers_arch = argv[++i];
    } else {
      Point point{};
      int causal = 0;
      if (std::sscanf(argv[i], "%ld:%d:%ld", &point.dim, &causal, &point.seqlen) != 3) return 2;
      point.causal = causal != 0;
      points.push_back(point);
    }
  }
  if (points.empty()) {
    for (const int64_t dim : {64, 128, 256}) {
      if (!settings.registers_arch.empty()) {
        points.push_back({dim, 4096, true});
        continue;
      }
      for (const bool causal : {false, true}) {
        for (const int64_t seqlen : {512, 4096, 16384}) points.push_back({dim, seqlen, causal});
      }
    }
  }
  try {
    Sweep sweep(settings);
    for (const Point& point : points) sweep.run(point);
  } catch (const flashtile::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
