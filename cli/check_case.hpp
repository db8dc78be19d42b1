// SPDX-License-Identifier: Apache-2.0
//
// One case of `flashtile check`, from a golden file or from a problem text, and how all
// implementations do on it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "expectations.hpp"

namespace flashtile::cli {

/// One op of a case, its inputs, and what its outputs should be.
struct CheckStep {
  OwnedCall owned;
  std::vector<Expectation> expected;
};

struct CheckCase {
  std::string name;
  std::vector<CheckStep> steps;
  std::string implementation;   ///< run this one only (full name or suffix); empty: all
  std::string unsupported;      ///< why the library's tables cannot express it; empty: they can
  std::string unsupported_row;  ///< what the closing table counts such a case under
  NanRule nan_rule = NanRule::kRefused;
};

/// Counts of one implementation.
struct Tally {
  int passed = 0;
  int failed = 0;
  int unsupported = 0;
  double worst = 0;  ///< largest error as a part of what is allowed
};

/// Runs cases and keeps the counts.
class CheckRun {
 public:
  struct Settings {
    bool is_verbose = false;  ///< a line for each implementation of each case
  };
  CheckRun(Settings settings, const Context& context)
      : settings_(std::move(settings)), context_(context) {}

  /// Compiles what the cases need on a GPU, on all CPUs; does nothing on the CPU. Without it each
  /// kernel is compiled where it is first run.
  void prepare(const std::vector<CheckCase>& cases) const;

  /// Runs every implementation of every step; prints a line for each failure.
  void run(const CheckCase& check_case);

  /// Prints the closing table.
  void print_table() const;

  bool has_failed() const { return has_failed_; }
  int num_cases() const { return num_cases_; }
  /// Steps that some implementation has run, the reference included.
  int num_runs() const;
  /// Cases that nothing but the reference serves.
  int num_unserved() const { return num_unserved_; }

 private:
  /// Names of the implementations that a case wants of a step's op.
  std::vector<std::string> implementations_of(const CheckCase& check_case,
                                              const CheckStep& step) const;
  /// Returns true when an implementation other than the reference took the step.
  bool run_step(const CheckCase& check_case, const CheckStep& step);
  void report(const CheckCase& check_case, const std::string& implementation,
              const std::vector<Verdict>& verdicts, const std::string& fault);

  Settings settings_;
  Context context_;
  std::vector<std::string> order_;  ///< of implementations, as they came
  std::map<std::string, Tally> tallies_;
  bool has_failed_ = false;
  int num_cases_ = 0;
  int num_unserved_ = 0;
};

}  // namespace flashtile::cli
