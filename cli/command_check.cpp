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

int check_golden(const CheckOptions& options, const Context& context) {
  CheckRun run({options.implementation, options.is_verbose}, context);
  const std::vector<std::string> paths = golden_paths(options.golden);
  Progress progress;
  for (size_t i = 0; i < paths.size(); ++i) {
    const CheckCase check_case = read_golden_case(paths[i]);
    progress.show(i, paths.size(), check_case.name);
    run.run(check_case);
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
  CheckRun all({options.implementation, options.is_verbose || !options.problems.empty()}, context);
  Progress progress;
  for (size_t i = 0; i < problems.size(); ++i) {
    ProblemText problem = with_forward_results(problems[i]);
    progress.show(i, problems.size(), format_problem(problem));
    std::string disagreement;
    const CheckCase check_case = random_case(problem, options.seed, context, &disagreement);
    progress.clear();
    if (!disagreement.empty()) {
      std::cout << "FAIL " << check_case.name << "  " << disagreement << '\n';
      has_disagreement = true;
    }
    all.run(check_case);
  }
  all.print_table();
  const bool has_passed = !all.has_failed() && !has_disagreement;
  std::cout << problems.size() << (problems.size() == 1 ? " problem" : " problems") << ", seed "
            << options.seed << ": " << (has_passed ? "PASSED" : "FAILED") << '\n';
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
      ->check(CLI::NonNegativeNumber);
  command->add_option("--impl", options->implementation, "Only this implementation");
  command->add_option("--device", options->device, "cpu, cuda or cuda:NUMBER");
  command->add_option("--threads", options->threads, "Threads to use; 0: all")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--seed", options->seed, "Seed of random inputs");
  command->add_flag("-v,--verbose", options->is_verbose, "A line for everything that is run");
  command->callback([options, exit_code] {
    Context context;
    context.max_workers = options->threads;
    context.device = parse_device(options->device);
    if (!options->golden.empty() && !options->problems.empty()) {
      throw CLI::ValidationError("check", "give problem texts or --golden, not both");
    }
    *exit_code = options->golden.empty() ? check_problems(*options, context)
                                         : check_golden(*options, context);
  });
}

}  // namespace flashtile::cli
