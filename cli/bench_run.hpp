// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "expectations.hpp"
#include "sampler.hpp"

namespace flashtile::cli {

/// Which part of an op and its backward op is timed.
enum class BenchPass : uint8_t { kForward, kBackward, kBoth, kOther };
std::string_view pass_name(BenchPass pass);

struct BenchSettings {
  double seconds = 1;  ///< to spend on an implementation, about
  bool with_plain = true;
};

struct BenchResult {
  std::string problem;
  std::string implementation;
  std::string pass;
  DType dtype = DType::kF32;
  std::string fault;  ///< why there is no figure: the check failed, or it was refused
  Times times;
  std::optional<double> plain_milliseconds;
  std::optional<double> clock_mhz;  ///< of a device's multiprocessors while it was timed
  std::optional<double> operations;
  double bytes = 0;
  double max_error = 0;
};

/// Checks, then times: the implementation (empty: the one that the registry chooses) and the plain
/// one in turns. `problem` is one of the forward op, of the backward op, or of any other.
BenchResult bench_problem(const ProblemText& problem, BenchPass pass,
                          const std::string& implementation, const BenchSettings& settings,
                          const Context& context);

}  // namespace flashtile::cli
