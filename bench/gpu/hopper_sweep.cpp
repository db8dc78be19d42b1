// SPDX-License-Identifier: Apache-2.0
//
// Checks and times shapes of the Hopper forward (hopper_variants.hpp) beside each other:
//   hopper_sweep [--json FILE] [--commit ID] [--rounds N] [--dims 64,128,256]
//     [--seqlens 512,2048,16384] [--masks full,causal] [--shapes WORD,WORD...]
//     [--check-only] [--time-only] [--compile-only] [--small]
// First all kernels are compiled, several at a time; --compile-only needs no GPU. Then each shape
// is checked (--small: on few and small problems) in a process of its own, against attention in
// float64 and the portable kernel: a shape that hangs, or fails, is left out. The others are timed
// (16k tokens, hidden size 2048, bf16) in rounds in which each is timed once. --shapes takes those
// whose names hold one of the words. --json writes a line for the machine and one for each shape of
// each problem; "planned" are those that the library takes.
#include <signal.h>
#include <sys/wait.h>

#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>

#include "cuda/jit/kernel.hpp"
#include "cuda/jit/kernel_store.hpp"
#include "cuda/jit/program.hpp"
#include "cuda/launch/attention_fwd_sm90.hpp"
#include "flashtile/error.hpp"
#include "hopper_call.hpp"
#include "hopper_variants.hpp"

namespace {

using namespace flashtile;
using namespace flashtile::bench;

constexpr int64_t kTokens = 16384;
constexpr int64_t kHidden = 2048;
constexpr int kCheckSeconds = 40;
constexpr int kTimeSeconds = 300;
constexpr int kLaunchSeconds = 20;
constexpr int kSlowFactor = 30;  ///< of --small, which is meant for slow devices

struct Settings {
  std::string json, commit, shapes;
  std::string dims = "64,128,256", seqlens = "512,2048,16384", masks = "full,causal";
  std::string rounds = "5";
  bool check_only = false, time_only = false, compile_only = false, is_small = false;
};

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

// ---------------------------------------------------------------------------------------- check

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
  CallDevice device;
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
  bool is_planned = false;
  DType dtype = DType::kBF16;
  std::vector<double> times = {};

  double median() const { return bench::median(times); }
};

/// True when two plans run the same kernel on the same tiles in the same order.
bool are_alike(const cuda::Sm90ForwardPlan& a, const KernelChoice& of_a,
               const cuda::Sm90ForwardPlan& b, const KernelChoice& of_b) {
  return of_a.source == of_b.source && a.section_pairs == b.section_pairs &&
         a.last_section == b.last_section;
}

/// The candidates of a problem: the portable kernel, the variants, and what the library plans where
/// that is none of them.
std::vector<Candidate> candidates_of(const Call& call, const Call& half,
                                     const std::vector<Variant>& variants, const Context& context) {
  std::vector<Candidate> candidates;
  Context portable = context;
  portable.implementation = "attention_fwd_portable";
  candidates.push_back({"portable", [&call, portable] {
                          attention_fwd(call.args().q, call.args().k, call.args().v,
                                        call.args().out, call.args().lse, call.args(), portable);
                        }});
  const auto add = [&](const std::string& name, const Call& of, const cuda::Sm90ForwardPlan& plan) {
    const AttentionProblem problem = of.made_problem();
    const auto kernels = cuda::sm90_kernels(problem, plan);
    const cuda::Sm90ForwardPlan chosen =
        cuda::make_sm90_plan(problem, cuda::choose_sm90_tiling(problem));
    const bool is_planned =
        are_alike(plan, kernels.back(), chosen, cuda::sm90_kernels(problem, chosen).back());
    cuda::get_kernel(kernels.front().source, context);
    candidates.push_back({name,
                          [&of, problem, plan, kernels, &context] {
                            cuda::launch_sm90_plan(problem, plan, kernels, of.args(), context);
                          },
                          is_planned, problem.dtype});
  };
  for (const Variant& variant : variants) {
    const Call& of = variant.dtype == DType::kF16 ? half : call;
    try {
      add(variant.name, of, plan_of(of.made_problem(), variant));
    } catch (const Error& error) {
      std::printf("# %s: %s\n", variant.name.c_str(), error.what());
    }
  }
  for (const Call* of : {&call, &half}) {
    const DType dtype = of->made_problem().dtype;
    bool is_asked_for = false, has_planned = false;
    for (const Candidate& candidate : candidates) {
      if (candidate.name == "portable" || candidate.dtype != dtype) continue;
      is_asked_for = true;
      has_planned = has_planned || candidate.is_planned;
    }
    if (!is_asked_for || has_planned) continue;
    add(dtype == DType::kF16 ? "plan f16" : "plan", *of,
        cuda::make_sm90_plan(of->made_problem(), cuda::choose_sm90_tiling(of->made_problem())));
  }
  return candidates;
}

