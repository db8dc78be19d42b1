// SPDX-License-Identifier: Apache-2.0
//
// Times tile shapes of the portable forward beside each other, to choose those of the plan:
//   forward_sweep [--json FILE] [--rounds N] [--tokens N] [--hidden N] [POINT ...]
// A point is DIM:CAUSAL:SEQLEN, of 16k tokens and hidden size 2048 in bf16, or
// decode:BATCH:HEADS:HEADS_KV:KEYS with head_dim 128 (the figure is then TB/s of keys and values).
// Each shape is compiled first (several at a time), its result compared with that of the first
// shape; then all are timed once in each round.
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
#include "cuda/launch/attention_fwd.hpp"
#include "device_timing.hpp"
#include "flashtile/error.hpp"

namespace {

using namespace flashtile;
using bench::allocate;
using bench::milliseconds;
using bench::wait;

struct Settings {
  std::string json;
  int rounds = 5;
  int64_t tokens = 16384;
  int64_t hidden = 2048;
};

struct Point {
  int64_t dim, seqlen;
  bool causal;
  int64_t decode_batch = 0;  ///< 0: as many queries as keys
  int64_t heads = 0, heads_kv = 0;
};

struct Shape {
  int block_m, block_n, slice, warps_m, num_stages, min_ctas;
  bool query_in_registers = false;
  bool runs_ahead = false;
  int warps_n = 1;
  bool shares_weights = false;
  int num_splits = 0;  ///< 0: what the plan chooses

  std::string name() const {
    return std::to_string(block_m) + "x" + std::to_string(block_n) + " slice " +
           std::to_string(slice) + " warps " + std::to_string(warps_m) +
           (warps_n > 1 ? "x" + std::to_string(warps_n) : "") + " stages " +
           std::to_string(num_stages) + " ctas " + std::to_string(min_ctas) +
           (query_in_registers ? " q-regs" : "") + (runs_ahead ? " ahead" : "") +
           (shares_weights ? " shares" : "") +
           (num_splits > 0 ? " splits " + std::to_string(num_splits) : "");
  }
};

/// The planned shape first.
std::vector<Shape> decode_shapes(int64_t splits) {
  const auto with = [](Shape shape, int64_t num_splits) {
    shape.warps_n = 4;
    shape.num_splits = static_cast<int>(std::clamp<int64_t>(num_splits, 1, 128));
    return shape;
  };
  std::vector<Shape> shapes = {with({16, 64, 16, 1, 2, 1}, splits)};
  shapes.push_back(with({16, 64, 16, 1, 2, 1}, splits + 1));
  for (const int64_t count : {splits / 2, splits, splits * 2}) {
    if (count == 0) continue;
    shapes.push_back(with({16, 64, 16, 1, 3, 1}, count));
    shapes.push_back(with({16, 64, 16, 1, 4, 1}, count));
    shapes.push_back(with({16, 128, 32, 1, 2, 1}, count));
    shapes.push_back(with({16, 64, 16, 1, 2, 3, true}, count));
  }
  shapes.push_back({16, 32, 16, 1, 4, 4, false, false, 2});
  return shapes;
}

std::vector<Shape> shapes_for(int64_t dim) {
  if (dim <= 64) {
    return {
        {128, 64, 64, 4, 2, 2},        {128, 64, 64, 4, 2, 3},        {128, 64, 64, 4, 1, 3},
        {128, 128, 64, 4, 2, 2, true}, {128, 128, 64, 4, 1, 2, true}, {128, 128, 64, 4, 1, 2},
        {64, 64, 64, 2, 1, 5},         {64, 64, 64, 2, 2, 5},         {64, 64, 64, 2, 1, 6},
        {64, 128, 64, 2, 1, 4, true},  {64, 128, 64, 2, 1, 4},        {64, 64, 64, 4, 2, 4, true},
        {64, 64, 32, 2, 1, 6},         {64, 64, 64, 2, 1, 4, true}};
  }
  if (dim <= 128) {
    return {{64, 64, 64, 2, 1, 4},
            {128, 64, 64, 4, 2, 2},
            {128, 64, 64, 4, 1, 2},
            {64, 32, 32, 2, 2, 4},
            {128, 128, 64, 4, 1, 2},
            {64, 64, 32, 2, 1, 4},
            {64, 64, 32, 2, 1, 3, false, false, 2, true}};
  }
  return {{64, 64, 64, 4, 1, 2},
          {64, 64, 32, 2, 1, 2, false, false, 2, true},
          {64, 32, 16, 2, 2, 2, false, false, 2, true},
          {128, 64, 32, 4, 1, 1, false, false, 2, true},
          {128, 64, 32, 4, 2, 1, false, false, 2, true}};
}

struct Candidate {
  Shape shape;
  AttentionPlan plan;
  const cuda::Function* function = nullptr;
  std::string fault;
  double difference = 0;
  std::vector<double> times;

