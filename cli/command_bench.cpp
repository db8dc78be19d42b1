// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench_run.hpp"
#include "commands.hpp"
#include "core/executor.hpp"
#include "cpu/cpu_info.hpp"
#include "cpu/peak.hpp"
#include "default_problems.hpp"
#include "flashtile/error.hpp"
#include "flashtile/version.hpp"
#include "terminal.hpp"

namespace flashtile::cli {
namespace {

struct BenchOptions {
  std::vector<std::string> problems;
  std::string implementation;
  std::string pass;
  int threads = 0;
  double seconds = 1;
  bool is_json = false;
  bool without_plain = false;
};

BenchPass pass_of(const BenchOptions& options, const ProblemText& problem) {
  for (const BenchPass pass : {BenchPass::kForward, BenchPass::kBackward, BenchPass::kBoth}) {
    if (options.pass == pass_name(pass)) return pass;
  }
  if (forward_of(*problem.spec) != nullptr) return BenchPass::kBackward;
  return backward_of(*problem.spec) != nullptr ? BenchPass::kForward : BenchPass::kOther;
}

double gflops(const BenchResult& result) {
  return result.operations.value_or(0) / result.times.median / 1e6;
}

double gbytes_per_second(const BenchResult& result) {
  return result.bytes / result.times.median / 1e6;
}

void print_json(const BenchResult& result, const cpu::Peak& peak, int num_threads) {
  nlohmann::ordered_json line;
  line["problem"] = result.problem;
  line["impl"] = result.implementation;
  line["op"] = result.pass;
  line["threads"] = num_threads;
  if (!result.fault.empty()) {
    line["error"] = result.fault;
  } else {
    line["ms"] = result.times.median;
    line["ms_min"] = result.times.min;
    line["ms_max"] = result.times.max;
    line["samples"] = result.times.num_samples;
    if (result.operations) {
      line["gflops"] = gflops(result);
    } else {
      line["gflops"] = nullptr;
    }
    line["peak_gflops"] = cpu::peak_gflops(peak, result.dtype);
    line["gbytes_per_s"] = gbytes_per_second(result);
    if (result.plain_milliseconds) {
      line["plain_ms"] = *result.plain_milliseconds;
    } else {
      line["plain_ms"] = nullptr;
    }
    line["max_err"] = result.max_error;
  }
  line["cpu"] = cpu::cpu_info().model_name;
  line["version"] = FLASHTILE_VERSION_STRING;
  std::cout << line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
}

void add_row(Table& table, const BenchResult& result, const cpu::Peak& peak) {
  const double rate = gflops(result);
  const double plain = result.plain_milliseconds.value_or(0);
  table.add(
      {result.problem, result.implementation, result.pass, number_text(result.times.median),
       number_text(result.times.min) + " .. " + number_text(result.times.max),
       result.operations ? number_text(rate / 1000) : "-",
       result.operations ? number_text(100 * rate / cpu::peak_gflops(peak, result.dtype)) + "%"
                         : "-",
       number_text(gbytes_per_second(result)), result.plain_milliseconds ? number_text(plain) : "-",
       result.plain_milliseconds ? number_text(plain / result.times.median) + "x" : "-",
       number_text(result.max_error)});
}

/// The implementations to time of a problem: the chosen one (an empty name), one, or all.
std::vector<std::string> implementations_of(const BenchOptions& options,
                                            const ProblemText& problem) {
  if (options.implementation == "all") {
    std::vector<std::string> names = problem.spec->implementations();
    names.pop_back();  // the reference is not made to be fast
    return names;
  }
  if (!options.implementation.empty()) return {options.implementation};
  return {problem.implementation};
}

int bench(const BenchOptions& options) {
  std::vector<ProblemText> problems;
  for (const std::string& text : options.problems) problems.push_back(parse_problem(text));
  if (problems.empty()) problems = default_bench_problems();
  Context context;
  context.max_workers = options.threads;
  const int num_threads = num_workers_of(context);
  const cpu::Peak peak = cpu::measure_peak(context);
  Table table({"problem", "implementation", "op", "ms", "min .. max", "TFLOP/s", "of peak", "GB/s",
               "plain ms", "faster", "max error"});
  bool has_failed = false;
  Progress progress;
  for (size_t i = 0; i < problems.size(); ++i) {
    for (const std::string& implementation : implementations_of(options, problems[i])) {
      progress.show(i, problems.size(), format_problem(problems[i]));
      BenchResult result = bench_problem(problems[i], pass_of(options, problems[i]), implementation,
                                         {options.seconds, !options.without_plain}, context);
      progress.clear();
      // The text as it was given, so that whoever gave it finds it again.
      if (!options.problems.empty()) result.problem = options.problems[i];
      has_failed = has_failed || !result.fault.empty();
      if (options.is_json) {
        print_json(result, peak, num_threads);
      } else if (!result.fault.empty()) {
        std::cout << "no figure for " << result.problem << "  " << result.implementation << "  "
                  << result.fault << '\n';
      } else {
        add_row(table, result, peak);
      }
    }
  }
  if (!options.is_json && !table.empty()) {
    table.print(std::cout);
    std::cout << num_threads << " threads; peak f32 " << number_text(peak.f32_gflops) << " GFLOP/s";
    if (peak.bf16_dot_gflops > 0) {
      std::cout << ", bf16 dot " << number_text(peak.bf16_dot_gflops) << " GFLOP/s";
    }
    std::cout << '\n';
  }
  return has_failed ? 1 : 0;
}

}  // namespace

void add_bench_command(CLI::App& app, int* exit_code) {
  const auto options = std::make_shared<BenchOptions>();
  CLI::App* command = app.add_subcommand(
      "bench", "Checks, then times problems, with a plain implementation in the same run");
  command->add_option("problem", options->problems,
                      "Problem texts, such as attention_fwd:hq8:sq1024:d64:causal:bf16");
  command->add_option("--pass", options->pass, "What to time: fwd, bwd or fwd+bwd; default: the op")
      ->check(CLI::IsMember({"fwd", "bwd", "fwd+bwd"}));
  command->add_option("--impl", options->implementation,
                      "This implementation, or all; default: the one that would be chosen");
  command->add_option("--threads", options->threads, "Threads to use; 0: all")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--seconds", options->seconds, "Time to spend on an implementation, about")
      ->check(CLI::PositiveNumber);
  command->add_flag("--no-plain", options->without_plain, "Leave the plain implementation out");
  command->add_flag("--json", options->is_json, "A JSON object a line");
  command->callback([options, exit_code] { *exit_code = bench(*options); });
}

}  // namespace flashtile::cli
