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
  bool with_roofline = false;
};

/// What the machine does at best, measured before the problems.
struct Roofline {
  cpu::Peak peak;
  double read_gbytes_per_s = 0;  ///< 0: not asked for
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

void print_json(const BenchResult& result, const Roofline& roofline, int num_threads) {
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
    line["peak_gflops"] = cpu::peak_gflops(roofline.peak, result.dtype);
    line["gbytes_per_s"] = gbytes_per_second(result);
    if (roofline.read_gbytes_per_s > 0) {
      line["read_gbytes_per_s"] = roofline.read_gbytes_per_s;
    }
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

std::string percent_text(double share) { return number_text(100 * share) + "%"; }

void add_row(Table& table, const BenchResult& result, const Roofline& roofline) {
  const double rate = gflops(result);
  const double plain = result.plain_milliseconds.value_or(0);
  const double peak = cpu::peak_gflops(roofline.peak, result.dtype);
  const double bandwidth = gbytes_per_second(result);
  std::vector<std::string> row = {
      result.problem,
      result.implementation,
      result.pass,
      number_text(result.times.median),
      number_text(result.times.min) + " .. " + number_text(result.times.max),
      result.operations ? number_text(rate / 1000) : "-",
      result.operations ? percent_text(rate / peak) : "-",
      number_text(bandwidth),
      result.plain_milliseconds ? number_text(plain) : "-",
      result.plain_milliseconds ? number_text(plain / result.times.median) + "x" : "-",
      number_text(result.max_error)};
  if (roofline.read_gbytes_per_s > 0) {
    row.insert(row.begin() + 8, percent_text(bandwidth / roofline.read_gbytes_per_s));
  }
  table.add(std::move(row));
}

std::vector<std::string> headings(bool with_roofline) {
  std::vector<std::string> names = {"problem",    "implementation", "op",       "ms",
                                    "min .. max", "TFLOP/s",        "of peak",  "GB/s",
                                    "plain ms",   "faster",         "max error"};
  if (with_roofline) names.insert(names.begin() + 8, "of bandwidth");
  return names;
}

void print_roofline(const Roofline& roofline, int num_threads) {
  std::cout << num_threads << " threads; peak f32 " << number_text(roofline.peak.f32_gflops)
            << " GFLOP/s";
  if (roofline.peak.bf16_dot_gflops > 0) {
    std::cout << ", bf16 dot " << number_text(roofline.peak.bf16_dot_gflops) << " GFLOP/s";
  }
  if (roofline.read_gbytes_per_s > 0) {
    std::cout << "; reads " << number_text(roofline.read_gbytes_per_s) << " GB/s";
  }
  std::cout << '\n';
}

/// The implementations to time of a problem: the chosen one (an empty name), one, or all.
std::vector<std::string> implementations_of(const BenchOptions& options,
                                            const ProblemText& problem) {
  if (options.implementation == "all" && problem.implementation.empty()) {
    std::vector<std::string> names = problem.spec->implementations();
    names.pop_back();  // the reference is not made to be fast
    return names;
  }
  return {asked_implementation(problem, options.implementation, DeviceType::kCpu)};
}

int bench(const BenchOptions& options) {
  std::vector<ProblemText> problems;
  for (const std::string& text : options.problems) problems.push_back(parse_problem(text));
  if (problems.empty()) problems = default_bench_problems();
  Context context;
  context.max_workers = options.threads;
  const int num_threads = num_workers_of(context);
  Roofline roofline{cpu::measure_peak(context)};
  if (options.with_roofline) roofline.read_gbytes_per_s = cpu::measure_read_bandwidth(context);
  Table table(headings(options.with_roofline));
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
        print_json(result, roofline, num_threads);
      } else if (!result.fault.empty()) {
        std::cout << "no figure for " << result.problem << "  " << result.implementation << "  "
                  << result.fault << '\n';
      } else {
        add_row(table, result, roofline);
      }
    }
  }
  if (!options.is_json && !table.empty()) {
    table.print(std::cout);
    print_roofline(roofline, num_threads);
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
  command->add_option("--threads", options->threads, "Threads to use; 0: all")->check(at_least(0));
  command->add_option("--seconds", options->seconds, "Time to spend on an implementation, about")
      ->check(more_than_zero());
  command->add_flag("--no-plain", options->without_plain, "Leave the plain implementation out");
  command->add_flag("--roofline", options->with_roofline,
                    "Measure the read bandwidth of the memory too, and print the share of it");
  command->add_flag("--json", options->is_json, "A JSON object a line");
  command->callback([options, exit_code] { *exit_code = bench(*options); });
}

}  // namespace flashtile::cli
