// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>

#include "ops/attention/args.hpp"
#include "ops/attention/problem.hpp"

namespace flashtile {

/// Checks of the indices in a user's expressions, for calls of one problem. What its texts, options
/// and shapes say is worked out in the first call; later ones allocate nothing.
class IndexChecks {
 public:
  IndexChecks();
  ~IndexChecks();
  IndexChecks(IndexChecks&&) noexcept;
  IndexChecks& operator=(IndexChecks&&) noexcept;

  /// Throws Error where an expression reads an element that its aux tensor does not have, for a
  /// pair of a query and a key that it is asked for: a mask where causal, windows and chunks keep
  /// the pair, a score where all masks do. Tensors in host memory, everything else checked.
  ///
  /// Bounds prove most indices for whole sequences at once. What they leave open is cut into
  /// smaller and smaller blocks, and evaluated pair by pair in the end. An index or a branch that
  /// depends on the score itself is left to whoever works the score out, unless it is right for any
  /// score.
  void run(std::string_view op, const AttentionProblem& problem, const AttentionArgs& args);

 private:
  class ExprCheck;
  struct Checks;
  std::unique_ptr<Checks> checks_;
};

}  // namespace flashtile