  double median() const { return bench::median(times); }
};

class Sweep {
 public:
  explicit Sweep(const Settings& settings) : settings_(settings) {
    context_.device = {DeviceType::kCuda, 0};
    if (!settings_.json.empty()) json_.open(settings_.json);
    const int64_t bytes = settings_.tokens * settings_.hidden * 2;
    memory_elements_ = std::max(settings_.tokens * settings_.hidden, kCacheElements);
    const int64_t copies = (memory_elements_ * 2 + bytes - 1) / bytes;
    std::vector<uint16_t> numbers(static_cast<size_t>(settings_.tokens * settings_.hidden));
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    for (int t = 0; t < 3; ++t) {
      for (uint16_t& number : numbers) number = float_to_bf16(normal(generator));
      inputs_.push_back(allocate(copies * bytes, context_));
      const cuda::CurrentContext current(context_);
      for (int64_t copy = 0; copy < copies; ++copy) {
        char* target = static_cast<char*>(inputs_.back().get()) + copy * bytes;
        current.driver().check(
            current.api().cuMemcpyHtoDAsync(reinterpret_cast<cuda::driver::Address>(target),
                                            numbers.data(), static_cast<size_t>(bytes), nullptr),
            "copy");
      }
      wait(context_);
    }
    out_ = allocate(bytes, context_);
    lse_ = allocate(settings_.tokens * 64 * 4, context_);
    workspace_ = allocate(kWorkspaceBytes, context_);
    context_.workspace = workspace_.get();
    context_.workspace_bytes = kWorkspaceBytes;
  }

  void run(const Point& point) {
    if (point.decode_batch * point.heads_kv * point.seqlen * point.dim > memory_elements_) {
      throw Error(ErrorCode::kInvalidArgument,
                  "a decode is larger than the memory of this program");
    }
    // Decodes find none of their keys in the L2 cache: they take turns over the memory.
    std::vector<AttentionArgs> turns;
    for (int64_t turn = 0; turn < num_turns(point); ++turn) turns.push_back(arguments(point, turn));
    const AttentionArgs& args = turns.front();
    AttentionProblem problem = make_attention_problem(args, /*is_backward=*/false);
    problem.gpu = &gpu_model(problem.device);
    std::vector<Candidate> candidates = prepare(problem, point);
    check(problem, args, candidates);
    const double work = work_of(point);
    for (int round = 0; round < settings_.rounds; ++round) {
      std::shuffle(candidates.begin(), candidates.end(), shuffle_);
      for (Candidate& candidate : candidates) {
        if (!candidate.fault.empty()) continue;
        size_t turn = 0;
        const auto launch = [&] {
          cuda::launch_attention_fwd(problem, candidate.plan, turns[turn++ % turns.size()],
                                     context_);
        };
        if (round == 0) launch();
        candidate.times.push_back(milliseconds(context_, repeats(work), launch));
      }
    }
    std::erase_if(candidates, [](const Candidate& c) { return !c.fault.empty(); });
    std::sort(candidates.begin(), candidates.end(),
              [](Candidate& a, Candidate& b) { return a.median() < b.median(); });
    for (Candidate& candidate : candidates) report(point, candidate, work);
  }

 private:
  static constexpr int64_t kWorkspaceBytes = int64_t{1} << 28;
  /// Of keys, and of values: the largest decode that is timed.
  static constexpr int64_t kCacheElements = int64_t{1} << 26;

  static int repeats(double work) {
    return work < 1e7 ? 1 : std::clamp(static_cast<int>(8e12 / work), 2, 200);
  }