void time_point(int64_t dim, int64_t seqlen, bool causal, const std::vector<Variant>& variants,
                int rounds, const std::string& json, const Context& context, Watchdog& watchdog) {
  const Problem problem = {kTokens / seqlen, kHidden / dim, kHidden / dim, seqlen, seqlen, causal};
  const Call call(problem, dim, DType::kBF16, context);
  const Call half(problem, dim, DType::kF16, context);
  std::vector<Candidate> candidates = candidates_of(call, half, variants, context);
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
            [](const Candidate& a, const Candidate& b) { return a.median() < b.median(); });
  std::ofstream file;
  if (!json.empty()) file.open(json, std::ios::app);
  for (Candidate& candidate : candidates) {
    const auto [least, most] = std::minmax_element(candidate.times.begin(), candidate.times.end());
    const double tflops = work / candidate.median() * 1e-9;
    std::printf("d=%ld causal=%d s=%ld %7.1f TFLOP/s (%.1f to %.1f) %8.4f ms  %s%s\n", dim, causal,
                seqlen, tflops, work / *most * 1e-9, work / *least * 1e-9, candidate.median(),
                candidate.name.c_str(), candidate.is_planned ? "  [planned]" : "");
    if (file.is_open()) {
      file << "{\"head_dim\": " << dim << ", \"causal\": " << (causal ? "true" : "false")
           << ", \"seqlen\": " << seqlen << ", \"dtype\": \"" << dtype_name(candidate.dtype)
           << "\", \"shape\": \"" << candidate.name << "\", \"ms\": " << candidate.median()
           << ", \"tflops\": " << std::round(tflops * 10) / 10
           << ", \"planned\": " << (candidate.is_planned ? "true" : "false") << "}\n";
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

/// In a process of its own.
int time_all(int64_t dim, const std::string& index_text, const Settings& settings) {
  std::vector<Variant> variants;
  for (const int64_t index : numbers(index_text)) {
    variants.push_back(variants_of(dim)[static_cast<size_t>(index)]);
  }
  for (const bool causal : {false, true}) {
    if (settings.masks.find(causal ? "causal" : "full") == std::string::npos) continue;
    for (const int64_t seqlen : numbers(settings.seqlens)) {
      CallDevice device;
      Watchdog watchdog(kLaunchSeconds);
      time_point(dim, seqlen, causal, variants, std::stoi(settings.rounds), settings.json,
                 device.context, watchdog);
    }
  }
  return 0;
}

/// The line for the machine.
void write_machine(const Settings& settings) {
  std::string values;
  if (FILE* tool = ::popen("nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm "
                           "--format=csv,noheader,nounits -i 0",
                           "r")) {
    char line[256] = {};
    if (std::fgets(line, sizeof line, tool) != nullptr) values = line;
    ::pclose(tool);
  }
  std::istringstream words(values);
  std::vector<std::string> parts(4);
  for (std::string& part : parts) {
    std::getline(words >> std::ws, part, ',');
    while (!part.empty() && std::isspace(static_cast<unsigned char>(part.back()))) part.pop_back();
  }
  const auto number = [](const std::string& part) { return part.empty() ? "null" : part; };
  std::ofstream(settings.json) << "{\"tokens\": " << kTokens << ", \"hidden\": " << kHidden
                               << ", \"device\": \"" << parts[0] << "\", \"driver\": \"" << parts[1]
                               << "\", \"sm_mhz\": " << number(parts[2])
                               << ", \"max_sm_mhz\": " << number(parts[3]) << ", \"commit\": \""
                               << settings.commit << "\"}\n";
}

// -------------------------------------------------------------------------------------- compile

/// One of the words of --shapes is in the name.
bool is_wanted(const Variant& variant, const Settings& settings) {
  if (settings.shapes.empty()) return true;
  std::istringstream words(settings.shapes);
  for (std::string word; std::getline(words, word, ',');) {
    if (variant.name.find(word) != std::string::npos) return true;
  }
  return false;
}

/// Compiles all kernels into the cache and prints what they take.
int compile(const Settings& settings) {
  struct Job {
    std::string name;
    KernelChoice kernel;
    std::string text;
  };
  std::vector<Job> jobs;
  const GpuModel& gpu = *named_gpu_model("sm_90a");
  for (const int64_t dim : numbers(settings.dims)) {
    for (const Variant& variant : variants_of(dim)) {
      if (!is_wanted(variant, settings)) continue;
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

/// What the words of the command line say; empty where one is unknown.
std::optional<Settings> parse(const std::vector<std::string>& words) {
  Settings settings;
  const std::map<std::string, std::string*> texts = {
      {"--json", &settings.json},       {"--commit", &settings.commit},
      {"--shapes", &settings.shapes},   {"--dims", &settings.dims},
      {"--seqlens", &settings.seqlens}, {"--masks", &settings.masks},
      {"--rounds", &settings.rounds}};
  const std::map<std::string, bool*> flags = {{"--check-only", &settings.check_only},
                                              {"--time-only", &settings.time_only},
                                              {"--compile-only", &settings.compile_only},
                                              {"--small", &settings.is_small}};
  for (size_t i = 0; i < words.size(); ++i) {
    if (const auto flag = flags.find(words[i]); flag != flags.end()) {
      *flag->second = true;
    } else if (const auto text = texts.find(words[i]);
               text != texts.end() && i + 1 < words.size()) {
      *text->second = words[++i];
    } else {
      std::cerr << "hopper_sweep: what is '" << words[i] << "'?\n";
      return {};
    }
  }
  return settings;
}

/// Checks and times the shapes of a head dim; false where one is wrong.
bool sweep(int64_t dim, const Settings& settings, const std::vector<std::string>& words) {
  const auto run_part = [&](std::vector<std::string> arguments, int seconds) {
    arguments.insert(arguments.begin(), "hopper_sweep");
    arguments.insert(arguments.end(), words.begin(), words.end());
    return run_child(arguments, seconds);
  };
  const std::vector<Variant> variants = variants_of(dim);
  bool is_good = true;
  std::string good;
  for (size_t n = 0; n < variants.size(); ++n) {
    if (!is_wanted(variants[n], settings)) continue;
    if (!settings.time_only) {
      const int status = run_part({"check-child", std::to_string(dim), std::to_string(n)},
                                  kCheckSeconds * (settings.is_small ? kSlowFactor : 1));
      std::printf("%s d=%ld %s (%d)\n", status == 0 ? "GOOD" : "FAIL", dim,
                  variants[n].name.c_str(), status);
      is_good = is_good && status == 0;
      if (status != 0) continue;
    }
    good += (good.empty() ? "" : ",") + std::to_string(n);
  }
  if (settings.check_only || good.empty()) return is_good;
  const int status = run_part({"time-child", std::to_string(dim), good}, kTimeSeconds);
  if (status != 0) std::printf("# timing of d=%ld ended with %d\n", dim, status);
  return is_good;
}

/// A part of the sweep, in a process of its own.
int run_as_child(const std::vector<std::string>& words, const Settings& settings) {
  if (words[0] == "compile-child") return compile(settings);
  const int64_t dim = std::stoll(words[1]);
  if (words[0] == "time-child") return time_all(dim, words[2], settings);
  return check(dim, static_cast<size_t>(std::stoll(words[2])), settings.is_small);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  std::vector<std::string> child;
  if (!words.empty() && words[0].ends_with("-child")) {
    child.assign(words.begin(), words.begin() + 3);
    words.erase(words.begin(), words.begin() + 3);
  }
  const std::optional<Settings> settings = parse(words);
  if (!settings) return 2;
  try {
    if (!child.empty()) return run_as_child(child, *settings);
    std::vector<std::string> compile = {"hopper_sweep", "compile-child", "", ""};
    compile.insert(compile.end(), words.begin(), words.end());
    run_child(compile, kTimeSeconds);
    if (settings->compile_only) return 0;
    if (!settings->json.empty()) write_machine(*settings);
    bool is_good = true;
    for (const int64_t dim : numbers(settings->dims)) {
      is_good = sweep(dim, *settings, words) && is_good;
    }
    return is_good ? 0 : 1;
  } catch (const std::exception& error) {
    std::printf("# %s\n", error.what());
    return 1;
  }
}
