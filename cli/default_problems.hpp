// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "core/problem_text.hpp"

namespace flashtile::cli {

/// What `check` runs when it is given nothing: every option of every op at least once. An op that
/// is not known here is run with small sizes in each dtype.
std::vector<ProblemText> default_check_problems();

/// What `bench` runs when it is given nothing.
std::vector<ProblemText> default_bench_problems();

/// The same problem with the optional results that a backward op would read (lse).
ProblemText with_forward_results(const ProblemText& problem);

}  // namespace flashtile::cli