  /// Operations, or bytes of a decode.
  double work_of(const Point& point) const {
    if (point.decode_batch > 0) {
      return 4.0 *
             static_cast<double>(point.decode_batch * point.heads_kv * point.seqlen * point.dim);
    }
    return 4.0 * static_cast<double>(settings_.tokens) * static_cast<double>(point.seqlen) *
           static_cast<double>(settings_.hidden) * (point.causal ? 0.5 : 1.0);
  }

  int64_t num_turns(const Point& point) const {
    if (point.decode_batch == 0) return 1;
    const int64_t elements = point.decode_batch * point.heads_kv * point.seqlen * point.dim;
    return std::clamp<int64_t>(memory_elements_ / elements, 1, 64);
  }

  AttentionArgs arguments(const Point& point, int64_t turn) const {
    AttentionArgs args;
    const bool is_decode = point.decode_batch > 0;
    const int64_t batch = is_decode ? point.decode_batch : settings_.tokens / point.seqlen;
    const int64_t heads = is_decode ? point.heads : settings_.hidden / point.dim;
    const std::vector<int64_t> shape = {batch, is_decode ? 1 : point.seqlen, heads, point.dim};
    const std::vector<int64_t> cache = {batch, point.seqlen, is_decode ? point.heads_kv : heads,
                                        point.dim};
    const auto view = [&](const std::shared_ptr<void>& memory, const std::vector<int64_t>& sizes) {
      TensorView tensor(memory.get(), DType::kBF16, sizes);
      tensor.device = context_.device;
      return tensor;
    };
    args.q = view(inputs_[0], shape);
    args.k = view(inputs_[1], cache);
    args.v = view(inputs_[2], cache);
    const int64_t skipped = turn * args.k.numel() * 2;
    args.k.data = static_cast<char*>(args.k.data) + skipped;
    args.v.data = static_cast<char*>(args.v.data) + skipped;
    args.out = view(out_, shape);
    args.lse = TensorView(lse_.get(), DType::kF32, {shape[0], shape[2], shape[1]});
    args.lse.device = context_.device;
    args.causal = point.causal;
    return args;
  }

