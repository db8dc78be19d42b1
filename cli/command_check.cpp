// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <memory>

#include "commands.hpp"
#include "default_problems.hpp"
#include "device_tensors.hpp"
#include "golden_case.hpp"
#include "terminal.hpp"

namespace flashtile::cli {
namespace {

struct CheckOptions {
  std::vector<std::string> problems;
  std::string golden;
  std::string implementation;
  std::string device = "cpu";
  int max_unsupported = 0;
  int threads = 0;
  uint64_t seed = 1;
  bool is_verbose = false;
};

/// A problem text as a case: random inputs, what the reference makes of them.
CheckCase random_case(const ProblemText& problem, uint64_t seed, const Context& context,
                      std::string* disagreement) {
  CheckCase result;
  result.name = format_problem(problem);
  CheckStep step{random_call(problem, seed), {}};
  run_forward_of(step.owned.call, implementation_suffix(*problem.spec, reference_of(*problem.spec)),
                 context);
  step.expected = reference_expectations(step.owned.call, context, disagreement);
  result.steps.push_back(std::move(step));
  return result;
}

/// Golden files name their ops themselves: the name must be one of any op.
void check_golden_implementation(const std::string& name, DeviceType device) {
  if (name.empty()) return;
  for (const OpSpec* spec : all_ops()) {
    if (has_implementation(*spec, name, device)) return;
  }
  throw CLI::ValidationError("check", "no op has an implementation '" + name + "'");
}

int check_golden(const CheckOptions& options, const Context& context) {
  check_golden_implementation(options.implementation, context.device.type);
  CheckRun run({options.is_verbose}, context);
  const std::vector<std::string> paths = golden_paths(options.golden);
  std::vector<CheckCase> cases;
  for (const std::string& path : paths) {
    cases.push_back(read_golden_case(path));
    cases.back().implementation = options.implementation;
  }
  run.prepare(cases);
  Progress progress;
  for (size_t i = 0; i < cases.size(); ++i) {
    progress.show(i, cases.size(), cases[i].name);
    run.run(cases[i]);
  }
  progress.clear();
  run.print_table();
  const int num_unserved = run.num_unserved();
  const bool is_over = num_unserved > options.max_unsupported;
  std::cout << run.num_cases() << (run.num_cases() == 1 ? " case" : " cases");
  if (num_unserved == 0) {
    std::cout << ", each of them run by a kernel, not by the reference alone";
  } else {
    std::cout << ", " << num_unserved << " of them run by no kernel, at most "
              << options.max_unsupported << " expected";
  }
  const bool has_passed = !run.has_failed() && !is_over;
  std::cout << ": " << (has_passed ? "PASSED" : "FAILED") << '\n';
  return has_passed ? 0 : 1;
}

int check_problems(const CheckOptions& options, const Context& context) {
  std::vector<ProblemText> problems;
  for (const std::string& text : options.problems) problems.push_back(parse_problem(text));
  if (problems.empty()) problems = default_check_problems();
  bool has_disagreement = false;
  std::vector<std::string> implementations;
  for (const ProblemText& problem : problems) {
    implementations.push_back(
        asked_implementation(problem, options.implementation, context.device.type));
  }
  CheckRun all({options.is_verbose || !options.problems.empty()}, context);
  Progress progress;
  std::vector<CheckCase> cases;
  for (size_t i = 0; i < problems.size(); ++i) {
    const ProblemText problem = with_forward_results(problems[i]);
    progress.show(i, problems.size(), format_problem(problem));
    std::string disagreement;
    cases.push_back(random_case(problem, options.seed, context, &disagreement));
    cases.back().implementation = implementations[i];
    progress.clear();
    if (!disagreement.empty()) {
      std::cout << "FAIL " << cases.back().name << "  " << disagreement << '\n';
      has_disagreement = true;
    }
  }
  all.prepare(cases);
  for (const CheckCase& check_case : cases) all.run(check_case);
  all.print_table();
  const bool has_passed = !all.has_failed() && !has_disagreement && all.num_runs() > 0;
  std::cout << problems.size() << (problems.size() == 1 ? " problem" : " problems") << ", seed "
            << options.seed << (all.num_runs() == 0 ? ", none of them run" : "") << ": "
            << (has_passed ? "PASSED" : "FAILED") << '\n';
  return has_passed ? 0 : 1;
}

}  // namespace

void add_check_command(CLI::App& app, int* exit_code) {
  const auto options = std::make_shared<CheckOptions>();
  CLI::App* command = app.add_subcommand(
      "check",
      "Compares every implementation with the reference, or with a folder of golden files");
  command->add_option("problem", options->problems,
                      "Problem texts, such as attention_fwd:b2:hq8:hkv2:sq129:d64:causal:bf16; "
                      "without any, a set of all options");
  command->add_option("--golden", options->golden, "Run every file of this folder instead");
  command
      ->add_option("--max-unsupported", options->max_unsupported,
                   "Golden cases that may be run by no kernel, only by the reference or not at all")
      ->check(at_least(0));
  command->add_option("--impl", options->implementation, "Only this implementation");
  command->add_option("--device", options->device, "cpu, cuda or cuda:NUMBER");
  command->add_option("--threads", options->threads, "Threads to use; 0: all")->check(at_least(0));
  command->add_option("--seed", options->seed, "Seed of random inputs");
  command->add_flag("-v,--verbose", options->is_verbose, "A line for everything that is run");
  command->callback([options, exit_code, command] {
    Context context;
    context.max_workers = options->threads;
    context.device = parse_device(options->device);
    if (!options->golden.empty() && !options->problems.empty()) {
      throw CLI::ValidationError("check", "give problem texts or --golden, not both");
    }
    if (options->golden.empty() && command->count("--max-unsupported") > 0) {
      throw CLI::ValidationError("check", "--max-unsupported goes with --golden");
    }
    if (!options->golden.empty() && command->count("--seed") > 0) {
      throw CLI::ValidationError("check", "--seed is for random inputs, not for golden files");
    }
    *exit_code = options->golden.empty() ? check_problems(*options, context)
                                         : check_golden(*options, context);
  });
}

}  // namespace flashtile::cli
