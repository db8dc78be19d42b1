// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench_run.hpp"
#include "commands.hpp"
#include "core/executor.hpp"
#include "cpu/cpu_info.hpp"
#include "cpu/peak.hpp"
#include "cuda/runtime/device.hpp"
#include "cuda/runtime/driver.hpp"
#include "default_problems.hpp"
#include "device_tensors.hpp"
#include "flashtile/error.hpp"
#include "flashtile/version.hpp"
#include "terminal.hpp"

namespace flashtile::cli {
namespace {

struct BenchOptions {
  std::vector<std::string> problems;
  std::string implementation;
  std::string pass;
  std::string device = "cpu";
  int threads = 0;
  double seconds = 1;
  bool is_json = false;
  bool without_plain = false;
  bool with_roofline = false;
};

/// Where the problems run, and what it does at best: measured before them on a CPU, by its highest
/// clocks on a GPU.
struct Machine {
  int num_threads = 0;  ///< 0 on a GPU
  cpu::Peak cpu_peak;
  const cuda::DeviceInfo* gpu = nullptr;
  double read_gbytes_per_s = 0;  ///< of the memory; 0: not asked for

  double peak_gflops(DType dtype) const {
    if (gpu != nullptr) return gpu->peak_operations_per_second(dtype) / 1e9;
    return cpu::peak_gflops(cpu_peak, dtype);
  }
};

Machine measure(const Context& context, bool with_roofline) {
  Machine machine;
  if (context.device.type == DeviceType::kCuda) {
    const cuda::DeviceInfo& info = cuda::device_info(context.device.index);
    if (!info.model.fault.empty()) throw Error(ErrorCode::kUnsupported, info.model.fault);
    machine.gpu = &info;
    if (with_roofline) machine.read_gbytes_per_s = info.peak_bytes_per_second() / 1e9;
    return machine;
  }
  machine.num_threads = num_workers_of(context);
  machine.cpu_peak = cpu::measure_peak(context);
  if (with_roofline) machine.read_gbytes_per_s = cpu::measure_read_bandwidth(context);
  return machine;
}

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

/// A number, or null.
nlohmann::ordered_json json_of(const std::optional<double>& number) {
  return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json();
}

void print_json(const BenchResult& result, const Machine& machine) {
  nlohmann::ordered_json line;
  line["problem"] = result.problem;
  line["impl"] = result.implementation;
  line["op"] = result.pass;
  line["threads"] = machine.num_threads;
  if (!result.fault.empty()) {
    line["error"] = result.fault;
  } else {
    line["ms"] = result.times.median;
    line["ms_min"] = result.times.min;
    line["ms_max"] = result.times.max;
    line["samples"] = result.times.num_samples;
    line["gflops"] = result.operations ? json_of(gflops(result)) : json_of(std::nullopt);
    line["peak_gflops"] = machine.peak_gflops(result.dtype);
    line["gbytes_per_s"] = gbytes_per_second(result);
    if (machine.read_gbytes_per_s > 0) line["read_gbytes_per_s"] = machine.read_gbytes_per_s;
    line["plain_ms"] = json_of(result.plain_milliseconds);
    line["max_err"] = result.max_error;
  }
  if (machine.gpu != nullptr) {
    line["clock_mhz"] = json_of(result.clock_mhz);
    line["device"] = machine.gpu->model.name;
    line["driver"] = cuda::cuda_version_text(cuda::Driver::required().version());
  }
  line["cpu"] = cpu::cpu_info().model_name;
  line["version"] = FLASHTILE_VERSION_STRING;
  std::cout << line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
}

std::string percent_text(double share) { return number_text(100 * share) + "%"; }

void add_row(Table& table, const BenchResult& result, const Machine& machine) {
  const double rate = gflops(result);
  const double plain = result.plain_milliseconds.value_or(0);
  const double peak = machine.peak_gflops(result.dtype);
  const double bandwidth = gbytes_per_second(result);
  std::vector<std::string> row = {
      result.problem,
      result.implementation,
      result.pass,
      number_text(result.times.median),
      number_text(result.times.min) + " .. " + number_text(result.times.max),
      result.operations ? number_text(rate / 1000) : "-",
      result.operations && peak > 0 ? percent_text(rate / peak) : "-",
      number_text(bandwidth),
      result.plain_milliseconds ? number_text(plain) : "-",
      result.plain_milliseconds ? number_text(plain / result.times.median) + "x" : "-",
      number_text(result.max_error)};
  if (machine.read_gbytes_per_s > 0) {
    row.insert(row.begin() + 8, percent_text(bandwidth / machine.read_gbytes_per_s));
  }
  if (machine.gpu != nullptr)
    row.push_back(result.clock_mhz ? number_text(*result.clock_mhz) : "-");
  table.add(std::move(row));
}

std::vector<std::string> headings(const Machine& machine) {
  std::vector<std::string> names = {"problem",    "implementation", "op",       "ms",
                                    "min .. max", "TFLOP/s",        "of peak",  "GB/s",
                                    "plain ms",   "faster",         "max error"};
  if (machine.read_gbytes_per_s > 0) names.insert(names.begin() + 8, "of bandwidth");
  if (machine.gpu != nullptr) names.emplace_back("MHz");
  return names;
}

void print_machine(const Machine& machine) {
  if (machine.gpu != nullptr) {
    std::cout << machine.gpu->model.name << " at up to " << machine.gpu->clock_khz / 1000
              << " MHz; peak of 16 bits " << number_text(machine.peak_gflops(DType::kBF16) / 1000)
              << " TFLOP/s, f32 " << number_text(machine.peak_gflops(DType::kF32) / 1000)
              << " TFLOP/s";
  } else {
    std::cout << machine.num_threads << " threads; peak f32 "
              << number_text(machine.cpu_peak.f32_gflops) << " GFLOP/s";
    if (machine.cpu_peak.bf16_dot_gflops > 0) {
      std::cout << ", bf16 dot " << number_text(machine.cpu_peak.bf16_dot_gflops) << " GFLOP/s";
    }
  }
  if (machine.read_gbytes_per_s > 0) {
    std::cout << "; reads " << number_text(machine.read_gbytes_per_s) << " GB/s";
  }
  std::cout << '\n';
}

/// The implementations to time of a problem: the chosen one (an empty name), one, or all.
std::vector<std::string> implementations_of(const BenchOptions& options, const ProblemText& problem,
                                            DeviceType device) {
  if (options.implementation == "all" && problem.implementation.empty()) {
    std::vector<std::string> names = problem.spec->implementations(device);
    // The reference is not made to be fast.
    std::erase_if(names,
                  [&](const std::string& name) { return is_reference(*problem.spec, name); });
    return names;
  }
  return {asked_implementation(problem, options.implementation, device)};
}

int bench(const BenchOptions& options) {
  std::vector<ProblemText> problems;
  for (const std::string& text : options.problems) problems.push_back(parse_problem(text));
  if (problems.empty()) problems = default_bench_problems();
  Context context;
  context.max_workers = options.threads;
  context.device = parse_device(options.device);
  const Machine machine = measure(context, options.with_roofline);
  Table table(headings(machine));
  bool has_failed = false;
  Progress progress;
  for (size_t i = 0; i < problems.size(); ++i) {
    for (const std::string& implementation :
         implementations_of(options, problems[i], context.device.type)) {
      progress.show(i, problems.size(), format_problem(problems[i]));
      BenchResult result = bench_problem(problems[i], pass_of(options, problems[i]), implementation,
                                         {options.seconds, !options.without_plain}, context);
      progress.clear();
      // The text as it was given, so that whoever gave it finds it again.
      if (!options.problems.empty()) result.problem = options.problems[i];
      has_failed = has_failed || !result.fault.empty();
      if (options.is_json) {
        print_json(result, machine);
      } else if (!result.fault.empty()) {
        std::cout << "no figure for " << result.problem << "  " << result.implementation << "  "
                  << result.fault << '\n';
      } else {
        add_row(table, result, machine);
      }
    }
  }
  if (!options.is_json && !table.empty()) {
    table.print(std::cout);
    print_machine(machine);
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
  command->add_option("--device", options->device, "cpu, cuda or cuda:NUMBER");
  command->add_option("--threads", options->threads, "Threads to use; 0: all")->check(at_least(0));
  command->add_option("--seconds", options->seconds, "Time to spend on an implementation, about")
      ->check(more_than_zero());
  command->add_flag("--no-plain", options->without_plain, "Leave the plain implementation out");
  command->add_flag(
      "--roofline", options->with_roofline,
      "Print the share of the memory's read bandwidth: measured, on a GPU by its clock");
  command->add_flag("--json", options->is_json, "A JSON object a line");
  command->callback([options, exit_code] { *exit_code = bench(*options); });
}

}  // namespace flashtile::cli
