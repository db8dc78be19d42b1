// SPDX-License-Identifier: Apache-2.0
#include "check_case.hpp"

#include <algorithm>
#include <iostream>

#include "compile_kernels.hpp"
#include "core/registry.hpp"
#include "terminal.hpp"

namespace flashtile::cli {

void CheckRun::report(const CheckCase& check_case, const std::string& implementation,
                      const std::vector<Verdict>& verdicts, const std::string& fault) {
  if (!fault.empty()) {
    std::cout << "FAIL " << check_case.name << "  " << implementation << "  " << fault << '\n';
  } else if (settings_.is_verbose) {
    std::cout << "ok   " << check_case.name << "  " << implementation;
    for (const Verdict& verdict : verdicts) {
      std::cout << "  " << verdict.name << " " << number_text(verdict.error) << " (allowed "
                << number_text(verdict.tolerance) << ")";
    }
    std::cout << '\n';
  }
}

std::vector<std::string> CheckRun::implementations_of(const CheckCase& check_case,
                                                      const CheckStep& step) const {
  const OpSpec& spec = step.owned.call.spec();
  const std::string& only = check_case.implementation;
  std::vector<std::string> names = spec.implementations(context_.device.type);
  std::erase_if(names, [&](const std::string& name) {
    return !only.empty() && !names_implementation(only, spec.name, name);
  });
  return names;
}

void CheckRun::prepare(const std::vector<CheckCase>& cases) const {
  if (context_.device.type != DeviceType::kCuda) return;
  std::vector<PlannedCall> calls;
  for (const CheckCase& check_case : cases) {
    for (const CheckStep& step : check_case.steps) {
      calls.push_back({step.owned.call, implementations_of(check_case, step)});
    }
  }
  compile_for(calls, context_);
}

bool CheckRun::run_step(const CheckCase& check_case, const CheckStep& step) {
  const OpSpec& spec = step.owned.call.spec();
  bool is_served = false;
  for (const std::string& implementation : spec.implementations(context_.device.type)) {
    if (std::find(order_.begin(), order_.end(), implementation) == order_.end()) {
      order_.push_back(implementation);
    }
  }
  for (const std::string& implementation : implementations_of(check_case, step)) {
    Tally& tally = tallies_[implementation];
    OwnedCall own = with_own_outputs(step.owned.call);
    run_forward_of(own.call, implementation_suffix(spec, implementation), context_);
    const RunResult result = run_forced(own.call, implementation, context_);
    if (result.is_refused) {
      ++tally.unsupported;
      if (settings_.is_verbose) {
        std::cout << "--   " << check_case.name << "  " << implementation << "  " << result.text
                  << '\n';
      }
      continue;
    }
    is_served = is_served || !is_reference(spec, implementation);
    std::vector<Verdict> verdicts;
    std::string fault = result.text;
    if (fault.empty()) {
      verdicts = judge(own.call, step.expected, check_case.nan_rule);
      fault = fault_text(verdicts);
      tally.worst = std::max(tally.worst, worst_ratio(verdicts));
    }
    ++(fault.empty() ? tally.passed : tally.failed);
    has_failed_ = has_failed_ || !fault.empty();
    report(check_case, implementation, verdicts, fault);
  }
  return is_served;
}

void CheckRun::run(const CheckCase& check_case) {
  ++num_cases_;
  bool is_served = check_case.unsupported.empty();
  if (!is_served) {
    const std::string& row = check_case.unsupported_row;
    const OpSpec* spec = find_op(row);
    const std::vector<std::string> names =
        spec == nullptr ? std::vector<std::string>{row} : spec->implementations();
    for (const std::string& name : names) {
      if (std::find(order_.begin(), order_.end(), name) == order_.end()) order_.push_back(name);
      ++tallies_[name].unsupported;
    }
    if (settings_.is_verbose) {
      std::cout << "--   " << check_case.name << "  " << check_case.unsupported << '\n';
    }
  }
  for (const CheckStep& step : check_case.steps) {
    is_served = run_step(check_case, step) && is_served;
  }
  if (!is_served) ++num_unserved_;
}

int CheckRun::num_runs() const {
  int count = 0;
  for (const auto& [name, tally] : tallies_) count += tally.passed + tally.failed;
  return count;
}

void CheckRun::print_table() const {
  Table table({"implementation", "passed", "failed", "unsupported", "largest error / allowed"});
  for (const std::string& name : order_) {
    const auto found = tallies_.find(name);
    if (found == tallies_.end()) continue;
    const Tally& tally = found->second;
    table.add({name, std::to_string(tally.passed), std::to_string(tally.failed),
               std::to_string(tally.unsupported),
               tally.passed + tally.failed > 0 ? number_text(tally.worst, 2) : "-"});
  }
  table.print(std::cout);
}

}  // namespace flashtile::cli