  std::vector<Candidate> prepare(const AttentionProblem& problem, const Point& point) {
    std::vector<Candidate> candidates;
    const int64_t planned = cuda::make_forward_plan(problem).num_splits;
    for (const Shape& shape :
         point.decode_batch > 0 ? decode_shapes(planned) : shapes_for(point.dim)) {
      cuda::ForwardTiling tiling;
      const auto dim = static_cast<int>(point.dim);
      tiling.shape = {2,
                      dim,
                      dim,
                      shape.block_m,
                      shape.block_n,
                      shape.warps_m,
                      shape.warps_n,
                      shape.num_stages,
                      0,
                      shape.shares_weights};
      tiling.num_splits = shape.num_splits;
      tiling.slice = shape.slice;
      tiling.min_ctas = shape.min_ctas;
      tiling.query_in_registers = shape.query_in_registers;
      tiling.runs_ahead = shape.runs_ahead;
      if (tiling.shape.shared_bytes() > problem.gpu->shared_bytes_per_cta) continue;
      candidates.push_back({shape, cuda::plan_attention_fwd(problem, tiling), nullptr, "", 0, {}});
    }
    std::vector<std::thread> threads;
    for (Candidate& candidate : candidates) {
      threads.emplace_back([&] {
        try {
          load_kernels(candidate.plan.kernels, context_);
          candidate.function = &cuda::get_kernel(candidate.plan.kernels.front().source, context_);
        } catch (const Error& error) {
          candidate.fault = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return candidates;
  }

  std::vector<uint16_t> result(int64_t count) const {
    std::vector<uint16_t> values(static_cast<size_t>(count));
    const cuda::CurrentContext current(context_);
    current.api().cuMemcpyDtoHAsync(values.data(),
                                    reinterpret_cast<cuda::driver::Address>(out_.get()),
                                    values.size() * 2, nullptr);
    wait(context_);
    return values;
  }

  /// Every shape computes the same.
  void check(const AttentionProblem& problem, const AttentionArgs& args,
             std::vector<Candidate>& candidates) {
    std::vector<uint16_t> first;
    // Odd, so that all columns are looked at.
    const size_t step = settings_.tokens * settings_.hidden > 1 << 22 ? 7 : 1;
    for (Candidate& candidate : candidates) {
      if (!candidate.fault.empty()) {
        std::cout << "# " << candidate.shape.name() << ": " << candidate.fault.substr(0, 400)
                  << '\n';
        continue;
      }
      cuda::fill_bytes(out_.get(), 0xff, settings_.tokens * settings_.hidden * 2, context_);
      try {
        cuda::launch_attention_fwd(problem, candidate.plan, args, context_);
        wait(context_);
      } catch (const Error& error) {
        candidate.fault = error.what();
        std::cout << "# " << candidate.shape.name() << ": " << candidate.fault << '\n';
        continue;
      }
      const std::vector<uint16_t> values = result(args.out.numel());
      if (first.empty()) first = values;
      for (size_t i = 0; i < values.size(); i += step) {
        const double d = std::fabs(bf16_to_float(values[i]) - bf16_to_float(first[i]));
        if (!(d <= candidate.difference)) candidate.difference = d;
      }
    }
  }

  void report(const Point& point, Candidate& candidate, double work) {
    const double tflops = work / candidate.median() * 1e-9;
    const auto& attributes = candidate.function->attributes;
    std::printf("d=%ld %s=%ld s=%ld %7.2f T/s  %3d regs %3ld local  diff %.4f  %s\n", point.dim,
                point.decode_batch > 0 ? "decode" : "causal",
                point.decode_batch > 0 ? point.decode_batch : int64_t{point.causal}, point.seqlen,
                tflops, attributes.num_registers, attributes.local_bytes, candidate.difference,
                candidate.shape.name().c_str());
    std::fflush(stdout);
    if (!json_.is_open()) return;
    json_ << "{\"decode_batch\": " << point.decode_batch << ", \"heads_kv\": " << point.heads_kv
          << ", \"d\": " << point.dim << ", \"causal\": " << (point.causal ? "true" : "false")
          << ", \"seqlen\": " << point.seqlen << ", \"tflops\": " << tflops
          << ", \"ms\": " << candidate.median() << ", \"shape\": \"" << candidate.shape.name()
          << "\", \"registers\": " << attributes.num_registers
          << ", \"local_bytes\": " << attributes.local_bytes << "}\n";
  }

  Context context_;
  Settings settings_;
  std::ofstream json_;
  int64_t memory_elements_ = 0;
  std::mt19937 shuffle_{7};
  std::vector<std::shared_ptr<void>> inputs_;
  std::shared_ptr<void> out_, lse_, workspace_;
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
    } else if (word == "--tokens" && has_value) {
      settings.tokens = std::atoll(argv[++i]);
    } else if (word == "--hidden" && has_value) {
      settings.hidden = std::atoll(argv[++i]);
    } else {
      Point point{};
      int causal = 0;
      if (std::sscanf(argv[i], "decode:%ld:%ld:%ld:%ld", &point.decode_batch, &point.heads,
                      &point.heads_kv, &point.seqlen) == 4) {
        point.dim = 128;
      } else if (std::sscanf(argv[i], "%ld:%d:%ld", &point.dim, &causal, &point.seqlen) != 3) {
        return 2;
      }
      point.causal = causal != 0;
      points.push_back(point);
    }
  }
  if (points.empty()) {
    for (const bool causal : {false, true}) {
      for (const int64_t seqlen : {512, 1024, 2048}) points.push_back({64, seqlen, causal});
      for (const int64_t seqlen : {512, 2048}) points.push_back({128, seqlen, causal});
      for (const int64_t seqlen : {512, 2048}) points.push_back({256, seqlen, causal});
    }
    for (const int64_t dim : {64, 128, 256}) points.push_back({dim, 16384, false});
    // Caches of 4 to 268 MB.
    for (const Point& decode :
         {Point{128, 1024, false, 1, 32, 8}, Point{128, 4096, false, 1, 8, 8},
          Point{128, 1024, false, 16, 32, 8}, Point{128, 16384, false, 1, 32, 8},
          Point{128, 8192, false, 1, 64, 64}, Point{128, 16384, false, 4, 32, 8},
          Point{128, 8192, false, 16, 16, 4}}) {
      points.push_back(decode);
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
